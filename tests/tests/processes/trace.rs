//! The CPU times of operators and of transport add up to the CPU time of the process, for a worker and for an embedded run.

use std::fs;

use feedline_tests::Scratch;
use feedline_tests::process::Processes;
use serde_json::Value;

/// Tolerance of the sum of the parts.
const TOLERANCE: f64 = 0.05;
/// Ticks per second of process times in Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the user and system CPU time of a process in seconds.
fn cpu_seconds(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    // Behind the name in brackets, the state is the first field, and user and system time are the 12th and 13th.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
    ticks as f64 / TICKS_PER_SECOND
}

fn sum(report: &Value, field: &str) -> f64 {
    let operators = report["operators"].as_array().expect("a report lists operators");
    operators.iter().filter_map(|operator| operator[field].as_f64()).sum()
}

fn transport(report: &Value) -> f64 {
    report["worker_cpu"][0]["transport_seconds"].as_f64().expect("a report contains its workers")
}

/// Returns pipelines with their data and a sufficient number of epochs.
fn pipelines(scratch: &Scratch) -> [(String, &'static str); 2] {
    scratch.make_data("images", "images", &["--format", "tfrecord", "--rows", "120", "--seed", "3"]);
    let photographs = scratch.write(
        "photographs.yaml",
        &format!(
            "name: photographs\nsource: {{ url: \"{}/*.tfrecord\", format: tfrecord, features: {{ image: image/encoded }} }}\n\
             shuffle: {{ window: 60 }}\noperators:\n  - random_resized_crop: {{ column: image, size: [224, 224] }}\n  \
             - random_horizontal_flip: {{ column: image }}\n  - batch: {{ size: 16 }}\n",
            scratch.file("images")
        ),
    );
    scratch.make_data("text", "text", &["--format", "text", "--rows", "20000", "--seed", "3"]);
    let text = scratch.write(
        "text.yaml",
        &format!(
            "name: text\nsource: {{ url: \"{}/*\", format: text }}\nshuffle: {{ window: 4096 }}\n\
             operators:\n  - filter: {{ where: \"length(text) > 5\" }}\n  - batch: {{ size: 256 }}\n",
            scratch.file("text")
        ),
    );
    [(photographs, "12"), (text, "40")]
}

#[test]
fn the_parts_add_up_to_the_cpu_time_of_a_worker() {
    let scratch = Scratch::new();
    let processes = Processes::start(scratch.path().join("roles"), 1);
    let (mut operators, mut before, mut transported) = (0.0, 0.0, 0.0);
    for (file, epochs) in pipelines(&scratch) {
        let report = scratch.run(&file, &["--coordinator", &processes.url(), "--epochs", epochs]);
        let whole = cpu_seconds(processes.workers[0].id());
        operators += sum(&report, "cpu_seconds");
        let parts = operators + transport(&report);
        println!("{file}: {} s of operators, {parts} s in all; the process: {whole} s", operators);
        assert!((parts - whole).abs() < TOLERANCE * whole, "{file}: {parts} s of {whole} s\n{report}");
        // The test build does not optimise the transport.
        let without_transport = whole - before - transport(&report) + transported;
        let share = sum(&report, "cpu_seconds") / without_transport;
        assert!(share > 0.5, "{file}: operators are most of the other work, not {share}\n{report}");
        (before, transported) = (whole, transport(&report));
    }
}

#[test]
fn the_parts_add_up_to_the_cpu_time_of_an_embedded_run() {
    let scratch = Scratch::new();
    for (file, epochs) in pipelines(&scratch) {
        let report = scratch.run(&file, &["--epochs", epochs]);
        let whole =
            report["worker_cpu"][0]["process_seconds"].as_f64().expect("a report contains its workers");
        let parts = sum(&report, "cpu_seconds") + transport(&report);
        assert!((parts - whole).abs() < TOLERANCE * whole, "{file}: {parts} s of {whole} s\n{report}");
    }
}

#[test]
fn an_operator_reports_its_times_and_bytes() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "400", "--shards", "3"]);
    let file = scratch.write(
        "job.yaml",
        &format!(
            "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators:\n  - wait: {{ ms: 2, parallelism: 2 }}\n  \
             - burn: {{ cpu_us: 500 }}\n  - batch: {{ size: 40 }}\n",
            scratch.file("table")
        ),
    );
    let report = scratch.run(&file, &["--step-ms", "20"]);
    let operator = |name: &str| {
        let operators = report["operators"].as_array().expect("a report lists operators");
        operators.iter().find(|operator| operator["name"] == name).cloned().expect(name)
    };
    let seconds = |name: &str, field: &str| operator(name)[field].as_f64().expect(field);
    // 400 rows wait 2 ms each, two chunks at a time.
    assert!(seconds("wait", "latency_seconds") >= 0.8 && seconds("wait", "busy_seconds") >= 0.8, "{report}");
    assert!(seconds("wait", "cpu_seconds") < 0.4 && seconds("wait", "wait_input_seconds") > 0.0, "{report}");
    assert_eq!(
        (&operator("wait")["parallelism"], &operator("burn")["parallelism"]),
        (&2.into(), &Value::Null)
    );
    assert!(seconds("burn", "cpu_seconds") >= 0.2 && seconds("burn", "latency_seconds") == 0.0, "{report}");
    for (before, after) in [("source", "wait"), ("wait", "burn"), ("burn", "batch")] {
        assert_eq!(
            operator(before)["bytes_out"],
            operator(after)["bytes_in"],
            "{before} to {after}\n{report}"
        );
    }
    assert!(seconds("batch", "wait_output_seconds") > 0.0, "{report}");
    let store = &report["store"];
    assert!(store["requests"].as_u64() >= Some(3) && store["wait_seconds"].as_f64() > Some(0.0), "{report}");
    assert_eq!((&store["distinct_shards"], &store["distinct_shard_bytes"]), (&3.into(), &store["bytes"]));
    // Ten batches, each followed by a step.
    assert!(report["step_seconds"].as_f64() >= Some(0.18), "{report}");
}

#[test]
fn tracing_can_be_switched_off() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "400"]);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 40 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("job.yaml", &text);
    let (on, off) = (scratch.run(&file, &[]), scratch.run(&file, &["--trace", "off"]));
    assert_eq!(off["operators"], Value::Array(Vec::new()));
    assert_eq!(on["digest"], off["digest"]);
}
