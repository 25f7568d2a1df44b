//! Directories and files of other libraries deliver the same rows as JSON lines. The scripts in `worker/sources/src/formats/testdata`
//! wrote them.

use std::path::PathBuf;

use feedline_tests::{Scratch, assert_clean};
use serde_json::{Value, json};

fn testdata(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../worker/sources/src/formats/testdata").join(path)
}

fn expected(format: &str, key: &str) -> Vec<Value> {
    let text =
        std::fs::read_to_string(testdata(format).join("expected.json")).expect("the file is committed");
    let all: Value = serde_json::from_str(&text).expect("the file is JSON");
    all[key].as_array().expect("the rows are a list").clone()
}

/// Runs a pipeline with two workers over a source.
fn run(scratch: &Scratch, name: &str, url: &str, format: &str, features: &[(&str, &str)]) -> Value {
    let features: Vec<String> =
        features.iter().map(|(column, name)| format!("{column}: \"{name}\"")).collect();
    let text = format!(
        "
name: {name}
source: {{ url: \"{url}\", format: {format}, features: {{ {} }} }}
seed: 5
shuffle: {{ window: 16 }}
operators: [ batch: {{ size: 8 }} ]
",
        features.join(", ")
    );
    let report = scratch.run(&scratch.write(&format!("{name}.yaml"), &text), &["--workers", "2"]);
    assert_clean(&report);
    report
}

/// Runs a pipeline over the expected rows as JSON lines.
fn run_lines(scratch: &Scratch, name: &str, rows: &[Value], features: &[(&str, &str)]) -> Value {
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let file = scratch.write(&format!("{name}.jsonl"), &lines);
    run(scratch, &format!("{name}-lines"), &file, "jsonl", features)
}

#[test]
fn mosaicml_shards_of_every_compression_deliver_the_expected_rows() {
    let scratch = Scratch::new();
    let features = [("id", "id"), ("text", "text")];
    let lines = run_lines(&scratch, "mds", &expected("mds", "small"), &features);
    for name in ["hashed", "zstd", "gz1", "bz2", "br", "snappy"] {
        let folder = testdata(&format!("mds/{name}"));
        let report = run(&scratch, name, folder.to_str().expect("the path is text"), "mds", &features);
        assert_eq!(report["rows"], 40, "{name}");
        assert_eq!(report["content_digest"], lines["content_digest"], "{name}");
    }
}

#[test]
fn litdata_chunks_of_every_storage_deliver_the_expected_rows() {
    let scratch = Scratch::new();
    let features = [("id", "0"), ("text", "1")];
    let lines = run_lines(&scratch, "litdata", &expected("litdata", "small"), &features);
    for name in ["plain", "chunk", "batch", "sample"] {
        let folder = testdata(&format!("litdata/{name}"));
        let report = run(&scratch, name, folder.to_str().expect("the path is text"), "litdata", &features);
        assert_eq!(report["content_digest"], lines["content_digest"], "{name}");
    }
}

#[test]
fn array_records_and_numpy_archives_deliver_the_expected_rows() {
    let scratch = Scratch::new();
    let examples: Vec<Value> = (0..30).map(|row| json!({ "id": row })).collect();
    let lines = run_lines(&scratch, "examples", &examples, &[("id", "id")]);
    let packed = std::fs::File::open(testdata("arrayrecord/examples.gz")).expect("the file is committed");
    let file = scratch.path().join("examples.arrayrecord");
    let mut out = std::fs::File::create(&file).expect("the scratch directory is writable");
    std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut out).expect("the file is complete");
    let report =
        run(&scratch, "array", file.to_str().expect("the path is text"), "arrayrecord", &[("id", "id")]);
    assert_eq!(report["content_digest"], lines["content_digest"]);

    let lines = run_lines(&scratch, "npz", &expected("npz", "stored"), &[("a", "i8")]);
    for name in ["stored", "deflated", "zip64"] {
        let file = testdata(&format!("npz/{name}.npz"));
        let report = run(&scratch, name, file.to_str().expect("the path is text"), "npz", &[("a", "i8")]);
        assert_eq!(
            (&report["content_digest"], &report["rows"]),
            (&lines["content_digest"], &json!(7)),
            "{name}"
        );
    }
}

#[test]
fn a_json_array_delivers_the_rows_of_json_lines() {
    let scratch = Scratch::new();
    let rows: Vec<Value> = (0..50).map(|row| json!({ "id": row, "text": format!("[{row}],") })).collect();
    let features = [("id", "id"), ("text", "text")];
    let lines = run_lines(&scratch, "objects", &rows, &features);
    for (name, text) in [
        ("pretty", serde_json::to_string_pretty(&rows).expect("the rows are JSON")),
        ("one-line", serde_json::to_string(&rows).expect("the rows are JSON")),
    ] {
        let file = scratch.write(&format!("{name}.json"), &text);
        let report = run(&scratch, name, &file, "jsonl", &features);
        assert_eq!(report["content_digest"], lines["content_digest"], "{name}");
    }
}

#[test]
fn an_index_that_does_not_match_its_files_is_one_sentence() {
    let scratch = Scratch::new();
    for (format, file) in [("mds", "mds/hashed/index.json"), ("litdata", "litdata/plain/index.json")] {
        let folder = scratch.path().join(format);
        std::fs::create_dir(&folder).expect("the scratch directory is writable");
        std::fs::copy(testdata(file), folder.join("index.json")).expect("the scratch directory is writable");
        let text = format!(
            "name: a\nsource: {{ url: \"{}\", format: {format} }}\noperators: [ batch: {{ size: 2 }} ]\n",
            scratch.file(format)
        );
        let call = scratch.call(&["run", &scratch.write(&format!("{format}.yaml"), &text)]);
        assert_eq!(call.status, 1, "{}", call.stderr);
        assert!(call.stderr.contains("does not exist: copy the whole directory"), "{}", call.stderr);
    }
}
