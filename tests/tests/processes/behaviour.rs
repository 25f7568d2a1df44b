//! The behaviour suite, run embedded and on processes.

use std::time::Duration;

use feedline_tests::process::{Processes, Role};
use feedline_tests::running::Running;
use feedline_tests::{Scratch, assert_clean, wait_for_rows};
use serde_json::Value;

/// How the suite runs a job.
enum Mode {
    Embedded {
        workers: usize,
    },
    Processes(Box<Processes>),
    /// The transport of batches.
    By(&'static str, Box<Processes>),
    Up(Box<Role>),
}

impl Mode {
    fn all(scratch: &Scratch) -> Vec<(&'static str, Self)> {
        let directory = |name: &str| scratch.path().join(name);
        let cache = scratch.file("up-cache");
        let up = "up --listen 127.0.0.1:0 --workers 2 --cores 2 --memory 256MiB --cache-dir";
        let up: Vec<&str> = up.split(' ').chain([cache.as_str()]).collect();
        let by = |way| Self::By(way, Box::new(Processes::start(directory(way), 1)));
        vec![
            ("one embedded worker", Self::Embedded { workers: 1 }),
            ("two embedded workers", Self::Embedded { workers: 2 }),
            ("four embedded workers", Self::Embedded { workers: 4 }),
            ("one worker process", Self::Processes(Box::new(Processes::start(directory("one"), 1)))),
            ("three worker processes", Self::Processes(Box::new(Processes::start(directory("three"), 3)))),
            ("one worker process, by TCP", by("tcp")),
            ("one worker process, by a Unix socket", by("unix")),
            ("one worker process, by shared memory", by("memory")),
            ("all roles in one listening process", Self::Up(Box::new(Role::start(&up, &[])))),
        ]
    }

    fn run(&self, scratch: &Scratch, file: &str, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        let text;
        match self {
            Self::Embedded { workers } => {
                text = workers.to_string();
                all.extend(["--workers", &text]);
            }
            Self::Processes(processes) => {
                text = processes.url();
                all.extend(["--coordinator", &text]);
            }
            Self::By(way, processes) => {
                text = processes.url();
                all.extend(["--coordinator", &text, "--transport", way]);
            }
            Self::Up(role) => {
                text = role.url();
                all.extend(["--coordinator", &text]);
            }
        }
        scratch.run(file, &all)
    }
}

/// Jobs that together use every part of the system.
fn jobs(scratch: &Scratch) -> Vec<(&'static str, String, Vec<&'static str>)> {
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "3000", "--shards", "5"]);
    scratch.make_data("images", "images", &["--format", "tfrecord", "--rows", "60", "--shards", "3"]);
    let table = scratch.file("table");
    let images = scratch.file("images");
    let source = format!("name: job\nsource: {{ url: \"{table}/*\", format: jsonl }}\nseed: 5\n");
    let pictures = format!(
        "name: job\nsource: {{ url: \"{images}/*\", format: tfrecord, features: {{ image: image/encoded }} }}\nseed: 5\n"
    );
    let crop = "operators: [ random_resized_crop: { column: image, size: [32, 32] }, normalize: { column: image, mean: [0.5], std: [0.2], layout: chw }";
    let write = |name: &str, text: String| scratch.write(&format!("{name}.yaml"), &text);
    vec![
        ("plain", write("plain", format!("{source}operators: [ batch: {{ size: 7 }} ]")), vec![]),
        (
            "shuffled over three epochs for four consumers",
            write(
                "shuffled",
                format!("{source}shuffle: {{ window: 500 }}\noperators: [ batch: {{ size: 16 }} ]"),
            ),
            vec!["--epochs", "3", "--consumers", "4"],
        ),
        (
            "filtered, remainder carried",
            write(
                "carry",
                format!(
                    "{source}shuffle: {{ window: 64 }}\noperators: [ filter: {{ where: \"label < 4\" }}, batch: {{ size: 50, remainder: carry }} ]"
                ),
            ),
            vec!["--epochs", "2", "--consumers", "2"],
        ),
        (
            "filtered, remainder dropped",
            write(
                "drop",
                format!(
                    "{source}operators: [ filter: {{ where: \"label < 4\" }}, batch: {{ size: 50, remainder: drop }} ]"
                ),
            ),
            vec!["--epochs", "2"],
        ),
        (
            "repeated within the epoch",
            write(
                "repeat",
                format!(
                    "{source}shuffle: {{ window: 64 }}\noperators: [ repeat: {{ count: 2 }}, batch: {{ size: 11 }} ]"
                ),
            ),
            vec![],
        ),
        (
            "limited operators",
            write(
                "limits",
                format!(
                    "{source}operators: [ wait: {{ ms: 0, parallelism: 2 }}, burn: {{ cpu_us: 20, parallelism: 1 }}, batch: {{ size: 64 }} ]"
                ),
            ),
            vec![],
        ),
        (
            "images",
            write("images", format!("{pictures}shuffle: {{ window: 16 }}\n{crop}, batch: {{ size: 8 }} ]")),
            vec!["--epochs", "2"],
        ),
    ]
}

#[test]
fn every_mode_delivers_the_same_batches() {
    let scratch = Scratch::new();
    let jobs = jobs(&scratch);
    let modes = Mode::all(&scratch);
    for (name, file, arguments) in &jobs {
        let mut first: Option<Value> = None;
        for (mode_name, mode) in &modes {
            let report = mode.run(&scratch, file, arguments);
            assert_clean(&report);
            let first = first.get_or_insert_with(|| report.clone());
            for key in ["digest", "content_digest", "rows", "batches"] {
                assert_eq!(report[key], first[key], "{name}: {key} on {mode_name}");
            }
        }
    }
}

/// Pipelines with and without `cache` have equal batches.
#[test]
fn caches_do_not_change_batches_in_any_mode() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000", "--shards", "5"]);
    scratch.make_data("images", "images", &["--format", "tfrecord", "--rows", "60", "--shards", "3"]);
    let table = format!("source: {{ url: \"{}/*\", format: jsonl }}", scratch.file("table"));
    let images = format!(
        "source: {{ url: \"{}/*\", format: tfrecord, features: {{ image: image/encoded }} }}",
        scratch.file("images")
    );
    let crop = "random_resized_crop: { column: image, size: [32, 32] }";
    let jobs = [
        (&table, "filter: { where: \"label < 4\" }", "CACHE", "batch: { size: 50, remainder: carry }"),
        (&table, "", "CACHE", "filter: { where: \"label < 4\" }, batch: { size: 64 }"),
        (&images, "", "recode_jpeg: { column: image }, CACHE", &format!("{crop}, batch: {{ size: 8 }}")),
        (&images, "decode_image: { column: image }", "CACHE", &format!("{crop}, batch: {{ size: 8 }}")),
    ];
    let modes = Mode::all(&scratch);
    for (number, (source, before, cache, after)) in jobs.into_iter().enumerate() {
        let file = |name: &str, cache: &str| {
            let operators: Vec<&str> =
                [before, cache, after].into_iter().filter(|operators| !operators.is_empty()).collect();
            let text = format!(
                "name: job\n{source}\nseed: 5\nshuffle: {{ window: 100 }}\noperators: [ {} ]",
                operators.join(", ")
            );
            scratch.write(&format!("{number}-{name}.yaml"), &text)
        };
        let arguments = ["--epochs", "3", "--consumers", "2"];
        let plain = scratch.run(&file("plain", ""), &arguments);
        for tier in ["memory", "disk"] {
            let file = file(tier, &cache.replace("CACHE", &format!("cache: {{ tier: {tier} }}")));
            for (name, mode) in &modes {
                let report = mode.run(&scratch, &file, &arguments);
                assert_clean(&report);
                for key in ["digest", "content_digest", "rows", "batches"] {
                    assert_eq!(report[key], plain[key], "{file}: {key} on {name}");
                }
            }
        }
    }
}

#[test]
fn relaxed_jobs_deliver_the_same_rows_in_every_mode() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "parquet", "--rows", "3000", "--shards", "5"]);
    let source =
        format!("name: job\nsource: {{ url: \"{}/*\", format: parquet }}\nseed: 5\n", scratch.file("table"));
    let text =
        format!("{source}order: relaxed\nshuffle: {{ window: 100 }}\noperators: [ batch: {{ size: 16 }} ]");
    let file = scratch.write("relaxed.yaml", &text);
    let mut digests = Vec::new();
    for (name, mode) in Mode::all(&scratch) {
        let report = mode.run(&scratch, &file, &["--consumers", "3", "--epochs", "2"]);
        assert_clean(&report);
        digests.push((name, report["content_digest"].clone()));
    }
    for (name, digest) in &digests {
        assert_eq!(*digest, digests[0].1, "{name}");
    }
}

#[test]
fn consumers_have_equal_steps_and_virtual_consumers_determine_the_batches() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "csv", "--rows", "1003"]);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: csv }}\nshuffle: {{ window: 100 }}\noperators: [ batch: {{ size: 10 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("job.yaml", &text);
    let mut digests = Vec::new();
    for consumers in ["1", "2", "3", "6"] {
        let report = scratch.run(&file, &["--virtual-consumers", "6", "--consumers", consumers]);
        assert_clean(&report);
        // 1003 rows for 6 virtual consumers in batches of 10: 17 steps each, the last one smaller.
        assert_eq!(report["batches"], 6 * 17);
        digests.push(report["digest"].clone());
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

/// The last step of an epoch has rows for two of four virtual consumers. The others receive an empty batch, also after a
/// stop right before this step.
#[test]
fn a_run_resumed_before_an_empty_last_step_delivers_it() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "34"]);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 8 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("job.yaml", &text);
    let shape = ["--virtual-consumers", "4", "--epochs", "2"];
    let whole = scratch.run(&file, &shape);
    assert_eq!(whole["batches"], 16);
    for limit in ["8", "31", "32", "33", "34", "40", "66", "67"] {
        for consumers in ["1", "2"] {
            let place = scratch.file(&format!("place-{limit}-{consumers}.json"));
            let mut part = shape.to_vec();
            part.extend(["--position", &place]);
            let mut first = part.clone();
            first.extend(["--limit", limit]);
            let first = scratch.run(&file, &first);
            part.extend(["--consumers", consumers]);
            let rest = scratch.run(&file, &part);
            let batches = |report: &Value| report["batches"].as_u64().expect("a count");
            assert_eq!(batches(&first) + batches(&rest), 16, "limit {limit}, {consumers} consumers");
            assert_eq!(rest["digest"], whole["digest"], "limit {limit}, {consumers} consumers");
        }
    }
}

#[test]
fn an_interrupted_run_resumes_at_its_position() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "4000"]);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\nshuffle: {{ window: 100 }}\noperators: [ burn: {{ cpu_us: 500 }}, batch: {{ size: 10 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("job.yaml", &text);
    let whole = scratch.run(&file, &["--virtual-consumers", "2"]);
    let place = scratch.file("place.json");
    let mut parts = 0;
    let mut last = Value::Null;
    for attempt in 0..50_u32 {
        let consumers = ["1", "2"][attempt as usize % 2];
        let index_dir = scratch.file("index");
        let run = Running::start(&[
            "run",
            &file,
            "--virtual-consumers",
            "2",
            "--consumers",
            consumers,
            "--position",
            &place,
            "--audit",
            "--report",
            "json",
            "--index-dir",
            &index_dir,
        ]);
        // A busy machine may not deliver a batch in the first parts, but it does in the last.
        if run.ends_within(Duration::from_millis(900) + attempt * Duration::from_millis(200)) {
            last = run.wait().report();
            break;
        }
        run.interrupt();
        last = run.wait().report();
        parts += 1;
        if last["rows"].as_u64().is_some() && last["digest"] == whole["digest"] {
            break;
        }
    }
    assert_clean(&last);
    assert!(parts >= 1, "the run was too short to be interrupted");
    assert_eq!(last["digest"], whole["digest"]);
    assert_eq!(last["content_digest"], whole["content_digest"]);
}

#[test]
fn sigterm_drains_a_worker_without_losing_rows() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "6000"]);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ burn: {{ cpu_us: 300 }}, batch: {{ size: 20 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("job.yaml", &text);
    let mut processes = Processes::start(scratch.path().to_owned(), 2);
    let url = processes.url();
    let run = Running::start(&["run", &file, "--coordinator", &url, "--audit", "--report", "json"]);
    wait_for_rows(&url, 200);
    assert_eq!(processes.workers.remove(0).terminate(), 0);
    let report = run.wait().report();
    assert_clean(&report);
    assert_eq!(report["rows"], 6000);
}

/// A second run of the same job supersedes the first. The first fails, and the second completes the job.
#[test]
fn a_superseded_run_leaves_the_job_to_the_newer_run() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000"]);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ burn: {{ cpu_us: 300 }}, batch: {{ size: 20 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("job.yaml", &text);
    let processes = Processes::start(scratch.path().to_owned(), 1);
    let url = processes.url();
    let call = ["run", &file, "--job", "shared", "--coordinator", &url, "--report", "json"];
    let first = Running::start(&[&call[..], &["--step-ms", "500"]].concat());
    wait_for_rows(&url, 100);
    let rest = scratch.call(&call).report();
    let first = first.wait();
    assert_eq!(first.status, 1, "{first:?}");
    assert!(first.stderr.contains("a newer session of consumer 0"), "{first:?}");
    let jobs = scratch.call(&["job", "list", "--coordinator", &url, "--json"]).last_json();
    assert_eq!((&jobs[0]["state"], jobs.as_array().map(Vec::len)), (&"completed".into(), Some(1)));
    let rows = rest["rows"].as_u64().expect("a count");
    let all = jobs[0]["delivered"]["rows"].as_u64().expect("a count");
    assert!(rows <= 1900, "the first run's rows came again: {rows}");
    assert!(all >= 2000, "of 2000 rows {all} were delivered");
}
