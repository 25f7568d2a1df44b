//! The deadline for the body of a request. A client that sends its request slowly would otherwise hold a stream and memory for ever.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Duration, Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;

use crate::rpc::{self, REQUEST_DEADLINE};

/// Limits the time in which the body of a request must arrive. The time is the deadline of the method, after which clients have given
/// up. The body of a fetch has no deadline, because it contains the credit of the whole fetch.
pub(super) fn limit_body(request: http::Request<Body>) -> http::Request<Body> {
    let path = request.uri().path();
    if path == rpc::FETCH.path {
        return request;
    }
    let timeout = rpc::find(path).and_then(|rpc| rpc.deadline).unwrap_or(REQUEST_DEADLINE);
    request.map(|body| Body::new(DeadlineBody::new(body, timeout)))
}

/// A body that fails if it has not arrived at a deadline.
struct DeadlineBody {
    body: Body,
    timeout: Duration,
    deadline: Instant,
    /// The timer, if the body had to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl DeadlineBody {
    fn new(body: Body, timeout: Duration) -> Self {
        Self { body, timeout, deadline: Instant::now() + timeout, timer: None }
    }
}

impl http_body::Body for DeadlineBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() {
            return polled;
        }
        let deadline = self.deadline;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let seconds = self.timeout.as_secs();
        Poll::Ready(Some(Err(Status::deadline_exceeded(format!(
            "the request did not arrive within {seconds} s: send it faster"
        )))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
