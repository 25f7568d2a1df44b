//! Models of synthetic counters.

use feedline_data::ids::WorkerId;

use super::*;

/// The counters of a worker over 10 s: a source, a filter that passes half of the rows, and a random operator, `flip`.
pub(in crate::model) fn worker(id: u64, worker_type: &str, speed: f64) -> JobWorkerSample {
    let operator = |name: &str, rows_in: u64, rows_out: u64, bytes: u64, cpu_us: f64| OperatorStats {
        name: name.into(),
        rows_in,
        rows_out,
        bytes_out: rows_out * bytes,
        cpu_ns: (rows_in.max(rows_out) as f64 * cpu_us * 1e3 / speed) as u64,
        busy_ns: 10_000_000_000,
        ..OperatorStats::default()
    };
    let operators = vec![
        operator("source", 0, 20_000, 1_000, 50.0),
        operator("filter", 20_000, 10_000, 1_000, 100.0),
        operator("decode", 10_000, 10_000, 150_000, 1_000.0),
        operator("flip", 10_000, 10_000, 150_000, 20.0),
    ];
    let in_operators: u64 = operators.iter().map(|operator| operator.cpu_ns).sum();
    JobWorkerSample {
        worker: WorkerId(id),
        worker_type: worker_type.into(),
        cores: 2.0,
        elapsed_ns: 10_000_000_000,
        process_cpu_ns: in_operators + 100_000_000,
        held_bytes: 50_000_000,
        memory_wait_ns: 0,
        operators,
        store: StoreStats {
            requests: 20,
            bytes: 20_000_000,
            wait_ns: 5_000_000_000,
            distinct_shards: 2,
            distinct_shard_bytes: 20_000_000,
        },
        graph: None,
    }
}

#[test]
fn the_topic_limits_the_demand_and_so_do_slow_consumers() {
    let consumer = |rows: u64, stall_ns: u64, step_ns: u64| {
        let stats = feedline_data::messages::ConsumerStats { rows, stall_ns, step_ns, ..Default::default() };
        JobConsumerSample { consumer: 0, stats, elapsed_ns: stall_ns + step_ns }
    };
    let demand = |consumer: JobConsumerSample, topic_rows_per_s: Option<f64>| {
        let observation =
            JobObservation { consumers: vec![consumer], topic_rows_per_s, ..JobObservation::default() };
        super::demand(&observation)
    };
    let (fast, slow) = (consumer(1_000, 999_000_000, 1_000_000), consumer(1_000, 0, 2_000_000_000));
    assert_eq!(demand(fast, None), None);
    assert_eq!(demand(fast, Some(3_000.0)), Some(3_000.0));
    assert_eq!(demand(slow, None), Some(500.0));
    assert_eq!(demand(slow, Some(3_000.0)), Some(500.0));
    assert_eq!(demand(slow, Some(200.0)), Some(200.0));
}

/// An observation of these workers, on a dataset of 200,000 rows.
pub(in crate::model) fn observation(recent: Vec<JobWorkerSample>) -> JobObservation {
    let random_operators = vec!["flip".to_owned()];
    JobObservation { recent, dataset_rows: 200_000, random_operators, ..JobObservation::default() }
}

fn is_near(value: f64, wanted: f64) -> bool {
    (value / wanted - 1.0).abs() < 1e-3
}

#[test]
fn costs_are_per_delivered_row_and_worker_type() {
    let seen = observation(vec![worker(1, "slow", 1.0), worker(2, "fast", 2.0)]);
    let model = JobModel::build(&seen).unwrap();
    assert!(is_near(model.rows_per_s, 2_000.0), "{}", model.rows_per_s);
    let filter = &model.operators[1];
    assert!(is_near(filter.visit_ratio, 2.0));
    assert!(is_near(filter.cpu_s_on("slow"), 200e-6) && is_near(filter.cpu_s_on("fast"), 100e-6));
    assert!(is_near(filter.cpu_s_on("unknown type"), 150e-6));
    assert!(is_near(model.cpu_s_from(0, "slow"), 100e-6 + 200e-6 + 1e-3 + 20e-6 + 10e-6));
    assert!(is_near(model.operators.iter().map(|operator| operator.cpu_share).sum(), 1.0));
    assert!(is_near(model.store_bytes_per_row, 2_000.0) && is_near(model.store_concurrency, 1.0));
    assert!(is_near(model.operators[2].mean_active, 2.0));
}

#[test]
fn reading_ahead_does_not_increase_the_cost_of_a_row() {
    let mut ahead = worker(1, "slow", 1.0);
    ahead.operators[0].rows_out *= 3;
    ahead.operators[0].bytes_out *= 3;
    ahead.store.bytes *= 3;
    let model = JobModel::build(&observation(vec![ahead])).unwrap();
    assert!(is_near(model.store_bytes_per_row, 2_000.0), "{}", model.store_bytes_per_row);
    assert!(is_near(model.operators[0].visit_ratio, 2.0) && is_near(model.operators[0].bytes_out, 2_000.0));
}

#[test]
fn cache_points_have_the_size_of_the_whole_dataset_and_end_at_random_operators() {
    let model = JobModel::build(&observation(vec![worker(1, "slow", 1.0)])).unwrap();
    let rows: Vec<f64> = model.cache_points.iter().map(|point| point.rows).collect();
    assert_eq!(rows, [200_000.0, 100_000.0, 100_000.0, 100_000.0]);
    assert!(is_near(model.cache_points[2].bytes, 100_000.0 * 150_000.0));
    let cacheable: Vec<bool> = model.cache_points.iter().map(|point| point.is_cacheable).collect();
    assert_eq!(cacheable, [true, true, true, false]);
}

#[test]
fn demand_is_the_rate_of_consumers_without_waits() {
    let consumer = |rows, stall_ms: u64, step_ms: u64| {
        let (stall_ns, step_ns) = (stall_ms * 1_000_000, step_ms * 1_000_000);
        let stats = feedline_data::messages::ConsumerStats { rows, stall_ns, step_ns, ..Default::default() };
        JobConsumerSample { consumer: 0, stats, elapsed_ns: 10_000_000_000 }
    };
    assert_eq!(
        consumer_demand(&[consumer(1_000, 8_000, 2_000), consumer(1_000, 8_000, 2_000)]),
        Some(1_000.0)
    );
    // The first consumer has no step time, so the time without waits counts. The second has no rows yet.
    assert_eq!(consumer_demand(&[consumer(1_000, 8_000, 0), consumer(0, 0, 0)]), Some(1_000.0));
    assert_eq!(consumer_demand(&[]), None);
}

#[test]
fn a_job_without_delivered_rows_has_no_model() {
    let mut idle = worker(1, "slow", 1.0);
    idle.operators[3].rows_out = 0;
    assert_eq!(JobModel::build(&observation(vec![idle])), None);
    assert_eq!(JobModel::build(&JobObservation::default()), None);
}
