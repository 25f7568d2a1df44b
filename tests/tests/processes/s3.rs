//! A job that reads from an S3 server has the same digest, even if answers of the server are faulty.

use std::time::{Duration, Instant};

use feedline_tests::process::Role;
use feedline_tests::store::{Store, StoreFault};
use feedline_tests::{CACHE_HOME, Call, Scratch, assert_clean, data, feedline};
use serde_json::Value;

fn run(scratch: &Scratch, server: &Store, file: &str, index: &str) -> Value {
    let output = std::process::Command::new("timeout")
        .args(["--signal=KILL", "120"])
        .arg(feedline())
        .args(["run", file, "--audit", "--report", "json", "--workers", "2", "--epochs", "2"])
        .args(["--index-dir", &scratch.file(index)])
        .env(CACHE_HOME, scratch.cache())
        .envs(server.environment())
        .output()
        .expect("the binary starts");
    let report = Call::from(output).report();
    assert_clean(&report);
    report
}

#[test]
fn s3_delivers_the_same_batches_with_faulty_answers() {
    let scratch = Scratch::new();
    let photos = data::photographs("the S3 job runs on generated images instead, since it");
    let photos = photos.map(|path| path.to_str().expect("the path is text").to_owned());
    let mut arguments = vec!["--format", "tfrecord", "--shards", "4"];
    match &photos {
        Some(photos) => arguments.extend(["--from", photos]),
        None => arguments.extend(["--rows", "200"]),
    }
    std::fs::create_dir_all(scratch.path().join("store/bucket")).expect("the scratch directory is writable");
    scratch.make_data("images", "store/bucket/photos", &arguments);
    let pipeline = |url: &str| {
        format!(
            "name: photos
source: {{ url: \"{url}/*.tfrecord\", format: tfrecord, features: {{ image: image/encoded }} }}
seed: 4
shuffle: {{ window: 100 }}
operators:
  - random_resized_crop: {{ column: image, size: [64, 64] }}
  - batch: {{ size: 16 }}
"
        )
    };
    let local = scratch.write("local.yaml", &pipeline(&scratch.file("store/bucket/photos")));
    let local = scratch.run(&local, &["--epochs", "2"]);
    let store = scratch.path().join("store");
    let remote = scratch.write("s3.yaml", &pipeline("s3://bucket/photos"));
    let server = Store::serve(&store);
    let clean = run(&scratch, &server, &remote, "index-sound");
    assert_eq!(clean["digest"], local["digest"]);
    server.set(&StoreFault::ALL, 8);
    let shaken = run(&scratch, &server, &remote, "index-faulty");
    assert_eq!(shaken["digest"], local["digest"]);
    let counts = StoreFault::ALL.map(|wrong| server.wrong(wrong));
    eprintln!("{} requests, wrong answers {counts:?} of {:?}", server.requests(), StoreFault::ALL);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?} of {:?}", StoreFault::ALL);
}

#[test]
fn a_worker_retries_a_dead_store_for_the_time_that_its_flag_sets() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path().join("store/bucket")).expect("the scratch directory is writable");
    scratch.make_data("table", "store/bucket/table", &["--format", "jsonl", "--rows", "40"]);
    let server = Store::serve(&scratch.path().join("store"));
    server.set(&[StoreFault::Refused], 1);
    let data = scratch.file("log");
    let coordinator = Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data], &[]);
    let url = coordinator.url();
    let flags = ["worker", "--coordinator", &url, "--store-retry-timeout", "200ms"];
    let _worker = Role::start(&flags, &server.environment());
    let yaml = "name: table\nsource: { url: \"s3://bucket/table/*\", format: jsonl }\noperators: [ batch: { size: 4 } ]\n";
    let begun = Instant::now();
    let call = scratch.call(&["run", &scratch.write("table.yaml", yaml), "--coordinator", &url]);
    assert!(call.status != 0 && call.stderr.contains("503"), "{}", call.stderr);
    assert!(begun.elapsed() < Duration::from_secs(30), "the default is 60 s");
    assert!(server.requests() >= 2, "it is retried");
}
