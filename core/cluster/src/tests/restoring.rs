//! Tests of restoring the durable state from records and from snapshots.

use expect_test::expect;
use proptest::prelude::*;

use super::*;

fn restore(records: &[Record]) -> Cluster {
    Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, records.iter().cloned())
}

#[test]
fn a_small_run_in_records() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 12);
    bench.consumer(ConsumerReport {
        positions: vec![(0, StreamPosition { epoch: 0, row: 4 })],
        ..consumer_report(job, 0)
    });
    bench.now += 2_000;
    bench.worker(report(2));
    bench.now += 1_001;
    bench.step(Input::Tick);
    bench.consumer(ConsumerReport {
        positions: vec![(0, StreamPosition { epoch: 1, row: 0 })],
        ..consumer_report(job, 0)
    });
    expect![[r#"
        {"ready":{"job":1,"dataset":{"fingerprint":"cc20a1ca98f379ec","rows":12,"bytes":10,"shards":1,"blocks":1,"schema":{"fields":[{"name":"text","type":{"scalar":"int64"}}]},"defects":0,"content":"7076511d6da24d766e4d685ab1288aa587ad5f4a503b44c9840b72dcd95c946f","index":"4b7862bd193dce74daad32032f3e27eef7d49f8a93eebeac188a0048e661d17f"}}}
        {"granted":{"job":1,"worker":1,"splits":[{"epoch":0,"ordinal":0,"stream":0},{"epoch":0,"ordinal":1,"stream":0},{"epoch":0,"ordinal":2,"stream":0}]}}
        {"advanced":{"job":1,"streams":[[0,{"epoch":0,"row":4}]]}}
        {"revoked":{"job":1,"worker":1,"splits":[{"epoch":0,"ordinal":2,"stream":0}]}}
        {"granted":{"job":1,"worker":2,"splits":[{"epoch":0,"ordinal":2,"stream":0}]}}
        {"revoked":{"job":1,"worker":1,"splits":[{"epoch":0,"ordinal":1,"stream":0}]}}
        {"granted":{"job":1,"worker":2,"splits":[{"epoch":0,"ordinal":1,"stream":0}]}}
        {"advanced":{"job":1,"streams":[[0,{"epoch":1,"row":0}]]}}
        {"ended":{"job":1,"state":"completed"}}
    "#]].assert_eq(&bench.text_since(1));
}

/// Random numbers that the test turns into inputs.
fn inputs() -> impl Strategy<Value = Vec<(u8, u64, u64, bool)>> {
    prop::collection::vec((0u8..6, 0u64..4, 0u64..40, any::<bool>()), 1..60)
}

fn play(bench: &mut Bench, job: JobId, (kind, who, number, flag): (u8, u64, u64, bool)) {
    match kind {
        0 => bench.pass(number * 200),
        1 => {
            let computed = bench.granted(who).into_iter().map(|split| (job, split)).collect();
            bench.worker(WorkerReport { computed, memory_full: flag, ..report(who) });
        }
        2 | 3 => {
            let consumer = (who % 2) as u32;
            let positions = vec![(consumer, StreamPosition { epoch: 0, row: number })];
            let open = vec![(split(0, who), number as u32 % 9), (split(0, number % 8), 8)];
            let session = SessionId(u64::MAX);
            let wants = who as u32;
            let report = ConsumerReport {
                positions,
                open_splits: open,
                session,
                wanted_splits: wants,
                ..consumer_report(job, consumer)
            };
            // Rejected if the report contains lost splits.
            bench.ask(|request| Input::Consumer { request, report });
        }
        4 => {
            let unreachable = vec![(split((number % 2) as u32, who), WorkerId(number % 4))];
            let session = SessionId(u64::MAX);
            bench.consumer(ConsumerReport { unreachable, session, ..consumer_report(job, 0) });
        }
        _ => {
            bench.open(&JobSpec { name: format!("job {who}"), ..spec(3, 1) }).expect("a valid job");
        }
    }
}

proptest! {
    #[test]
    fn records_rebuild_the_state_and_so_does_a_snapshot(in_order: bool, inputs in inputs()) {
        let spec = if in_order { spec(4, 2) } else { relaxed(4, 2) };
        let (mut bench, job) = Bench::running(&spec, 64);
        for input in inputs {
            play(&mut bench, job, input);
            let snapshot = bench.cluster.snapshot();
            prop_assert_eq!(&restore(&bench.records).snapshot(), &snapshot);
            prop_assert_eq!(&restore(&snapshot).snapshot(), &snapshot);
            let parked = bench.request as usize - bench.answered.len();
            prop_assert!(parked <= 6, "at most one parked request per worker and consumer: {parked}");
        }
    }
}

#[test]
fn a_restored_worker_keeps_its_leases_if_it_reports_in_time() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 64);
    let held = bench.granted(1);
    bench.cluster = restore(&bench.records);
    bench.now = 2_000;
    let plan = bench.consumer(consumer_report(job, 0)).expect("a first plan");
    assert_eq!(plan.splits[0].workers, [], "the address is not known yet");
    let leases = bench.worker(report(1)).expect("a first plan").leases;
    assert_eq!(leases.iter().map(|lease| lease.split).collect::<Vec<_>>(), held);
    bench.pass(2_500);
    assert!(!bench.records.iter().any(|record| matches!(record, Record::Revoked { .. })));
    bench.pass(501);
    assert!(bench.records.iter().any(|record| matches!(record, Record::Revoked { .. })));
}

#[test]
fn a_job_whose_end_was_not_persisted_ends_after_the_restart() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    bench.consumer(ConsumerReport {
        positions: vec![(0, StreamPosition { epoch: 1, row: 0 })],
        ..consumer_report(job, 0)
    });
    let ended = bench.records.pop();
    assert!(matches!(ended, Some(Record::Ended { .. })));
    bench.cluster = restore(&bench.records);
    bench.pass(1);
    assert_eq!(bench.status(job).state, JobState::Completed);
}

#[test]
fn a_new_job_does_not_reuse_an_id() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    bench.cluster = restore(&bench.cluster.snapshot());
    let other = bench.open(&JobSpec { name: "other".to_owned(), ..spec(4, 1) }).expect("a valid job");
    assert!(other > job);
}
