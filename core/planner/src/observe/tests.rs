//! From reports to rates, and from rates to a problem.

use std::sync::Arc;

use feedline_data::ids::SessionId;
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::samples::Samples;
use feedline_data::messages::{ConsumerStats, OperatorStats, ProcessCpu, StoreStats, WorkerJobStats};
use feedline_data::pipeline::{Pipeline, Source};
use feedline_data::schema::Schema;
use feedline_data::tenants::Quota;

use super::*;

use crate::plan::{NoDeadline, solve};

mod counters;
mod graphs;
mod stores;

pub(crate) const JOB: JobId = JobId(7);

fn facts() -> JobProperties {
    let pipeline = Pipeline::builder("photographs").source(Source::tfrecord("data/"));
    let pipeline = pipeline.burn(1).random_resized_crop("image", [8, 8]).batch(4).build().unwrap();
    let dataset = DatasetSummary {
        part_rows: Vec::new(),
        widened: Vec::new(),
        rounded: Vec::new(),
        ignored: Vec::new(),
        part_runs: Vec::new(),
        content: Default::default(),
        index: String::new(),
        changes: Default::default(),
        is_compressed: false,
        runs: Default::default(),
        ranges: None,
        batch_bytes: None,
        graph: None,
        fingerprint: "f".to_owned(),
        rows: 10_000,
        bytes: 1_000_000_000,
        shards: 10,
        blocks: 100,
        schema: Schema::default(),
        defects: 0,
    };
    JobProperties {
        job: JOB,
        tenant: String::new(),
        name: "photographs".to_owned(),
        pipeline,
        dataset,
        passes_left: 3.0,
        weight: 1.0,
        quota: Quota::default(),
        lag_rows: None,
        topic: None,
    }
}

/// The counters of a worker with 2 cores after `seconds`: 1,000 rows/s, with 0.5 ms of `burn` and 1 ms of the crop
/// each.
fn stats(job: JobId, seconds: u64) -> WorkerJobStats {
    let rows = 1_000 * seconds;
    let operator = |name: &str, cpu_us: u64, bytes: u64| OperatorStats {
        name: name.to_owned(),
        rows_in: if name == "source" { 0 } else { rows },
        rows_out: rows,
        bytes_out: bytes * rows,
        cpu_ns: cpu_us * 1_000 * rows,
        busy_ns: cpu_us * 1_000 * rows,
        ..OperatorStats::default()
    };
    WorkerJobStats {
        job,
        operators: vec![
            operator("source", 50, 100_000),
            operator("burn", 500, 100_000),
            operator("random_resized_crop", 1_000, 192),
            operator("batch", 10, 192),
        ],
        store: StoreStats {
            requests: rows,
            bytes: 100_000 * rows,
            wait_ns: 2_000_000 * rows,
            ..StoreStats::default()
        },
        memory_wait_ns: 0,
        peak_rss_bytes: 0,
        elapsed_ns: seconds * 1_000_000_000,
        cpu: ProcessCpu { process_ns: 1_600_000 * rows, transport_ns: 40_000 * rows },
        encodings: Vec::new(),
        graph: None,
    }
}

pub(crate) fn samples(seconds: u64, jobs: &[JobId]) -> Samples {
    let worker = WorkerReportSample {
        worker: WorkerId(1),
        address: "http://10.0.0.7:7071".to_owned(),
        pool: String::new(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores: 2,
        memory_bytes: 1 << 30,
        caches: Vec::new(),
        memory: Vec::new(),
        stores: Vec::new(),
        graphs: Vec::new(),
        memory_full: false,
        draining: false,
        elapsed_ns: seconds * 1_000_000_000,
        cpu: ProcessCpu::default(),
        jobs: jobs.iter().map(|job| Arc::new(stats(*job, seconds))).collect(),
    };
    let taken = ConsumerStats {
        rows: 1_000 * seconds,
        batches: 250 * seconds,
        bytes: 1_000 * 10_000 * seconds,
        network_bytes: 1_000 * 10_000 * seconds,
        skipped_rows: 0,
        stall_ns: seconds * 800_000_000,
        step_ns: seconds * 200_000_000,
        copy_ns: 0,
        newest_ms: 0,
    };
    let consumers = jobs.iter().map(|job| ConsumerReportSample {
        job: *job,
        consumer: 0,
        session: SessionId(1),
        stats: taken,
    });
    let facts = jobs.iter().map(|job| JobProperties { job: *job, ..facts() });
    Samples {
        workers: vec![worker],
        consumers: consumers.collect(),
        jobs: facts.collect(),
        preparing_jobs: 0,
    }
}

pub(crate) fn observed(jobs: &[JobId]) -> Observer {
    let mut observer = Observer::default();
    for second in 1..=8 {
        observer.push(second * 1_000, &samples(second, jobs));
    }
    observer
}

#[test]
fn a_model_has_the_rates_of_the_last_seconds() {
    let model = observed(&[JOB]).model(JOB).unwrap();
    assert!((model.rows_per_s - 1_000.0).abs() < 1.0, "{}", model.rows_per_s);
    let cpu_us: Vec<f64> = model.operators.iter().map(|one| (one.cpu_s_on("") * 1e6).round()).collect();
    assert_eq!(cpu_us, [50.0, 500.0, 1_000.0, 10.0]);
    // The process uses 1,600 us of CPU per row, and operators 1,560 us of it.
    assert!((model.cpu_s_from(4, "") * 1e6 - 40.0).abs() < 0.5);
    assert_eq!(model.demand_rows_per_s.map(f64::round), Some(5_000.0));
    let cacheable: Vec<bool> = model.cache_points.iter().map(|point| point.is_cacheable).collect();
    assert_eq!(cacheable, [true, true, false]);
    assert!((model.cache_points[0].bytes / 1e9 - 1.0).abs() < 1e-6, "of the whole dataset");
    assert!((model.store_concurrency - 2.0).abs() < 0.01);
}

#[test]
fn a_job_without_reports_is_unknown() {
    let mut observer = observed(&[JOB]);
    assert_eq!(observer.model(JobId(8)), None);
    observer.push(9_000, &samples(9, &[]));
    assert_eq!(observer.observation(JOB), None);
    let mut fresh = Observer::default();
    fresh.push(1_000, &samples(1, &[JOB]));
    assert_eq!(fresh.model(JOB), None, "one report is not enough for a window");
}

#[test]
fn a_restarted_worker_changes_no_rate() {
    let mut observer = observed(&[JOB]);
    for second in 1..=3 {
        observer.push((8 + second) * 1_000, &samples(second, &[JOB]));
    }
    let model = observer.model(JOB).unwrap();
    assert!((model.rows_per_s - 1_000.0).abs() < 1.0, "{}", model.rows_per_s);
}

#[test]
fn transport_is_divided_by_the_cpu_time_of_operators() {
    let observer = observed(&[JOB, JobId(8)]);
    let one = observer.observation(JOB).unwrap();
    let alone = observed(&[JOB]).observation(JOB).unwrap();
    // Transport needs 40 us for each of 5,000 rows, and half of it belongs to the other job.
    assert_eq!(alone.recent[0].process_cpu_ns - one.recent[0].process_cpu_ns, 20_000 * 5_000);
}

#[test]
fn the_problem_of_two_jobs_can_be_solved() {
    let problem = observed(&[JOB, JobId(8)]).problem(PlannerSettings::default(), CachePolicy::Never);
    assert_eq!(problem.workers.len(), 1);
    assert_eq!(
        (problem.worker_types[0].name.as_str(), problem.worker_types[0].cores),
        ("2 cores, 1.0 GiB", 2.0)
    );
    assert_eq!(problem.jobs[0].cache_points.len(), 2, "no cache point after a random operator");
    assert_eq!(
        problem.jobs[0].cache_points[0].key, problem.jobs[1].cache_points[0].key,
        "the same data and operators"
    );
    assert_ne!(problem.jobs[0].cache_points[0].key, problem.jobs[0].cache_points[1].key);
    let plan = solve(&problem, None, &NoDeadline).unwrap();
    assert_eq!(plan.jobs.len(), 2);
    assert!((plan.jobs[0].fed_fraction - plan.jobs[1].fed_fraction).abs() < 1e-3);
}
