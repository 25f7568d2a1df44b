//! Tests of slow reads that are sent a second time, with a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use object_store::{Error, ObjectMeta};
use tokio::time::Instant;

use super::*;
use crate::governor::StoreGovernor;
use crate::requests::record_response;
use crate::throttling::StoreKind;

const BYTES: u64 = 4;
/// The latency of a fast read.
const FAST: Duration = Duration::from_millis(10);
const SLOW: Duration = Duration::from_secs(5);

/// A response to one request: its time, and its bytes or the status of a rejection.
type Answer = (Duration, std::result::Result<&'static [u8], u16>);

/// A store that answers the requests in this order. Fast answers follow.
struct Server {
    answers: Vec<Answer>,
    requests: AtomicUsize,
}

impl Server {
    fn new(answers: &[Answer]) -> Self {
        Self { answers: answers.to_vec(), requests: AtomicUsize::new(0) }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    async fn get(&self) -> Result<GetResult> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let (time, body) = self.answers.get(request).copied().unwrap_or((FAST, Ok(b"fast")));
        sleep(time).await;
        let body = body.map_err(|status| {
            record_response(Some(status), None);
            Error::Generic { store: "test", source: status.to_string().into() }
        })?;
        let meta = ObjectMeta {
            location: "x".into(),
            last_modified: Default::default(),
            size: 9,
            e_tag: None,
            version: None,
        };
        let body = futures::stream::once(async { Ok(Bytes::from_static(body)) }).boxed();
        let payload = GetResultPayload::Stream(body);
        let (attributes, extensions) = (Default::default(), Default::default());
        Ok(GetResult { payload, meta, range: 0..BYTES, attributes, extensions })
    }
}

fn requests() -> GovernedRequests {
    let (key, name) = ("key".to_owned(), "s3://b".to_owned());
    let governor = StoreGovernor::new(key, name, StoreKind::S3, Instant::now(), Arc::default());
    let (retry_budget, limit) = (Duration::from_secs(60), Duration::from_secs(95));
    GovernedRequests { governor: Arc::new(governor), retry_budget, limit }
}

/// Reads once. Returns the bytes and the time.
async fn read(requests: &GovernedRequests, server: &Server) -> (Result<Bytes>, Duration) {
    let start = Instant::now();
    let bytes = match requests.read(&RequestTag::default(), BYTES, || server.get()).await {
        Ok(result) => result.bytes().await,
        Err(error) => Err(error),
    };
    (bytes, start.elapsed())
}

/// Requests to a store of which enough reads are known.
async fn experienced() -> GovernedRequests {
    let (requests, server) = (requests(), Server::new(&[]));
    for _ in 0..1200 {
        assert_eq!(read(&requests, &server).await.0.unwrap(), "fast");
    }
    assert_eq!(server.requests(), 1200, "no read was slow");
    requests
}

#[tokio::test(start_paused = true)]
async fn a_slow_read_is_sent_again_and_the_first_response_wins() {
    let requests = experienced().await;
    let server = Server::new(&[(SLOW, Ok(b"slow"))]);
    let (bytes, took) = read(&requests, &server).await;
    assert_eq!((bytes.unwrap(), server.requests()), (Bytes::from_static(b"fast"), 2));
    assert!(took < 5 * FAST, "{took:?}");

    let server = Server::new(&[(SLOW, Ok(b"slow")), (2 * SLOW, Ok(b"late"))]);
    let (bytes, took) = read(&requests, &server).await;
    assert_eq!((bytes.unwrap(), server.requests()), (Bytes::from_static(b"slow"), 2));
    assert_eq!(took, SLOW);
    let report = requests.governor.report();
    assert_eq!((report.accepted, report.rejected), (1202, 0), "cancelled requests are not counted");
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_experience_sends_no_second_request() {
    let (requests, server) = (requests(), Server::new(&[(SLOW, Ok(b"slow"))]));
    let (bytes, took) = read(&requests, &server).await;
    assert_eq!((bytes.unwrap(), server.requests(), took), (Bytes::from_static(b"slow"), 1, SLOW));
}

#[tokio::test(start_paused = true)]
async fn a_second_request_that_fails_does_not_end_the_read() {
    for status in [404, 500, 503] {
        let requests = experienced().await;
        let server = Server::new(&[(SLOW, Ok(b"slow")), (FAST, Err(status))]);
        let (bytes, took) = read(&requests, &server).await;
        assert_eq!(
            (bytes.unwrap(), server.requests(), took),
            (Bytes::from_static(b"slow"), 2, SLOW),
            "{status}"
        );
        assert_eq!(requests.governor.report().rejected, u64::from(status == 503));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_longer_than_the_range_is_an_error_without_a_retry() {
    let requests = experienced().await;
    let server = Server::new(&[(FAST, Ok(b"longer"))]);
    let (bytes, _) = read(&requests, &server).await;
    let error = bytes.unwrap_err().to_string();
    assert!(error.contains("sent more bytes in response to a request for 4 bytes"), "{error}");
    assert_eq!(server.requests(), 1);
    let server = Server::new(&[(SLOW, Ok(b"slow")), (FAST, Ok(b"longer"))]);
    let (bytes, _) = read(&requests, &server).await;
    assert_eq!((bytes.unwrap(), server.requests()), (Bytes::from_static(b"slow"), 2));
}

#[tokio::test(start_paused = true)]
async fn the_error_of_the_first_request_ends_the_read() {
    let requests = experienced().await;
    let server = Server::new(&[(SLOW, Err(404)), (2 * SLOW, Ok(b"late"))]);
    let (bytes, took) = read(&requests, &server).await;
    assert!(bytes.is_err() && took == SLOW, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn no_second_request_follows_a_rejection_within_ten_seconds() {
    let requests = experienced().await;
    let server = Server::new(&[(FAST, Err(503)), (SLOW, Ok(b"slow"))]);
    let (bytes, _) = read(&requests, &server).await;
    assert_eq!(
        (bytes.unwrap(), server.requests()),
        (Bytes::from_static(b"slow"), 2),
        "a retry and no second request"
    );
}

#[tokio::test(start_paused = true)]
async fn the_time_in_the_queue_does_not_make_a_read_slow() {
    let requests = experienced().await;
    let server = Server::new(&[]);
    let share = feedline_data::messages::StoreShare { in_flight: 1, ..Default::default() };
    requests.governor.set_share(&share);
    let other = requests
        .governor
        .acquire(Demand { job: RequestTag::default().job, bytes: 1, is_repeated: false })
        .await;
    let wait = async {
        sleep(SLOW).await;
        other.succeed(1);
    };
    let ((bytes, took), ()) = tokio::join!(read(&requests, &server), wait);
    assert_eq!((bytes.unwrap(), server.requests()), (Bytes::from_static(b"fast"), 1));
    assert!(took >= SLOW && took < SLOW + 3 * FAST, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn at_most_one_percent_of_the_reads_are_sent_again() {
    let requests = experienced().await;
    // Every twentieth read is slow.
    let server = Server::new(&[]);
    let slow = Server { answers: vec![(SLOW, Ok(b"slow")); 4000], requests: AtomicUsize::new(0) };
    for number in 0..4000 {
        let from = if number % 20 == 0 { &slow } else { &server };
        read(&requests, from).await.0.unwrap();
    }
    let hedged = slow.requests() + server.requests() - 4000;
    assert!(hedged > 0 && hedged <= 52, "{hedged} of 5200 requests");
}
