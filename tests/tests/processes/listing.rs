//! Runs over shards that are listed several times, and over folders and archives with unusual entries.

use std::os::unix::fs::symlink;

use feedline_tests::{Scratch, assert_clean};
use serde_json::Value;

/// Lines with ids from `first`.
fn lines(first: u64, count: u64) -> String {
    (first..first + count).map(|id| format!("{{\"id\": {id}}}\n")).collect()
}

fn pipeline(scratch: &Scratch, name: &str, urls: &[&str], format: &str, on_error: &str) -> String {
    let urls: Vec<String> = urls.iter().map(|url| format!("\"{}\"", scratch.file(url))).collect();
    let text = format!(
        "
name: {name}
source: {{ url: [{}], format: {format} }}
seed: 5
on_error: {on_error}
shuffle: {{ window: 64 }}
operators:
  - cache: {{ tier: memory }}
  - batch: {{ size: 16 }}
",
        urls.join(", ")
    );
    scratch.write(&format!("{name}.yaml"), &text)
}

#[test]
fn a_shard_that_is_listed_twice_is_read_twice() {
    let scratch = Scratch::new();
    for (name, first) in [("a.jsonl", 0), ("copy.jsonl", 0), ("b.jsonl", 1_000)] {
        scratch.write(name, &lines(first, 300));
    }
    let run = |name: &str, urls: &[&str]| {
        let file = pipeline(&scratch, name, urls, "jsonl", "fail");
        let report = scratch.run(&file, &["--workers", "2", "--epochs", "2"]);
        assert_clean(&report);
        report
    };
    let twice = run("twice", &["a.jsonl", "a.jsonl", "b.jsonl"]);
    let copied = run("copied", &["a.jsonl", "copy.jsonl", "b.jsonl"]);
    assert_eq!(twice["rows"], 2 * 900);
    assert_eq!(twice["content_digest"], copied["content_digest"]);
    assert_eq!(twice["digest"], copied["digest"]);
}

#[test]
fn entries_that_cannot_be_read_are_named() {
    let scratch = Scratch::new();
    scratch.write("a.jsonl", &lines(0, 10));
    symlink("nowhere.jsonl", scratch.path().join("gone.jsonl")).expect("writable");
    let error = |name: &str, urls: &[&str]| {
        let call = scratch.call(&["run", &pipeline(&scratch, name, urls, "jsonl", "skip")]);
        assert_ne!(call.status, 0, "{}", call.stdout);
        call.stderr
    };
    let said = error("link", &["*.jsonl"]);
    assert!(
        said.contains("gone.jsonl`") && said.contains("leads to `nowhere.jsonl`, which does not exist"),
        "{said}"
    );
    let said = error("overlap", &["a*.jsonl", "a.jsonl"]);
    assert!(said.contains("select it: remove one of them from `source.url`"), "{said}");
}

fn member(name: &str, body: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..135].copy_from_slice(format!("{:011o}", body.len()).as_bytes());
    header[156] = b'0';
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut member = header.to_vec();
    member.extend(body);
    member.resize(member.len().div_ceil(512) * 512, 0);
    member
}

#[test]
fn archives_after_each_other_and_divided_samples_are_not_silent() {
    let scratch = Scratch::new();
    let archive = |keys: std::ops::Range<u32>| -> Vec<u8> {
        let members =
            keys.flat_map(|key| [member(&format!("{key}.cls"), b"1"), member(&format!("{key}.txt"), b"t")]);
        members.flatten().chain([0; 10_240]).collect()
    };
    let write = |name: &str, bytes: Vec<u8>| {
        std::fs::write(scratch.path().join(name), bytes).expect("writable");
    };
    write("both.tar", [archive(0..40), archive(20..60)].concat());
    let report = scratch.run(&pipeline(&scratch, "both", &["both.tar"], "webdataset", "fail"), &[]);
    assert_clean(&report);
    assert_eq!((&report["rows"], &report["defects"]["count"]), (&Value::from(80), &Value::from(0)));
    write("divided.tar", [archive(0..40), member("7.jpg", b"J"), vec![0; 1024]].concat());
    let report = scratch.run(&pipeline(&scratch, "divided", &["divided.tar"], "webdataset", "skip"), &[]);
    assert_eq!((&report["rows"], &report["skipped"]["count"]), (&Value::from(39), &Value::from(2)));
    for (row, other) in [(0, 40 * 2048 + 10_240), (1, 7 * 2048)] {
        let reason = report["skipped"]["first"][row]["reason"].as_str().expect("a sentence");
        let expected =
            format!("the members of the sample `7` are not adjacent, and others are at byte {other}");
        assert!(reason.starts_with(&expected), "{reason}");
    }
    let call = scratch.call(&["run", &pipeline(&scratch, "fail", &["divided.tar"], "webdataset", "fail")]);
    assert!(
        call.status != 0 && call.stderr.contains("write the archive with `tar --sort=name`"),
        "{}",
        call.stderr
    );
}
