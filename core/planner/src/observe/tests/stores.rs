//! Which jobs wait for a store, the limits of stores, and the network.

use std::sync::Arc;

use feedline_data::view::BottleneckKind;

use super::super::*;
use super::{JOB, observed, samples};
use crate::model::{Bandwidth, Locality};

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

#[test]
fn the_observed_limit_of_a_store_ends_although_the_job_does_not_wait_for_it() {
    let mut observer = Observer::default();
    for second in 1..=8 {
        let mut seen = samples(second, &[JOB]);
        for operator in &mut Arc::make_mut(&mut seen.workers[0].jobs[0]).operators {
            (operator.cpu_ns, operator.busy_ns) = (operator.cpu_ns * 6 / 10, operator.busy_ns * 6 / 10);
        }
        observer.push(second * 1_000, &seen);
    }
    assert!(observer.waits_for_store(JOB));
    // The consumer does not wait from now on. Returns the number of observations.
    let mut push = |second: u64| {
        let mut seen = samples(second, &[JOB]);
        let stats = &mut seen.consumers[0].stats;
        stats.stall_ns = 8 * 800_000_000;
        stats.step_ns = seconds_ns(second) - stats.stall_ns;
        observer.push(second * 1_000, &seen);
        assert!(second < 20 || !observer.waits_for_store(JOB));
        observer.observation(JOB).expect("it runs").bandwidth_observations.len()
    };
    let mut before = 0;
    for second in 9..=20 {
        before = push(second);
    }
    assert!(before > 0);
    assert_eq!(push(1_700), before, "a limit is known for half an hour");
    assert_eq!(push(1_900), 0);
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
