//! A worker stays within its memory budget with fast and with slow consumers.

use std::fs;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryBuilder, Int64Array, RecordBatch};
use feedline_tests::http::{metric, try_metric};
use feedline_tests::process::Role;
use feedline_tests::{Scratch, assert_clean, compress, data, wait_for};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use tempfile::TempDir;

/// Memory outside the budget and the code: stacks, decoders, transport.
const BESIDE_BYTES: u64 = 128 << 20;

/// A coordinator and a worker, whose memory is measured.
struct MeasuredCluster {
    coordinator: Role,
    worker: Role,
    _directory: TempDir,
}

impl MeasuredCluster {
    /// Starts a worker with two cores and this budget.
    fn start(scratch: &Scratch, budget: &str) -> Self {
        let directory = tempfile::tempdir_in(scratch.path()).expect("a directory can be made");
        let data = directory.path().to_str().expect("temporary paths are text");
        let coordinator = Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", data], &[]);
        let url = coordinator.url();
        let mut worker = vec!["worker", "--coordinator", &url, "--listen", "127.0.0.1:0"];
        worker.extend(["--cores", "2", "--memory", budget]);
        let worker = Role::start(&worker, &[]);
        Self { coordinator, worker, _directory: directory }
    }

    /// Returns the peak resident bytes of the worker so far, without code.
    fn peak(&self) -> u64 {
        status_bytes(self.worker.id(), "VmHWM:") - code_bytes(self.worker.id())
    }
}

/// Returns the peak resident bytes, without code, of a worker with this budget that runs a pipeline file.
fn peak(scratch: &Scratch, file: &str, budget: &str, arguments: &[&str]) -> u64 {
    let cluster = MeasuredCluster::start(scratch, budget);
    let url = cluster.coordinator.url();
    let report = scratch.run(file, &[&["--coordinator", &url], arguments].concat());
    assert_clean(&report);
    let peak = report["peak_rss_bytes"]["workers"][0].as_u64().expect("the worker reports its peak");
    peak - code_bytes(cluster.worker.id())
}

/// Returns the resident bytes of a process's code, which is twice as large in a test build.
fn code_bytes(process: u32) -> u64 {
    status_bytes(process, "RssFile:")
}

/// Returns a size in the status of a process; 0 without the field.
fn status_bytes(process: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let kib =
        status.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse().ok());
    kib.map_or(0, |kib: u64| kib << 10)
}

/// Writes repeated photographs, or generated ones, as shards of a format.
fn make_photos(scratch: &Scratch, format: &str, rows: &str) {
    let photos = data::photographs("the memory test runs on generated images instead, since it");
    let photos = photos.map(|path| path.to_str().expect("the path is text").to_owned());
    let mut arguments = vec!["--format", format, "--shards", "4", "--rows", rows];
    if let Some(photos) = &photos {
        arguments.extend(["--from", photos]);
    }
    scratch.make_data("images", format, &arguments);
}

fn photo_job(scratch: &Scratch, format: &str, features: &str, batch: u32) -> String {
    let text = format!(
        "name: photos
source: {{ url: \"{}/*\", format: {format}{features} }}
shuffle: {{ window: 4096 }}
operators:
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: {batch} }}
",
        scratch.file(format)
    );
    scratch.write(&format!("{format}.yaml"), &text)
}

#[test]
fn peak_memory_stays_under_the_budget_for_fast_and_slow_consumers() {
    let scratch = Scratch::new();
    make_photos(&scratch, "tfrecord", "400");
    let file = photo_job(&scratch, "tfrecord", ", features: { image: image/encoded }", 128);
    for (budget, budget_bytes) in [("64MiB", 64u64 << 20), ("192MiB", 192 << 20)] {
        for (step_ms, slots) in [("0", "1"), ("300", "1"), ("300", "8")] {
            let arguments = ["--epochs", "3", "--step-ms", step_ms, "--virtual-consumers", slots];
            let peak = peak(&scratch, &file, budget, &arguments);
            eprintln!("budget {budget}, {step_ms} ms a step, {slots} slots: peak {} MiB", peak >> 20);
            assert!(peak < budget_bytes + BESIDE_BYTES, "budget {budget}: peak {} MiB", peak >> 20);
        }
    }
}

/// A group of a shuffled job reads rows of every block in its window. A worker reads most blocks again for each group, so one epoch
/// reads many times as many bytes as the budget has.
#[test]
fn peak_memory_stays_under_the_budget_with_whole_block_reads() {
    let scratch = Scratch::new();
    make_photos(&scratch, "parquet", "1600");
    scratch.make_data("table", "jsonl", &["--format", "jsonl", "--rows", "200000", "--shards", "4"]);
    let table = format!(
        "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\nshuffle: {{ window: 100000 }}\noperators: [ batch: {{ size: 5000 }} ]",
        scratch.file("jsonl")
    );
    let files = [photo_job(&scratch, "parquet", "", 16), scratch.write("table.yaml", &table)];
    for file in files {
        let peak = peak(&scratch, &file, "64MiB", &[]);
        eprintln!("budget 64 MiB, {file}: peak {} MiB", peak >> 20);
        assert!(peak < (64 << 20) + BESIDE_BYTES, "{file}: peak {} MiB", peak >> 20);
    }
}

/// Writes rows of 4 KiB as one row group without a page index and without compression.
fn make_row_group(path: &str, rows: usize) {
    let mut state = 1_u64;
    let mut payload = BinaryBuilder::with_capacity(rows, rows * 4096);
    for _ in 0..rows {
        let mut value = Vec::with_capacity(4096);
        while value.len() < 4096 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            value.extend_from_slice(&state.to_le_bytes());
        }
        payload.append_value(value);
    }
    let batch = RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef),
        ("payload", Arc::new(payload.finish())),
    ]);
    let batch = batch.expect("the columns have the same length");
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(None)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .build();
    let file = fs::File::create(path).expect("the scratch directory is writable");
    let mut writer =
        ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("the types are supported");
    writer.write(&batch).expect("the disk has room");
    writer.close().expect("the disk has room");
}

/// The row group has several times as many bytes as the budget.
#[test]
fn peak_memory_stays_under_the_budget_with_a_large_row_group() {
    const ROWS: usize = 60_000;
    let scratch = Scratch::new();
    let data = scratch.file("group.parquet");
    make_row_group(&data, ROWS);
    for shuffle in ["", "seed: 1\nshuffle: { window: 4096 }\n"] {
        let text = format!(
            "name: group\nsource: {{ url: \"{data}\", format: parquet }}\n{shuffle}operators: [ batch: {{ size: 256 }} ]\n"
        );
        let peak = peak(&scratch, &scratch.write("group.yaml", &text), "64MiB", &[]);
        eprintln!("budget 64 MiB, one row group: peak {} MiB", peak >> 20);
        assert!(peak < (64 << 20) + BESIDE_BYTES, "{text}: peak {} MiB", peak >> 20);
    }
}

/// The content of a bomb is 12 times this size. Each part is a gzip member, zstd frame, xz stream or bzip2 stream.
const PART_BYTES: usize = 20 << 20;
const PARTS: usize = 12;
const ROW_BYTES: usize = 100 << 10;
const MAX_BOMB_BYTES: usize = 4 << 20;

type Compress = fn(&[u8]) -> Vec<u8>;

/// A file with rows of 100 KiB.
fn bomb_of_rows(format: &str, compress: Compress) -> Vec<u8> {
    let body = vec![b'z'; ROW_BYTES];
    // The checksum of a record takes long.
    let record = (format == "tfrecord").then(|| {
        let example = [&example_header(ROW_BYTES)[..], &body].concat();
        [&record_header(example.len())[..], &example, &masked_crc(&example)].concat()
    });
    let row = |row: usize| match format {
        "webdataset" => [&tar_header(&format!("{row:05}.txt"), ROW_BYTES)[..], &body].concat(),
        "jsonl" => [&b"{\"t\": \""[..], &body, b"\"}\n"].concat(),
        "tfrecord" => record.clone().expect("the record is computed"),
        _ => [&body[..], b"\n"].concat(),
    };
    let part: Vec<u8> = (0..PART_BYTES / ROW_BYTES).flat_map(row).collect();
    let start: &[u8] = if format == "csv" { b"t\n" } else { b"" };
    let end: &[u8] = match format {
        "webdataset" => &[0; 1024],
        "jsonl" => b"{\"t\": \"last\"}\n",
        "tfrecord" => b"",
        _ => b"last\n",
    };
    [compress(start), compress(&part).repeat(PARTS), compress(end)].concat()
}

/// A file with a row that is larger than the memory.
fn bomb_of_one_row(format: &str, compress: Compress) -> Vec<u8> {
    let start = match format {
        "webdataset" => tar_header("row.txt", PARTS * PART_BYTES),
        "jsonl" => b"{\"t\": \"first\"}\n{\"t\": \"".to_vec(),
        "tfrecord" => {
            let example = example_header(PARTS * PART_BYTES);
            [record_header(example.len() + PARTS * PART_BYTES), example].concat()
        }
        _ => b"first\n".to_vec(),
    };
    let part = vec![b'z'; PART_BYTES];
    let end: &[u8] = match format {
        "webdataset" => &[0; 1024],
        "jsonl" => b"\"}\n",
        _ => b"\nlast\n",
    };
    [compress(&start), compress(&part).repeat(PARTS), compress(end)].concat()
}

/// Returns the length and its checksum before a record.
fn record_header(bytes: usize) -> Vec<u8> {
    let length = (bytes as u64).to_le_bytes();
    [&length[..], &masked_crc(&length)].concat()
}

/// Returns the masked CRC-32C of TFRecord files.
fn masked_crc(data: &[u8]) -> [u8; 4] {
    let step = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    let crc = !data.iter().fold(!0, add);
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Returns the bytes of a `tf.train.Example` before the only value, which has this size.
fn example_header(bytes: usize) -> Vec<u8> {
    // BytesList, Feature, an entry of the map with its key, Features and Example.
    let fields: [&[u8]; 5] = [b"\x0a", b"\x0a", b"\x0a\x01t\x12", b"\x0a", b"\x0a"];
    let mut header = Vec::new();
    for field in fields {
        let mut length = bytes + header.len();
        let mut start = field.to_vec();
        while length >= 0x80 {
            start.push(length as u8 | 0x80);
            length >>= 7;
        }
        start.push(length as u8);
        header = [start, header].concat();
    }
    header
}

/// Returns the header of a file in an archive.
fn tar_header(name: &str, bytes: usize) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..135].copy_from_slice(format!("{bytes:011o}").as_bytes());
    header[156] = b'0';
    header[257..263].copy_from_slice(b"ustar\0");
    header[148..156].fill(b' ');
    let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

#[test]
fn peak_memory_stays_under_the_budget_with_decompression_bombs() {
    let gzip: Compress = |content| compress::gzip(content, 6);
    let codecs: [(&str, &str, Compress); 8] = [
        ("txt.gz", "text", gzip),
        ("txt.zst", "text", compress::zstd_run),
        ("tar.xz", "webdataset", compress::xz),
        ("tar.bz2", "webdataset", compress::bzip2),
        ("tfrecord", "tfrecord", compress::zlib),
        ("tar.zst", "webdataset", compress::zstd_run),
        ("jsonl.gz", "jsonl", gzip),
        ("csv.zst", "csv", compress::zstd_run),
    ];
    let scratch = Scratch::new();
    fs::create_dir(scratch.file("data")).expect("the scratch directory is writable");
    for (ending, format, compress) in codecs {
        // The end of lines has another row.
        let has_last = !["webdataset", "tfrecord"].contains(&format);
        let rows = PARTS * (PART_BYTES / ROW_BYTES) + usize::from(has_last);
        for (kind, bomb) in
            [("rows", bomb_of_rows(format, compress)), ("one-row", bomb_of_one_row(format, compress))]
        {
            let name = format!("{kind}.{ending}");
            assert!(bomb.len() < MAX_BOMB_BYTES, "{name} has {} bytes", bomb.len());
            fs::write(scratch.file(&format!("data/{name}")), bomb).expect("the file is writable");
            let text = format!(
                "name: bomb\nsource: {{ url: \"{}\", format: {format} }}\noperators: [ batch: {{ size: 4 }} ]\n",
                scratch.file(&format!("data/{name}"))
            );
            let file = scratch.write("bomb.yaml", &text);
            let cluster = MeasuredCluster::start(&scratch, "64MiB");
            let url = cluster.coordinator.url();
            let call = scratch.call(&["run", &file, "--report", "json", "--audit", "--coordinator", &url]);
            let peak = cluster.peak();
            eprintln!("budget 64 MiB, {name}: peak {} MiB", peak >> 20);
            if kind == "rows" {
                let report = call.report();
                assert_clean(&report);
                assert_eq!(report["rows"], rows, "{name}");
            } else {
                assert_eq!(call.status, 1, "{name}: {}", call.stderr);
                assert!(call.stderr.contains("raise the workers' --memory"), "{name}: {}", call.stderr);
            }
            assert!(peak < (64 << 20) + BESIDE_BYTES, "{name}: peak {} MiB", peak >> 20);
        }
    }
}

#[test]
fn memory_of_ended_jobs_is_released() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "40000"]);
    let arguments = "up --listen 127.0.0.1:0 --workers 1 --http 127.0.0.1:0 --memory 32MiB";
    let up = Role::start(&arguments.split(' ').collect::<Vec<_>>(), &[]);
    let mut used = Vec::new();
    for job in 0..10 {
        let text = format!(
            "name: job-{job}\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 100 }} ]",
            scratch.file("table")
        );
        let report = scratch.run(&scratch.write("job.yaml", &text), &["--coordinator", &up.url()]);
        assert_eq!(report["rows"], 40000);
        used.push(metric(up.http(), "feedline_worker_memory_used_bytes"));
    }
    assert!(used.iter().all(|&bytes| bytes <= f64::from(32 << 20)), "{used:?}");
}

#[test]
fn a_percentage_sets_the_memory_budget() {
    let budget = |memory: &str| {
        let flags =
            ["up", "--listen", "127.0.0.1:0", "--workers", "1", "--http", "127.0.0.1:0", "--memory", memory];
        let up = Role::start(&flags, &[]);
        let read = || try_metric(up.http(), "feedline_worker_memory_budget_bytes");
        wait_for("the first report of the worker", read)
    };
    let (all, third) = (budget("99%"), budget("33%"));
    assert!((third / all - 1.0 / 3.0).abs() < 1e-6, "33 %: {third}, 99 %: {all}");
    let call = feedline_tests::call(&["up", "--memory", "170%"]);
    assert_eq!(call.status, 2, "{}", call.stderr);
    for part in ["'170%'", "--memory", "from 1% to 100%"] {
        assert!(call.stderr.contains(part), "{}", call.stderr);
    }
}
