//! Views of a cluster: a plan from saved traces, and the jobs and workers of a running cluster.

use std::process::{Command, Stdio};

use feedline_tests::process::Role;
use feedline_tests::{CACHE_HOME, Scratch, call, feedline, wait_for};
use serde_json::Value;

const CLUSTER: &str = "worker_types:\n  - { name: small, cores: 2, memory: 4GiB, count: 2, max: 50 }\n  \
    - { name: fast, cores: 8, memory: 16GiB, speed: 2, count: 0, max: 10 }\n";

/// Writes a pipeline file that uses `cpu_us` of CPU time per row.
fn pipeline(scratch: &Scratch, name: &str, cpu_us: u32) -> String {
    let text = format!(
        "name: {name}\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators:\n  - burn: {{ cpu_us: {cpu_us} }}\n  \
         - batch: {{ size: 40 }}\n",
        scratch.file("table")
    );
    scratch.write(&format!("{name}.yaml"), &text)
}

#[test]
fn traces_are_planned_on_a_described_cluster() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000"]);
    let cluster =
        scratch.write("cluster.yaml", &format!("{CLUSTER}jobs: {{ slow: {{ demand_rows_per_s: 20000, cache: never }}, quick: {{ cache: never }} }}"));
    let (slow, quick) = (pipeline(&scratch, "slow", 1000), pipeline(&scratch, "quick", 200));

    let missing = scratch.call(&["plan", "--jobs", &slow, "--cluster", &cluster]);
    assert_eq!(missing.status, 2);
    assert!(missing.stderr.contains(&format!("create it with `feedline explain {slow} --save-trace`")));

    for file in [&slow, &quick] {
        let traced = scratch.call(&["explain", file, "--cores", "1", "--seconds", "2", "--save-trace"]);
        assert_eq!(traced.status, 0, "{}", traced.stderr);
    }
    let trace = scratch.file("quick.trace.json");
    let arguments = ["plan", "--jobs", &slow, &trace, "--cluster", &cluster];
    let plan = scratch.call(&[&arguments[..], &["--format", "json"]].concat()).report();
    let jobs = plan["jobs"].as_array().expect("a plan has jobs");
    assert_eq!((&jobs[0]["name"], &jobs[1]["name"]), (&"slow".into(), &"quick".into()));
    assert_eq!(jobs[0]["demand_rows_per_s"], 20000.0);
    // Four cores at one millisecond per row.
    let rate = jobs[0]["rows_per_s"].as_f64().expect("a rate");
    assert!((50.0..4500.0).contains(&rate), "{plan}");
    let wanted = |kind: usize| plan["wanted"][kind]["wanted"].as_u64().expect("a count");
    assert!(2 * wanted(0) + 8 * wanted(1) > 4, "more cores than there are: {plan}");
    let text = scratch.call(&arguments).stdout;
    assert!(text.starts_with("2 jobs on 2 workers\n") && text.contains("\nobjective "), "{text}");

    pipeline(&scratch, "slow", 999);
    let changed = scratch.call(&arguments);
    assert_eq!(changed.status, 2);
    assert!(changed.stderr.contains("has changed since"), "{}", changed.stderr);
}

#[test]
fn top_shows_jobs_and_workers() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000"]);
    let file = pipeline(&scratch, "job", 1000);
    let index = scratch.file("index");
    let up = Role::start(
        &["up", "--listen", "127.0.0.1:0", "--workers", "2", "--cores", "2", "--index-dir", &index],
        &[],
    );
    let url = up.url();
    let arguments = ["run", &file, "--coordinator", &url, "--epochs", "1000", "--step-ms", "1"];
    let mut run = Command::new(feedline())
        .args(arguments)
        .env(CACHE_HOME, scratch.cache())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let top = |format: &str| call(&["top", "--coordinator", &url, "--once", "--format", format]);
    let view = wait_for("a job that flows and has a bottleneck", || {
        let view: Value = top("json").last_json();
        let job = &view["jobs"][0];
        (job["bottleneck"]["why"].is_string() && job["rows_per_s"].as_f64() > Some(0.0)).then_some(view)
    });
    let text = top("text").stdout;
    run.kill().and_then(|()| run.wait()).expect("the run is still there");

    let job = &view["jobs"][0];
    assert!(job["name"].as_str().is_some_and(|name| name.starts_with("job")), "{view}");
    assert_eq!((&job["state"], &job["consumers"]), (&"running".into(), &1.into()), "{view}");
    assert!(job["rows_per_s"].as_f64() > Some(0.0) && job["cores"].as_f64() > Some(0.0), "{view}");
    assert!(job["stall_share"].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)), "{view}");
    let workers = view["workers"].as_array().expect("a view has workers");
    assert_eq!(workers.len(), 2, "{view}");
    for worker in workers {
        assert_eq!((&worker["cores"], &worker["draining"]), (&1.into(), &false.into()), "{view}");
        assert!(worker["address"].as_str().is_some_and(|url| url.starts_with("http://")), "{view}");
    }
    let used: f64 = workers.iter().filter_map(|worker| worker["used_cores"].as_f64()).sum();
    assert!(used > 0.0, "{view}");
    assert_eq!(view["wanted"].as_array().map(Vec::len), Some(1), "{view}");
    assert!(!view["reasons"].as_array().expect("a plan has reasons").is_empty(), "{view}");
    assert!(text.starts_with("1 job, 2 workers\n") && text.contains("rows/s"), "{text}");
}

#[test]
fn top_reports_an_unreachable_coordinator() {
    let gone = call(&["top", "--coordinator", "http://127.0.0.1:9", "--once"]);
    assert_eq!(gone.status, 1);
    assert_eq!(gone.stderr.lines().count(), 1, "{}", gone.stderr);
    assert!(
        gone.stderr.contains("check the address, and that a coordinator is running there"),
        "{}",
        gone.stderr
    );
}
