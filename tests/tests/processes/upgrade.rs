//! Processes with different protocol versions, as during a rolling upgrade.

use feedline_proto::PROTOCOL_VERSION;
use feedline_tests::process::{Processes, Role};
use feedline_tests::running::Running;
use feedline_tests::{Scratch, assert_clean, wait_for, wait_for_rows};

/// The warning of a process that another process rejects because of its protocol version.
const WARNING: &str = "has another protocol version";

/// Returns the flags of a coordinator of the previous protocol version.
fn other_version() -> [String; 2] {
    ["--protocol-version".to_owned(), (PROTOCOL_VERSION - 1).to_string()]
}

#[test]
fn a_job_survives_a_coordinator_of_another_version() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2400", "--shards", "4"]);
    let text = format!(
        "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\nshuffle: {{ window: 300 }}\noperators: [ batch: {{ size: 16 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("table.yaml", &text);
    let alone = scratch.run(&file, &[]);
    let mut processes = Processes::start_several(scratch.path().join("cluster"), 3, 1, &[]);
    let url = processes.url();
    let run = Running::start(&[
        "run",
        &file,
        "--coordinator",
        &url,
        "--audit",
        "--report",
        "json",
        "--step-ms",
        "200",
    ]);
    wait_for_rows(&url, 32);
    let leader = wait_for("a leader", || processes.leader());
    processes.restart_coordinator_with(leader, &other_version());
    wait_for_rows(&url, 320);
    // New workers and clients ask the coordinator of the other version first.
    processes.coordinators.rotate_left(leader);
    processes.add_worker();
    let second =
        scratch.call(&["run", &file, "--coordinator", &processes.url(), "--audit", "--report", "json"]);
    assert_clean(&second.report());
    assert_eq!(second.stderr.matches(WARNING).count(), 1, "{}", second.stderr);
    assert_eq!(second.report()["digest"], alone["digest"]);
    processes.coordinators.rotate_right(leader);
    // The coordinator returns with the version of the cluster, which then needs it.
    processes.restart_coordinator(leader);
    processes.coordinators[(leader + 1) % 3].kill();
    wait_for_rows(&url, 640);
    assert!(!run.has_ended(), "the job runs during the upgrade");
    let report = run.wait().report();
    assert_clean(&report);
    assert_eq!(report["digest"], alone["digest"]);
}

#[test]
fn after_the_timeout_the_error_names_both_versions_and_the_fix() {
    let scratch = Scratch::new();
    let data = scratch.file("data");
    let [flag, version] = other_version();
    let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, &flag, &version];
    let coordinator = Role::start(&arguments, &[]);
    let url = coordinator.url();
    let said = format!(
        "the client uses protocol version {PROTOCOL_VERSION}, but this coordinator uses version {version}; use the same release on both sides"
    );
    let worker = ["worker", "--listen", "127.0.0.1:0", "--coordinator", &url, "--upgrade-timeout", "1s"];
    let worker = scratch.call(&worker);
    assert_eq!(worker.status, 1, "{}", worker.stderr);
    let last = worker.stderr.lines().last().unwrap_or_default();
    assert!(last.ends_with(&format!("{said}; the worker stopped retrying after 1 s")), "{}", worker.stderr);
    assert_eq!(worker.stderr.matches(WARNING).count(), 1, "{}", worker.stderr);
    // Commands that do not run jobs do not wait.
    for command in [&["job", "list"][..], &["members", "list"]] {
        let called = scratch.call(&[command, &["--coordinator", url.as_str()][..]].concat());
        assert!(called.status == 1 && called.stderr.contains(&said), "{command:?}: {}", called.stderr);
    }
}
