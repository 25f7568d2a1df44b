//! Every coordinator answers KEDA with the decision of the leader. The messages are written byte by byte, so that the test does
//! not depend on the definitions that the coordinators use.

use bytes::{Buf, BufMut, Bytes};
use feedline_tests::http::free_ports;
use feedline_tests::process::Role;
use feedline_tests::{Scratch, wait_for};
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

/// A codec of messages that are already encoded.
#[derive(Debug, Clone, Copy, Default)]
struct EncodedMessages;

impl Encoder for EncodedMessages {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for EncodedMessages {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

impl Codec for EncodedMessages {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

/// Encodes a field of bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128, "the length is one byte");
    [&[(number << 3) | 2, content.len() as u8][..], content].concat()
}

/// Encodes the object that KEDA scales, with the pool in the metadata of the trigger.
fn scaled_object(pool: &str) -> Vec<u8> {
    let entry = [field(1, b"pool"), field(2, pool.as_bytes())].concat();
    [field(1, b"workers"), field(2, b"ml"), field(3, &entry)].concat()
}

/// Encodes the request for a metric.
fn metrics_request(pool: &str) -> Vec<u8> {
    [field(1, &scaled_object(pool)), field(2, b"feedline_workers")].concat()
}

/// Encodes the response with this number of workers, which is less than 128.
fn metrics_response(workers: u8) -> Vec<u8> {
    let number = [&[2 << 3, workers, (3 << 3) | 1][..], &f64::from(workers).to_le_bytes()].concat();
    field(1, &[field(1, b"feedline_workers"), number].concat())
}

/// Calls a method of the service for KEDA.
fn ask(runtime: &Runtime, address: &str, method: &str, message: Vec<u8>) -> Result<Bytes, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("the address is valid");
    let path = format!("/externalscaler.ExternalScaler/{method}");
    let path = PathAndQuery::try_from(path).expect("the path is valid");
    runtime.block_on(async {
        let channel = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = Grpc::new(channel);
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let response = client.unary(Request::new(Bytes::from(message)), path, EncodedMessages).await?;
        Ok(response.into_inner())
    })
}

#[test]
fn every_coordinator_returns_the_decision_of_the_leader() {
    let scratch = Scratch::new();
    let addresses = free_ports(6);
    let (own, scalers) = addresses.split_at(3);
    let urls: Vec<String> = own.iter().map(|address| format!("http://{address}")).collect();
    let peers = urls.join(",");
    let start = |place: usize| {
        let data = scratch.file(&format!("data-{place}"));
        let flags = ["coordinator", "--listen", &own[place], "--peers", &peers, "--data-dir", &data];
        let scaling = [
            "--scaler",
            "keda",
            "--scale-pool",
            "spot=deployment/w:3..9",
            "--scaler-listen",
            &scalers[place],
        ];
        Role::start(&[&flags[..], &scaling].concat(), &[])
    };
    let _coordinators: Vec<Role> = (0..3).map(start).collect();
    let runtime = Runtime::new().expect("a runtime starts");
    let before = ask(&runtime, &scalers[0], "GetMetrics", metrics_request("spot"));
    assert_eq!(before.expect_err("no worker of the pool has reported").code(), Code::Unavailable);
    let worker = ["worker", "--coordinator", &peers, "--listen", "127.0.0.1:0", "--pool", "spot"];
    let _worker = Role::start(&worker, &[]);
    for scaler in scalers {
        let answer =
            wait_for("a decision", || ask(&runtime, scaler, "GetMetrics", metrics_request("spot")).ok());
        assert_eq!(answer, metrics_response(3), "{scaler}: without jobs, the pool has its smallest size");
        let active =
            ask(&runtime, scaler, "IsActive", scaled_object("spot")).expect("the coordinator answers");
        assert_eq!(active, [1 << 3, 1][..]);
        let spec =
            ask(&runtime, scaler, "GetMetricSpec", scaled_object("spot")).expect("the coordinator answers");
        assert_eq!(spec, metrics_response(1), "a specification has the numbers of a value");
        let other =
            ask(&runtime, scaler, "GetMetrics", metrics_request("disk")).expect_err("there is no such pool");
        assert_eq!(other.code(), Code::InvalidArgument);
        let unknown = ask(&runtime, scaler, "StreamMetricSpec", scaled_object("spot"));
        assert_eq!(unknown.expect_err("KEDA treats this method as optional").code(), Code::Unimplemented);
    }
}
