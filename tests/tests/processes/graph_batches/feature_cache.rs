//! Consumers that cache rows of features: the batches are the same in every mode, and fewer bytes are sent.

use std::fs;

use feedline_tests::http::metric;
use feedline_tests::process::{Processes, Role};
use feedline_tests::running::Running;
use feedline_tests::{Scratch, wait_for_rows};

use super::input::{NODES, build, build_small, pipeline};
use super::{SAMPLE, WINDOW, assert_equal};

/// Builds the small graph with its nodes ordered by degree.
fn build_ordered(scratch: &Scratch, name: &str) {
    build_small(scratch, "unordered", 0.0);
    let (edges, x) = (scratch.file("small.csv"), format!("x={}", scratch.file("small.x.npy")));
    let w = format!("w={}", scratch.file("small.w.npy"));
    let files =
        ["--edges", &edges, "--feature", &x, "--edge-feature", &w, "--edge-ids", "--seeds", "all=all"];
    build(scratch, name, &[&files[..], &["--order", "degree"]].concat());
}

#[test]
fn batches_with_cached_features_are_the_same_in_every_mode() {
    let scratch = Scratch::new();
    build_ordered(&scratch, "g");
    build_small(&scratch, "h", 0.0);
    let processes = Processes::start(scratch.path().join("processes"), 2);
    let url = processes.url();
    let modes = [
        ("embedded", vec!["--workers", "2", "--cores", "2"]),
        ("TCP", vec!["--coordinator", &url, "--transport", "tcp"]),
        ("a Unix socket", vec!["--coordinator", &url, "--transport", "unix"]),
        ("shared memory", vec!["--coordinator", &url, "--transport", "memory"]),
    ];
    // A row of `x` has 32 bytes in batches.
    let all = NODES * 32;
    let (fifth, all) = ((all / 5).to_string(), all.to_string());
    let shape = ["--epochs", "3", "--consumers", "2", "--step-ms", "1"];
    // The nodes of `h` are stored in the user's order, so the column of node ids contains the positions in stored order.
    for graph in ["g", "h"] {
        let file = pipeline(&scratch, graph, WINDOW, SAMPLE);
        let expected = scratch.run(&file, &shape);
        for (name, mode) in &modes {
            for size in [&fifth, &all] {
                let cache = ["--feature-cache", size.as_str()];
                let report = scratch.run(&file, &[&shape[..], &mode[..], &cache[..]].concat());
                assert_equal(&report, &expected, &format!("{graph}, {name}, {size} bytes"));
            }
        }
    }
}

#[test]
fn cached_features_are_not_sent() {
    let scratch = Scratch::new();
    build_ordered(&scratch, "g");
    let mut processes = Processes::start(scratch.path().join("processes"), 0);
    let url = processes.url();
    let cache = scratch.file("cache");
    let flags = ["--listen", "127.0.0.1:0", "--cores", "1", "--memory", "256MiB", "--http", "127.0.0.1:0"];
    let worker = ["worker", "--coordinator", &url, "--cache-dir", &cache];
    processes.workers.push(Role::start(&[&worker[..], &flags].concat(), &[]));
    let sent = || metric(processes.workers[0].http(), "feedline_worker_sent_bytes_total");
    let file = pipeline(&scratch, "g", WINDOW, "size: 64, fanouts: [5, 3], features: [x]");
    let run = ["--coordinator", &url, "--epochs", "10", "--step-ms", "3"];
    let before = sent();
    let expected = scratch.run(&file, &run);
    let whole = sent() - before;
    let report = scratch.run(&file, &[&run[..], &["--feature-cache", "1MiB"]].concat());
    assert_equal(&report, &expected, "with a cache");
    let reduced = sent() - before - whole;
    assert!(reduced < 0.5 * whole, "{reduced} bytes instead of {whole}");
}

#[test]
fn a_cache_has_the_features_of_its_job() {
    let scratch = Scratch::new();
    build_small(&scratch, "g", 0.0);
    build_small(&scratch, "h", 100.0);
    let (file, other) = (pipeline(&scratch, "g", WINDOW, SAMPLE), pipeline(&scratch, "h", WINDOW, SAMPLE));
    let (before, after) = (scratch.run(&file, &[]), scratch.run(&other, &[]));
    let processes = Processes::start(scratch.path().join("processes"), 1);
    let url = processes.url();
    let by = ["--coordinator", &url, "--feature-cache", "1MiB"];
    let slow = ["--audit", "--report", "json", "--step-ms", "60"];
    let run = Running::start(&[&["run", &file][..], &by, &slow].concat());
    wait_for_rows(&url, 64);
    for name in ["nodes/node.x.npy", "graph.json"] {
        fs::copy(scratch.path().join("h").join(name), scratch.path().join("g").join(name))
            .expect("both graphs have the file");
    }
    assert!(!run.has_ended(), "the run was too short");
    assert_equal(&run.wait().report(), &before, "the running job");
    assert_equal(&scratch.run(&file, &by), &after, "a new job");
}
