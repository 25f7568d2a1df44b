//! The client side of a fetch, and of a request for rows of a feature. It reads the bytes of batches from the HTTP/2 buffers without
//! copying them.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use http::{HeaderValue, StatusCode, header};
use http_body::Body as _;
use tonic::body::Body;
use tonic::codec::{Codec, EncodeBody};
use tonic::codegen::Service;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::framing::{FrameParser, ReceivedMessage};
use super::version;
use crate::rpc;
use crate::wire;

/// Opens a fetch and returns its messages.
///
/// # Errors
/// Returns the status of the worker, or the reason why the worker is unreachable.
pub(super) async fn fetch(
    channel: Channel,
    protocol: u32,
    requests: impl Stream<Item = wire::FetchRequest> + Send + 'static,
) -> Result<FrameStream, Status> {
    let encoder = ProstCodec::<wire::FetchRequest, wire::FetchFrame>::default().encoder();
    let requests = futures::StreamExt::map(requests, Ok);
    let body = Body::new(EncodeBody::new_client(encoder, requests, None, None));
    call(channel, protocol, rpc::FETCH.path, body).await
}

/// Requests rows of a feature and returns the messages with their bytes.
///
/// # Errors
/// Returns the status of the worker, or the reason why the worker is unreachable.
pub(super) async fn gather(
    channel: Channel,
    protocol: u32,
    request: wire::GatherRequest,
) -> Result<FrameStream, Status> {
    let encoder = ProstCodec::<wire::GatherRequest, wire::FetchFrame>::default().encoder();
    let requests = futures::stream::iter([Ok(request)]);
    let body = Body::new(EncodeBody::new_client(encoder, requests, None, None));
    call(channel, protocol, rpc::GATHER.path, body).await
}

/// Sends a request and returns the messages of the response.
async fn call(
    mut channel: Channel,
    protocol: u32,
    path: &'static str,
    body: Body,
) -> Result<FrameStream, Status> {
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = http::Uri::from_static(path);
    let headers = request.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, tonic::metadata::GRPC_CONTENT_TYPE);
    headers.insert(version::PROTOCOL_KEY, HeaderValue::from(protocol));
    let unreachable = |error: tonic::transport::Error| Status::from_error(Box::new(error));
    poll_fn(|cx| channel.poll_ready(cx)).await.map_err(unreachable)?;
    let response = channel.call(request).await.map_err(unreachable)?;
    if let Some(status) =
        Status::from_header_map(response.headers()).filter(|status| status.code() != Code::Ok)
    {
        return Err(status);
    }
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(Status::unimplemented("")),
        other => return Err(Status::unavailable(format!("the worker responded with HTTP status {other}"))),
    }
    Ok(FrameStream {
        body: response.into_body(),
        parser: FrameParser::default(),
        data: Bytes::new(),
        ended: false,
    })
}

/// The received messages of a fetch.
pub(super) struct FrameStream {
    body: Body,
    parser: FrameParser,
    /// Received bytes that are not parsed yet.
    data: Bytes,
    ended: bool,
}

impl FrameStream {
    /// Returns the last item of the stream. A body that ends without a status was truncated.
    fn on_end(&self, trailers: Option<&http::HeaderMap>) -> Option<Result<ReceivedMessage, Status>> {
        match trailers.and_then(Status::from_header_map) {
            Some(status) if status.code() != Code::Ok => Some(Err(status)),
            Some(_) if self.parser.is_between() => None,
            _ => Some(Err(Status::unavailable("the worker's response was truncated"))),
        }
    }
}

impl Stream for FrameStream {
    type Item = Result<ReceivedMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while !this.ended {
            match this.parser.next(&mut this.data) {
                Ok(Some(received)) => return Poll::Ready(Some(Ok(received))),
                Ok(None) => {}
                Err(status) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(status)));
                }
            }
            match ready!(pin!(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.data = data,
                    Err(frame) => {
                        this.ended = true;
                        return Poll::Ready(this.on_end(frame.trailers_ref()));
                    }
                },
                Some(Err(status)) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(status)));
                }
                None => {
                    this.ended = true;
                    return Poll::Ready(this.on_end(None));
                }
            }
        }
        Poll::Ready(None)
    }
}
