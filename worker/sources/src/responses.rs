//! Checks the responses of object stores, because a server may send anything: a partial response contains the requested range,
//! and no body is longer than its request permits.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use futures::stream::BoxStream;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody};
use object_store::{GetResult, GetResultPayload};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, RANGE};
use reqwest::{Method, StatusCode};

/// Maximum length of a response that is not part of an object, such as a page of a listing or a token. A page of 5,000 objects
/// with long names is a third of this length.
const MAX_BODY_BYTES: u64 = 32 << 20;
/// Maximum length of the body of an error that is read for its message.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// A response that violates the protocol. A retry does not help.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ResponseError(String);

/// The expected response to a request, which the request itself determines.
#[derive(Debug)]
pub(crate) struct ExpectedResponse {
    /// The requested bytes of an object. `None` for all other requests.
    range: Option<Range<u64>>,
    /// Whether the request asks for the description of an object.
    is_head: bool,
}

impl ExpectedResponse {
    pub(crate) fn new(request: &HttpRequest) -> Self {
        let range = header(request.headers(), &RANGE).and_then(|value| {
            let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
            Some(first.parse().ok()?..u64::checked_add(last.parse().ok()?, 1)?)
        });
        Self { range, is_head: *request.method() == Method::HEAD }
    }

    /// Checks the head of a response, and limits its body. The message of an error response is read and cut at
    /// [`MAX_ERROR_BYTES`].
    pub(crate) async fn check(&self, response: HttpResponse) -> Result<HttpResponse, HttpError> {
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            return Ok(with_short_body(response).await);
        }
        let length = header(response.headers(), &CONTENT_LENGTH).and_then(|value| value.parse::<u64>().ok());
        if self.is_head && status.is_success() && length.is_none() {
            return Err(http_error(no_size()));
        }
        let Some(range) = self.range.as_ref().filter(|_| status.is_success()) else {
            return Ok(
                response.map(|body| HttpResponseBody::new(LimitedBody { body, remaining: MAX_BODY_BYTES }))
            );
        };
        check_range(range, status, response.headers()).map_err(http_error)?;
        let wanted = range.end - range.start;
        match length {
            Some(length) if length > wanted => Err(http_error(too_long(&format!("{length} bytes"), wanted))),
            // The reader of a range limits its body.
            Some(_) => Ok(response),
            None => Err(http_error(no_size())),
        }
    }
}

/// Reads the body of a range of an object. Stops as soon as the body is longer than the range.
///
/// # Errors
/// Returns the error of the store, or an error if the body is too long. A body that is too short is not an error.
pub(crate) async fn read_body(result: GetResult, wanted: u64) -> object_store::Result<Bytes> {
    if matches!(result.payload, GetResultPayload::File(..)) {
        return result.bytes().await;
    }
    read_stream(result.into_stream(), wanted).await
}

/// Reads the stream of a body like [`read_body`].
pub(crate) async fn read_stream(
    mut body: BoxStream<'_, object_store::Result<Bytes>>,
    wanted: u64,
) -> object_store::Result<Bytes> {
    let Some(first) = body.try_next().await? else { return Ok(Bytes::new()) };
    check_length(first.len(), wanted)?;
    let Some(second) = body.try_next().await? else { return Ok(first) };
    let mut whole = BytesMut::with_capacity(wanted as usize);
    let mut next = Some(second);
    whole.extend_from_slice(&first);
    drop(first);
    while let Some(bytes) = next {
        check_length(whole.len() + bytes.len(), wanted)?;
        whole.extend_from_slice(&bytes);
        next = body.try_next().await?;
    }
    Ok(whole.freeze())
}

fn check_length(length: usize, wanted: u64) -> object_store::Result<()> {
    if length as u64 <= wanted {
        return Ok(());
    }
    let source = too_long("more bytes", wanted).into();
    Err(object_store::Error::Generic { store: "response", source })
}

/// The clients of stores require the length of each object and of each range.
fn no_size() -> ResponseError {
    let reason = "the server does not state the size of the object: use a server that sends `Content-Length`";
    ResponseError(reason.to_owned())
}

fn too_long(sent: &str, wanted: u64) -> ResponseError {
    ResponseError(format!(
        "the server sent {sent} in response to a request for {wanted} bytes: check the server and its proxies, or copy the data to \
         another server"
    ))
}

/// Checks that a response contains the requested range, or the part of it that the object has.
fn check_range(wanted: &Range<u64>, status: StatusCode, headers: &HeaderMap) -> Result<(), ResponseError> {
    let Range { start, end } = *wanted;
    let last = end.saturating_sub(1);
    if status != StatusCode::PARTIAL_CONTENT {
        return Err(ResponseError(format!(
            "the server sent the whole object (status {}) in response to a request for bytes {start} to {last}: use a server that \
             supports range requests",
            status.as_u16()
        )));
    }
    let value = header(headers, &CONTENT_RANGE).unwrap_or_default();
    let is_wanted = || {
        let (range, size) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (sent_first, sent_last) = range.split_once('-')?;
        let (sent_first, sent_last): (u64, u64) = (sent_first.parse().ok()?, sent_last.parse().ok()?);
        let size: u64 = size.parse().ok()?;
        (sent_first == start && sent_last == last.min(size.saturating_sub(1))).then_some(())
    };
    is_wanted().ok_or_else(|| {
        ResponseError(format!(
            "the server responded with `Content-Range: {value}` to a request for bytes {start} to {last}: check the server and its \
             proxies, or copy the data to another server"
        ))
    })
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn http_error(error: ResponseError) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

/// Replaces the body of an error response with its beginning, as text.
async fn with_short_body(response: HttpResponse) -> HttpResponse {
    let (parts, body) = response.into_parts();
    let mut stream = body.bytes_stream();
    let mut text = Vec::new();
    // An interrupted message is better than none.
    while let Ok(Some(bytes)) = stream.try_next().await {
        let room = MAX_ERROR_BYTES - text.len();
        text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if text.len() == MAX_ERROR_BYTES {
            break;
        }
    }
    HttpResponse::from_parts(parts, String::from_utf8_lossy(&text).into_owned().into())
}

/// A body that fails when it is longer than its limit.
#[derive(Debug)]
struct LimitedBody {
    body: HttpResponseBody,
    remaining: u64,
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            let length = frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
            match self.remaining.checked_sub(length) {
                Some(remaining) => self.remaining = remaining,
                None => {
                    return Poll::Ready(Some(Err(http_error(ResponseError(format!(
                        "the response of the server is longer than the limit of {MAX_BODY_BYTES} bytes: check the server and its \
                         proxies"
                    ))))));
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // A collector allocates the lower bound at once.
        let hint = self.body.size_hint();
        if hint.lower() <= self.remaining { hint } else { SizeHint::new() }
    }
}

#[cfg(test)]
mod tests;
