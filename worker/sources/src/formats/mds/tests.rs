//! Tests of MDS. `make_mds.py` wrote `testdata/mds` with MosaicML Streaming, and the rows that the library reads.

use feedline_data::pipeline::Format;
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::Dataset;
use crate::testing::{
    JsonRows, copied, dataset, expected_json, hex, path, png_pixels, read_json, testdata, unhex,
    write_settled,
};

fn mds(folder: &str) -> Dataset {
    dataset(&[folder], Format::Mds, &[])
}

async fn committed(name: &str) -> JsonRows {
    read_json(&mds(testdata(&format!("mds/{name}")).to_str().unwrap())).await.unwrap()
}

async fn error_of(folder: &TempDir) -> String {
    read_json(&mds(folder.path().to_str().unwrap())).await.err().expect("the dataset is damaged").to_string()
}

/// Changes the text of `index.json`.
fn edit_index(folder: &TempDir, from: &str, to: &str) {
    let file = folder.path().join("index.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(file, text.replace(from, to)).unwrap();
}

/// Replaces images by what the script wrote about them.
fn comparable(column: &str, value: Value) -> Value {
    let digest = |image: &Value| json!(hex(&Sha256::digest(unhex(image.as_str().unwrap()))));
    let pixels = |image: &Value| json!(hex(&png_pixels(&unhex(image.as_str().unwrap()))));
    let of_list = |of: &dyn Fn(&Value) -> Value| match value.as_array() {
        Some(images) => images.iter().map(of).collect(),
        None => of(&value),
    };
    match column {
        "jpeg" | "png" | "jpeg_array" | "list_jpeg" | "list_png" => json!({ "stored": of_list(&digest) }),
        "list_pil" => of_list(&pixels),
        _ if column.starts_with("pil") => of_list(&pixels),
        _ => value,
    }
}

#[tokio::test]
async fn a_directory_may_contain_another_one_of_the_source() {
    let folder = copied("mds/hashed");
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    for name in ["index.json", "shard.00000.mds", "shard.00001.mds"] {
        std::fs::copy(folder.path().join(name), inner.join(name)).unwrap();
    }
    // The files of the outer index are in the inner directory.
    for number in 0..2 {
        let name = format!("shard.0000{number}.mds");
        std::fs::rename(folder.path().join(&name), inner.join(format!("outer.{number}.mds"))).unwrap();
        edit_index(&folder, &name, &format!("inner/outer.{number}.mds"));
    }
    let (outer, inner) = (folder.path().to_str().unwrap(), inner.to_str().unwrap());
    let found = read_json(&dataset(&[outer, inner], Format::Mds, &[])).await.unwrap();
    let rows = committed("hashed").await.rows;
    assert_eq!(found.rows, [rows.clone(), rows].concat());
}

#[tokio::test]
async fn a_directory_that_is_listed_twice_is_read_twice() {
    let rows = committed("hashed").await.rows;
    let folder = tempfile::tempdir().unwrap();
    let named = folder.path().join("[a]{b,c}");
    std::fs::rename(copied("mds/hashed").keep(), &named).unwrap();
    let root = named.to_str().unwrap();
    let index = format!("{root}/index.json");
    for urls in [[root, root], [root, index.as_str()]] {
        let found = read_json(&dataset(&urls, Format::Mds, &[])).await.unwrap();
        assert_eq!(found.rows, [rows.clone(), rows.clone()].concat());
    }
    let inner = named.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let index = std::fs::read_to_string(&index).unwrap();
    std::fs::write(named.join("index.json"), index.replace("\"shard.0", "\"inner/shard.0")).unwrap();
    std::fs::write(inner.join("index.json"), index).unwrap();
    for number in 0..2 {
        let name = format!("shard.0000{number}.mds");
        std::fs::rename(named.join(&name), inner.join(name)).unwrap();
    }
    let overlapping = dataset(&[root, inner.to_str().unwrap()], Format::Mds, &[]);
    let error = overlapping.list().await.unwrap_err().to_string();
    assert!(error.contains("select it: remove one of them"), "{error}");
}

#[tokio::test]
async fn only_the_files_of_the_index_must_be_readable() {
    let folder = copied("mds/hashed");
    let rows = committed("hashed").await.rows;
    std::os::unix::fs::symlink("gone", folder.path().join("other")).unwrap();
    std::fs::write(folder.path().join("line\nend"), "x").unwrap();
    let found = read_json(&mds(folder.path().to_str().unwrap())).await.unwrap();
    assert_eq!(found.rows, rows);
    let file = folder.path().join("shard.00001.mds");
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("gone", &file).unwrap();
    let error = error_of(&folder).await;
    assert!(error.contains("the symbolic link leads to `gone`, which does not exist"), "{error}");
}

#[tokio::test]
async fn every_encoding_is_read_as_the_library_reads_it() {
    let found = committed("all").await;
    assert_eq!(found.failures, []);
    let expected = expected_json("mds/expected.json")["all"].as_array().unwrap().clone();
    assert_eq!(found.rows.len(), expected.len());
    for (found, expected) in found.rows.into_iter().zip(expected) {
        let (Value::Object(found), Value::Object(expected)) = (found, expected) else {
            panic!("rows are objects")
        };
        assert_eq!(found.len(), expected.len());
        for (column, value) in found {
            assert_eq!(comparable(&column, value), expected[&column], "{column}");
        }
    }
    for column in [
        "array: list of list of uint16",
        "array_typed: list of list of list of int32",
        "array_fixed: int16 tensor [2, 3]",
        "array_flat: list of float32",
        "float16: float16",
        "list_pil: list of bytes",
        "str_decimal: text",
    ] {
        assert!(found.columns.contains(column), "{column} in {}", found.columns);
    }
}

#[tokio::test]
async fn compressed_and_hashed_shards_have_the_rows_of_the_library() {
    let expected = &expected_json("mds/expected.json")["small"];
    for name in ["zstd", "zstd7", "gz", "gz1", "bz2", "br", "snappy", "hashed"] {
        let found = committed(name).await;
        assert_eq!((&Value::Array(found.rows), found.failures), (expected, vec![]), "{name}");
        assert_eq!(found.columns, "array: list of int16, id: int64, text: text", "{name}");
    }
}

#[tokio::test]
async fn streams_and_columns_are_selected_and_raw_files_replace_compressed_ones() {
    let folders = ["mds/hashed", "mds/zstd/", "mds/gz/index.json"]
        .map(|name| testdata(name).to_str().unwrap().to_owned());
    let urls: Vec<&str> = folders.iter().map(String::as_str).collect();
    let all = read_json(&dataset(&urls, Format::Mds, &[("label", "id")])).await.unwrap();
    assert_eq!((all.rows.len(), all.columns.as_str()), (120, "label: int64"));
    assert_eq!(all.rows[41], json!({ "label": 1 }));
    let braces = path(&testdata("mds"), "{zstd,gz}");
    assert_eq!(read_json(&mds(&braces)).await.unwrap().rows.len(), 80);
    // MosaicML Streaming may have decompressed the shards and removed the compressed files.
    let folder = copied("mds/zstd");
    for number in 0..2 {
        let raw = folder.path().join(format!("shard.0000{number}.mds"));
        let packed = raw.with_extension("mds.zstd");
        std::fs::write(raw, zstd::decode_all(std::fs::File::open(&packed).unwrap()).unwrap()).unwrap();
        std::fs::remove_file(packed).unwrap();
    }
    assert_eq!(read_json(&mds(folder.path().to_str().unwrap())).await.unwrap().rows.len(), 40);
}

#[tokio::test]
async fn pickled_columns_are_rejected_unless_they_are_not_selected() {
    let folder = testdata("mds/pickled");
    let folder = folder.to_str().unwrap();
    let error = read_json(&mds(folder)).await.err().unwrap().to_string();
    assert!(error.contains("column `object`") && error.contains("never unpickles"), "{error}");
    let found = read_json(&dataset(&[folder], Format::Mds, &[("id", "id")])).await.unwrap();
    assert_eq!(found.rows, [json!({ "id": 1 })]);
}

#[tokio::test]
async fn an_index_that_does_not_match_its_files_is_one_sentence() {
    let cases: [(&str, &str, &str, &str); 6] = [
        ("hashed", "\"samples\": ", "\"samples\": 1", "but the index expects"),
        ("hashed", "\"bytes\": 1", "\"bytes\": 2", "bytes long, but the index expects"),
        ("hashed", "\"sha1\": \"", "\"sha1\": \"0", "the sha1 hash of the file differs"),
        ("zstd", "\"samples\": ", "\"samples\": 1", "but the index expects"),
        ("hashed", "shard.00001", "../shard.00001", "is not a path in the directory"),
        ("hashed", "shard.00001", "shard.00009", "does not exist: copy the whole directory"),
    ];
    for (name, from, to, reason) in cases {
        let folder = copied(&format!("mds/{name}"));
        edit_index(&folder, from, to);
        let error = error_of(&folder).await;
        assert!(error.contains(reason) && !error.contains('\n'), "{name}, {to}: {error}");
    }
    let folder = copied("mds/gz");
    edit_index(&folder, "\"gz\"", "\"lzo\"");
    assert!(error_of(&folder).await.contains("compression `lzo` is unknown"));
    let missing = tempfile::tempdir().unwrap();
    assert!(error_of(&missing).await.contains("has no `index.json`"));
    let error = read_json(&mds("/tmp/*/mds")).await.err().unwrap().to_string();
    assert!(error.contains("reads whole directories"), "{error}");
}

#[tokio::test]
async fn damage_and_truncation_of_shards_are_detected() {
    for name in ["hashed", "zstd", "snappy", "br"] {
        let folder = copied(&format!("mds/{name}"));
        let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        let file = files.filter(|file| !file.ends_with("index.json")).max().unwrap();
        let whole = std::fs::read(&file).unwrap();
        for at in (0..whole.len()).step_by(13) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            write_settled(&file, &damaged);
            let error = error_of(&folder).await;
            assert!(error.contains("hash of the file differs"), "{name}: {error}");
            write_settled(&file, &whole[..at]);
            assert!(error_of(&folder).await.contains("but the index expects"));
        }
    }
}

/// A directory with one shard, and its index without hashes.
fn directory(shard: &[u8], samples: usize, columns: &[(&str, &str, Option<u32>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.mds"), shard).unwrap();
    let index = json!({ "version": 2, "shards": [{
        "version": 2, "format": "mds", "samples": samples, "compression": null, "zip_data": null,
        "column_names": columns.iter().map(|column| column.0).collect::<Vec<_>>(),
        "column_encodings": columns.iter().map(|column| column.1).collect::<Vec<_>>(),
        "column_sizes": columns.iter().map(|column| column.2).collect::<Vec<_>>(),
        "raw_data": { "basename": "a.mds", "bytes": shard.len(), "hashes": {} },
    }] });
    std::fs::write(folder.path().join("index.json"), index.to_string()).unwrap();
    folder
}

/// A shard as MosaicML Streaming writes it.
fn shard(samples: &[Vec<u8>], config: &[u8]) -> Vec<u8> {
    let mut end = 4 * (samples.len() + 2) + config.len();
    let mut head = (samples.len() as u32).to_le_bytes().to_vec();
    head.extend((end as u32).to_le_bytes());
    for sample in samples {
        end += sample.len();
        head.extend((end as u32).to_le_bytes());
    }
    [head, config.to_vec(), samples.concat()].concat()
}

#[tokio::test]
async fn a_bad_value_fails_its_row_only() {
    let sample = |text: &[u8]| [&(text.len() as u32).to_le_bytes(), text].concat();
    let samples = [sample(b"12"), sample(b"x"), sample(b"-3"), b"\x09\0\0\0".to_vec()];
    let folder = directory(&shard(&samples[..3], b"{}"), 3, &[("a", "str_int", None)]);
    let found = read_json(&mds(folder.path().to_str().unwrap())).await.unwrap();
    assert_eq!(found.rows, [json!({ "a": 12 }), json!({ "a": null }), json!({ "a": -3 })]);
    assert_eq!(found.failures.len(), 1);
    assert!(
        found.failures[0].reason.contains("column `a`: the text is not an integer"),
        "{:?}",
        found.failures
    );
    let folder = directory(&shard(&samples, b"{}"), 4, &[("a", "str_int", None)]);
    assert!(error_of(&folder).await.contains("exceed the sample"));
}

/// A sample with one value of variable size.
fn sized_sample(parts: &[&[u8]]) -> Vec<u8> {
    let value = parts.concat();
    [&(value.len() as u32).to_le_bytes(), value.as_slice()].concat()
}

#[tokio::test]
async fn an_array_of_another_dtype_fails_its_row_or_is_widened() {
    // The dtype, one axis with one byte, and its extent.
    let samples = [
        sized_sample(&[&[33, 4, 1], &1_i32.to_le_bytes()]),
        sized_sample(&[&[66, 4, 2], &2.5_f64.to_le_bytes(), &1e10_f64.to_le_bytes()]),
        sized_sample(&[&[17, 4, 2], &3_i16.to_le_bytes(), &(-4_i16).to_le_bytes()]),
    ];
    let folder = directory(&shard(&samples, b"{}"), 3, &[("a", "ndarray", None)]);
    // The rows are also read one by one, so that each of them is the first value of a read.
    let found = read_json(&mds(folder.path().to_str().unwrap())).await.unwrap();
    assert_eq!(found.columns, "a: list of int32");
    assert_eq!(found.rows, [json!({ "a": [1] }), json!({ "a": null }), json!({ "a": [3, -4] })]);
    let reasons: Vec<&str> = found.failures.iter().map(|failure| failure.reason.as_str()).collect();
    assert_eq!(reasons, ["column `a`: the value has the dtype float64, but the column is list of int32"]);
}

#[tokio::test]
async fn numbers_of_one_directory_and_arrays_of_another_are_lists() {
    let numbers = [5_i64.to_le_bytes().to_vec(), (-6_i64).to_le_bytes().to_vec()];
    let numbers = directory(&shard(&numbers, b"{}"), 2, &[("a", "int", Some(8))]);
    let arrays = [sized_sample(&[&[4, 2], &1_i64.to_le_bytes(), &2_i64.to_le_bytes()])];
    let arrays = directory(&shard(&arrays, b"{}"), 1, &[("a", "ndarray:int64", None)]);
    // `read_json` reads all shards with the columns of the first one, which are also those of the dataset.
    let urls = [arrays.path().to_str().unwrap(), numbers.path().to_str().unwrap()];
    let found = read_json(&dataset(&urls, Format::Mds, &[])).await.unwrap();
    assert_eq!(found.columns, "a: list of int64");
    assert_eq!(found.rows, [json!({ "a": [1, 2] }), json!({ "a": [5] }), json!({ "a": [-6] })]);
    assert_eq!(found.failures, []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn rows_are_those_of_a_plain_reader(
        sizes in prop::collection::vec(0_usize..30_000, 1..30),
        config in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let samples: Vec<Vec<u8>> = sizes
            .iter()
            .enumerate()
            .map(|(row, size)| [&(*size as u32).to_le_bytes(), &(row as i64).to_le_bytes()[..], &vec![row as u8; *size]].concat())
            .collect();
        let folder = directory(&shard(&samples, &config), samples.len(), &[("a", "int", Some(8)), ("b", "bytes", None)]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(read_json(&mds(folder.path().to_str().unwrap()))).unwrap();
        for (row, (found, size)) in found.rows.iter().zip(&sizes).enumerate() {
            prop_assert_eq!(found, &json!({ "a": row, "b": format!("{row:02x}").repeat(*size) }));
        }
        prop_assert_eq!(found.rows.len(), sizes.len());
    }

    #[test]
    fn damage_never_panics(flips in prop::collection::vec((0_usize..6_000, any::<u8>()), 1..6), cut in 0_usize..6_000) {
        let mut bytes = std::fs::read(testdata("mds/all/shard.00000.mds")).unwrap();
        bytes.truncate(bytes.len() - cut % 40);
        let length = bytes.len();
        flips.iter().for_each(|(at, mask)| bytes[at % length] ^= mask);
        let folder = copied("mds/all");
        std::fs::write(folder.path().join("shard.00000.mds"), &bytes).unwrap();
        let whole = std::fs::metadata(testdata("mds/all/shard.00000.mds")).unwrap().len();
        edit_index(&folder, &format!("\"bytes\": {whole}"), &format!("\"bytes\": {length}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        drop(runtime.block_on(read_json(&mds(folder.path().to_str().unwrap()))));
    }
}
