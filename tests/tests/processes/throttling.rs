//! A job that reads from a throttled store uses the allowed rate, and few of its requests are rejected.

use std::time::Instant;

use feedline_tests::process::Role;
use feedline_tests::store::Store;
use feedline_tests::{Scratch, assert_clean};

/// Requests per second that the store allows.
const ALLOWED_PER_S: f64 = 60.0;
const SHARDS: u64 = 400;

#[test]
fn workers_share_the_rate_of_a_throttled_store() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path().join("store/bucket")).expect("the scratch directory is writable");
    let shards = SHARDS.to_string();
    scratch.make_data(
        "table",
        "store/bucket/table",
        &["--format", "jsonl", "--rows", "4000", "--shards", &shards],
    );
    let pipeline = |url: &str| {
        format!(
            "name: table\nsource: {{ url: \"{url}/*\", format: jsonl }}\noperators: [ batch: {{ size: 10 }} ]\n"
        )
    };
    let local = scratch.write("local.yaml", &pipeline(&scratch.file("store/bucket/table")));
    let local = scratch.run(&local, &[]);
    let server = Store::serve(&scratch.path().join("store"));
    server.limit(ALLOWED_PER_S, 10.0);
    let log = scratch.file("log");
    let coordinator = Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &log], &[]);
    let url = coordinator.url();
    let start = || Role::start(&["worker", "--coordinator", &url, "--cores", "1"], &server.environment());
    let _workers = [start(), start(), start()];
    let begun = Instant::now();
    let remote = scratch.write("s3.yaml", &pipeline("s3://bucket/table"));
    let report = scratch.run(&remote, &["--coordinator", &url]);
    let seconds = begun.elapsed().as_secs_f64();
    assert_clean(&report);
    assert_eq!(report["digest"], local["digest"]);
    let (requests, limited) = (server.requests(), server.limited());
    let accepted = (requests - limited) as f64;
    eprintln!("{requests} requests, {limited} of them rejected, in {seconds:.1} s");
    // The indexing pass and the job read each shard.
    assert!(accepted >= 2.0 * SHARDS as f64);
    assert!(
        limited > 0 && (limited as f64) < 0.2 * accepted,
        "{limited} of {requests} requests were rejected"
    );
    let used = accepted / (ALLOWED_PER_S * seconds);
    assert!(used > 0.5, "{used:.2} of the allowed rate was used");
}
