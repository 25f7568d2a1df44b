//! Files of commit ef04d0d are read, or rejected with one message that names both versions.
//!
//! The crates test the other files: the log of a member that received a snapshot in `golden/ef04d0d/learner`, indexes, and
//! cached rows on disk and in a store. `client/python/tests` reads `state.json`.
//!
//! `golden/ef04d0d/coordinator` is the data directory of a coordinator that was killed while it had a deterministic, a
//! relaxed, a mixed and an elastic job, and one that was done. `golden/ef04d0d/position.json` is of a run with
//! `--position` and `--limit`. `UPDATE_EXPECT=1` writes `golden/ef04d0d/jobs.txt` anew.

use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use feedline_tests::process::Role;
use feedline_tests::{Call, Scratch, call, root};
use serde_json::{Value, json};

/// Offset of the format version in a log.
const LOG_VERSION: usize = 8;

fn fixture(name: &str) -> PathBuf {
    root().join("tests/tests/golden/ef04d0d").join(name)
}

/// Copies the coordinator's directory, because roles write to it.
fn copy_coordinator(scratch: &Scratch) -> PathBuf {
    let data = scratch.path().join("coordinator");
    copy_folder(&fixture("coordinator"), &data);
    data
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the scratch directory is writable");
    for entry in fs::read_dir(from).expect("the fixture is there") {
        let path = entry.expect("the fixture is readable").path();
        let target = to.join(path.file_name().expect("entries have names"));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(&path, &target).expect("the scratch directory is writable");
        }
    }
}

#[test]
fn a_coordinator_recovers_from_the_log_of_the_earlier_release() {
    let scratch = Scratch::new();
    let data = copy_coordinator(&scratch);
    let data = data.to_str().expect("temporary paths are text");
    let role = Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", data], &[]);
    let listed = call(&["job", "list", "--json", "--coordinator", &role.url()]);
    assert_eq!(listed.status, 0, "{}", listed.stderr);
    let jobs: Vec<Value> = serde_json::from_str(&listed.stdout).expect("it lists jobs as JSON");
    let durable = |job: &Value| {
        let keys = ["job", "name", "state", "epochs", "consumers", "dataset", "layout", "position"];
        keys.map(|key| json!({ key: job[key] })).map(|field| field.to_string()).join("\n")
    };
    let all: Vec<String> = jobs.iter().map(durable).collect();
    expect_file!["../golden/ef04d0d/jobs.txt"].assert_eq(&(all.join("\n\n") + "\n"));
}

#[test]
fn a_log_of_another_version_is_rejected_with_both_versions() {
    let scratch = Scratch::new();
    let data = copy_coordinator(&scratch);
    let log = data.join("records.log");
    let mut bytes = fs::read(&log).expect("the fixture has a log");
    let present = bytes[LOG_VERSION];
    bytes[LOG_VERSION] = 99;
    fs::write(&log, &bytes).expect("the scratch directory is writable");
    let data = data.to_str().expect("temporary paths are text");
    let call = scratch.call(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", data]);
    assert_ne!(call.status, 0);
    for version in ["99".to_owned(), present.to_string()] {
        assert!(call.stderr.contains(&format!("version {version}")), "{}", call.stderr);
    }
}

/// Runs another pipeline with a position file, and returns its error.
fn run_at(position: &str) -> String {
    let scratch = Scratch::new();
    scratch.write("lines.txt", "one\ntwo\nthree");
    let yaml = "name: other\nsource: { url: lines.txt, format: text }\noperators: [ batch: { size: 2 } ]\n";
    let file = scratch.write("other.yaml", yaml);
    let position = scratch.write("position.json", position);
    let call = scratch.call(&["run", &file, "--position", &position]);
    assert_ne!(call.status, 0);
    call.stderr
}

#[test]
fn a_position_file_of_the_earlier_release_is_read_and_one_of_another_version_is_rejected() {
    let saved = fs::read_to_string(fixture("position.json")).expect("the fixture is there");
    let said = run_at(&saved);
    assert!(said.contains("a different pipeline (fingerprint 2d5876ca23f1cf18"), "it is read: {said}");
    let said = run_at(&saved.replace("\"version\": 1", "\"version\": 99"));
    assert!(said.contains("version 99") && said.contains("version 1"), "{said}");
}

/// Plans the trace of the earlier release after a change of its text.
fn plan(change: impl Fn(String) -> String) -> Call {
    let scratch = Scratch::new();
    let trace = fs::read_to_string(fixture("trace.json")).expect("the fixture is there");
    let trace = scratch.write("trace.json", &change(trace));
    let cluster = scratch.write(
        "cluster.yaml",
        "worker_types:\n  - { name: \"2 cores of AMD EPYC, 1.0 GiB\", cores: 2, memory: 1GiB, count: 2, max: 2 }\n",
    );
    scratch.call(&["plan", "--jobs", &trace, "--cluster", &cluster])
}

#[test]
fn a_trace_of_the_earlier_release_is_planned_and_one_of_another_version_is_rejected() {
    let call = plan(|trace| trace);
    assert!(
        call.status == 0 && call.stdout.starts_with("1 job on 2 workers"),
        "{} {}",
        call.stdout,
        call.stderr
    );
    let call = plan(|trace| trace.replace("\"version\": 1", "\"version\": 99"));
    assert_ne!(call.status, 0);
    assert!(call.stderr.contains("version 99") && call.stderr.contains("version 1"), "{}", call.stderr);
}
