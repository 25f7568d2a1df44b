//! Data in different encodings and compressions produces the same batches.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use feedline_tests::{Scratch, assert_clean, compress};

fn columnar(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/sources/testdata/columnar").join(name)
}

#[test]
fn parquet_files_of_two_versions_and_codecs_deliver_the_same_rows() {
    let scratch = Scratch::new();
    let mut digests = Vec::new();
    for (format, name) in
        [("parquet", "spark_snappy_int96_legacy.parquet"), ("parquet", "spark_lz4_v2.parquet")]
    {
        let url = columnar(name);
        let text = format!(
            "
name: columnar
source:
  url: {}
  format: {format}
  features: {{ id: id, day: day, price: dec, role: chat.role, key: map.key }}
seed: 3
operators:
  - batch: {{ size: 2 }}
",
            url.display()
        );
        let report = scratch.run(&scratch.write(&format!("{name}.yaml"), &text), &[]);
        assert_clean(&report);
        assert_eq!(report["rows"], 5);
        digests.push(report["content_digest"].clone());
    }
    assert_eq!(digests[0], digests[1]);
}

/// Compresses each file of a directory into another directory.
fn compress_all(from: &str, to: &str, compress: fn(&[u8]) -> Vec<u8>) {
    fs::create_dir(to).expect("the scratch directory is writable");
    for entry in fs::read_dir(from).expect("the directory exists") {
        let entry = entry.expect("the directory is readable");
        let content = fs::read(entry.path()).expect("the file is readable");
        fs::write(Path::new(to).join(entry.file_name()), compress(&content)).expect("the file is writable");
    }
}

#[test]
fn zstd_bzip2_and_xz_files_of_every_format_deliver_the_rows_of_the_plain_files() {
    let scratch = Scratch::new();
    type Compress = fn(&[u8]) -> Vec<u8>;
    let codecs: [(&str, Compress); 5] = [
        ("zstd", compress::zstd_frames),
        ("run", compress::zstd_run),
        ("bzip2", compress::bzip2),
        ("xz", compress::xz),
        ("xz-blocks", compress::xz_blocks),
    ];
    for (format, kind, rows) in [
        ("jsonl", "table", "30000"),
        ("csv", "table", "3000"),
        ("text", "text", "4000"),
        ("tfrecord", "images", "60"),
        ("webdataset", "images", "60"),
    ] {
        scratch.make_data(kind, format, &["--format", format, "--rows", rows, "--seed", "2"]);
        let run = |folder: &str| {
            let text = format!(
                "name: job\nsource: {{ url: \"{}/*\", format: {format} }}\nseed: 3\nshuffle: {{ window: 300 }}\n\
                 operators: [ batch: {{ size: 50 }} ]\n",
                scratch.file(folder)
            );
            let report = scratch.run(&scratch.write("job.yaml", &text), &["--workers", "2"]);
            assert_clean(&report);
            report["content_digest"].clone()
        };
        let plain = run(format);
        for (codec, compress) in codecs {
            let folder = format!("{format}-{codec}");
            compress_all(&scratch.file(format), &scratch.file(&folder), compress);
            assert_eq!(run(&folder), plain, "{folder}");
        }
    }
}

#[test]
fn files_that_need_too_much_memory_are_one_sentence() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.file("data")).expect("the scratch directory is writable");
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("memory suffices");
    encoder.window_log(28).expect("zstd supports this window");
    encoder.write_all(b"{\"a\": 1}\n").expect("memory is writable");
    let file = encoder.finish().expect("memory is writable");
    fs::write(scratch.file("data/a.jsonl.zst"), file).expect("the file is writable");
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 50 }} ]\n",
        scratch.file("data")
    );
    let failed = scratch.call(&["run", &scratch.write("job.yaml", &text)]);
    assert_ne!(failed.status, 0);
    let message = "the window of the zstd frame is 268435456 bytes, more than the limit of 134217728 bytes";
    assert!(failed.stderr.contains("a.jsonl.zst") && failed.stderr.contains(message), "{}", failed.stderr);
}

#[test]
fn a_zstd_frame_with_a_wrong_content_size_is_one_sentence() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.file("data")).expect("the scratch directory is writable");
    let content = b"{\"a\": 1}\n".repeat(10);
    let mut file = compress::zstd_run(&content);
    // The header of a single segment with less than 256 bytes has a byte for the content size (RFC 8878, section 3.1.1.1).
    assert_eq!((file[4] >> 5, usize::from(file[5])), (1, content.len()));
    let size = file[5];
    for wrong in [size - 1, size + 1] {
        file[5] = wrong;
        fs::write(scratch.file("data/a.jsonl.zst"), &file).expect("the file is writable");
        let text = format!(
            "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 50 }} ]\n",
            scratch.file("data")
        );
        let pipeline = scratch.write("job.yaml", &text);
        for command in ["run", "index"] {
            let failed = scratch.call(&[command, &pipeline]);
            assert_eq!(failed.status, 1, "{command}: {}", failed.stderr);
            let sentences: Vec<&str> =
                failed.stderr.lines().filter(|line| line.contains("the zstd data is damaged")).collect();
            let [sentence] = sentences.as_slice() else { panic!("{command}: {}", failed.stderr) };
            assert!(
                sentence.contains("a.jsonl.zst") && sentence.contains("compress the file again"),
                "{sentence}"
            );
        }
    }
}
