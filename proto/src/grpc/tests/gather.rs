//! Tests of requests for rows of features.

use feedline_data::graph::description::GraphHash;

use super::*;
use crate::services::{GatherRequest, MAX_GATHERED_ROWS};

/// A request for this number of rows of 3,000 bytes.
fn request(rows: u32) -> GatherRequest {
    GatherRequest {
        job: JobId(1),
        feature: GraphHash(u128::MAX / 3),
        row_bytes: 3_000,
        rows: (0..rows).collect(),
        ticket: "t".to_owned(),
    }
}

#[tokio::test]
async fn the_chunks_of_the_rows_are_joined() {
    let batch: Bytes = (0..3_000_000_u32).map(|index| index as u8).collect::<Vec<u8>>().into();
    let (_server, client, _seen) = worker(batch.clone()).await;
    assert_eq!(within(client.gather(request(1_000))).await, Ok(batch));
}

#[tokio::test]
async fn a_request_without_rows_has_an_empty_response() {
    let (_server, client, _seen) = worker(Bytes::new()).await;
    assert_eq!(within(client.gather(request(0))).await, Ok(Bytes::new()));
}

#[tokio::test]
async fn a_response_of_another_size_is_rejected() {
    let (_server, client, _seen) = worker(Bytes::from(vec![7; 6_000])).await;
    for (rows, reason) in [(1, "sent more than 3000 bytes"), (3, "sent 6000 of 9000 bytes")] {
        let error = within(client.gather(request(rows))).await.unwrap_err();
        assert!(error.message.ends_with(reason), "{error}");
    }
}

#[tokio::test]
async fn a_rejected_request_returns_the_error() {
    let (_server, client, _seen) = worker(Bytes::new()).await;
    let denied = GatherRequest { job: JobId(fake::FIRST_FAILING), ..request(1) };
    assert_eq!(client.gather(denied).await, Err(fake::error(ServiceErrorKind::Invalid)));
}

#[tokio::test]
async fn a_request_that_exceeds_the_limits_is_rejected() {
    let (_server, client, _seen) = worker(Bytes::new()).await;
    let rows = MAX_GATHERED_ROWS as u32 + 1;
    let large = GatherRequest { row_bytes: u32::MAX, ..request(rows - 1) };
    for request in [request(rows), large] {
        let error = client.gather(request).await.unwrap_err();
        assert_eq!(error.kind, ServiceErrorKind::Invalid);
        assert!(error.message.ends_with("divide it into several requests"), "{error}");
    }
}

#[tokio::test]
async fn a_worker_that_stops_makes_its_rows_unavailable() {
    let (server, client, _seen) = worker(Bytes::from(vec![1; 3_000])).await;
    assert!(client.gather(request(1)).await.is_ok());
    server.task.abort();
    assert!(server.task.await.unwrap_err().is_cancelled());
    let error = within(client.gather(request(1))).await.unwrap_err();
    assert_eq!(error.kind, ServiceErrorKind::Unavailable);
}
