//! Faults while a job runs: workers and the coordinator are killed, and runs are stopped and resumed. The digest does not
//! change, and each row is delivered once.

use std::time::{Duration, Instant};

use feedline_data::random::mix64;
use feedline_tests::http::{free_port, try_metric};
use feedline_tests::process::Processes;
use feedline_tests::running::Running;
use feedline_tests::{Scratch, assert_clean, data};
use serde_json::Value;

/// Minimum time between two faults.
const MIN_FAULT_INTERVAL: Duration = Duration::from_millis(1_500);
/// Minimum number of batches between two faults, so that a run also ends on slow machines.
const MIN_BATCHES_BETWEEN_FAULTS: f64 = 4.0;
/// Flags of coordinators. Workers are killed faster than two of them can compute some splits on a loaded machine.
const TOLERANT: [&str; 2] = ["--max-lost-workers", "1000"];
/// Interval between checks of the number of batches.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Epochs of a run, and their number of rows.
const EPOCHS: &str = "2";
const ROWS: u64 = 800;

/// A job with enough work for several faults.
const PIPELINE: &str = "
name: chaos
source: { url: data/*.tfrecord, format: tfrecord, features: { image: image/encoded, label: image/class/label } }
seed: 11
shuffle: { window: 256 }
ORDER
operators:
  - random_resized_crop: { column: image, size: [96, 96] }
  - random_horizontal_flip: { column: image }
  - burn: { cpu_us: 1500 }
  - batch: { size: 16 }
";

/// A job that mixes lists of two datasets in coordinated batches.
const LISTS: &str = "
name: lists
source:
  mix:
    - { weight: 3, url: DATA/many-*.jsonl, format: jsonl }
    - { weight: 1, url: DATA/few-*.jsonl, format: jsonl }
seed: 11
shuffle: { window: 64 }
operators:
  - burn: { cpu_us: 6000 }
  - bucket_by_length: { columns: [tokens], boundaries: [10, 20, 40], tokens: 160, window: 100 }
";

struct Chaos {
    scratch: Scratch,
    deterministic: String,
    relaxed: String,
}

impl Chaos {
    fn new() -> Self {
        let scratch = Scratch::new();
        match data::photographs("chaos on photographs runs on generated images instead, since it") {
            Some(photos) => {
                let photos = photos.to_str().expect("the path is text").to_owned();
                scratch.make_data(
                    "images",
                    "data",
                    &["--format", "tfrecord", "--from", &photos, "--shards", "8"],
                );
            }
            None => scratch.make_data(
                "images",
                "data",
                &["--format", "tfrecord", "--rows", "400", "--shards", "8"],
            ),
        }
        let url = scratch.file("data");
        let text = PIPELINE.replace("data/*", &format!("{url}/*"));
        let deterministic = scratch.write("deterministic.yaml", &text.replace("ORDER\n", ""));
        let relaxed = scratch.write("relaxed.yaml", &text.replace("ORDER", "order: relaxed"));
        Self { scratch, deterministic, relaxed }
    }

    /// Writes lists of 1 to 40 numbers, with half as many rows as a run.
    fn lists() -> Self {
        let scratch = Scratch::new();
        for shard in 0..8_u64 {
            let rows = (0..ROWS / 2).filter(|row| row % 8 == shard);
            let line = |row: u64| {
                let length = 1 + random(1, row) as usize % 40;
                format!("{{\"tokens\":[{}]}}\n", vec![row.to_string(); length].join(","))
            };
            let name = if shard < 6 { "many" } else { "few" };
            scratch.write(&format!("{name}-{shard}.jsonl"), &rows.map(line).collect::<String>());
        }
        let folder = scratch.path().to_str().expect("the path is text").to_owned();
        let deterministic = scratch.write("lists.yaml", &LISTS.replace("DATA", &folder));
        Self { scratch, deterministic, relaxed: String::new() }
    }

    /// Returns the report of a run without faults.
    fn whole(&self) -> Value {
        let whole = self.scratch.run(&self.deterministic, &["--epochs", EPOCHS, "--virtual-consumers", "4"]);
        assert_clean(&whole);
        assert_eq!(whole["rows"], ROWS);
        whole
    }

    fn directory(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path().join(name)
    }
}

fn random(seed: u64, step: u64) -> u64 {
    mix64(mix64(seed) ^ step)
}

/// Runs a job on processes, and repeatedly kills a random worker and, if requested, every second time also the leader.
fn run_with_faults(
    chaos: &Chaos,
    seed: u64,
    file: &str,
    workers: usize,
    arguments: &[&str],
    coordinator: bool,
) -> Value {
    let coordinators = if coordinator && seed % 4 == 1 { 3 } else { 1 };
    let directory = chaos.directory(&format!("run-{seed}"));
    let mut processes = Processes::start_several(directory, coordinators, workers, &TOLERANT);
    let url = processes.url();
    let http = free_port();
    let mut all = vec!["run", file, "--coordinator", &url, "--audit", "--report", "json", "--http", &http];
    all.extend(arguments);
    let run = Running::start(&all);
    let mut step = 0;
    while waits_for_next_fault(&run, &http, step) {
        step += 1;
        let place = random(seed, step) as usize % processes.workers.len();
        processes.workers[place].kill();
        if coordinator && step % 2 == 1 {
            let leader = processes.leader().unwrap_or(step as usize % coordinators);
            processes.restart_coordinator(leader);
        }
        processes.replace_worker(place);
    }
    let report = run.wait().report();
    eprintln!(
        "seed {seed}: {workers} workers, {step} of them killed, {coordinators} coordinators, {} rows in {} s",
        report["rows"], report["seconds"]
    );
    assert_clean(&report);
    // The rest of a stopped run may be too short to contain a fault.
    assert!(step > 0 || report["rows"] != ROWS, "no fault fell into the run");
    report
}

/// Waits until the next fault is allowed. Returns false if the run ends before. The first fault only requires batches, because
/// a fast run may end before the interval.
fn waits_for_next_fault(run: &Running, http: &str, faults: u64) -> bool {
    let interval = if faults == 0 { Duration::ZERO } else { MIN_FAULT_INTERVAL };
    let batches = || try_metric(http, "feedline_client_batches_total");
    let (begun, before) = (Instant::now(), batches().unwrap_or_default());
    while !run.ends_within(POLL_INTERVAL) {
        if begun.elapsed() >= interval
            && batches().is_some_and(|now| now >= before + MIN_BATCHES_BETWEEN_FAULTS)
        {
            return true;
        }
    }
    false
}

#[test]
fn killed_roles_do_not_change_batches() {
    let chaos = Chaos::new();
    let whole = chaos.whole();
    for seed in 0..8 {
        let workers = [1, 2, 4][seed as usize % 3];
        let consumers = ["1", "2", "4"][seed as usize / 3 % 3];
        let shape = ["--epochs", EPOCHS, "--virtual-consumers", "4", "--consumers", consumers];
        let report = run_with_faults(&chaos, seed, &chaos.deterministic, workers, &shape, seed % 2 == 1);
        assert_eq!(report["digest"], whole["digest"], "seed {seed}");
        assert_eq!(report["content_digest"], whole["content_digest"], "seed {seed}");
    }
}

#[test]
fn killed_roles_do_not_change_mixed_and_coordinated_batches() {
    let chaos = Chaos::lists();
    let whole = chaos.whole();
    for seed in 20..24 {
        let consumers = ["1", "2", "4"][seed as usize % 3];
        let shape = ["--epochs", EPOCHS, "--virtual-consumers", "4", "--consumers", consumers];
        let report = run_with_faults(&chaos, seed, &chaos.deterministic, 2, &shape, seed % 2 == 1);
        assert_eq!(report["digest"], whole["digest"], "seed {seed}");
        assert_eq!(report["content_digest"], whole["content_digest"], "seed {seed}");
    }
    for seed in 24..27 {
        stop_and_resume(&chaos, seed, &whole);
    }
}

#[test]
fn relaxed_jobs_lose_and_repeat_no_row_if_roles_are_killed() {
    let chaos = Chaos::new();
    let whole = chaos.whole();
    for seed in 8..12 {
        let shape = ["--epochs", EPOCHS, "--consumers", "2"];
        let report = run_with_faults(&chaos, seed, &chaos.relaxed, 2, &shape, seed % 2 == 1);
        assert_eq!(report["content_digest"], whole["content_digest"], "seed {seed}");
    }
}

#[test]
fn stopped_runs_resume_if_roles_are_killed() {
    let chaos = Chaos::new();
    let whole = chaos.whole();
    for seed in 14..18 {
        stop_and_resume(&chaos, seed, &whole);
    }
}

/// Stops at random batches, and resumes with other numbers of workers and consumers, embedded or on processes with faults.
fn stop_and_resume(chaos: &Chaos, seed: u64, whole: &Value) {
    let position = chaos.scratch.file(&format!("position-{seed}.json"));
    let limit = (random(seed, 0) % (ROWS - 100) + 1).to_string();
    let shape = ["--epochs", EPOCHS, "--virtual-consumers", "4", "--position", &position];
    let consumers = (random(seed, 1) % 4 + 1).to_string();
    let mut first = shape.to_vec();
    first.extend(["--consumers", &consumers, "--limit", &limit]);
    let part = if seed.is_multiple_of(2) {
        chaos.scratch.run(&chaos.deterministic, &first)
    } else {
        run_with_faults(chaos, seed, &chaos.deterministic, 2, &first, false)
    };
    assert_clean(&part);
    let consumers = (random(seed, 2) % 4 + 1).to_string();
    let mut second = shape.to_vec();
    second.extend(["--consumers", &consumers]);
    let rest = run_with_faults(chaos, seed + 100, &chaos.deterministic, 3, &second, true);
    assert_eq!(rest["digest"], whole["digest"], "seed {seed}: stopped after {} rows", part["rows"]);
    assert_eq!(rest["content_digest"], whole["content_digest"], "seed {seed}");
    let rows = |report: &Value| report["audit"]["once"].as_u64().expect("a count");
    assert_eq!(rows(&part) + rows(&rest), ROWS, "seed {seed}");
}
