//! A worker stays within its memory budget with fast and with slow consumers.

use feedline_tests::http::{metric, try_metric};
use feedline_tests::process::Role;
use feedline_tests::{Scratch, assert_clean, data, wait_for};

/// Memory outside the budget and the code: stacks, decoders, transport.
const BESIDE_BYTES: u64 = 128 << 20;

/// Returns the peak resident bytes, without code, of a worker with this budget that runs a pipeline file.
fn peak(scratch: &Scratch, file: &str, budget: &str, arguments: &[&str]) -> u64 {
    let directory = tempfile::tempdir_in(scratch.path()).expect("a directory can be made");
    let directory = directory.path().to_str().expect("temporary paths are text");
    let coordinator = Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", directory], &[]);
    let url = coordinator.url();
    let mut worker = vec!["worker", "--coordinator", &url, "--listen", "127.0.0.1:0"];
    worker.extend(["--cores", "2", "--memory", budget]);
    let worker = Role::start(&worker, &[]);
    let report = scratch.run(file, &[&["--coordinator", &url], arguments].concat());
    assert_clean(&report);
    let peak = report["peak_rss_bytes"]["workers"][0].as_u64().expect("the worker reports its peak");
    peak - code_bytes(worker.id())
}

/// Returns the resident bytes of a process's code, which is twice as large in a test build.
fn code_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssFile:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.map_or(0, |kib: u64| kib << 10)
}

/// Writes repeated photographs, or generated ones, as shards of a format.
fn make_photos(scratch: &Scratch, format: &str, rows: &str) {
    let photos = data::photographs("the memory test runs on generated images instead, since it");
    let photos = photos.map(|path| path.to_str().expect("the path is text").to_owned());
    let mut arguments = vec!["--format", format, "--shards", "4", "--rows", rows];
    if let Some(photos) = &photos {
        arguments.extend(["--from", photos]);
    }
    scratch.make_data("images", format, &arguments);
}

fn photo_job(scratch: &Scratch, format: &str, features: &str, batch: u32) -> String {
    let text = format!(
        "name: photos
source: {{ url: \"{}/*\", format: {format}{features} }}
shuffle: {{ window: 4096 }}
operators:
  - random_resized_crop: {{ column: image, size: [224, 224] }}
  - random_horizontal_flip: {{ column: image }}
  - batch: {{ size: {batch} }}
",
        scratch.file(format)
    );
    scratch.write(&format!("{format}.yaml"), &text)
}

#[test]
fn peak_memory_stays_under_the_budget_for_fast_and_slow_consumers() {
    let scratch = Scratch::new();
    make_photos(&scratch, "tfrecord", "400");
    let file = photo_job(&scratch, "tfrecord", ", features: { image: image/encoded }", 128);
    for (budget, budget_bytes) in [("64MiB", 64u64 << 20), ("192MiB", 192 << 20)] {
        for (step_ms, slots) in [("0", "1"), ("300", "1"), ("300", "8")] {
            let arguments = ["--epochs", "3", "--step-ms", step_ms, "--virtual-consumers", slots];
            let peak = peak(&scratch, &file, budget, &arguments);
            eprintln!("budget {budget}, {step_ms} ms a step, {slots} slots: peak {} MiB", peak >> 20);
            assert!(peak < budget_bytes + BESIDE_BYTES, "budget {budget}: peak {} MiB", peak >> 20);
        }
    }
}

/// A group of a shuffled job reads rows of every block in its window.
#[test]
fn peak_memory_stays_under_the_budget_with_whole_block_reads() {
    let scratch = Scratch::new();
    make_photos(&scratch, "parquet", "1600");
    scratch.make_data("table", "jsonl", &["--format", "jsonl", "--rows", "200000", "--shards", "4"]);
    let table = format!(
        "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\nshuffle: {{ window: 100000 }}\noperators: [ batch: {{ size: 1000 }} ]",
        scratch.file("jsonl")
    );
    let files = [photo_job(&scratch, "parquet", "", 16), scratch.write("table.yaml", &table)];
    for (file, arguments) in files.iter().zip([&["--epochs", "2"][..], &["--epochs", "1"]]) {
        let peak = peak(&scratch, file, "64MiB", arguments);
        eprintln!("budget 64 MiB, {file}: peak {} MiB", peak >> 20);
        assert!(peak < (64 << 20) + BESIDE_BYTES, "{file}: peak {} MiB", peak >> 20);
    }
}

#[test]
fn memory_of_ended_jobs_is_released() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "40000"]);
    let arguments = "up --listen 127.0.0.1:0 --workers 1 --http 127.0.0.1:0 --memory 32MiB";
    let up = Role::start(&arguments.split(' ').collect::<Vec<_>>(), &[]);
    let mut used = Vec::new();
    for job in 0..10 {
        let text = format!(
            "name: job-{job}\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 100 }} ]",
            scratch.file("table")
        );
        let report = scratch.run(&scratch.write("job.yaml", &text), &["--coordinator", &up.url()]);
        assert_eq!(report["rows"], 40000);
        used.push(metric(up.http(), "feedline_worker_memory_used_bytes"));
    }
    assert!(used.iter().all(|&bytes| bytes <= f64::from(32 << 20)), "{used:?}");
}

#[test]
fn a_percentage_sets_the_memory_budget() {
    let budget = |memory: &str| {
        let flags =
            ["up", "--listen", "127.0.0.1:0", "--workers", "1", "--http", "127.0.0.1:0", "--memory", memory];
        let up = Role::start(&flags, &[]);
        let read = || try_metric(up.http(), "feedline_worker_memory_budget_bytes");
        wait_for("the first report of the worker", read)
    };
    let (all, third) = (budget("99%"), budget("33%"));
    assert!((third / all - 1.0 / 3.0).abs() < 1e-6, "33 %: {third}, 99 %: {all}");
    let call = feedline_tests::call(&["up", "--memory", "170%"]);
    assert_eq!(call.status, 2, "{}", call.stderr);
    for part in ["'170%'", "--memory", "from 1% to 100%"] {
        assert!(call.stderr.contains(part), "{}", call.stderr);
    }
}
