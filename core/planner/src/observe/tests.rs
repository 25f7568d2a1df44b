//! From reports to rates, and from rates to a problem.

use std::sync::Arc;

use feedline_data::ids::SessionId;
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::samples::Samples;
use feedline_data::messages::{
    ConsumerStats, EncodingStats, OperatorStats, ProcessCpu, StoreStats, WorkerJobStats,
};
use feedline_data::pipeline::{CacheEncoding, Pipeline, Source};
use feedline_data::schema::Schema;
use feedline_data::tenants::Quota;
use feedline_data::view::BottleneckKind;
use proptest::prelude::*;

use super::*;

use crate::model::{Bandwidth, Locality};

use crate::plan::{NoDeadline, solve};

use crate::view::cluster_view;

pub(crate) const JOB: JobId = JobId(7);

fn facts() -> JobProperties {
    let pipeline = Pipeline::builder("photographs").source(Source::tfrecord("data/"));
    let pipeline = pipeline.burn(1).random_resized_crop("image", [8, 8]).batch(4).build().unwrap();
    let dataset = DatasetSummary {
        part_rows: Vec::new(),
        fingerprint: "f".to_owned(),
        rows: 10_000,
        bytes: 1_000_000_000,
        shards: 10,
        blocks: 100,
        schema: Schema { fields: Vec::new() },
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
        stall_ns: seconds * 800_000_000,
        step_ns: seconds * 200_000_000,
        copy_ns: 0,
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

#[test]
fn waits_of_an_operator_do_not_count_as_waits_for_the_store() {
    let mut observer = Observer::default();
    for second in 1..=8 {
        let mut seen = samples(second, &[JOB]);
        let stats = Arc::make_mut(&mut seen.workers[0].jobs[0]);
        for operator in &mut stats.operators {
            (operator.cpu_ns, operator.busy_ns) = (operator.cpu_ns / 10, operator.busy_ns / 10);
        }
        // Seven executions wait all the time, while two reads are in flight.
        let waits = &mut stats.operators[1];
        (waits.cpu_ns, waits.busy_ns, waits.latency_ns) = (0, seconds_ns(7 * second), seconds_ns(7 * second));
        observer.push(second * 1_000, &seen);
    }
    assert!(!observer.waits_for_store(JOB));
    let bound = observer.bottleneck(JOB).unwrap();
    assert_eq!((bound.kind, bound.operator.as_deref()), (BottleneckKind::Latency, Some("burn")));
    assert!((bound.rows_per_s - 1_000.0).abs() < 1.0, "{}", bound.rows_per_s);
}

fn seconds_ns(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

#[test]
fn a_reset_separates_counters_of_different_read_concurrency() {
    let mut observer = Observer::default();
    for second in 1..=10_u64 {
        // The store delivers 8 MB/s, first to 7 reads in flight, then to 100.
        let (few, many) = (second.min(5), second.saturating_sub(5));
        let mut seen = samples(second, &[JOB]);
        let stats = Arc::make_mut(&mut seen.workers[0].jobs[0]);
        for operator in &mut stats.operators {
            (operator.cpu_ns, operator.busy_ns) = (operator.cpu_ns / 10, operator.busy_ns / 10);
        }
        stats.store.bytes = 8_000_000 * second;
        stats.store.wait_ns = seconds_ns(7 * few + 100 * many);
        if second == 6 {
            observer.reset_counters(JOB);
        }
        observer.push(second * 1_000, &seen);
        assert_eq!(
            observer.waits_for_store(JOB),
            ![1, 6].contains(&second),
            "one report is not enough for a window"
        );
    }
    let model = observer.model(JOB).unwrap();
    assert!((model.store_concurrency - 100.0).abs() < 0.1, "{}", model.store_concurrency);
    let Bandwidth::Roofline { slope, cap } = model.bandwidth else { panic!("{:?}", model.bandwidth) };
    assert!((slope / 1e6 - 8.0 / 7.0).abs() < 0.01 && (cap / 1e6 - 8.0).abs() < 0.01, "{slope} {cap}");
}

/// Two jobs use half of a worker's threads each: one job leaves the worker idle, and both together do not.
#[test]
fn jobs_that_share_a_busy_worker_do_not_wait_for_the_store() {
    let jobs = [JOB, JobId(8)];
    let mut observer = Observer::default();
    let mut single = Observer::default();
    for second in 1..=8 {
        let mut seen = samples(second, &jobs);
        for stats in &mut seen.workers[0].jobs {
            for operator in &mut Arc::make_mut(stats).operators {
                (operator.cpu_ns, operator.busy_ns) = (operator.cpu_ns * 6 / 10, operator.busy_ns * 6 / 10);
            }
        }
        observer.push(second * 1_000, &seen);
        seen.workers[0].jobs.truncate(1);
        seen.jobs.truncate(1);
        seen.consumers.truncate(1);
        single.push(second * 1_000, &seen);
    }
    assert!(!observer.waits_for_store(JOB) && !observer.waits_for_store(JobId(8)));
    assert!(single.waits_for_store(JOB), "one job leaves half of the worker idle");
}

/// Local reads and local consumers do not use the network.
#[test]
fn a_saturated_network_is_the_bottleneck() {
    // The worker reads 1,000 rows/s of 100 kB each.
    let observer = |nic_bytes_per_s, url: &str, near| {
        let mut observer = Observer::default();
        for second in 1..=8 {
            let mut samples = samples(second, &[JOB]);
            samples.workers[0].nic_bytes_per_s = nic_bytes_per_s;
            samples.jobs[0].pipeline.source.url = vec![url.to_owned()];
            let stats = &mut samples.consumers[0].stats;
            stats.network_bytes = if near { 0 } else { stats.bytes };
            observer.push(second * 1_000, &samples);
        }
        observer
    };
    let narrow = observer(101_000_000, "s3://bucket/data/", true);
    assert_eq!(narrow.bottleneck(JOB).unwrap().kind, BottleneckKind::Network);
    assert!((narrow.bottleneck(JOB).unwrap().rows_per_s - 1_010.0).abs() < 1.0);
    for wide in [0, 1_250_000_000].map(|speed| observer(speed, "s3://bucket/data/", false)) {
        assert_eq!(wide.bottleneck(JOB).unwrap().kind, BottleneckKind::Cpu);
    }
    // The bytes of a delivered row.
    let sent = narrow.model(JOB).unwrap().delivered_bytes_per_row;
    let far = observer((500.0 * sent) as u64, "/data/", false);
    assert_eq!(far.bottleneck(JOB).unwrap().kind, BottleneckKind::Network);
    assert!((far.bottleneck(JOB).unwrap().rows_per_s - 500.0).abs() < 1.0);
    let near = observer((500.0 * sent) as u64, "/data/", true);
    assert_eq!(near.bottleneck(JOB).unwrap().kind, BottleneckKind::Cpu);
    let locality = Locality { store_is_local: true, consumers_share: 1.0 };
    assert_eq!(near.problem(PlannerSettings::default(), CachePolicy::Never).jobs[0].locality, locality);
}

/// The bandwidth of a store is the sum over its jobs, and stores are independent.
#[test]
fn each_store_has_its_own_limit() {
    let model = |cap: f64, rows_per_s: f64| {
        let mut model = observed(&[JOB]).model(JOB).unwrap();
        (model.rows_per_s, model.store_bytes_per_row) = (rows_per_s, 1e5);
        model.bandwidth = if cap > 0.0 { Bandwidth::Roofline { slope: 1e6, cap } } else { model.bandwidth };
        model
    };
    let limit = |jobs: &[(f64, f64, bool)]| {
        let mut seen = ObservedStore::default();
        jobs.iter().for_each(|(cap, rows, waits)| seen.add(&model(*cap, *rows), *waits));
        seen.bytes_per_s_limit()
    };
    assert_eq!(limit(&[(0.0, 1_000.0, false)]), 0.0, "no job observed a limit");
    assert_eq!(limit(&[(5e7, 500.0, true), (5e7, 500.0, true)]), 1e8, "each job gets a half");
    assert_eq!(
        limit(&[(8e7, 800.0, true), (1e8, 200.0, false)]),
        1e8,
        "the limit of one job plus the reads of the other"
    );
    assert_eq!(limit(&[(1e8, 100.0, false)]), 1e8, "observed before");
    let mut elsewhere = samples(8, &[JOB, JobId(8)]);
    elsewhere.jobs[1].pipeline.source.url = vec!["s3://bucket/data/".to_owned()];
    let together = observed(&[JOB, JobId(8)]).problem(PlannerSettings::default(), CachePolicy::Never);
    assert_eq!(together.store_bytes_per_s, [0.0]);
    let mut observer = Observer::default();
    for second in 1..=8 {
        let mut seen = samples(second, &[JOB, JobId(8)]);
        seen.jobs.clone_from(&elsewhere.jobs);
        observer.push(second * 1_000, &seen);
    }
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    assert_eq!((problem.store_bytes_per_s.len(), problem.jobs[0].store, problem.jobs[1].store), (2, 0, 1));
}

/// Reports of two workers, and of two sessions of one consumer, for two jobs. All counters repeat the given ones.
fn reported(counts: &[u64]) -> Samples {
    let mut counts = counts.iter().copied().cycle();
    let mut next = || counts.next().expect("the list has at least one counter");
    let mut seen = samples(1, &[JOB, JobId(8)]);
    let other = WorkerReportSample { worker: WorkerId(2), ..seen.workers[0].clone() };
    seen.workers.push(other);
    for worker in &mut seen.workers {
        (worker.memory_bytes, worker.nic_bytes_per_s) = (next(), next());
        for stats in worker.jobs.iter_mut().map(Arc::make_mut) {
            (stats.elapsed_ns, stats.memory_wait_ns, stats.peak_rss_bytes) = (next(), next(), next());
            stats.cpu = ProcessCpu { process_ns: next(), transport_ns: next() };
            stats.store = StoreStats {
                requests: next(),
                bytes: next(),
                wait_ns: next(),
                distinct_shards: next(),
                distinct_shard_bytes: next(),
            };
            for operator in &mut stats.operators {
                *operator = OperatorStats {
                    name: operator.name.clone(),
                    rows_in: next(),
                    rows_out: next(),
                    bytes_in: next(),
                    bytes_out: next(),
                    cpu_ns: next(),
                    busy_ns: next(),
                    wait_input_ns: next(),
                    wait_output_ns: next(),
                    latency_ns: next(),
                    queue_bytes: next(),
                    parallelism: None,
                };
            }
            stats.encodings = vec![EncodingStats {
                operators_before: 1,
                encoding: CacheEncoding::Pixels,
                rows: next(),
                plain_bytes: next(),
                encoded_bytes: next(),
                encode_ns: next(),
                plain_ns: next(),
                encoded_ns: next(),
            }];
        }
    }
    let later =
        seen.consumers.iter().map(|one| ConsumerReportSample { session: SessionId(2), ..one.clone() });
    let later: Vec<ConsumerReportSample> = later.collect();
    seen.consumers.extend(later);
    for session in &mut seen.consumers {
        session.stats = ConsumerStats {
            rows: next(),
            batches: next(),
            bytes: next(),
            stall_ns: next(),
            step_ns: next(),
            copy_ns: next(),
            network_bytes: next(),
        };
    }
    seen
}

#[test]
fn sums_saturate_at_the_largest_number() {
    let mut observer = Observer::default();
    observer.push(1_000, &reported(&[0]));
    observer.push(2_000, &reported(&[u64::MAX]));
    let seen = observer.observation(JOB).unwrap();
    let of_workers: Vec<_> = seen.recent.iter().map(|one| (one.process_cpu_ns, one.held_bytes)).collect();
    assert_eq!(of_workers, [(u64::MAX, u64::MAX); 2]);
    let [consumer] = seen.consumers.as_slice() else { panic!("one consumer: {:?}", seen.consumers) };
    assert_eq!(
        (consumer.stats.rows, consumer.stats.bytes, consumer.elapsed_ns),
        (u64::MAX, u64::MAX, u64::MAX)
    );
    let view = cluster_view(2_000, &reported(&[u64::MAX]), &observer, None, &BTreeMap::new());
    assert!(view.workers.iter().all(|worker| worker.finished_bytes == u64::MAX), "{:?}", view.workers);
    assert_eq!(view.jobs[0].stall_share, Some(1.0));
}

/// A counter of a malicious reporter, often an extreme value.
fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX - 1), Just(u64::MAX), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_reported_counters_can_be_summed(
        reports in proptest::collection::vec(proptest::collection::vec(any_count(), 1..120), 1..6),
    ) {
        let mut observer = Observer::with_workers_per_process(2);
        for (second, counts) in (1..).zip(&reports) {
            let samples = reported(counts);
            observer.push(1_000 * second, &samples);
            for job in [JOB, JobId(8)] {
                observer.bottleneck(job);
                observer.problem_without_cache(job, &[]);
            }
            observer.problem(PlannerSettings::default(), CachePolicy::Never);
            let view = cluster_view(1_000 * second, &samples, &observer, None, &BTreeMap::new());
            for worker in &view.workers {
                prop_assert!(worker.job_usage.iter().all(|part| part.finished_bytes <= worker.finished_bytes));
            }
            for worker in view.for_tenant("").workers {
                prop_assert!(worker.job_usage.iter().all(|part| part.finished_bytes <= worker.finished_bytes));
            }
        }
    }
}
