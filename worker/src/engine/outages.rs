//! Repeats reads whose source is unavailable, such as a topic whose brokers do not answer.

use std::time::Duration;

use feedline_common::backoff::spread;
use feedline_sources::SourceError;

/// Pause before a source that is unavailable is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Repeats a read until it succeeds, fails permanently, or may not be repeated. Before each repetition, waits until the source
/// answers. A wait needs no permits and no memory, which other reads may need.
pub(super) async fn read_when_available<T, R, W>(
    read: impl Fn() -> R,
    wait: impl Fn() -> W,
    may_repeat: impl Fn() -> bool,
) -> Result<T, SourceError>
where
    R: Future<Output = Result<T, SourceError>>,
    W: Future<Output = Result<(), SourceError>>,
{
    loop {
        match read().await {
            Err(error) if error.is_retryable() && may_repeat() => {
                tracing::warn!(%error, "waiting for the source");
            }
            result => return result,
        }
        loop {
            tokio::time::sleep(spread(RETRY_PAUSE)).await;
            match wait().await {
                Ok(()) => break,
                Err(error) if error.is_retryable() && may_repeat() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn failure(retryable: bool) -> SourceError {
        SourceError::Store { url: "kafka://a:1/t/0".to_owned(), reason: "no answer".to_owned(), retryable }
    }

    /// Returns a function that fails a number of times. Counts its calls.
    fn failing(calls: &Cell<u32>, times: u32) -> impl Fn() -> std::future::Ready<Result<(), SourceError>> {
        move || {
            calls.set(calls.get() + 1);
            std::future::ready(if calls.get() > times { Ok(()) } else { Err(failure(true)) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_is_repeated_after_its_source_has_answered() {
        let (reads, waits) = (Cell::new(0), Cell::new(0));
        read_when_available(failing(&reads, 2), failing(&waits, 3), || true).await.expect("it answers");
        assert_eq!((reads.get(), waits.get()), (3, 5), "three waits fail before the second read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_may_not_be_repeated_fails() {
        let (reads, waits) = (Cell::new(0), Cell::new(0));
        let read = read_when_available(failing(&reads, 9), failing(&waits, 9), || waits.get() < 4);
        assert!(read.await.is_err());
        assert_eq!((reads.get(), waits.get()), (1, 4));
        let read =
            read_when_available(|| async { Err::<(), _>(failure(false)) }, failing(&waits, 0), || true);
        assert!(read.await.is_err_and(|error| !error.is_retryable()));
        assert_eq!(waits.get(), 4, "a permanent error is final");
    }
}
