//! `feedline up --autoscale` runs as many worker processes as the jobs need, and loses no row when they start or stop.

use std::fs;
use std::time::Duration;

use feedline_tests::http::metric;
use feedline_tests::process::Role;
use feedline_tests::running::Running;
use feedline_tests::{Scratch, assert_clean, wait_for};

/// Writes a pipeline whose rows take 4 ms each, one at a time per worker, so that a worker computes 250 rows/s on any
/// machine.
fn pipeline(scratch: &Scratch) -> String {
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "6000"]);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators:\n  - wait: {{ ms: 4, parallelism: 1 }}\n  \
         - batch: {{ size: 20 }}\n",
        scratch.file("table")
    );
    scratch.write("job.yaml", &text)
}

/// Returns the worker processes that a process has started.
fn workers_of(parent: u32) -> usize {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let mut found = children.split_whitespace().count();
    // Any thread of the process may have started them.
    for thread in fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
        if thread.file_name().to_str() != Some(parent.to_string().as_str()) {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found += text.split_whitespace().count();
        }
    }
    found
}

#[test]
fn workers_start_and_stop_with_demand() {
    let scratch = Scratch::new();
    let file = pipeline(&scratch);
    let index = scratch.file("index");
    let up = Role::start(
        &[
            "up",
            "--listen",
            "127.0.0.1:0",
            "--autoscale",
            "1..3",
            "--shrink-after",
            "2s",
            "--cores",
            "3",
            "--memory",
            "300MiB",
            "--http",
            "127.0.0.1:0",
            "--index-dir",
            &index,
        ],
        &[],
    );
    wait_for("the first worker", || (workers_of(up.id()) == 1).then_some(()));
    // The consumer takes 20 rows per 30 ms: 667 rows/s, the rate of three workers.
    let url = up.url();
    let run = Running::start(&[
        "run",
        &file,
        "--coordinator",
        &url,
        "--step-ms",
        "30",
        "--report",
        "json",
        "--audit",
    ]);
    wait_for("the third worker", || (workers_of(up.id()) == 3).then_some(()));
    assert_eq!(metric(up.http(), "feedline_coordinator_scaled_workers{pool=\"default\"}"), 3.0);
    assert!(run.ends_within(Duration::from_secs(120)), "6,000 rows at 667 rows/s take 9 s");
    let report = run.wait().report();
    assert_clean(&report);
    // No job needs the workers: they drain and exit.
    wait_for("the end of two workers", || (workers_of(up.id()) == 1).then_some(()));
    let alone = scratch.run(&file, &["--workers", "4", "--cores", "4"]);
    assert_eq!(report["digest"], alone["digest"], "rows do not depend on who makes them");
    let id = up.id();
    assert_eq!(up.terminate(), 0);
    assert_eq!(workers_of(id), 0);
}

#[test]
fn workers_exit_with_their_parent_process() {
    let scratch = Scratch::new();
    let index = scratch.file("index");
    let mut up = Role::start(
        &["up", "--listen", "127.0.0.1:0", "--autoscale", "2..2", "--grace", "100ms", "--index-dir", &index],
        &[],
    );
    let marker = up.url();
    let mine = || {
        let running = fs::read_dir("/proc").expect("processes are listed").flatten();
        let lines = running.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.filter(|line| line.contains("while-input") && line.contains(&marker)).count()
    };
    wait_for("two workers", || (mine() == 2).then_some(()));
    up.kill();
    wait_for("the end of both", || (mine() == 0).then_some(()));
}
