//! Tests of retries, with a paused clock.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::access::StoreOptions;
use crate::error::SourceError;
use crate::identity::{StoreAction, StoreIdentity};
use crate::throttling::StoreKind;

const BUDGET: Duration = Duration::from_secs(20);

fn requests() -> GovernedRequests {
    let governor = StoreGovernor::new(
        "key".to_owned(),
        "s3://b".to_owned(),
        StoreKind::S3,
        Instant::now(),
        Arc::default(),
    );
    GovernedRequests { governor: Arc::new(governor), retry_budget: BUDGET, limit: BUDGET + REQUEST_TIMEOUT }
}

fn failed() -> Error {
    Error::Generic { store: "test", source: "failed".into() }
}

/// Sends a request that receives these statuses in turn, and then succeeds. Returns the number of attempts.
async fn send(statuses: &[Option<u16>], retry_after: Option<Duration>) -> (bool, usize, Duration) {
    let (attempts, start) = (AtomicU32::new(0), Instant::now());
    let request = || async {
        let attempt = attempts.fetch_add(1, Ordering::Relaxed) as usize;
        let Some(status) = statuses.get(attempt.min(statuses.len() - 1)) else { return Ok(()) };
        record_response(*status, retry_after);
        if *status == Some(200) { Ok(()) } else { Err(failed()) }
    };
    let sent = requests().send(&RequestTag::default(), 1, request).await;
    let is_sent = sent.map(|((), permit)| permit.succeed(1)).is_ok();
    (is_sent, attempts.load(Ordering::Relaxed) as usize, start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn throttled_and_failed_requests_are_sent_again() {
    for status in [Some(429), Some(503), Some(500), Some(408), None] {
        let (is_sent, attempts, took) = send(&[status, status, Some(200)], None).await;
        assert!(is_sent && attempts == 3, "{status:?}");
        assert!(took < Duration::from_secs(3), "{status:?}: {took:?}");
    }
    let (is_sent, attempts, took) = send(&[Some(429), Some(200)], Some(Duration::from_secs(7))).await;
    assert!(is_sent && attempts == 2 && took >= Duration::from_secs(7), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn other_errors_are_permanent() {
    for status in [400, 403, 404, 412, 416] {
        let (is_sent, attempts, _) = send(&[Some(status)], None).await;
        assert_eq!((is_sent, attempts), (false, 1), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_when_the_store_has_rejected_everything_for_the_budget() {
    let (is_sent, attempts, took) = send(&[Some(503)], None).await;
    assert!(!is_sent && attempts > 3);
    assert!(took >= BUDGET && took < BUDGET + Duration::from_secs(8), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_minutes_if_the_store_asks_for_it_but_not_for_an_hour() {
    let (is_sent, attempts, took) = send(&[Some(429), Some(200)], Some(Duration::from_secs(240))).await;
    assert!(is_sent && attempts == 2 && took >= Duration::from_secs(240), "{took:?}");
    let (is_sent, attempts, took) = send(&[Some(503)], Some(Duration::from_secs(3600))).await;
    assert!(!is_sent && attempts == 1 && took < Duration::from_secs(1), "{took:?}");
    // A store that asks again and again does not stop a job for ever.
    let (is_sent, _, took) = send(&[Some(503)], Some(Duration::from_secs(2))).await;
    assert!(!is_sent && took >= Duration::from_secs(60) && took < Duration::from_secs(340), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_with_expired_credentials_is_sent_again() {
    let attempts = AtomicU32::new(0);
    let request = || async {
        if attempts.fetch_add(1, Ordering::Relaxed) > 1 {
            return Ok(());
        }
        record_response(Some(403), None);
        Err(Error::Generic { store: "test", source: "<Code>ExpiredToken</Code>".into() })
    };
    let sent = requests().send(&RequestTag::default(), 1, request).await;
    assert!(
        sent.is_ok_and(|((), permit)| {
            permit.succeed(1);
            true
        }) && attempts.into_inner() == 3
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_with_expired_keys_that_nothing_renews_fails_at_once() {
    let options = [("aws_access_key_id", "AKIAIOSFODNN7EXAMPLE"), ("aws_secret_access_key", "HUSH")];
    let options = StoreOptions::new(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let identity = StoreIdentity::new(StoreKind::S3, "s3://b", Some("mine"), &options);
    for status in [400, 403] {
        let attempts = AtomicU32::new(0);
        let request = || async {
            attempts.fetch_add(1, Ordering::Relaxed);
            record_response(Some(status), None);
            let source = format!("{status}: <Error><Code>ExpiredToken</Code><Message>HUSH</Message></Error>");
            let error = Error::Generic { store: "test", source: source.into() };
            Err::<(), _>(identity.explain(StoreAction::Read, None, error))
        };
        let Err(error) = requests().send(&RequestTag::default(), 1, request).await else {
            panic!("the request fails")
        };
        assert_eq!(attempts.into_inner(), 1, "{status}");
        assert_eq!(
            SourceError::from_store("s3://b/x", error).to_string(),
            "cannot read `s3://b/x`: access denied for access key AKIA...MPLE (credentials `mine`) (ExpiredToken): the credentials have \
             expired: renew the keys of the credentials `mine`, or use credentials that Feedline renews, such as a role or a profile"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_in_the_queue_does_not_count_towards_the_limit() {
    let clock = Arc::new(QueueClock::default());
    let queued = async {
        clock.start();
        sleep(Duration::from_secs(500)).await;
        clock.stop();
        sleep(Duration::from_secs(9)).await;
    };
    assert!(within_active(Duration::from_secs(10), &clock, queued).await.is_some());
    let active = sleep(Duration::from_secs(11));
    assert!(within_active(Duration::from_secs(10), &clock, active).await.is_none());
}

#[test]
fn retry_after_is_a_number_of_seconds_or_a_date() {
    assert_eq!(parse_retry_after(" 2 ", None), Some(Duration::from_secs(2)));
    assert_eq!(parse_retry_after("0.5", None), Some(Duration::from_millis(500)));
    assert_eq!(parse_retry_after("1e300", None), Some(Duration::from_secs(86_400)));
    let date = Some("Wed, 21 Oct 2015 07:27:48 GMT");
    assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", date), Some(Duration::from_secs(12)));
    assert_eq!(parse_retry_after("Fri, 23 Oct 2015 07:28:00 GMT", date), Some(Duration::from_secs(86_400)));
    // A request that may be repeated at once is repeated after a backoff.
    for passed in ["0", "Wed, 21 Oct 2015 07:27:48 GMT", "Wed, 21 Oct 2015 07:00:00 GMT"] {
        assert_eq!(parse_retry_after(passed, date), None, "{passed}");
    }
    for invalid in ["", "-1", "NaN", "soon"] {
        assert_eq!(parse_retry_after(invalid, date), None, "{invalid}");
    }
    assert_eq!(
        parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", None),
        None,
        "the clock of the store is unknown"
    );
}
