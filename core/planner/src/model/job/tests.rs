//! Models of made-up counters.

use feedline_data::ids::WorkerId;

use super::*;

/// A worker that was seen for ten seconds: a source, a filter that keeps half, a random operator.
pub(in crate::model) fn worker(id: u64, worker_type: &str, speed: f64) -> JobWorkerSample {
    let operator = |name: &str, rows_in: u64, rows_out: u64, bytes: u64, cpu_us: f64| OperatorSample {
        name: name.into(),
        rows_in,
        rows_out,
        bytes_out: rows_out * bytes,
        cpu_ns: (rows_in.max(rows_out) as f64 * cpu_us * 1e3 / speed) as u64,
        busy_ns: 10_000_000_000,
        ..OperatorSample::default()
    };
    let mut operators = vec![
        operator("source", 0, 20_000, 1_000, 50.0),
        operator("filter", 20_000, 10_000, 1_000, 100.0),
        operator("decode", 10_000, 10_000, 150_000, 1_000.0),
        operator("flip", 10_000, 10_000, 150_000, 20.0),
    ];
    operators[3].is_random = true;
    let accounted: u64 = operators.iter().map(|operator| operator.cpu_ns).sum();
    JobWorkerSample {
        worker: WorkerId(id),
        worker_type: worker_type.into(),
        cores: 2.0,
        memory_bytes: 8_000_000_000,
        disk_bytes: 0,
        nic_bytes_per_s: 1e9,
        elapsed_ns: 10_000_000_000,
        process_cpu_ns: accounted + 100_000_000,
        held_bytes: 50_000_000,
        memory_wait_ns: 0,
        operators,
        store: StoreSample {
            requests: 20,
            bytes: 20_000_000,
            wait_ns: 5_000_000_000,
            concurrency_limit: 4,
            distinct_shards: 2,
            distinct_shard_bytes: 20_000_000,
            distinct_rows: 20_000,
            total_shards: 20,
            total_bytes: 200_000_000,
            total_rows: 0,
        },
    }
}

fn near(value: f64, wanted: f64) -> bool {
    (value / wanted - 1.0).abs() < 1e-3
}

#[test]
fn costs_are_per_delivered_row_and_worker_type() {
    let seen = JobObservation {
        recent: vec![worker(1, "slow", 1.0), worker(2, "fast", 2.0)],
        ..JobObservation::default()
    };
    let model = JobModel::build(&seen).unwrap();
    assert!(near(model.rows_per_s, 2_000.0), "{}", model.rows_per_s);
    let filter = &model.operators[1];
    assert!(near(filter.visit_ratio, 2.0));
    assert!(near(filter.cpu_s_on("slow"), 200e-6) && near(filter.cpu_s_on("fast"), 100e-6));
    // A type that was never seen is taken for a mean one.
    assert!(near(filter.cpu_s_on("new"), 150e-6));
    assert!(near(model.cpu_s_from(0, "slow"), 100e-6 + 200e-6 + 1e-3 + 20e-6 + 10e-6));
    assert!(near(model.operators.iter().map(|operator| operator.cpu_share).sum(), 1.0));
    assert!(near(model.store_bytes, 2_000.0) && near(model.store_concurrency, 1.0));
    assert!(near(model.operators[2].mean_active, 2.0));
}

#[test]
fn reads_ahead_make_a_row_no_dearer() {
    let mut ahead = worker(1, "slow", 1.0);
    // Three times what was delivered was read meanwhile.
    ahead.operators[0].rows_out *= 3;
    ahead.operators[0].bytes_out *= 3;
    ahead.store.bytes *= 3;
    let model =
        JobModel::build(&JobObservation { recent: vec![ahead], ..JobObservation::default() }).unwrap();
    assert!(near(model.store_bytes, 2_000.0), "{}", model.store_bytes);
    assert!(near(model.operators[0].visit_ratio, 2.0) && near(model.operators[0].bytes_out, 2_000.0));
}

#[test]
fn sizes_are_extrapolated_and_random_operators_end_what_can_be_kept() {
    let seen = JobObservation { recent: vec![worker(1, "slow", 1.0)], ..JobObservation::default() };
    let model = JobModel::build(&seen).unwrap();
    // A tenth of the dataset's bytes was read, so there are ten times the rows.
    let rows: Vec<f64> = model.cuts.iter().map(|cut| cut.rows).collect();
    assert_eq!(rows, [200_000.0, 100_000.0, 100_000.0, 100_000.0]);
    assert!(near(model.cuts[2].bytes, 100_000.0 * 150_000.0));
    let cacheable: Vec<bool> = model.cuts.iter().map(|cut| cut.is_cacheable).collect();
    assert_eq!(cacheable, [true, true, true, false]);
    // A manifest knows better.
    let mut counted = seen.clone();
    counted.recent[0].store.total_rows = 500_000;
    assert!(near(JobModel::build(&counted).unwrap().cuts[0].rows, 500_000.0));
}

#[test]
fn demand_is_what_consumers_would_take_without_waiting() {
    let consumer = |rows, stall_ms: u64, step_ms: u64| JobConsumerSample {
        rows,
        stall_ns: stall_ms * 1_000_000,
        step_ns: step_ms * 1_000_000,
        elapsed_ns: 10_000_000_000,
        ..JobConsumerSample::default()
    };
    assert_eq!(demand(&[consumer(1_000, 8_000, 2_000), consumer(1_000, 8_000, 2_000)]), Some(1_000.0));
    // Without steps the time that it did not wait stands for them; a consumer yet without rows for one like the others.
    assert_eq!(demand(&[consumer(1_000, 8_000, 0), consumer(0, 0, 0)]), Some(1_000.0));
    assert_eq!(demand(&[]), None);
}

#[test]
fn nothing_delivered_is_no_model() {
    let mut idle = worker(1, "slow", 1.0);
    idle.operators[3].rows_out = 0;
    assert_eq!(JobModel::build(&JobObservation { recent: vec![idle], ..JobObservation::default() }), None);
    assert_eq!(JobModel::build(&JobObservation::default()), None);
}
