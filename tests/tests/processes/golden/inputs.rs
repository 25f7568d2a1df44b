//! Data of the golden runs. It is generated from seeds, so that every test run has the same bytes.

use std::fmt::Write;

use feedline_tests::Scratch;

/// A tokenizer with one id for each letter.
const TOKENIZER_TAIL: &str = r#"}, "unk_token": "[UNK]"}}"#;

/// A module of Python functions.
const FUNCTIONS: &str = "
def double(batch):
    return {\"double\": [2 * number for number in batch[\"id\"]]}

def draw(batch, rngs):
    return {\"drawn\": [int(rng.integers(1 << 40)) for rng in rngs]}

def even(batch):
    return batch[\"id\"] % 2 == 0
";

/// All data sets of the runs on generated data.
pub(crate) fn generate(scratch: &Scratch) {
    generate_tables(scratch);
    for format in ["jsonl", "csv", "parquet", "arrow", "tfrecord", "webdataset", "text"] {
        let name = format!("text-{format}");
        scratch.make_data(
            "text",
            &name,
            &["--format", format, "--rows", "500", "--shards", "3", "--seed", "4"],
        );
    }
    for format in ["tfrecord", "webdataset", "parquet", "arrow", "files"] {
        let name = format!("images-{format}");
        let small = ["--format", format, "--rows", "40", "--seed", "5", "--size", "120", "160"];
        scratch.make_data("images", &name, &small);
    }
    scratch.make_data("images", "large", &["--format", "tfrecord", "--rows", "24", "--seed", "6"]);
    write_broken_images(scratch);
    write_lists(scratch);
    write_mix(scratch);
    write_numbers(scratch);
    write_tokenizer(scratch);
}

/// A table in every tabular format.
pub(crate) fn generate_tables(scratch: &Scratch) {
    for format in ["jsonl", "csv", "parquet", "arrow", "tfrecord"] {
        let name = format!("table-{format}");
        scratch.make_data(
            "table",
            &name,
            &["--format", format, "--rows", "1003", "--shards", "5", "--seed", "2"],
        );
    }
}

/// The module `golden_functions`.
pub(crate) fn write_functions(scratch: &Scratch) {
    scratch.write("golden_functions.py", FUNCTIONS);
}

/// A `tokenizer.json` that splits text into letters.
pub(crate) fn write_tokenizer(scratch: &Scratch) {
    let mut text = String::from(
        r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false}, "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "vocab": {"[UNK]": 0"#,
    );
    for (id, letter) in (1..).zip(('a'..='z').chain('A'..='Z').chain([' ', '.', ','])) {
        write!(text, r#", "{letter}": {id}"#).expect("text grows");
    }
    scratch.write("tokenizer.json", &(text + TOKENIZER_TAIL));
}

/// Writes image files. Two of them cannot be decoded.
fn write_broken_images(scratch: &Scratch) {
    scratch.make_data(
        "images",
        "broken",
        &["--format", "files", "--rows", "12", "--seed", "7", "--size", "64", "64"],
    );
    let folder = scratch.path().join("broken");
    let entries = std::fs::read_dir(&folder).expect("make-data made it");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("it is readable").path()).collect();
    files.sort();
    let bytes = std::fs::read(&files[3]).expect("it was written");
    std::fs::write(&files[3], &bytes[..100]).expect("it is writable");
    std::fs::write(&files[8], "no image").expect("it is writable");
}

/// Rows with lists of 1 to 40 numbers.
fn write_lists(scratch: &Scratch) {
    let mut state = 1_u64;
    for shard in 0..4 {
        let mut text = String::new();
        for row in (shard..900).step_by(4) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let length = 1 + (state >> 33) as usize % 40;
            let tokens = vec![row.to_string(); length].join(",");
            writeln!(text, "{{\"id\":{row},\"tokens\":[{tokens}]}}").expect("text grows");
        }
        scratch.write(&format!("lists-{shard}.jsonl"), &text);
    }
}

/// Two data sets with one column: 300 lines of text and 100 JSON objects.
fn write_mix(scratch: &Scratch) {
    let lines: Vec<String> = (0..300).map(|row| format!("a {row}")).collect();
    scratch.write("mix-a.txt", &lines.join("\n"));
    let lines: Vec<String> = (0..100).map(|row| format!("{{\"body\": \"b {row}\"}}")).collect();
    scratch.write("mix-b.jsonl", &lines.join("\n"));
}

/// Writes numbers as text. Some values are not numbers.
fn write_numbers(scratch: &Scratch) {
    let mut text = String::new();
    for row in 0..300 {
        let number = if row % 37 == 5 { "many".to_owned() } else { (row * 7).to_string() };
        writeln!(text, "{{\"id\": {row}, \"number\": \"{number}\"}}").expect("text grows");
    }
    scratch.write("numbers.jsonl", &text);
}
