//! Deltas of counters, restarts, thinning.

use super::*;

fn sample(rows: u64) -> JobConsumerSample {
    JobConsumerSample { rows, elapsed_ns: 2 * rows, ..JobConsumerSample::default() }
}

#[test]
fn the_last_seconds_are_told_from_the_total() {
    let mut window = SampleWindow::new(30_000);
    assert!(window.recent(5_000).is_none());
    for second in 0..=20 {
        window.push(1000 * second, sample(100 * second));
    }
    let (ms, recent) = window.recent(5_000).unwrap();
    assert_eq!((ms, recent.rows), (5_000, 500));
    assert_eq!(window.total().unwrap().rows, 2_000);
    // More than there is: all of it.
    assert_eq!(window.recent(600_000).unwrap().0, 20_000);
}

#[test]
fn a_worker_that_begins_anew_loses_nothing() {
    let mut window = SampleWindow::new(30_000);
    for (second, rows) in [(0, 0), (1, 100), (2, 200), (3, 30), (4, 130), (5, 10)] {
        window.push(1000 * second, sample(rows));
    }
    assert_eq!(window.total().unwrap().rows, 200 + 130 + 10);
    assert_eq!(window.recent(3_000).unwrap().1.rows, 140);
}

#[test]
fn an_operators_counters_are_matched_by_name() {
    let operator =
        |name: &str, rows_out| OperatorSample { name: name.into(), rows_out, ..Default::default() };
    let worker = |id, operators| JobWorkerSample {
        worker: feedline_data::ids::WorkerId(id),
        worker_type: "small".into(),
        cores: 2.0,
        memory_bytes: 0,
        disk_bytes: 0,
        nic_bytes_per_s: 0.0,
        elapsed_ns: 0,
        process_cpu_ns: 0,
        held_bytes: 0,
        memory_wait_ns: 0,
        operators,
        store: StoreSample::default(),
    };
    let before = worker(1, vec![operator("source", 10), operator("decode", 5)]);
    let after = worker(1, vec![operator("decode", 9), operator("source", 30)]);
    let delta = after.since(&before);
    assert_eq!((delta.operators[0].rows_out, delta.operators[1].rows_out), (4, 20));
    assert!(!after.is_below(&before) && before.is_below(&after));
    assert!(worker(2, Vec::new()).is_below(&before), "another life");
}

#[test]
fn few_points_are_kept_however_often_samples_come() {
    let mut window = SampleWindow::new(10_000);
    for tick in 0..100_000u64 {
        window.push(tick, sample(tick));
    }
    assert!(
        window.points.len() as u64 <= SampleWindow::<JobConsumerSample>::POINTS + 3,
        "{}",
        window.points.len()
    );
    let (ms, recent) = window.recent(5_000).unwrap();
    assert!((5_000..5_700).contains(&ms) && recent.rows == ms, "{ms} ms: {}", recent.rows);
}
