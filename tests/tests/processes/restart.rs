//! Restart of a coordinator without its log.

use feedline_tests::process::Role;
use feedline_tests::{Scratch, assert_clean};

/// Workers identify jobs by their ids, so a coordinator with a new log must not reuse ids.
#[test]
fn workers_distinguish_jobs_of_a_new_log_from_those_of_the_old() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000"]);
    let pipeline = |seed: u32| {
        let text = format!(
            "name: job\nseed: {seed}\nsource: {{ url: \"{}/*\", format: jsonl }}\nshuffle: {{ window: 500 }}\noperators: [ batch: {{ size: 100 }} ]",
            scratch.file("table")
        );
        scratch.write(&format!("seed-{seed}.yaml"), &text)
    };
    let coordinator = |name: &str, listen: &str| {
        Role::start(&["coordinator", "--listen", listen, "--data-dir", &scratch.file(name)], &[])
    };
    let mut first = coordinator("first", "127.0.0.1:0");
    let url = first.url();
    let _worker = Role::start(&["worker", "--coordinator", &url, "--listen", "127.0.0.1:0"], &[]);
    scratch.run(&pipeline(1), &["--coordinator", &url]);
    first.kill();
    let _second = coordinator("second", &first.address);
    let report = scratch.run(&pipeline(2), &["--coordinator", &url]);
    assert_clean(&report);
    let alone = scratch.run(&pipeline(2), &["--workers", "1"]);
    assert_eq!(report["digest"], alone["digest"]);
}
