//! One who floods, beside others who ask now and then. Time is counted in requests that were taken.

use feedline_data::ids::SessionId;
use feedline_data::messages::ServiceErrorKind;

use super::*;
use crate::tenant_view::tests::{consuming, working};

/// Takes as the driver does.
const TOGETHER: usize = 256;

fn status() -> Request {
    Request::JobStatus(None)
}

async fn put(
    desk: &RequestQueue,
    caller: Caller,
    request: Request,
) -> Result<oneshot::Receiver<Reply>, ServiceError> {
    caller.answers(async { desk.put(request) }).await
}

#[tokio::test]
async fn a_flood_of_one_leaves_the_others_latency_as_it_was() {
    let desk = RequestQueue::new();
    let end = RequestReceiver::new(Arc::clone(&desk));
    let (flooder, other) = (Caller::next(), Caller::next());
    let mut flood = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        // More than is taken in a turn, each turn.
        for _ in 0..1_000 {
            match put(&desk, flooder, status()).await {
                Ok(answer) => flood.push(answer),
                Err(refusal) => {
                    assert_eq!(
                        (refusal.kind, refusal.retry_after_ms),
                        (ServiceErrorKind::Busy, Some(RETRY_MS))
                    );
                    refused += 1;
                }
            }
        }
        let mut answers = Vec::new();
        for _ in 0..5 {
            answers.push(put(&desk, other, status()).await.expect("there is room for it"));
        }
        // Five of its own, and as many of the flood before the last of them.
        for ask in end.take(10) {
            let _ = ask.reply.send(Reply::Cancelled);
        }
        for mut answer in answers {
            assert!(answer.try_recv().is_ok(), "within ten requests, however long the other's line is");
        }
        for ask in end.take(TOGETHER) {
            let _ = ask.reply.send(Reply::Cancelled);
        }
    }
    assert!(refused > 70_000, "{refused} were refused at once, and none waits without end");
    assert!(end.waiting() <= OTHERS.all);
}

#[tokio::test]
async fn reports_pass_a_flood_of_lists() {
    let desk = RequestQueue::new();
    let end = RequestReceiver::new(Arc::clone(&desk));
    let mut flood = Vec::new();
    for _ in 0..20 {
        let caller = Caller::next();
        for _ in 0..100 {
            flood.extend(put(&desk, caller, status()).await);
        }
    }
    assert_eq!(end.waiting(), OTHERS.all, "no more than may wait");
    let worker =
        put(&desk, Caller::next(), Request::Worker(working())).await.expect("a worker is not kept out");
    let consumer = desk.put(Request::Consumer(consuming(JobId(1)))).expect("nor a consumer");
    for ask in end.take(2) {
        assert!(matches!(ask.request, Request::Worker(_) | Request::Consumer(_)));
        let _ = ask.reply.send(Reply::Cancelled);
    }
    assert_eq!((worker.await, consumer.await), (Ok(Reply::Cancelled), Ok(Reply::Cancelled)));
}

#[tokio::test]
async fn who_no_longer_waits_is_not_answered_and_who_is_put_off_is_told() {
    let desk = RequestQueue::new();
    let end = RequestReceiver::new(Arc::clone(&desk));
    drop(desk.put(status()));
    let kept = desk.put(Request::JobDetails(JobId(7)));
    assert_eq!(end.take(TOGETHER).len(), 1, "one has hung up");
    drop(kept);
    // Four fill the desk, then a fifth comes.
    let mut answers = Vec::new();
    for _ in 0..4 {
        let caller = Caller::next();
        for _ in 0..OTHERS.of_one {
            answers.push(put(&desk, caller, status()).await.expect("room"));
        }
    }
    put(&desk, Caller::next(), status()).await.expect("one of the others makes room").close();
    let told = answers.iter_mut().filter_map(|answer| answer.try_recv().ok());
    let told: Vec<Reply> = told.collect();
    assert!(
        matches!(told.as_slice(), [Reply::Refused(refusal)] if refusal.kind == ServiceErrorKind::Busy),
        "{told:?}"
    );
}

#[tokio::test]
async fn nothing_waits_at_a_desk_without_a_driver() {
    let desk = RequestQueue::new();
    let end = RequestReceiver::new(Arc::clone(&desk));
    let waiting = desk.put(Request::Consumer(feedline_data::messages::ConsumerReport {
        session: SessionId(9),
        ..consuming(JobId(1))
    }));
    drop(end);
    assert!(waiting.expect("it was open").await.is_err());
    assert_eq!(desk.put(status()).map(|_| ()), Err(shutting_down()));
}
