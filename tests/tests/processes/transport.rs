//! Transports between a worker and a consumer on one host: cleanup after either is killed, and the fallback to TCP.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use feedline_tests::http::metric;
use feedline_tests::process::{Processes, Role};
use feedline_tests::running::Running;
use feedline_tests::{Scratch, assert_clean, wait_for};

/// A job whose pieces are large enough for shared memory: 32 images of 64 x 64.
fn images(scratch: &Scratch) -> String {
    scratch.make_data("images", "images", &["--format", "tfrecord", "--rows", "320", "--shards", "2"]);
    let text = format!(
        "name: images\nsource: {{ url: \"{}/*\", format: tfrecord, features: {{ image: image/encoded }} }}\nshuffle: {{ window: 64 }}\noperators: [ random_resized_crop: {{ column: image, size: [64, 64] }}, batch: {{ size: 32 }} ]",
        scratch.file("images")
    );
    scratch.write("images.yaml", &text)
}

fn coordinator(scratch: &Scratch) -> Role {
    let data = scratch.file("coordinator");
    Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data], &[])
}

/// Starts a worker whose sockets are in the directory `temporary`.
fn worker(coordinator: &str, temporary: &str, arguments: &[&str]) -> Role {
    let base = ["worker", "--coordinator", coordinator, "--listen", "127.0.0.1:0", "--memory", "256MiB"];
    Role::start(&[&base, arguments].concat(), &[("TMPDIR", temporary)])
}

/// Creates a directory and returns its path.
fn folder(scratch: &Scratch, name: &str) -> String {
    fs::create_dir(scratch.path().join(name)).expect("the scratch directory is writable");
    scratch.file(name)
}

/// Returns the private directories of workers in a directory.
fn left_in(folder: &str) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).expect("it exists").map(|entry| entry.expect("it is readable").path()).collect()
}

/// Returns the inodes of the shared memory that a process has mapped.
fn regions(process: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let lent = maps.lines().filter(|line| line.contains("memfd:feedline"));
    lent.filter_map(|line| line.split_whitespace().nth(4).map(str::to_owned)).collect()
}

#[test]
fn a_killed_client_releases_all_shared_memory() {
    let scratch = Scratch::new();
    let file = images(&scratch);
    let coordinator = coordinator(&scratch);
    let url = coordinator.url();
    let worker = worker(&url, &folder(&scratch, "sockets"), &["--http", "127.0.0.1:0"]);
    let lent = || metric(worker.http(), "feedline_worker_lent_bytes");
    let by = ["--coordinator", &url, "--transport", "memory"];
    let slow = ["run", &file, "--job", "slow", "--epochs", "1000", "--step-ms", "100"];
    let client = Running::start(&[&slow[..], &by].concat());
    wait_for("lent memory", || (!regions(client.program()).is_empty()).then_some(()));
    assert!(!regions(worker.id()).is_empty());
    client.kill();
    wait_for("the memory's return", || regions(worker.id()).is_empty().then_some(()));
    wait_for("its return in the metric", || (lent() == 0.0).then_some(()));
    let report = scratch.run(&file, &by);
    assert_clean(&report);
    assert_eq!(report["digest"], scratch.run(&file, &[])["digest"]);
}

#[test]
fn clients_release_the_shared_memory_of_a_killed_worker() {
    let scratch = Scratch::new();
    let file = images(&scratch);
    let mut processes = Processes::start(scratch.path().join("processes"), 1);
    let url = processes.url();
    let job = ["--epochs", "6"];
    let by =
        ["--coordinator", &url, "--transport", "memory", "--audit", "--report", "json", "--step-ms", "60"];
    let client = Running::start(&[&["run", &file], &job[..], &by].concat());
    let before =
        wait_for("lent memory", || Some(regions(client.program())).filter(|found| !found.is_empty()));
    processes.replace_worker(0);
    wait_for("the memory's return", || regions(client.program()).is_disjoint(&before).then_some(()));
    assert!(!client.has_ended(), "what has ended has no memory");
    let report = client.wait().report();
    assert_clean(&report);
    assert_eq!(report["digest"], scratch.run(&file, &job)["digest"]);
}

#[test]
fn the_next_worker_removes_sockets_of_a_killed_worker() {
    let scratch = Scratch::new();
    let file = images(&scratch);
    let coordinator = coordinator(&scratch);
    let url = coordinator.url();
    let sockets = folder(&scratch, "sockets");
    let mut first = worker(&url, &sockets, &[]);
    let left = left_in(&sockets);
    assert_eq!(left.len(), 1);
    first.kill();
    assert_eq!(left_in(&sockets), left, "a killed worker cannot tidy up");
    let second = worker(&url, &sockets, &[]);
    let present = left_in(&sockets);
    assert!(present.len() == 1 && present.is_disjoint(&left), "{present:?}");
    assert_clean(&scratch.run(&file, &["--coordinator", &url, "--transport", "memory"]));
    assert_eq!(second.terminate(), 0);
    assert!(left_in(&sockets).is_empty());
}

#[test]
fn a_worker_without_a_writable_temporary_directory_serves_over_tcp() {
    let scratch = Scratch::new();
    let file = images(&scratch);
    let coordinator = coordinator(&scratch);
    let url = coordinator.url();
    // Not even root can create a directory here.
    let _worker = worker(&url, "/proc/self/nowhere", &["--transport", "tcp"]);
    let report = scratch.run(&file, &["--coordinator", &url]);
    assert_clean(&report);
    let sockets = folder(&scratch, "sockets");
    let _other = worker(&url, &sockets, &["--transport", "tcp"]);
    assert!(left_in(&sockets).is_empty(), "a worker that uses only TCP creates no sockets");
    let base = ["worker", "--coordinator", &url, "--listen", "127.0.0.1:0", "--transport", "nothing"];
    let refused = scratch.call(&base);
    assert!(refused.status == 2 && refused.stderr.contains("auto, tcp, unix, memory"), "{refused:?}");
}

#[test]
fn a_client_that_cannot_reach_the_sockets_uses_tcp() {
    let scratch = Scratch::new();
    let file = images(&scratch);
    let coordinator = coordinator(&scratch);
    let url = coordinator.url();
    let sockets = folder(&scratch, "sockets");
    let _worker = worker(&url, &sockets, &[]);
    for left in left_in(&sockets) {
        fs::remove_dir_all(left).expect("it is ours");
    }
    let report = scratch.run(&file, &["--coordinator", &url]);
    assert_clean(&report);
    assert_eq!(report["digest"], scratch.run(&file, &[])["digest"]);
    let refused = scratch.call(&["run", &file, "--coordinator", &url, "--transport", "unix"]);
    assert_eq!(refused.status, 2, "{refused:?}");
    assert!(refused.stderr.contains("through a local socket: cannot connect to"), "{refused:?}");
}
