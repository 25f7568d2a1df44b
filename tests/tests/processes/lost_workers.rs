//! A row that crashes each worker that computes it. A Python function kills its worker, because nothing else in a pipeline
//! can crash one.

use std::path::Path;
use std::time::Duration;

use feedline_tests::process::Role;
use feedline_tests::running::Running;
use feedline_tests::{Call, Scratch, assert_clean, assert_clean_with_skipped, data};
use serde_json::Value;

const MODULE: &str = "
import os, signal, time

def crashes(batch):
    if 77 in batch['id']:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    return {'length': batch['id']}

def works(batch):
    return {'length': batch['id']}
";
/// Rows of the table, in four shards. Row 77 is in the first.
const ROWS: u64 = 400;

/// Maximum number of rows of a group.
const MAX_GROUP_ROWS: u64 = 64;
/// Milliseconds that a consumer of the other tenant spends on a batch.
const STEP_MS: u64 = 40;

struct Scene {
    scratch: Scratch,
    coordinator: Role,
    workers: Vec<Role>,
    /// Flags of the calls of each tenant.
    tokens: [Vec<String>; 2],
}

impl Scene {
    fn new(what: &str, workers: usize) -> Option<Self> {
        let python = data::python(what)?;
        let scratch = Scratch::new();
        let rows = ROWS.to_string();
        scratch.make_data("table", "table", &["--format", "jsonl", "--rows", &rows, "--shards", "4"]);
        scratch.write("mine.py", MODULE);
        let call = |arguments: &[&str]| {
            let made = scratch.call(arguments);
            assert_eq!(made.status, 0, "{}", made.stderr);
            made.stdout.trim().to_owned()
        };
        call(&["keys", "new", "keys"]);
        let (secret, table) = (scratch.file("keys/secret"), scratch.file("table"));
        let (directory, worker_token) = (scratch.file("data"), scratch.file("keys/worker.token"));
        let tokens = ["bad", "good"].map(|tenant| {
            let scopes = "submit,consume";
            let token =
                call(&["keys", "token", "--secret-file", &secret, "--scope", scopes, "--tenant", tenant]);
            vec!["--token-file".to_owned(), scratch.write(&format!("{tenant}.token"), &token)]
        });
        let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &directory];
        let access = ["--secret-file", &secret, "--allow-url", &table];
        let coordinator = Role::start(&[&arguments[..], &access].concat(), &[]);
        let access = ["--token-file", &worker_token, "--allow-url", &table];
        let workers = (0..workers).map(|_| start_worker(&coordinator.url(), &python, &access)).collect();
        Some(Self { scratch, coordinator, workers, tokens })
    }

    fn write(&self, name: &str, function: &str, more: &str) -> String {
        let (data, path) = (self.scratch.file("table"), self.scratch.path().display());
        let text = format!(
            "name: {name}\nsource: {{ url: \"{data}/*\", format: jsonl }}\nseed: 5\n{more}\n\
             operators:\n  - map: {{ function: \"mine:{function}\", path: [\"{path}\"], outputs: {{ length: {{ dtype: int64 }} }} }}\n  \
             - batch: {{ size: 16 }}\n"
        );
        self.scratch.write(&format!("{name}.yaml"), &text)
    }

    /// Starts a job of one of the tenants.
    fn start(&self, tenant: usize, file: &str, more: &[&str]) -> Running {
        let url = self.coordinator.url();
        let arguments = ["run", file, "--coordinator", &url, "--audit", "--report", "json"];
        let token: Vec<&str> = self.tokens[tenant].iter().map(String::as_str).collect();
        Running::start(&[&arguments[..], &token[..], more].concat())
    }

    fn lost_workers(&mut self) -> usize {
        self.workers.iter_mut().map(Role::has_exited).filter(|has_exited| *has_exited).count()
    }
}

fn start_worker(coordinator: &str, python: &Path, access: &[&str]) -> Role {
    let python = python.to_str().expect("the path is text");
    let arguments = ["worker", "--listen", "127.0.0.1:0", "--cores", "1", "--memory", "256MiB"];
    let more = ["--coordinator", coordinator, "--functions", "on", "--python", python];
    Role::start(&[&arguments[..], &more, access].concat(), &[])
}

fn sentence(call: &Call) -> &str {
    assert_eq!(call.status, 1, "{call:?}");
    call.stderr.lines().rfind(|line| line.starts_with("feedline: ")).expect("it says why")
}

/// Delivered rows per second.
fn rate(report: &Value) -> f64 {
    let seconds = report["seconds"].as_f64().expect("a number");
    report["rows"].as_f64().expect("a number") / seconds
}

#[test]
fn a_row_that_crashes_workers_fails_its_job_and_not_the_job_of_another_tenant() {
    let Some(mut scene) = Scene::new("a function that crashes its worker", 5) else { return };
    let (bad, good) = (scene.write("bad", "crashes", ""), scene.write("good", "works", ""));
    let step = STEP_MS.to_string();
    let good_flags = |epochs| ["--epochs", epochs, "--virtual-consumers", "2", "--step-ms", step.as_str()];
    // The step limits the rate, so that the loss of three workers of five is not the cause of another rate.
    let alone = scene.start(1, &good, &good_flags("5")).wait().report();
    assert_clean(&alone);
    let beside = scene.start(1, &good, &good_flags("40"));
    let failed = scene.start(0, &bad, &["--virtual-consumers", "2"]).wait();
    assert!(!beside.ends_within(Duration::ZERO), "the other job runs while the workers are lost");
    let reason = sentence(&failed);
    for part in
        ["3 workers were lost one after another while they computed ", "/table/", "block at byte 0, rows "]
    {
        assert!(reason.contains(part), "{reason}");
    }
    let report = beside.wait().report();
    assert_clean(&report);
    assert_eq!(report["rows"], 40 * ROWS);
    assert!(rate(&report) >= 0.9 * rate(&alone), "{} and {} rows/s", rate(&report), rate(&alone));
    let lost = scene.lost_workers();
    assert!((3..=4).contains(&lost), "{lost} workers were lost");
}

#[test]
fn the_group_of_a_row_that_crashes_workers_is_skipped_and_listed() {
    for (more, arguments) in [
        ("on_error: skip", ["--virtual-consumers", "2"]),
        ("on_error: skip\norder: relaxed", ["--consumers", "2"]),
    ] {
        let Some(mut scene) = Scene::new("a function that crashes its worker", 5) else { return };
        let bad = scene.write("bad", "crashes", more);
        let report: Value = scene.start(0, &bad, &arguments).wait().report();
        let skipped = report["skipped"]["count"].as_u64().expect("a count");
        assert_clean_with_skipped(&report, skipped);
        assert!((1..=MAX_GROUP_ROWS).contains(&skipped), "{report}");
        assert_eq!(report["rows"], ROWS - skipped);
        let reason = report["skipped"]["first"][0]["reason"].as_str().expect("a reason");
        assert!(reason.contains("3 workers were lost"), "{reason}");
        let lost = scene.lost_workers();
        assert!((3..=4).contains(&lost), "{lost} workers were lost");
    }
}
