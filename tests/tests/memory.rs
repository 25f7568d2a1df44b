//! A worker keeps to its memory budget, whatever the consumer's speed.

use feedline_tests::http::{free_port, metric};
use feedline_tests::process::Role;
use feedline_tests::{Scratch, assert_clean, data};

/// What a process holds beside the budget: code, stacks, decoders, transport.
const BESIDE_BYTES: u64 = 150 << 20;

#[test]
fn peak_memory_stays_under_the_budget_for_fast_and_slow_consumers() {
    let scratch = Scratch::new();
    let photos = data::photographs("the memory test runs on generated images instead, since it");
    let photos = photos.map(|path| path.to_str().expect("the path is text").to_owned());
    let mut arguments = vec!["--format", "tfrecord", "--shards", "4"];
    match &photos {
        Some(photos) => arguments.extend(["--from", photos]),
        None => arguments.extend(["--rows", "400"]),
    }
    scratch.make_data("images", "data", &arguments);
    let text = format!(
        "name: photos
source: {{ url: \"{}/*\", format: tfrecord, features: {{ image: image/encoded }} }}
shuffle: {{ window: 4096 }}
operators:
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: 128 }}
",
        scratch.file("data")
    );
    let file = scratch.write("photos.yaml", &text);
    for (budget, budget_bytes) in [("64MiB", 64u64 << 20), ("192MiB", 192 << 20)] {
        for (step_ms, slots) in [("0", "1"), ("300", "1"), ("300", "8")] {
            let directory = scratch.file(&format!("coordinator-{budget}-{step_ms}-{slots}"));
            let coordinator =
                Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &directory], &[]);
            let url = coordinator.url();
            let worker = [
                "worker",
                "--coordinator",
                &url,
                "--listen",
                "127.0.0.1:0",
                "--cores",
                "2",
                "--memory",
                budget,
            ];
            let _worker = Role::start(&worker, &[]);
            let report = scratch.run(
                &file,
                &["--coordinator", &url, "--epochs", "3", "--step-ms", step_ms, "--virtual-consumers", slots],
            );
            assert_clean(&report);
            assert_eq!(report["rows"], 1200);
            let peak = report["peak_rss_bytes"]["workers"][0].as_u64().expect("the worker reports its peak");
            eprintln!("budget {budget}, {step_ms} ms a step, {slots} slots: peak {} MiB", peak >> 20);
            assert!(peak < budget_bytes + BESIDE_BYTES, "budget {budget}: peak {} MiB", peak >> 20);
        }
    }
}

#[test]
fn memory_of_ended_jobs_is_given_back() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "40000"]);
    let http = free_port();
    let up = Role::start(
        &["up", "--listen", "127.0.0.1:0", "--workers", "1", "--http", &http, "--memory", "32MiB"],
        &[("XDG_CACHE_HOME", &scratch.file("cache"))],
    );
    let mut used = Vec::new();
    for job in 0..10 {
        let text = format!(
            "name: job-{job}\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 100 }} ]",
            scratch.file("table")
        );
        let report = scratch.run(&scratch.write("job.yaml", &text), &["--coordinator", &up.url()]);
        assert_eq!(report["rows"], 40000);
        used.push(metric(&http, "feedline_worker_memory_used_bytes"));
    }
    assert!(used.iter().all(|&bytes| bytes <= f64::from(32 << 20)), "{used:?}");
}
