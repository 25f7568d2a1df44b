//! Differences of counters, restarts, and thinning.

use super::*;

fn sample(rows: u64) -> JobConsumerSample {
    let stats = ConsumerStats { rows, ..ConsumerStats::default() };
    JobConsumerSample { stats, elapsed_ns: 2 * rows, ..JobConsumerSample::default() }
}

#[test]
fn recent_counts_differ_from_the_total() {
    let mut window = SampleWindow::new(30_000);
    assert!(window.recent(5_000).is_none());
    for second in 0..=20 {
        window.push(1000 * second, sample(100 * second));
    }
    let (ms, recent) = window.recent(5_000).unwrap();
    assert_eq!((ms, recent.stats.rows), (5_000, 500));
    assert_eq!(window.total().unwrap().stats.rows, 2_000);
    assert_eq!(window.recent(600_000).unwrap().0, 20_000, "the window has 20 s only");
}

#[test]
fn a_restart_loses_no_counts() {
    let mut window = SampleWindow::new(30_000);
    for (second, rows) in [(0, 0), (1, 100), (2, 200), (3, 30), (4, 130), (5, 10)] {
        window.push(1000 * second, sample(rows));
    }
    assert_eq!(window.total().unwrap().stats.rows, 200 + 130 + 10);
    assert_eq!(window.recent(3_000).unwrap().1.stats.rows, 140);
}

#[test]
fn counters_of_operators_are_matched_by_name() {
    let operator = |name: &str, rows_out| OperatorStats { name: name.into(), rows_out, ..Default::default() };
    let worker = |id, operators| JobWorkerSample {
        worker: feedline_data::ids::WorkerId(id),
        worker_type: "small".into(),
        cores: 2.0,
        elapsed_ns: 0,
        process_cpu_ns: 0,
        held_bytes: 0,
        memory_wait_ns: 0,
        operators,
        store: StoreStats::default(),
        graph: None,
    };
    let before = worker(1, vec![operator("source", 10), operator("decode", 5)]);
    let after = worker(1, vec![operator("decode", 9), operator("source", 30)]);
    let delta = after.since(&before);
    assert_eq!((delta.operators[0].rows_out, delta.operators[1].rows_out), (4, 20));
    assert!(!after.has_restarted_since(&before) && before.has_restarted_since(&after));
    assert!(worker(2, Vec::new()).has_restarted_since(&before), "another worker id is a restart");
}

#[test]
fn a_window_stores_few_points_of_frequent_samples() {
    let mut window = SampleWindow::new(10_000);
    for tick in 0..100_000u64 {
        window.push(tick, sample(tick));
    }
    let points = window.points.len() as u64;
    assert!(points <= SampleWindow::<JobConsumerSample>::POINTS + 3, "{points}");
    let (ms, recent) = window.recent(5_000).unwrap();
    assert!((5_000..5_700).contains(&ms) && recent.stats.rows == ms, "{ms} ms: {} rows", recent.stats.rows);
}
