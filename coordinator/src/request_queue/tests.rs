//! Tests with a client that floods the queue and other clients with few requests. Latency is measured in popped requests.

use feedline_data::ids::SessionId;
use feedline_data::messages::ServiceErrorKind;

use super::*;
use crate::tenant_view::tests::{consuming, working};

/// The batch size of the driver.
const BATCH: usize = 256;

fn status() -> Request {
    Request::JobStatus(None)
}

async fn push(
    queue: &RequestQueue,
    caller: Caller,
    request: Request,
) -> Result<oneshot::Receiver<Reply>, ServiceError> {
    caller.scope(async { queue.push(request) }).await
}

#[tokio::test]
async fn a_flood_does_not_change_the_latency_of_other_clients() {
    let queue = RequestQueue::new();
    let receiver = RequestReceiver::new(Arc::clone(&queue));
    let (flooder, other) = (Caller::unique(), Caller::unique());
    let mut flood = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        // Each time, more than one batch is queued.
        for _ in 0..1_000 {
            match push(&queue, flooder, status()).await {
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
            answers.push(push(&queue, other, status()).await.expect("there is room for it"));
        }
        // Five requests of this client, and five requests of the flood before the last of these.
        for request in receiver.pop(10) {
            let _ = request.reply.send(Reply::Cancelled);
        }
        for mut answer in answers {
            assert!(answer.try_recv().is_ok(), "within ten requests, however long the flooded queue is");
        }
        for request in receiver.pop(BATCH) {
            let _ = request.reply.send(Reply::Cancelled);
        }
    }
    assert!(refused > 70_000, "{refused} were rejected immediately");
    assert!(receiver.len() <= OTHER_BOUNDS.total);
}

#[tokio::test]
async fn reports_pass_a_flood_of_other_requests() {
    let queue = RequestQueue::new();
    let receiver = RequestReceiver::new(Arc::clone(&queue));
    let mut flood = Vec::new();
    for _ in 0..20 {
        let caller = Caller::unique();
        for _ in 0..100 {
            flood.extend(push(&queue, caller, status()).await);
        }
    }
    assert_eq!(receiver.len(), OTHER_BOUNDS.total, "the bound of all clients");
    let worker = push(&queue, Caller::unique(), Request::Worker(working())).await.expect("reports have room");
    let consumer = queue.push(Request::Consumer(consuming(JobId(1)))).expect("reports have room");
    for request in receiver.pop(2) {
        assert!(matches!(request.request, Request::Worker(_) | Request::Consumer(_)));
        let _ = request.reply.send(Reply::Cancelled);
    }
    assert_eq!((worker.await, consumer.await), (Ok(Reply::Cancelled), Ok(Reply::Cancelled)));
}

#[tokio::test]
async fn closed_requests_are_skipped_and_evicted_ones_are_rejected() {
    let queue = RequestQueue::new();
    let receiver = RequestReceiver::new(Arc::clone(&queue));
    drop(queue.push(status()));
    let kept = queue.push(Request::JobDetails(JobId(7)));
    assert_eq!(receiver.pop(BATCH).len(), 1, "one client has stopped waiting");
    drop(kept);
    // Four clients fill the queue before a fifth client sends a request.
    let mut answers = Vec::new();
    for _ in 0..4 {
        let caller = Caller::unique();
        for _ in 0..OTHER_BOUNDS.per_client {
            answers.push(push(&queue, caller, status()).await.expect("room"));
        }
    }
    push(&queue, Caller::unique(), status()).await.expect("another client makes room").close();
    let rejections = answers.iter_mut().filter_map(|answer| answer.try_recv().ok());
    let rejections: Vec<Reply> = rejections.collect();
    assert!(
        matches!(rejections.as_slice(), [Reply::Rejected(refusal)] if refusal.kind == ServiceErrorKind::Busy),
        "{rejections:?}"
    );
}

#[tokio::test]
async fn a_queue_without_a_driver_rejects_requests() {
    let queue = RequestQueue::new();
    let receiver = RequestReceiver::new(Arc::clone(&queue));
    let waiting = queue.push(Request::Consumer(feedline_data::messages::ConsumerReport {
        session: SessionId(9),
        ..consuming(JobId(1))
    }));
    drop(receiver);
    assert!(waiting.expect("it was open").await.is_err());
    assert_eq!(queue.push(status()).map(|_| ()), Err(shutting_down()));
}
