//! Tenants and quotas on a running service: jobs with the same name, limits of jobs, and limits of cores.

use std::sync::Arc;
use std::time::Duration;

use feedline_client::{ClientError, ClientSettings, Job};
use feedline_coordinator::{CoordinatorSettings, TenantView};
use feedline_data::ids::{SessionId, WorkerId};
use feedline_data::messages::{JobSpec, ServiceErrorKind};
use feedline_data::pipeline::Pipeline;
use feedline_proto::CoordinatorService;
use feedline_tests::embedded::{OneWorker, worker_settings};
use feedline_tests::process::Role;
use feedline_tests::running::Running;
use feedline_tests::{Scratch, assert_clean, wait_for};
use feedline_worker::ProcessClock;
use serde_json::Value;

fn pipeline_text(data: &str, operators: &str) -> String {
    format!(
        "name: train\nsource: {{ url: \"{data}/*\", format: jsonl }}\noperators: [ {operators}batch: {{ size: 10 }} ]"
    )
}

/// Two tenants run jobs with the same name on one worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tenants_run_jobs_with_the_same_name() {
    let scratch = Scratch::new();
    scratch.make_data("table", "few", &["--format", "jsonl", "--rows", "100"]);
    scratch.make_data("table", "many", &["--format", "jsonl", "--rows", "300"]);
    let settings = CoordinatorSettings::in_memory(scratch.path().join("index"));
    let coordinator = feedline_coordinator::start(settings, 1).await.expect("the directory is writable");
    let (settings, clock) = (worker_settings(64 << 20), ProcessClock::new());
    let worker =
        feedline_worker::start(WorkerId(1), settings, clock, coordinator.service()).expect("threads start");
    let mut jobs = Vec::new();
    for (tenant, data) in [("a", "few"), ("b", "many")] {
        let view: Arc<dyn CoordinatorService> = Arc::new(TenantView::new(coordinator.service(), tenant));
        let text = pipeline_text(&scratch.file(data), "");
        let spec =
            JobSpec::new(Pipeline::from_yaml(&text, "test.yaml").expect("the test's pipeline is right"));
        let workers = Arc::new(OneWorker(worker.service()));
        let job = Job::open(view, workers, spec, ClientSettings::default()).await.expect("it is sound");
        jobs.push(job);
    }
    assert_ne!(jobs[0].id(), jobs[1].id());
    for (job, expected) in jobs.iter().zip([100, 300]) {
        let mut consumer = job.consumer(0, SessionId(1));
        let mut rows = 0;
        while let Some(batch) = consumer.next().await.expect("the job does not fail") {
            rows += batch.records.num_rows();
        }
        consumer.close().await.expect("the coordinator runs");
        assert_eq!(rows, expected);
        assert_eq!(job.status().await.expect("it is known").delivered.rows, expected as u64);
    }
    // The job of the other tenant is not found.
    let view: Arc<dyn CoordinatorService> = Arc::new(TenantView::new(coordinator.service(), "a"));
    let workers = Arc::new(OneWorker(worker.service()));
    let foreign = Job::attach(Arc::clone(&view), workers, jobs[1].id(), ClientSettings::default()).await;
    assert!(matches!(foreign.err(), Some(ClientError::UnknownJob(_))));
    assert_eq!(view.cancel_job(jobs[1].id()).await.unwrap_err().kind, ServiceErrorKind::NotFound);
    worker.shutdown().await;
    coordinator.shutdown().await.expect("its log is in memory");
}

fn up(scratch: &Scratch, tenants: &str, cores: &str) -> Role {
    let tenants = scratch.write("tenants.yaml", tenants);
    let index = scratch.file("index");
    let arguments =
        ["up", "--listen", "127.0.0.1:0", "--workers", "1", "--cores", cores, "--tenants", &tenants];
    let arguments: Vec<&str> = arguments.into_iter().chain(["--index-dir", &index]).collect();
    Role::start(&arguments, &[])
}

#[test]
fn a_job_over_the_limit_waits_and_starts_when_another_ends() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000"]);
    let file = scratch.write("job.yaml", &pipeline_text(&scratch.file("table"), ""));
    let up = up(&scratch, "default: { jobs: 1 }", "2");
    let url = up.url();
    let first = Running::start(&[
        "run",
        &file,
        "--coordinator",
        &url,
        "--job",
        "first",
        "--epochs",
        "1000",
        "--step-ms",
        "5",
    ]);
    let jobs = || -> Value { scratch.call(&["job", "list", "--coordinator", &url, "--json"]).last_json() };
    let id = wait_for("the first job", || jobs()[0]["job"].as_u64());
    let second = Running::start(&["run", &file, "--coordinator", &url, "--report", "json", "--audit"]);
    let reason = "quota exceeded: callers without a tenant may have at most 1 jobs";
    assert!(second.says_within(reason, Duration::from_secs(120)), "{}", second.wait().stderr);
    assert!(!second.has_ended());
    let cancelled = scratch.call(&["job", "cancel", &format!("{id:x}"), "--coordinator", &url]);
    assert_eq!(cancelled.status, 0, "{}", cancelled.stderr);
    assert_clean(&second.wait().report());
    assert_ne!(first.wait().status, 0, "it was cancelled");
}

#[test]
fn a_job_uses_at_most_the_cores_of_its_tenants_quota() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "600"]);
    let text = pipeline_text(&scratch.file("table"), "burn: { cpu_us: 5000 }, ");
    let file = scratch.write("job.yaml", &text);
    let up = up(&scratch, "default: { cores: 0.5 }", "2");
    let report = scratch.run(&file, &["--coordinator", &up.url()]);
    assert_clean(&report);
    let operators = report["operators"].as_array().expect("a report lists operators");
    let burn = operators.iter().find(|operator| operator["name"] == "burn").expect("it burns");
    let (burnt, seconds) = (burn["cpu_seconds"].as_f64(), report["seconds"].as_f64());
    let (burnt, seconds) = (burnt.expect("a number"), seconds.expect("a number"));
    assert!(burnt > 2.5, "3 s of work: {report}");
    // The scheduler may save up a tenth of a second, and running chunks complete.
    assert!(burnt <= 0.5 * seconds + 0.5, "{burnt} s of CPU time in {seconds} s");
}
