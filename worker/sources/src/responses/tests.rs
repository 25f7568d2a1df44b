//! Tests with servers whose responses are longer, shorter or other than requested.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::{SourceError, Stores, testing};

/// Length of the body that the server offers.
const HUGE_BYTES: u64 = 1_800_000_000;
/// Maximum number of bytes that fit in the buffers of the sockets and the clients.
const BUFFERED_BYTES: u64 = 24 << 20;
const OBJECT_BYTES: u64 = 4;

/// A server of an object of four bytes, which counts the requests.
struct Server {
    url: String,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    sent_bytes: AtomicU64,
    reads: AtomicU64,
    descriptions: AtomicU64,
}

/// The server responds to each read with `head` and a body.
async fn server(head: &'static str, body_bytes: u64) -> Server {
    server_with_description("Content-Length: 4\r\n", head, body_bytes).await
}

/// The server describes the object with the header `size`.
async fn server_with_description(size: &'static str, head: &'static str, body_bytes: u64) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let counts = Arc::new(Counts::default());
    let server = Server { url, counts: Arc::clone(&counts) };
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let counts = Arc::clone(&counts);
            tokio::spawn(async move {
                // The client closes the connection.
                let _ = respond(BufReader::new(connection), size, head, body_bytes, &counts).await;
            });
        }
    });
    server
}

async fn respond(
    mut connection: BufReader<TcpStream>,
    size: &str,
    head: &str,
    body_bytes: u64,
    counts: &Counts,
) -> std::io::Result<()> {
    let mut request = String::new();
    while connection.read_line(&mut request).await? > 0 {
        if !request.ends_with("\r\n\r\n") {
            continue;
        }
        if request.starts_with("HEAD") {
            counts.descriptions.fetch_add(1, Ordering::SeqCst);
            let head = format!(
                "HTTP/1.1 200 OK\r\n{size}ETag: \"1\"\r\n\
                 Last-Modified: Tue, 01 Jan 2019 00:00:00 GMT\r\n\r\n"
            );
            connection.get_mut().write_all(head.as_bytes()).await?;
        } else {
            counts.reads.fetch_add(1, Ordering::SeqCst);
            let head = format!(
                "HTTP/1.1 {head}\r\nETag: \"1\"\r\nLast-Modified: Tue, 01 Jan 2019 00:00:00 GMT\r\nConnection: close\r\n\r\n"
            );
            connection.get_mut().write_all(head.as_bytes()).await?;
            let part = vec![b'x'; 64 << 10];
            let mut left = body_bytes;
            while left > 0 {
                let written =
                    connection.get_mut().write(&part[..part.len().min(left as usize)]).await? as u64;
                counts.sent_bytes.fetch_add(written, Ordering::SeqCst);
                left -= written;
            }
            return connection.get_mut().shutdown().await;
        }
        request.clear();
    }
    Ok(())
}

/// Stores that retry for a short time, and whose `s3://` URLs refer to a server.
fn stores_at(server: &Server) -> Arc<Stores> {
    testing::stores_at(&server.url, Duration::from_millis(300))
}

/// The errors of all kinds of reads of the object.
async fn read_errors(server: &Server) -> Vec<SourceError> {
    let stores = stores_at(server);
    let mut errors = Vec::new();
    for url in [format!("{}/x", server.url), "s3://bucket/x".to_owned()] {
        errors.push(stores.get(&url).await.expect_err("the body of a read is wrong"));
        let read = stores.get_ranges(&url, std::slice::from_ref(&(0..OBJECT_BYTES)));
        errors.push(read.await.expect_err("the body of a read is wrong"));
    }
    errors
}

#[tokio::test]
async fn a_body_that_is_longer_than_the_range_is_not_read() {
    let declared = "206 Partial Content\r\nContent-Range: bytes 0-3/4\r\nContent-Length: 1800000000";
    let unknown = "206 Partial Content\r\nContent-Range: bytes 0-3/4";
    for (head, expected) in [
        (declared, "sent 1800000000 bytes in response to a request for 4 bytes: check the server"),
        (
            unknown,
            "the server does not state the size of the object: use a server that sends `Content-Length`",
        ),
    ] {
        let server = server(head, HUGE_BYTES).await;
        for error in read_errors(&server).await {
            let message = error.to_string();
            assert!(message.starts_with("cannot read `") && message.contains(expected), "{message}");
        }
        let reads = server.counts.reads.load(Ordering::SeqCst);
        assert_eq!(reads, 4, "no read is repeated");
        let sent = server.counts.sent_bytes.load(Ordering::SeqCst);
        assert!(sent < reads * BUFFERED_BYTES, "the server could send {sent} bytes");
    }
}

#[tokio::test]
async fn a_server_that_does_not_state_sizes_is_asked_once() {
    let server = server_with_description("", "206 Partial Content", OBJECT_BYTES).await;
    let stores = stores_at(&server);
    for (url, requests) in [(format!("{}/x", server.url), 1), ("s3://bucket/x".to_owned(), 2)] {
        let error = stores.get(&url).await.expect_err("the size is unknown").to_string();
        let expected =
            "the server does not state the size of the object: use a server that sends `Content-Length`";
        assert!(error.starts_with("cannot read `") && error.ends_with(expected), "{error}");
        assert_eq!(server.counts.descriptions.load(Ordering::SeqCst), requests);
    }
}

#[tokio::test]
async fn an_endless_body_is_read_up_to_the_end_of_the_range() {
    let parts = Arc::new(AtomicU64::new(0));
    let sent_parts = Arc::clone(&parts);
    let body = futures::stream::repeat_with(move || {
        sent_parts.fetch_add(1, Ordering::SeqCst);
        Ok(Bytes::from_static(b"xxx"))
    });
    let meta = object_store::ObjectMeta {
        location: object_store::path::Path::from("x"),
        last_modified: Default::default(),
        size: 8,
        e_tag: None,
        version: None,
    };
    let result = GetResult {
        payload: GetResultPayload::Stream(body.boxed()),
        meta,
        range: 0..8,
        attributes: Default::default(),
        extensions: Default::default(),
    };
    let error = SourceError::from_store("s3://bucket/x", read_body(result, 8).await.unwrap_err());
    assert_eq!(
        error.to_string(),
        "cannot read `s3://bucket/x`: the server sent more bytes in response to a request for 8 bytes: check the server and its \
         proxies, or copy the data to another server"
    );
    assert!(!error.is_retryable());
    assert_eq!(parts.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_body_that_is_shorter_than_the_range_is_an_error() {
    let head = "206 Partial Content\r\nContent-Range: bytes 0-3/4\r\nContent-Length: 2";
    for error in read_errors(&server(head, 2).await).await {
        let message = error.to_string();
        assert!(message.contains("the store returned 2 bytes instead of 4"), "{message}");
    }
}

#[tokio::test]
async fn a_response_with_another_range_is_an_error() {
    let cases = [
        ("200 OK", "the server sent the whole object (status 200) in response to a request for bytes 0 to 3"),
        ("206 Partial Content", "the server responded with `Content-Range: ` to a request for bytes 0 to 3"),
        (
            "206 Partial Content\r\nContent-Range: bytes 4-7/8",
            "`Content-Range: bytes 4-7/8` to a request for",
        ),
        (
            "206 Partial Content\r\nContent-Range: bytes 0-7/8",
            "`Content-Range: bytes 0-7/8` to a request for",
        ),
        (
            "206 Partial Content\r\nContent-Range: bytes 0-3/*",
            "`Content-Range: bytes 0-3/*` to a request for",
        ),
    ];
    for (head, expected) in cases {
        let server = server(head, HUGE_BYTES).await;
        for error in read_errors(&server).await {
            assert!(!error.is_retryable() && error.to_string().contains(expected), "{head}: {error}");
        }
        let sent = server.counts.sent_bytes.load(Ordering::SeqCst);
        assert!(sent < 4 * BUFFERED_BYTES, "{head}: the server could send {sent} bytes");
    }
}

#[tokio::test]
async fn an_object_that_has_become_shorter_is_described() {
    let server = server("206 Partial Content\r\nContent-Range: bytes 0-1/2\r\nContent-Length: 2", 2).await;
    let error = stores_at(&server).get("s3://bucket/x").await.expect_err("the object is shorter");
    assert!(error.to_string().contains("the object is 2 bytes long, but the index recorded 4"), "{error}");
}

#[tokio::test]
async fn the_body_of_an_error_is_cut() {
    let server = server("403 Forbidden", HUGE_BYTES).await;
    for error in read_errors(&server).await {
        let message = error.to_string();
        assert!(message.contains("access denied") && message.len() < 2 * MAX_ERROR_BYTES, "{error:.200}");
    }
    let sent = server.counts.sent_bytes.load(Ordering::SeqCst);
    assert!(sent < 4 * BUFFERED_BYTES, "the server could send {sent} bytes");
}

#[tokio::test]
async fn a_page_of_a_listing_is_limited() {
    for head in ["200 OK", "200 OK\r\nContent-Length: 1800000000"] {
        let server = server(head, HUGE_BYTES).await;
        let listed = stores_at(&server).list_folder("s3://bucket/a/", |_, _| {}).await;
        let message = listed.expect_err("the page is too long").to_string();
        assert!(message.starts_with("cannot read `s3://bucket/a/`: "), "{message}");
        assert!(message.contains("longer than the limit of 33554432 bytes"), "{message}");
        let sent = server.counts.sent_bytes.load(Ordering::SeqCst);
        assert!(sent < MAX_BODY_BYTES + BUFFERED_BYTES, "the server could send {sent} bytes");
    }
}
