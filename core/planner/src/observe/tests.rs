//! Reports become rates, and rates a problem.

use std::sync::Arc;

use feedline_data::ids::SessionId;
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::samples::Samples;
use feedline_data::messages::{ConsumerStats, OperatorStats, ProcessCpu, StoreStats, WorkerJobStats};
use feedline_data::pipeline::{Pipeline, Source};
use feedline_data::schema::Schema;
use feedline_data::tenants::Quota;
use feedline_data::view::BottleneckKind;
use proptest::prelude::*;

use super::*;

use crate::model::{Bandwidth, Locality};

use crate::plan::{NoDeadline, solve};

use crate::view::cluster_view;

pub(crate) const JOB: JobId = JobId(7);

fn facts() -> JobFacts {
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
    JobFacts {
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

/// What a worker of 2 cores has done after so many seconds: 1,000 rows/s at 0.5 ms of `burn` and 1 ms of the crop each.
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
        forms: Vec::new(),
    }
}

pub(crate) fn samples(seconds: u64, jobs: &[JobId]) -> Samples {
    let worker = samples::WorkerReportSample {
        worker: WorkerId(1),
        address: "http://10.0.0.7:7071".to_owned(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores: 2,
        memory_bytes: 1 << 30,
        caches: Vec::new(),
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
    let consumers = jobs.iter().map(|job| samples::ConsumerReportSample {
        job: *job,
        consumer: 0,
        session: SessionId(1),
        stats: taken,
    });
    let facts = jobs.iter().map(|job| JobFacts { job: *job, ..facts() });
    Samples { workers: vec![worker], consumers: consumers.collect(), jobs: facts.collect() }
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
    // 1,600 us of the process, of which operators account for 1,560.
    assert!((model.cpu_s_from(4, "") * 1e6 - 40.0).abs() < 0.5);
    assert_eq!(model.demand_rows_per_s.map(f64::round), Some(5_000.0));
    let cacheable: Vec<bool> = model.cuts.iter().map(|cut| cut.is_cacheable).collect();
    assert_eq!(cacheable, [true, true, false]);
    assert!((model.cuts[0].bytes / 1e9 - 1.0).abs() < 1e-6, "of the whole dataset");
    assert!((model.store_concurrency - 2.0).abs() < 0.01);
}

#[test]
fn what_is_not_reported_is_not_known() {
    let mut observer = observed(&[JOB]);
    assert_eq!(observer.model(JobId(8)), None);
    observer.push(9_000, &samples(9, &[]));
    assert_eq!(observer.observation(JOB), None);
    let mut fresh = Observer::default();
    fresh.push(1_000, &samples(1, &[JOB]));
    assert_eq!(fresh.model(JOB), None, "one report is no window");
}

#[test]
fn a_restarted_worker_begins_anew_without_a_jump() {
    let mut observer = observed(&[JOB]);
    for second in 1..=3 {
        observer.push((8 + second) * 1_000, &samples(second, &[JOB]));
    }
    let model = observer.model(JOB).unwrap();
    assert!((model.rows_per_s - 1_000.0).abs() < 1.0, "{}", model.rows_per_s);
}

#[test]
fn the_transport_of_two_jobs_is_shared_by_what_their_operators_took() {
    let observer = observed(&[JOB, JobId(8)]);
    let one = observer.observation(JOB).unwrap();
    let alone = observed(&[JOB]).observation(JOB).unwrap();
    // Half of 40 us of transport for each of 5,000 rows is the other job's.
    assert_eq!(alone.recent[0].process_cpu_ns - one.recent[0].process_cpu_ns, 20_000 * 5_000);
}

#[test]
fn the_problem_has_the_workers_and_jobs_and_can_be_solved() {
    let problem = observed(&[JOB, JobId(8)]).problem(PlannerSettings::default(), CachePolicy::Never);
    assert_eq!(problem.workers.len(), 1);
    assert_eq!(
        (problem.worker_types[0].name.as_str(), problem.worker_types[0].cores),
        ("2 cores, 1.0 GiB", 2.0)
    );
    assert_eq!(problem.jobs[0].cuts.len(), 2, "nothing behind what is random");
    assert_eq!(problem.jobs[0].cuts[0].key, problem.jobs[1].cuts[0].key, "the same data and operators");
    assert_ne!(problem.jobs[0].cuts[0].key, problem.jobs[0].cuts[1].key);
    let plan = solve(&problem, None, &NoDeadline).unwrap();
    assert_eq!(plan.jobs.len(), 2);
    assert!((plan.jobs[0].fed_fraction - plan.jobs[1].fed_fraction).abs() < 1e-3);
}

#[test]
fn waits_of_an_operator_are_not_taken_for_the_store() {
    let mut observer = Observer::default();
    for second in 1..=8 {
        let mut seen = samples(second, &[JOB]);
        let stats = Arc::make_mut(&mut seen.workers[0].jobs[0]);
        for operator in &mut stats.operators {
            (operator.cpu_ns, operator.busy_ns) = (operator.cpu_ns / 10, operator.busy_ns / 10);
        }
        // Seven of them wait all the time, while two reads are in flight.
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
fn what_a_store_gives_to_more_reads_is_not_mixed_with_what_it_gave_before() {
    let mut observer = Observer::default();
    for second in 1..=10_u64 {
        // Seven reads in flight, then a hundred, of a store that gives 8 MB/s to either.
        let (few, many) = (second.min(5), second.saturating_sub(5));
        let mut seen = samples(second, &[JOB]);
        let stats = Arc::make_mut(&mut seen.workers[0].jobs[0]);
        for operator in &mut stats.operators {
            (operator.cpu_ns, operator.busy_ns) = (operator.cpu_ns / 10, operator.busy_ns / 10);
        }
        stats.store.bytes = 8_000_000 * second;
        stats.store.wait_ns = seconds_ns(7 * few + 100 * many);
        if second == 6 {
            observer.look_anew(JOB);
        }
        observer.push(second * 1_000, &seen);
        assert_eq!(observer.waits_for_store(JOB), ![1, 6].contains(&second), "one report is no window");
    }
    let model = observer.model(JOB).unwrap();
    assert!((model.store_concurrency - 100.0).abs() < 0.1, "{}", model.store_concurrency);
    let Bandwidth::Roof { slope, cap } = model.bandwidth else { panic!("{:?}", model.bandwidth) };
    assert!((slope / 1e6 - 8.0 / 7.0).abs() < 0.01 && (cap / 1e6 - 8.0).abs() < 0.01, "{slope} {cap}");
}

/// Two jobs with half of a worker's time each: neither fills it alone, both together do.
#[test]
fn jobs_that_fill_a_worker_together_do_not_wait_for_the_store() {
    let jobs = [JOB, JobId(8)];
    let mut observer = Observer::default();
    let mut beside = Observer::default();
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
        beside.push(second * 1_000, &seen);
    }
    assert!(!observer.waits_for_store(JOB) && !observer.waits_for_store(JobId(8)));
    assert!(beside.waits_for_store(JOB), "alone it leaves half of the worker idle");
}

/// What is read from a worker's own disk, and taken on its own host, fills no network.
#[test]
fn a_full_network_is_named() {
    // 1,000 rows a second of 100 kB each come in.
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
    // What the last operator gives for each row.
    let sent = narrow.model(JOB).unwrap().delivered_bytes;
    let far = observer((500.0 * sent) as u64, "/data/", false);
    assert_eq!(far.bottleneck(JOB).unwrap().kind, BottleneckKind::Network);
    assert!((far.bottleneck(JOB).unwrap().rows_per_s - 500.0).abs() < 1.0);
    let near = observer((500.0 * sent) as u64, "/data/", true);
    assert_eq!(near.bottleneck(JOB).unwrap().kind, BottleneckKind::Cpu);
    let locality = Locality { store_is_local: true, consumers_share: 1.0 };
    assert_eq!(near.problem(PlannerSettings::default(), CachePolicy::Never).jobs[0].locality, locality);
}

/// What stores give is added up over the jobs of each, and not mixed between them.
#[test]
fn each_store_has_a_limit_of_its_own() {
    let model = |cap: f64, rows_per_s: f64| {
        let mut model = observed(&[JOB]).model(JOB).unwrap();
        (model.rows_per_s, model.store_bytes) = (rows_per_s, 1e5);
        model.bandwidth = if cap > 0.0 { Bandwidth::Roof { slope: 1e6, cap } } else { model.bandwidth };
        model
    };
    let limit = |jobs: &[(f64, f64, bool)]| {
        let mut seen = ObservedStore::default();
        jobs.iter().for_each(|(cap, rows, waits)| seen.add(&model(*cap, *rows), *waits));
        seen.limit()
    };
    assert_eq!(limit(&[(0.0, 1_000.0, false)]), 0.0, "nobody has seen one");
    assert_eq!(limit(&[(5e7, 500.0, true), (5e7, 500.0, true)]), 1e8, "each gets a half");
    assert_eq!(limit(&[(8e7, 800.0, true), (1e8, 200.0, false)]), 1e8, "what one gets and the other takes");
    assert_eq!(limit(&[(1e8, 100.0, false)]), 1e8, "seen before");
    let mut elsewhere = samples(8, &[JOB, JobId(8)]);
    elsewhere.jobs[1].pipeline.source.url = vec!["s3://bucket/data/".to_owned()];
    let together = observed(&[JOB, JobId(8)]).problem(PlannerSettings::default(), CachePolicy::Never);
    assert_eq!(together.stores, [0.0]);
    let mut observer = Observer::default();
    for second in 1..=8 {
        let mut seen = samples(second, &[JOB, JobId(8)]);
        seen.jobs.clone_from(&elsewhere.jobs);
        observer.push(second * 1_000, &seen);
    }
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    assert_eq!((problem.stores.len(), problem.jobs[0].store, problem.jobs[1].store), (2, 0, 1));
}

/// What two workers and two sessions of one consumer report of two jobs, made of these counts over and over.
fn reported(counts: &[u64]) -> Samples {
    let mut counts = counts.iter().copied().cycle();
    let mut next = || counts.next().expect("there is at least one");
    let mut seen = samples(1, &[JOB, JobId(8)]);
    let other = samples::WorkerReportSample { worker: WorkerId(2), ..seen.workers[0].clone() };
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
            stats.forms = vec![EncodingStats {
                after: 1,
                form: CacheEncoding::Pixels,
                rows: next(),
                plain_bytes: next(),
                bytes: next(),
                make_ns: next(),
                plain_ns: next(),
                use_ns: next(),
            }];
        }
    }
    let later = seen
        .consumers
        .iter()
        .map(|one| samples::ConsumerReportSample { session: SessionId(2), ..one.clone() });
    let later: Vec<samples::ConsumerReportSample> = later.collect();
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
fn sums_beyond_all_numbers_are_the_largest_one() {
    let mut observer = Observer::default();
    observer.push(1_000, &reported(&[0]));
    observer.push(2_000, &reported(&[u64::MAX]));
    let seen = observer.observation(JOB).unwrap();
    let of_workers: Vec<_> = seen.recent.iter().map(|one| (one.process_cpu_ns, one.held_bytes)).collect();
    assert_eq!(of_workers, [(u64::MAX, u64::MAX); 2]);
    let [consumer] = seen.consumers.as_slice() else { panic!("one consumer: {:?}", seen.consumers) };
    assert_eq!((consumer.rows, consumer.bytes, consumer.elapsed_ns), (u64::MAX, u64::MAX, u64::MAX));
    let view = cluster_view(2_000, &reported(&[u64::MAX]), &observer, None, &BTreeMap::new());
    assert!(view.workers.iter().all(|worker| worker.held_bytes == u64::MAX), "{:?}", view.workers);
    assert_eq!(view.jobs[0].stall_share, Some(1.0));
}

/// What a hostile reporter counts: often what lies at the ends.
fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX - 1), Just(u64::MAX), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_is_reported_can_be_added_up(
        reports in proptest::collection::vec(proptest::collection::vec(any_count(), 1..120), 1..6),
    ) {
        let mut observer = Observer::of_processes(2);
        for (second, counts) in (1..).zip(&reports) {
            let samples = reported(counts);
            observer.push(1_000 * second, &samples);
            for job in [JOB, JobId(8)] {
                observer.bottleneck(job);
                observer.unkept(job, &[]);
            }
            observer.problem(PlannerSettings::default(), CachePolicy::Never);
            let view = cluster_view(1_000 * second, &samples, &observer, None, &BTreeMap::new());
            for worker in &view.workers {
                prop_assert!(worker.parts.iter().all(|part| part.held_bytes <= worker.held_bytes));
            }
            for worker in view.of_tenant("").workers {
                prop_assert!(worker.parts.iter().all(|part| part.held_bytes <= worker.held_bytes));
            }
        }
    }
}
