//! A request that several tasks wait for at the same time. It is sent once for all of them.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use crate::error::KafkaError;

type Answer = OnceCell<Result<(), KafkaError>>;

/// A request that one of the waiting tasks sends.
#[derive(Default)]
pub(crate) struct SharedWait {
    current: Mutex<Arc<Answer>>,
}

impl SharedWait {
    /// Waits for the running request, or sends one. If the task that sent it is cancelled, another one sends it again.
    pub(crate) async fn join<F>(&self, request: impl FnOnce() -> F) -> Result<(), KafkaError>
    where
        F: Future<Output = Result<(), KafkaError>>,
    {
        let current = || self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = Arc::clone(&current());
        let result = answer.get_or_init(request).await.clone();
        let mut current = current();
        if Arc::ptr_eq(&current, &answer) {
            *current = Arc::default();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn tasks_that_wait_at_the_same_time_send_one_request() {
        let (wait, requests) = (SharedWait::default(), Cell::new(0));
        let (reply, replied) = oneshot::channel();
        let first = wait.join(|| async {
            requests.set(requests.get() + 1);
            replied.await.unwrap_or_else(|_| Err(KafkaError::retryable("no answer")))
        });
        let second = wait.join(|| async { panic!("the first task has sent the request") });
        let answer =
            async { reply.send(Err(KafkaError::retryable("silent"))).expect("the first task waits") };
        let (first, second, ()) = tokio::join!(first, second, answer);
        assert_eq!(
            [first, second],
            [Err(KafkaError::retryable("silent")), Err(KafkaError::retryable("silent"))]
        );
        wait.join(|| async {
            requests.set(requests.get() + 1);
            Ok(())
        })
        .await
        .expect("a later task sends a new request");
        assert_eq!(requests.get(), 2);
    }
}
