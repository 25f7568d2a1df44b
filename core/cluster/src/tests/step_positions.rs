//! Tests of queries for the positions of all consumers at one step.

use feedline_data::checkpoint::{DeliveredRun, PositionHistory, StepId};
use feedline_data::messages::{GroupPositions, HistoryReport};

use super::*;

fn at(row: u64) -> StreamPosition {
    StreamPosition { epoch: 0, row }
}

fn step(batches: u64) -> StepId {
    StepId { epochs: None, batches_per_stream: batches, extra_batches: 0 }
}

/// A running job with positions that depend on its rows.
fn skipping(consumers: u32) -> (Bench, JobId) {
    let mut spec = spec(4, consumers);
    spec.pipeline.on_error = OnError::Skip;
    Bench::running(&spec, 400)
}

/// The report of a consumer that started at a position and has delivered `batches` batches of 5 rows.
fn marked(job: JobId, consumer: u32, began: StreamPosition, batches: u64) -> ConsumerReport {
    let mut history = PositionHistory::new(vec![(consumer, began)]);
    for batch in 1..=batches {
        history.push(DeliveredRun { stream_index: 0, position: at(5 * batch), batch_epoch: Some(0) });
    }
    let history = HistoryReport { history: Some(Box::new(history)), is_last: false };
    ConsumerReport { history, ..consumer_report(job, consumer) }
}

impl Bench {
    fn query_positions(&mut self, job: JobId, step: StepId) -> Option<GroupPositions> {
        match self.ask(|request| Input::QueryPositions { request, job, step }) {
            Some(Reply::Positions(positions_for)) => Some(positions_for),
            None => None,
            other => panic!("not an answer to who asks for places: {other:?}"),
        }
    }

    fn positions_for(&self, request: RequestId) -> Option<GroupPositions> {
        match self.answered.get(&request) {
            Some(Reply::Positions(positions_for)) => Some(positions_for.clone()),
            None => None,
            other => panic!("not an answer to who asks for places: {other:?}"),
        }
    }
}

#[test]
fn a_step_query_is_answered_once_all_consumers_have_answered() {
    let (mut bench, job) = skipping(2);
    let plans = [0, 1].map(|consumer| bench.consumer(consumer_report(job, consumer)).expect("news"));
    assert!(plans.iter().all(|plan| plan.step_queries.is_empty()));
    let held = [0, 1].map(|consumer| {
        let seen = plans[consumer as usize].revision;
        assert_eq!(
            bench.consumer(ConsumerReport { plan_revision: seen, ..consumer_report(job, consumer) }),
            None
        );
        bench.request
    });
    assert_eq!(bench.query_positions(job, step(3)), None);
    let asked = bench.request;
    for request in held {
        let Some(Reply::Consumer(plan)) = bench.answered.get(&request) else { panic!("it is asked at once") };
        assert_eq!(plan.step_queries, [step(3)]);
    }
    // Consumer 1 has not reached the step yet.
    bench.consumer(marked(job, 0, at(0), 4));
    let plan = bench.consumer(marked(job, 1, at(0), 2)).expect("news");
    assert_eq!((plan.step_queries, bench.positions_for(asked)), (vec![step(3)], None));
    let plan = bench.consumer(consumer_report(job, 0)).expect("news");
    assert_eq!(plan.step_queries, [], "consumer 0 has answered");
    bench.consumer(marked(job, 1, at(0), 3));
    let positions_for =
        GroupPositions { positions: vec![(0, at(15)), (1, at(15))], ..GroupPositions::default() };
    assert_eq!(bench.positions_for(asked).as_ref(), Some(&positions_for));
    assert_eq!(bench.query_positions(job, step(3)), Some(positions_for), "the answers are stored");
    let positions_for = bench.query_positions(job, step(1)).expect("the history contains earlier steps");
    assert_eq!(positions_for.positions, [(0, at(5)), (1, at(5))]);
    assert_eq!(bench.query_positions(job, step(4)), None, "another step needs a query");
    assert_eq!(bench.consumer(consumer_report(job, 0)).expect("news").step_queries, []);
    assert_eq!(bench.consumer(consumer_report(job, 1)).expect("news").step_queries, [step(4)]);
    // The query has expired.
    bench.pass(1_000);
    assert_eq!(bench.consumer(consumer_report(job, 1)).expect("news").step_queries, []);
    assert!(bench.cluster.queried_jobs.is_empty());
}

#[test]
fn a_query_returns_missing_consumers_after_the_hold_time_or_if_none_can_answer() {
    let (mut bench, job) = skipping(3);
    bench.consumer(consumer_report(job, 0));
    assert_eq!(bench.query_positions(job, step(1)), None);
    let asked = bench.request;
    bench.consumer(marked(job, 0, at(0), 1));
    bench.pass(499);
    assert_eq!(bench.positions_for(asked), None);
    bench.pass(1);
    let positions_for = bench.positions_for(asked).expect("after `hold_ms`");
    assert_eq!(
        (positions_for.positions, positions_for.missing, positions_for.is_retryable),
        (vec![(0, at(5))], vec![1, 2], true)
    );
    // One consumer ends before the step, and one continues an earlier session.
    let mut last = marked(job, 1, at(0), 0);
    last.history.is_last = true;
    bench.consumer(last);
    bench.consumer(marked(job, 2, at(20), 9));
    let positions_for = bench.query_positions(job, step(1)).expect("nobody can say more");
    assert_eq!((positions_for.missing, positions_for.is_retryable), (vec![1, 2], false));
    // A new session has not counted the steps of the earlier session.
    bench.consumer(consumer_report_of(job, 0, 2));
    bench.pass(2_000);
    assert_eq!(bench.query_positions(job, step(1)), None);
    assert_eq!(bench.consumer(consumer_report_of(job, 0, 2)).expect("news").step_queries, [step(1)]);
}

fn consumer_report_of(job: JobId, consumer: u32, session: u64) -> ConsumerReport {
    ConsumerReport { session: SessionId(session), ..consumer_report(job, consumer) }
}

#[test]
fn a_query_does_not_wait_for_silent_consumers() {
    let (mut bench, job) = skipping(2);
    bench.consumer(consumer_report(job, 0));
    bench.consumer(consumer_report(job, 1));
    let lease = bench.cluster.settings.consumer_lease_ms;
    bench.pass(lease);
    bench.consumer(marked(job, 0, at(0), 1));
    bench.pass(1);
    let positions_for = bench.query_positions(job, step(1)).expect("the other is gone");
    assert_eq!((positions_for.missing, positions_for.is_retryable), (vec![1], false));
}

#[test]
fn the_start_is_known_and_some_jobs_have_no_common_steps() {
    let (mut bench, job) = skipping(2);
    for step in [StepId::default(), StepId { epochs: Some(0), batches_per_stream: 0, extra_batches: 0 }] {
        let positions_for = bench.query_positions(job, step).expect("it is where the job was opened at");
        assert_eq!((positions_for.positions, positions_for.missing), (vec![(0, at(0)), (1, at(0))], vec![]));
    }
    let kind = |reply: Option<Reply>| match reply {
        Some(Reply::Rejected(refusal)) => refusal.kind,
        other => panic!("it is refused: {other:?}"),
    };
    let unknown = bench.ask(|request| Input::QueryPositions { request, job: JobId(77), step: step(1) });
    assert_eq!(kind(unknown), ServiceErrorKind::NotFound);
    for spec in [relaxed(4, 2), JobSpec { elastic: true, ..spec(4, 2) }] {
        let (mut bench, job) = Bench::running(&spec, 64);
        let refused = bench.ask(|request| Input::QueryPositions { request, job, step: step(1) });
        assert_eq!(kind(refused), ServiceErrorKind::Invalid);
    }
}

#[test]
fn the_number_of_open_queries_is_bounded() {
    let (mut bench, job) = skipping(1);
    for batches in 1..=64 {
        assert_eq!(bench.query_positions(job, step(batches)), None);
    }
    match bench.ask(|request| Input::QueryPositions { request, job, step: step(65) }) {
        Some(Reply::Rejected(refusal)) => assert_eq!(refusal.kind, ServiceErrorKind::Busy),
        other => panic!("it is refused: {other:?}"),
    }
    bench.pass(1_000);
    assert_eq!(bench.query_positions(job, step(65)), None, "those before are over");
}
