//! Tests of elastic jobs: ranks join, leave, expire and return, and slots continue where their last owners stopped.

use feedline_data::messages::{SlotGrant, SlotPosition, SlotReport};

use super::*;

fn elastic(slots: u32, expected: u32) -> JobSpec {
    JobSpec { elastic: true, virtual_consumers: slots, ..spec(4, expected) }
}

fn at(row: u64) -> StreamPosition {
    StreamPosition { epoch: 0, row }
}

fn grants(plan: &ConsumerPlan) -> Vec<SlotGrant> {
    plan.slots.clone().expect("an elastic job")
}

/// Returns the slot, the row, and whether the slot must be released, for each grant.
fn brief(plan: &ConsumerPlan) -> Vec<(u32, u64, bool)> {
    grants(plan).iter().map(|grant| (grant.stream, grant.position.row, grant.release)).collect()
}

fn claim(grant: &SlotGrant, row: u64, stopped: bool) -> SlotPosition {
    SlotPosition { stream: grant.stream, generation: grant.generation, position: at(row), stopped }
}

fn claiming(job: JobId, rank: u32, claims: Vec<SlotPosition>) -> ConsumerReport {
    ConsumerReport { slots: SlotReport { claims, ..SlotReport::default() }, ..consumer_report(job, rank) }
}

/// Passes a report without a known revision, so that the reply is immediate.
fn ask(bench: &mut Bench, report: ConsumerReport) -> ConsumerPlan {
    bench.consumer(report).expect("an immediate plan")
}

fn refused(bench: &mut Bench, report: ConsumerReport) -> ServiceError {
    match bench.ask(|request| Input::Consumer { request, report }) {
        Some(Reply::Rejected(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// Ranks 0 and 1 with two slots each.
fn two() -> (Bench, JobId, [Vec<SlotGrant>; 2]) {
    let (mut bench, job) = Bench::running(&elastic(4, 2), 64);
    assert_eq!(
        brief(&ask(&mut bench, consumer_report(job, 0))),
        [],
        "the first dealing waits for the other rank"
    );
    let one = grants(&ask(&mut bench, consumer_report(job, 1)));
    let zero = grants(&ask(&mut bench, consumer_report(job, 0)));
    let streams = |grants: &[SlotGrant]| grants.iter().map(|grant| grant.stream).collect::<Vec<_>>();
    assert_eq!((streams(&zero), streams(&one)), (vec![0, 2], vec![1, 3]));
    (bench, job, [zero, one])
}

fn owners(bench: &mut Bench, job: JobId) -> Vec<(u32, u32)> {
    bench.status(job).slot_owners
}

#[test]
fn the_first_assignment_waits_for_missing_ranks_for_the_lease_time() {
    let (mut bench, job) = Bench::running(&elastic(4, 3), 64);
    ask(&mut bench, consumer_report(job, 7));
    bench.pass(14_000);
    assert_eq!(brief(&ask(&mut bench, consumer_report(job, 7))), []);
    bench.pass(1_100);
    assert_eq!(owners(&mut bench, job), [(7, 4)]);
}

#[test]
fn a_joining_rank_gets_slots_at_the_positions_where_their_owners_stopped() {
    let (mut bench, job, [zero, one]) = two();
    let joined = ask(&mut bench, consumer_report(job, 9));
    assert_eq!(brief(&joined), [], "no slot is free");
    // One slot must move, and its owner has not stopped yet.
    let plans = [(0, &zero), (1, &one)].map(|(rank, own)| {
        let claims = own.iter().map(|grant| claim(grant, 4, false)).collect();
        ask(&mut bench, claiming(job, rank, claims))
    });
    let wanted: Vec<SlotGrant> = plans.iter().flat_map(grants).filter(|grant| grant.release).collect();
    let [wanted] = wanted.as_slice() else { panic!("{plans:?}") };
    assert_eq!(wanted.position, at(4));
    let owner = u32::from(wanted.stream % 2 == 1);
    assert_eq!(brief(&ask(&mut bench, consumer_report(job, 9))), []);
    // The owner finishes its step and stops.
    ask(&mut bench, claiming(job, owner, vec![claim(wanted, 8, true)]));
    let joined = ask(&mut bench, consumer_report(job, 9));
    assert_eq!(brief(&joined), [(wanted.stream, 8, false)]);
    assert_eq!(grants(&joined)[0].generation, wanted.generation + 1);
    assert_eq!(bench.cluster.jobs[&job].streams.position(wanted.stream), Some(at(8)));
}

#[test]
fn a_leaving_rank_releases_its_slots() {
    let (mut bench, job, [zero, _]) = two();
    let leaving = |claims: Vec<SlotPosition>| {
        let slots = SlotReport { claims, leaving: true, slot_ns: 0 };
        ConsumerReport { slots, ..consumer_report(job, 0) }
    };
    let plan = ask(&mut bench, leaving(vec![claim(&zero[0], 8, false)]));
    assert!(brief(&plan).iter().all(|(_, _, release)| *release), "{plan:?}");
    let plan = ask(&mut bench, leaving(zero.iter().map(|grant| claim(grant, 8, true)).collect()));
    assert_eq!(brief(&plan), []);
    assert_eq!(owners(&mut bench, job), [(1, 4)]);
    // A late report from before the leave has no effect.
    assert_eq!(brief(&ask(&mut bench, claiming(job, 0, vec![claim(&zero[0], 4, false)]))), []);
    assert_eq!(owners(&mut bench, job), [(1, 4)]);
    let anew = ConsumerReport { session: SessionId(2), ..consumer_report(job, 0) };
    ask(&mut bench, anew);
    let plan = ask(&mut bench, consumer_report(job, 1));
    assert_eq!(
        brief(&plan).iter().filter(|(_, _, release)| *release).count(),
        2,
        "a new session of the rank joins"
    );
}

#[test]
fn the_slots_of_the_last_rank_wait_for_another() {
    let (mut bench, job) = Bench::running(&elastic(2, 1), 64);
    let own = grants(&ask(&mut bench, consumer_report(job, 0)));
    let claims = own.iter().map(|grant| claim(grant, 8, true)).collect();
    let slots = SlotReport { claims, leaving: true, slot_ns: 0 };
    assert_eq!(brief(&ask(&mut bench, ConsumerReport { slots, ..consumer_report(job, 0) })), []);
    assert_eq!(owners(&mut bench, job), []);
    bench.pass(60_000);
    assert_eq!(brief(&ask(&mut bench, consumer_report(job, 5))), [(0, 8, false), (1, 8, false)]);
}

#[test]
fn the_slots_of_a_lost_rank_continue_at_their_recorded_positions() {
    let (mut bench, job, [zero, _]) = two();
    ask(&mut bench, claiming(job, 0, vec![claim(&zero[0], 8, false)]));
    bench.pass(10_000);
    ask(&mut bench, consumer_report(job, 1));
    bench.pass(5_001);
    let plan = ask(&mut bench, consumer_report(job, 1));
    assert_eq!(brief(&plan), [(0, 8, false), (1, 0, false), (2, 0, false), (3, 0, false)]);
}

#[test]
fn a_rank_that_delivered_rows_of_moved_slots_is_superseded() {
    let (mut bench, job, [zero, _]) = two();
    ask(&mut bench, claiming(job, 0, vec![claim(&zero[0], 8, false)]));
    bench.pass(10_000);
    ask(&mut bench, consumer_report(job, 1));
    bench.pass(5_001);
    let records = bench.records.len();
    let refusal = refused(&mut bench, claiming(job, 0, vec![claim(&zero[0], 12, false)]));
    assert_eq!(refusal.kind, ServiceErrorKind::Superseded);
    assert_eq!(
        refusal.message,
        "consumer 0 of job `run` has not reported for more than 15 s, and its slots moved to other consumers; restart the consumer from its last checkpoint"
    );
    assert_eq!(bench.records.len(), records, "the rejected report advances no slot");
}

#[test]
fn a_silent_rank_that_delivered_nothing_joins_again() {
    let (mut bench, job, [zero, _]) = two();
    ask(&mut bench, claiming(job, 0, vec![claim(&zero[0], 8, false)]));
    bench.pass(10_000);
    ask(&mut bench, consumer_report(job, 1));
    bench.pass(5_001);
    let back = claiming(
        job,
        0,
        zero.iter().map(|grant| claim(grant, if grant.stream == 0 { 8 } else { 0 }, true)).collect(),
    );
    assert_eq!(brief(&ask(&mut bench, back)), []);
    let wanted = brief(&ask(&mut bench, consumer_report(job, 1)));
    assert_eq!(wanted.iter().filter(|(_, _, release)| *release).count(), 2);
}

#[test]
fn ranks_keep_their_slots_if_all_were_silent() {
    let (mut bench, job, [zero, one]) = two();
    bench.pass(60_000);
    for (rank, own) in [(0, zero), (1, one)] {
        let plan = ask(&mut bench, claiming(job, rank, vec![claim(&own[0], 8, false)]));
        assert_eq!(grants(&plan)[0].generation, own[0].generation);
        assert_eq!(grants(&plan)[0].position, at(8));
    }
}

/// The return of one rank must not renew the slots of a lost rank.
#[test]
fn a_lost_rank_gets_no_slots_when_other_ranks_return() {
    let (mut bench, job, _) = two();
    bench.pass(10_000);
    ask(&mut bench, consumer_report(job, 1));
    bench.pass(5_001);
    assert_eq!(owners(&mut bench, job), [(1, 4)]);
    bench.pass(60_000);
    ask(&mut bench, consumer_report(job, 1));
    bench.pass(1_000);
    assert_eq!(owners(&mut bench, job), [(1, 4)]);
}

#[test]
fn a_new_session_takes_the_slots_and_the_old_session_cannot_advance_them() {
    let (mut bench, job, [zero, _]) = two();
    let anew = ConsumerReport { session: SessionId(2), ..consumer_report(job, 0) };
    let plan = ask(&mut bench, anew.clone());
    let plan = if grants(&plan).is_empty() { ask(&mut bench, anew) } else { plan };
    assert_eq!(brief(&plan), [(0, 0, false), (2, 0, false)]);
    assert_eq!(grants(&plan)[0].generation, zero[0].generation + 1);
    // After a restart, only the log contains the current session.
    bench.cluster =
        Cluster::restore(ClusterSettings::default(), INCARNATION + 1, bench.now, bench.records.clone());
    let late = claiming(job, 0, vec![claim(&zero[0], 16, false)]);
    assert_eq!(refused(&mut bench, late).kind, ServiceErrorKind::Superseded);
    assert_eq!(bench.cluster.jobs[&job].streams.position(0), Some(at(0)));
}

#[test]
fn only_the_owner_advances_a_slot_and_only_in_its_generation() {
    let (mut bench, job, [zero, one]) = two();
    let records = bench.records.len();
    ask(&mut bench, claiming(job, 1, vec![claim(&zero[0], 8, false)]));
    let ahead = SlotPosition { generation: 99, ..claim(&one[0], 8, true) };
    let unknown = SlotPosition { stream: 400, ..ahead };
    ask(&mut bench, claiming(job, 1, vec![ahead, unknown]));
    assert_eq!(bench.records.len(), records);
}

/// Late and repeated reports have no effect.
#[test]
fn reports_from_before_a_move_have_no_effect() {
    let (mut bench, job, [zero, _]) = two();
    let leaving = ConsumerReport {
        slots: SlotReport {
            claims: zero.iter().map(|grant| claim(grant, 8, true)).collect(),
            leaving: true,
            slot_ns: 0,
        },
        ..consumer_report(job, 0)
    };
    ask(&mut bench, leaving.clone());
    let records = bench.records.len();
    ask(&mut bench, leaving);
    ask(&mut bench, claiming(job, 0, vec![claim(&zero[0], 4, false)]));
    assert_eq!(bench.records.len(), records);
}

#[test]
fn a_new_leader_waits_for_reports_before_it_moves_slots() {
    let (mut bench, job, [zero, _]) = two();
    ask(&mut bench, claiming(job, 0, vec![claim(&zero[0], 8, false)]));
    let snapshot = bench.cluster.snapshot();
    for records in [bench.records.clone(), snapshot] {
        bench.cluster = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, bench.now, records);
        bench.records.clear();
        bench.pass(1_000);
        let plan = ask(&mut bench, claiming(job, 1, Vec::new()));
        assert_eq!(brief(&plan), [(1, 0, false), (3, 0, false)], "rank 0 has the lease time to report");
        bench.pass(10_000);
        assert!(!bench.records.iter().any(|record| matches!(record, Record::SlotsMoved { .. })));
        assert_eq!(owners(&mut bench, job), [(0, 2), (1, 2)]);
        let plan = ask(&mut bench, claiming(job, 0, vec![claim(&zero[0], 12, false)]));
        assert_eq!(brief(&plan)[0], (0, 12, false));
        bench.records = bench.cluster.snapshot();
    }
    ask(&mut bench, consumer_report(job, 1));
    bench.pass(15_001);
    ask(&mut bench, consumer_report(job, 1));
    assert_eq!(bench.status(job).state, JobState::Running);
}

#[test]
fn slower_ranks_get_fewer_slots() {
    let (mut bench, job) = Bench::running(&elastic(8, 2), 800);
    ask(&mut bench, consumer_report(job, 0));
    let own = [1, 0].map(|rank| grants(&ask(&mut bench, consumer_report(job, rank))));
    assert_eq!(owners(&mut bench, job), [(0, 4), (1, 4)]);
    let timed = |rank: u32, slot_ns: u64, claims: Vec<SlotPosition>| {
        let slots = SlotReport { claims, leaving: false, slot_ns };
        ConsumerReport { slots, ..consumer_report(job, rank) }
    };
    bench.pass(9_000);
    ask(&mut bench, timed(0, 1_000, Vec::new()));
    ask(&mut bench, timed(1, 3_000, Vec::new()));
    bench.pass(2_000);
    let stops = own[0].iter().map(|grant| claim(grant, 4, true)).collect();
    let plan = ask(&mut bench, timed(1, 3_000, Vec::new()));
    assert_eq!(brief(&plan).iter().filter(|(_, _, release)| *release).count(), 2, "{plan:?}");
    ask(&mut bench, timed(1, 3_000, stops));
    assert_eq!(owners(&mut bench, job), [(0, 6), (1, 2)]);
    let moved = bench.records.len();
    bench.pass(10_000);
    ask(&mut bench, timed(0, 1_050, Vec::new()));
    bench.pass(1_500);
    let moves = bench.records[moved..].iter().filter(|record| matches!(record, Record::SlotsMoved { .. }));
    assert_eq!(moves.count(), 0, "small differences move nothing");
}

#[test]
fn invalid_elastic_jobs_are_rejected() {
    let mut bench = Bench::new();
    let refusal = bench.open(&JobSpec { elastic: true, ..relaxed(4, 2) }).unwrap_err();
    assert_eq!(
        refusal.message,
        "elastic jobs require `order: deterministic`; change the order, or open the job without `elastic`: consumers of a relaxed job can always leave and rejoin"
    );
    let (mut bench, job) = Bench::running(&elastic(4, 2), 64);
    let refusal = refused(&mut bench, consumer_report(job, 70_000));
    assert_eq!(refusal.message, "invalid rank 70000: expected a rank from 0 to 65535");
    let more = JobSpec { consumers: 3, ..elastic(4, 2) };
    assert_eq!(bench.open(&more), Ok(job), "a later rank may expect another number of ranks");
    assert!(bench.open(&JobSpec { elastic: false, ..elastic(4, 2) }).is_err());
}

#[test]
fn an_elastic_job_completes() {
    let (mut bench, job) = Bench::running(&elastic(2, 1), 16);
    let own = grants(&ask(&mut bench, consumer_report(job, 3)));
    ask(&mut bench, consumer_report(job, 4));
    let stop = vec![claim(&own[0], 8, false), claim(&own[1], 4, true)];
    ask(&mut bench, claiming(job, 3, stop));
    let last = grants(&ask(&mut bench, consumer_report(job, 4)));
    let plan = ask(&mut bench, claiming(job, 4, vec![claim(&last[0], 8, false)]));
    assert_eq!(plan.state, JobState::Completed);
}
