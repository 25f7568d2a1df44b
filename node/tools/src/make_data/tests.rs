//! Writes small datasets of every kind and format, and reads them with independent readers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema, SchemaRef};
use clap::{Parser, ValueEnum};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use super::*;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    args: MakeDataArgs,
}

/// Runs the command with these arguments. `OUT` and `IN` are replaced by directories in `root`.
fn run_line(root: &TempDir, line: &str) -> Result<Vec<PathBuf>> {
    let out = root.path().join("out");
    let path_of = |word: &str| match word {
        "OUT" => out.to_string_lossy().into_owned(),
        "IN" => root.path().join("in").to_string_lossy().into_owned(),
        word => word.to_owned(),
    };
    let words = std::iter::once("make-data".to_owned()).chain(line.split(' ').map(path_of));
    make(&CommandLine::try_parse_from(words).unwrap().args)?;
    Ok(list(&out))
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn names(files: &[PathBuf]) -> Vec<&str> {
    files.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect()
}

fn error_of(root: &TempDir, line: &str) -> String {
    format!("{:#}", run_line(root, line).unwrap_err())
}

/// Writes files into the directory `IN`.
fn input(root: &TempDir, files: &[(&str, &str)]) {
    for (name, content) in files {
        let path = root.path().join("in").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

const PHOTOS: [(&str, &str); 3] =
    [("cat_2.JPEG", "second cat"), ("bird_9.png", "a bird"), ("cat_1.jpg", "first cat")];

/// Returns (image, label, filename) of each row.
fn image_rows(batch: &RecordBatch) -> Vec<(Vec<u8>, i64, String)> {
    (0..batch.num_rows())
        .map(|row| {
            (
                batch["image"].as_binary::<i32>().value(row).to_vec(),
                batch["label"].as_primitive::<Int64Type>().value(row),
                batch["filename"].as_string::<i32>().value(row).to_owned(),
            )
        })
        .collect()
}

fn read_parquet(path: &Path) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let schema = builder.schema().clone();
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(|batch| batch.unwrap()).collect();
    concat_batches(&schema, &batches).unwrap()
}

fn read_arrow(path: &Path) -> RecordBatch {
    let reader = arrow::ipc::reader::FileReader::try_new(File::open(path).unwrap(), None).unwrap();
    let schema = reader.schema();
    let batches: Vec<RecordBatch> = reader.map(|batch| batch.unwrap()).collect();
    concat_batches(&schema, &batches).unwrap()
}

/// Reads the records of a TFRecord file and checks both checksums.
fn read_records(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut records) = (0, Vec::new());
    while at < file.len() {
        let length = u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        let data = &file[at + 12..at + 12 + length];
        assert_eq!(word(at + 8), tfrecord::masked_crc(&file[at..at + 8]));
        assert_eq!(word(at + 12 + length), tfrecord::masked_crc(data));
        records.push(data.to_vec());
        at += 16 + length;
    }
    records
}

/// Parses the length-delimited fields of a protobuf message.
fn fields(mut message: &[u8]) -> Vec<(u8, &[u8])> {
    let mut fields = Vec::new();
    while let [key, rest @ ..] = message {
        assert_eq!(key & 7, 2, "only length-delimited fields are written");
        let (mut length, mut rest) = (0, rest);
        for shift in (0..).step_by(7) {
            length |= usize::from(rest[0] & 0x7F) << shift;
            let last = rest[0] & 0x80 == 0;
            rest = &rest[1..];
            if last {
                break;
            }
        }
        fields.push((key >> 3, &rest[..length]));
        message = &rest[length..];
    }
    fields
}

/// Parses a `tf.train.Example`: feature name -> (field number of the list, its only value).
fn features(example: &[u8]) -> BTreeMap<String, (u8, Vec<u8>)> {
    let [(1, features)] = fields(example)[..] else { panic!("no features") };
    let entry = |entry| {
        let [(1, name), (2, feature)] = fields(entry)[..] else { panic!("no map entry") };
        let [(kind, list)] = fields(feature)[..] else { panic!("no single list") };
        let [(1, value)] = fields(list)[..] else { panic!("no single value") };
        (String::from_utf8(name.to_vec()).unwrap(), (kind, value.to_vec()))
    };
    fields(features).into_iter().map(|(_, content)| entry(content)).collect()
}

/// Reads (name, content) of a tar file's members and checks the header checksums.
fn read_tar(path: &Path) -> Vec<(String, Vec<u8>)> {
    let file = fs::read(path).unwrap();
    assert_eq!(file.len() % 512, 0);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim_matches(['\0', ' ']).to_owned();
    let octal = |bytes: &[u8]| usize::from_str_radix(&text(bytes), 8).unwrap();
    let (mut at, mut members) = (0, Vec::new());
    while file[at] != 0 {
        let header = &file[at..at + 512];
        let sum: usize =
            (0..512).map(|i| if (148..156).contains(&i) { 32 } else { usize::from(header[i]) }).sum();
        assert_eq!(sum, octal(&header[148..156]));
        let size = octal(&header[124..136]);
        members.push((text(&header[..100]), file[at + 512..at + 512 + size].to_vec()));
        at += 512 + size.next_multiple_of(512);
    }
    assert!(file[at..].iter().all(|byte| *byte == 0) && file.len() - at >= 1024);
    members
}

#[test]
fn generated_photographs_have_the_size_and_shape_of_photographs() {
    let mut bytes = 0;
    for row in 0..20 {
        let jpeg = photo::jpeg(1, row, None).unwrap();
        let frame = jpeg.windows(2).position(|marker| marker == [0xFF, 0xC0]).expect("a baseline frame");
        let side = |at: usize| u16::from_be_bytes([jpeg[frame + at], jpeg[frame + at + 1]]);
        let (height, width) = (side(5), side(7));
        assert!(matches!((height, width), (500, 333..=400) | (333..=400, 500)), "{height} x {width}");
        assert_eq!((jpeg[frame + 9], jpeg[frame + 11]), (3, 0x22), "three components, 4:2:0");
        assert!((35_000..140_000).contains(&jpeg.len()), "{} bytes", jpeg.len());
        bytes += jpeg.len();
    }
    assert!((60_000..110_000).contains(&(bytes / 20)), "{} bytes on average", bytes / 20);
}

#[test]
fn the_same_seed_generates_the_same_bytes() {
    for kind in
        ["images OUT --size 32 40 --format tfrecord", "text OUT --format jsonl", "table OUT --format csv"]
    {
        let content = |seed: u64| {
            let root = TempDir::new().unwrap();
            let files = run_line(&root, &format!("{kind} --rows 150 --shards 2 --seed {seed}")).unwrap();
            files.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(content(7), content(7), "{kind}");
        assert_ne!(content(7), content(8), "{kind}");
    }
}

#[test]
fn packed_images_keep_their_bytes_order_and_classes() {
    let rows: Vec<(Vec<u8>, i64, String)> =
        [("bird_9.png", "a bird", 0), ("cat_1.jpg", "first cat", 1), ("cat_2.JPEG", "second cat", 1)]
            .into_iter()
            .cycle()
            .take(5)
            .map(|(name, content, label)| (content.into(), label, name.into()))
            .collect();
    for format in ["parquet", "arrow"] {
        let root = TempDir::new().unwrap();
        input(&root, &PHOTOS);
        let files =
            run_line(&root, &format!("images OUT --from IN --rows 5 --shards 2 --format {format}")).unwrap();
        let expected = [format!("images-00000-of-00002.{format}"), format!("images-00001-of-00002.{format}")];
        assert_eq!(names(&files), expected);
        let read = if format == "arrow" { read_arrow } else { read_parquet };
        let made: Vec<_> = files.iter().flat_map(|path| image_rows(&read(path))).collect();
        assert_eq!(made, rows, "{format}");
    }
}

#[test]
fn subfolders_are_classes() {
    let root = TempDir::new().unwrap();
    input(&root, &[("b/1.jpg", "x"), ("a/2.jpg", "y"), ("b/0.jpg", "z"), ("b/notes.txt", "no image")]);
    let files = run_line(&root, "images OUT --from IN --shards 1 --format arrow").unwrap();
    let rows = image_rows(&read_arrow(&files[0]));
    let rows: Vec<_> = rows.iter().map(|(_, label, name)| (*label, name.as_str())).collect();
    assert_eq!(rows, [(0, "a/2.jpg"), (1, "b/0.jpg"), (1, "b/1.jpg")]);
}

#[test]
fn tfrecord_images_have_the_features_of_imagenet() {
    let root = TempDir::new().unwrap();
    input(&root, &PHOTOS);
    let files = run_line(&root, "images OUT --from IN --shards 1 --format tfrecord").unwrap();
    let records = read_records(&files[0]);
    assert_eq!(records.len(), 3);
    let expected = [
        ("image/class/label", (3, vec![1])),
        ("image/encoded", (1, b"first cat".to_vec())),
        ("image/filename", (1, b"cat_1.jpg".to_vec())),
    ];
    assert_eq!(features(&records[1]), expected.map(|(name, value)| (name.to_owned(), value)).into());
}

#[test]
fn webdataset_images_are_members_in_row_order() {
    let root = TempDir::new().unwrap();
    input(&root, &PHOTOS);
    let files = run_line(&root, "images OUT --from IN --shards 2 --format webdataset").unwrap();
    assert_eq!(names(&files), ["images-00000-of-00002.tar", "images-00001-of-00002.tar"]);
    let members: Vec<_> = files.iter().flat_map(|path| read_tar(path)).collect();
    let expected = [
        ("000000000.png", "a bird"),
        ("000000000.cls", "0"),
        ("000000001.jpg", "first cat"),
        ("000000001.cls", "1"),
        ("000000002.jpg", "second cat"),
        ("000000002.cls", "1"),
    ];
    assert_eq!(members, expected.map(|(name, content)| (name.to_owned(), content.into())));
}

#[test]
fn image_files_sort_in_row_order() {
    let root = TempDir::new().unwrap();
    input(&root, &PHOTOS);
    let files = run_line(&root, "images OUT --from IN --format files").unwrap();
    assert_eq!(names(&files), ["000000.png", "000001.jpg", "000002.jpg"]);
    assert_eq!(fs::read(&files[2]).unwrap(), b"second cat");
}

#[test]
fn row_groups_of_images_stay_small() {
    let root = TempDir::new().unwrap();
    let photo = "x".repeat(5 << 20);
    input(&root, &[("a.jpg", &photo), ("b.jpg", &photo), ("c.jpg", &photo), ("d.jpg", &photo)]);
    let files = run_line(&root, "images OUT --from IN --rows 7 --shards 1 --format parquet").unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&files[0]).unwrap()).unwrap();
    let groups: Vec<i64> = builder.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(groups, [3, 3, 1]);
    assert_eq!(image_rows(&read_parquet(&files[0])).len(), 7);
}

#[test]
fn every_format_contains_the_same_text() {
    let pairs = [("A dog.", "Ein Hund."), ("A \"red\", old car", "Ein \"rotes\", altes Auto"), ("", "ä")];
    let en = pairs.map(|pair| format!("{}\n", pair.0)).concat();
    let de = pairs.map(|pair| format!("{}\n", pair.1)).concat();
    let expected: Vec<Vec<String>> = pairs.iter().map(|pair| vec![pair.0.into(), pair.1.into()]).collect();
    for format in ["jsonl", "csv", "parquet", "arrow", "tfrecord", "webdataset", "text"] {
        let root = TempDir::new().unwrap();
        input(
            &root,
            &[("multi.train.en", &en), ("multi.train.de", &de), ("multi.val.en", "x"), ("multi.val.de", "y")],
        );
        let files = run_line(&root, &format!("text OUT --from IN --shards 1 --format {format}")).unwrap();
        if format == "text" {
            assert_eq!(names(&files), ["text-00000-of-00001.txt"]);
            assert_eq!(fs::read_to_string(&files[0]).unwrap(), en);
            continue;
        }
        assert_eq!(text_rows(&files[0], format), expected, "{format}");
    }
}

/// Reads the values of `en` and `de` in a file.
fn text_rows(path: &Path, format: &str) -> Vec<Vec<String>> {
    let utf8 = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let columns = |batch: RecordBatch| {
        let value = |name: &str, row| batch[name].as_string::<i32>().value(row).to_owned();
        (0..batch.num_rows()).map(|row| vec![value("en", row), value("de", row)]).collect()
    };
    match format {
        "jsonl" => fs::read_to_string(path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|row| ["en", "de"].map(|name| row[name].as_str().unwrap().to_owned()).into())
            .collect(),
        "csv" => {
            let file = File::open(path).unwrap();
            // CSV does not distinguish an empty text from null.
            let column = |name| Field::new(name, DataType::Utf8, true);
            let schema = SchemaRef::new(Schema::new(vec![column("en"), column("de")]));
            let reader =
                arrow::csv::ReaderBuilder::new(schema.clone()).with_header(true).build(file).unwrap();
            let batches: Vec<RecordBatch> = reader.map(|batch| batch.unwrap()).collect();
            columns(concat_batches(&schema, &batches).unwrap())
        }
        "parquet" => columns(read_parquet(path)),
        "arrow" => columns(read_arrow(path)),
        "tfrecord" => read_records(path)
            .iter()
            .map(|record| features(record))
            .map(|features| ["en", "de"].map(|name| utf8(&features[name].1)).into())
            .collect(),
        _ => read_tar(path).chunks(2).map(|row| row.iter().map(|(_, text)| utf8(text)).collect()).collect(),
    }
}

#[test]
fn tables_keep_their_types() {
    let root = TempDir::new().unwrap();
    let files = run_line(&root, "table OUT --rows 10000 --shards 3 --format parquet").unwrap();
    let shards: Vec<RecordBatch> = files.iter().map(|path| read_parquet(path)).collect();
    assert_eq!(shards.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [3333, 3333, 3334]);
    let types: Vec<_> = shards[0].schema().fields().iter().map(|field| field.data_type().clone()).collect();
    let utf8 = DataType::Utf8;
    assert_eq!(types, [DataType::Int64, DataType::Int64, DataType::Float64, utf8.clone(), utf8]);
    assert_eq!(shards[2]["id"].as_primitive::<Int64Type>().value(0), 6666);
    let values = shards[0]["value"].as_primitive::<Float64Type>();
    assert!(values.values().iter().all(|value| (-1.0..1.0).contains(value)));
}

#[test]
fn table_numbers_in_examples_are_int64_and_float() {
    let root = TempDir::new().unwrap();
    let files = run_line(&root, "table OUT --rows 300 --shards 1 --format tfrecord").unwrap();
    let last = features(&read_records(&files[0])[299]);
    assert_eq!(last["id"], (3, vec![0xAB, 0x02]), "299 as a varint");
    assert_eq!((last["value"].0, last["value"].1.len()), (2, 4));
}

#[test]
fn a_folder_that_is_not_empty_is_rejected_without_force() {
    let root = TempDir::new().unwrap();
    run_line(&root, "table OUT --rows 9 --format csv").unwrap();
    let out = root.path().join("out");
    let message = error_of(&root, "table OUT --rows 9 --format jsonl");
    assert_eq!(
        message,
        format!(
            "{} is not empty: choose another directory, or pass --force to replace the files that make-data wrote",
            out.display()
        )
    );
    fs::write(out.join("notes.txt"), "mine").unwrap();
    let files = run_line(&root, "table OUT --rows 9 --shards 1 --format jsonl --force").unwrap();
    assert_eq!(names(&files), ["notes.txt", "table-00000-of-00001.jsonl"]);
}

#[test]
fn contradicting_flags_are_rejected() {
    let root = TempDir::new().unwrap();
    input(&root, &[("a.en", "1\n2"), ("a.de", "1"), ("readme", "no image")]);
    let place = root.path().join("in").display().to_string();
    for (line, expected) in [
        (
            "images OUT --rows 3 --format csv",
            "images cannot be written as csv: choose one of tfrecord, webdataset, files, parquet, arrow",
        ),
        (
            "images OUT --rows 3 --format files --shards 2",
            "--shards cannot be used with --format files, which writes one file per row: remove --shards",
        ),
        ("table OUT --format csv", "--rows is missing: specify the number of rows to generate"),
        (
            "table OUT --rows 3 --format csv --from IN",
            "--from cannot be used with `table`: remove --from, or choose images or text",
        ),
        ("table OUT --rows 3 --format csv --shards 4", "cannot divide 3 rows into 4 shards: lower --shards"),
        ("graph OUT --format csv", "graph cannot be written as csv: choose one of parquet, npy"),
        (
            "graph OUT --format npy --rows 3",
            "--rows, --from, --shards and --size cannot be used with `graph`: use --nodes and --edges",
        ),
        (
            "table OUT --rows 3 --format csv --nodes 5",
            "the flags under `Graphs` cannot be used with `table`: remove them, or choose `graph`",
        ),
        (
            "images OUT --from IN --format tfrecord",
            "the directory IN contains no images: expected files that end in jpg, jpeg, png, webp",
        ),
        (
            "text OUT --from IN --format csv",
            "IN/a.de has 1 lines, but IN/a.en has 2: parallel files need the same number of lines",
        ),
    ] {
        assert_eq!(error_of(&root, line).replace(&place, "IN"), expected);
        assert!(!root.path().join("out").exists(), "no directory is created for: {line}");
    }
}

#[test]
fn a_graph_replaces_the_files_of_another_graph() {
    let root = TempDir::new().unwrap();
    let graph = "graph OUT --nodes 50 --edges 90";
    let files = run_line(&root, &format!("{graph} --format npy --weights")).unwrap();
    assert_eq!(names(&files), ["edges.npy", "train.npy", "weight.npy", "y.npy"]);
    assert!(error_of(&root, &format!("{graph} --format parquet")).contains("is not empty"));
    let files = run_line(&root, &format!("{graph} --format parquet --force")).unwrap();
    assert_eq!(names(&files), ["edges.parquet", "train.npy", "y.npy"]);
}

#[test]
fn an_output_path_that_is_a_file_is_rejected() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("out"), "").unwrap();
    let message = error_of(&root, "table OUT --rows 3 --format csv");
    assert!(message.ends_with("out: it is not a directory"), "{message}");
}

/// A full disk must fail the command in every format, even if the bytes reach the disk late.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_in_every_format() {
    for format in FileFormat::value_variants() {
        if matches!(format, FileFormat::Files | FileFormat::Npy) {
            continue;
        }
        let mut rows = text::GeneratedText::new(10, 0);
        let batch = rows.read(0..10).unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let written = writer::open_shard(*format, std::io::BufWriter::new(full), &rows.schema(), 0).and_then(
            |mut writer| {
                writer.write(&batch)?;
                writer.finish()
            },
        );
        let message = format!("{:#}", written.unwrap_err());
        assert!(message.contains("No space left"), "{}: {message}", value_name(format));
    }
}
