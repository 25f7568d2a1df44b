//! Tests of payloads with messages that confluent-kafka's serialisers wrote, and a server with the answers of a schema registry.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type, Int64Type, UInt32Type};
use bytes::Bytes;
use feedline_data::read_policy::ReadPolicy;
use feedline_data::tenants::TenantReads;
use serde_json::Value;

use super::super::open_registry;
use super::super::registry::Authorization;
use super::*;
use crate::guard::RequestGuard;
use crate::object::BufferSpan;
use crate::rows::EncodedRow;
use crate::stores::ScopedStores;
use crate::{ObjectAccess, Stores};

fn testdata() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/kafka/messages.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn messages(topic: &str) -> Vec<Vec<u8>> {
    let hex = |text: &str| {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    testdata()["messages"][topic]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| hex(message.as_str().unwrap()))
        .collect()
}

/// A schema registry with the answers of the test data, on a thread that ends with the process or when it is stopped.
struct RegistryServer {
    url: String,
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl RegistryServer {
    /// Starts the server. It requires the header `Authorization` to have the value `authorization`.
    fn start(authorization: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers = testdata()["answers"].clone();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                answer(stream.unwrap(), &answers, authorization);
            }
        });
        Self { url: format!("http://{address}"), address, is_stopped, thread }
    }

    /// Closes the port.
    fn stop(self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        // The thread waits for a connection.
        drop(TcpStream::connect(self.address).unwrap());
        self.thread.join().unwrap();
    }
}

fn answer(mut stream: TcpStream, answers: &Value, authorization: Option<&str>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(request)) = lines.next() else { return };
    let headers: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let is_authorized = |header: &String| {
        let (name, value) = header.split_once(": ").unwrap_or_default();
        name.eq_ignore_ascii_case("authorization") && Some(value) == authorization
    };
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match answers.get(path) {
        _ if authorization.is_some() && !headers.iter().any(is_authorized) => {
            ("401 Unauthorized", "{}".to_owned())
        }
        Some(answer) => ("200 OK", answer.to_string()),
        None => ("404 Not Found", "{}".to_owned()),
    };
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        .unwrap();
}

/// Serves the answers of the test data. Returns the URL.
fn serve() -> String {
    RegistryServer::start(None).url
}

fn decoder(format: PayloadFormat, url: &str, message: Option<&str>) -> PayloadDecoder {
    let guard = RequestGuard::for_web(&ReadPolicy::default(), &TenantReads::default());
    let registry = Registry::new(url, guard, Authorization::default(), None, Duration::ZERO).unwrap();
    let payload = Payload {
        format,
        registry: Some(url.to_owned()),
        message: message.map(str::to_owned),
        subject: None,
    };
    PayloadDecoder::new(&payload, Some(registry))
}

/// A decoder of Avro whose registry has the credentials of these options of the worker.
fn decoder_with_options(url: &str, options: &[(&str, &str)]) -> PayloadDecoder {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let stores = Stores::with_access(ObjectAccess::new(options));
    let registry = open_registry(url, &ScopedStores::new(stores, None, &TenantReads::default())).unwrap();
    let payload =
        Payload { format: PayloadFormat::Avro, registry: Some(url.to_owned()), ..Payload::default() };
    PayloadDecoder::new(&payload, Some(registry))
}

fn row_set(payloads: &[Vec<u8>]) -> RowSet {
    let mut start = 0;
    let row = |payload: &Vec<u8>| {
        let span = BufferSpan { buffer: 0, start, len: payload.len() };
        start += payload.len();
        EncodedRow { span, offset: 50 + start as u64 }
    };
    let rows = payloads.iter().map(row).collect();
    RowSet { buffers: vec![Bytes::from(payloads.concat())], rows }
}

/// Lists the schema of a topic as a running job does.
async fn reader_schema(decoder: &PayloadDecoder, topic: &str) -> Result<Option<u32>, SourceError> {
    let mut newest = decoder.newest_schemas();
    let id = decoder.reader_schema(topic, &mut newest).await?;
    decoder.store_newest(newest);
    Ok(id)
}

/// The columns of the reader's schema by name, and the failures.
type Decoded = (BTreeMap<String, ArrayRef>, Vec<RowFailure>);

async fn decode(decoder: &PayloadDecoder, topic: &str, payloads: &[Vec<u8>]) -> Decoded {
    let id = reader_schema(decoder, topic).await.unwrap();
    let Ok(Some((columns, _))) = decoder.columns(&[], id).await else { panic!("no columns") };
    let columns: Vec<(String, ColumnType)> =
        columns.into_iter().filter_map(|(name, column_type)| Some((name, column_type.ok()?))).collect();
    let wanted: Vec<(&str, &ColumnType)> =
        columns.iter().map(|(name, column_type)| (name.as_str(), column_type)).collect();
    let rows = row_set(payloads);
    let (arrays, failures) = decoder.for_block(&rows, id).await.unwrap().decode(&rows, &wanted).unwrap();
    (columns.iter().map(|(name, _)| name.clone()).zip(arrays).collect(), failures)
}

fn text(columns: &BTreeMap<String, ArrayRef>, name: &str) -> Vec<Option<String>> {
    columns[name].as_string_view().iter().map(|value| value.map(str::to_owned)).collect()
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[tokio::test]
async fn avro_is_resolved_to_the_newest_schema() {
    let decoder = decoder(PayloadFormat::Avro, &serve(), None);
    let (columns, failures) = decode(&decoder, "avro", &messages("avro")).await;
    assert_eq!(failures, []);
    assert_eq!(columns["id"].as_primitive::<Int64Type>().values()[..], [1, 2, 3], "int was promoted to long");
    assert_eq!(text(&columns, "title"), some(&["old", "new", "new"]), "the field was renamed");
    assert_eq!(columns["score"].as_primitive::<Float64Type>().values()[..], [1.5, 0.5, 0.5], "the default");
    assert_eq!(text(&columns, "kind"), some(&["B", "A", "A"]));
    let raw = columns["raw"].as_binary_view();
    assert_eq!((raw.is_null(0), raw.value(1), raw.is_null(2)), (true, &[1, 255][..], true));
    assert_eq!(columns["place.x"].as_primitive::<Float64Type>().value(1), 1.0);
    assert!(columns["place.x"].is_null(0) && columns["place.x"].is_null(2) && columns["place.y"].is_null(1));
    assert_eq!(columns["flags"].as_list::<i32>().value_length(1), 2);
    assert_eq!(columns["at"].as_primitive::<Int64Type>().values()[..], [0, 5, 5]);
}

#[tokio::test]
async fn payloads_that_do_not_fit_fail_and_name_both_schemas() {
    let url = serve();
    let avro = [messages("avro"), messages("other"), vec![b"{}".to_vec(), vec![0, 0, 0, 0, 99, 1]]].concat();
    let (columns, failures) = decode(&decoder(PayloadFormat::Avro, &url, None), "avro", &avro).await;
    assert_eq!(columns["id"].as_primitive::<Int64Type>().value(2), 3, "other rows are not affected");
    let reasons: Vec<&str> = failures.iter().map(|failure| failure.reason.as_str()).collect();
    assert_eq!(failures.iter().map(|failure| failure.row).collect::<Vec<_>>(), [3, 4, 5]);
    assert!(
        reasons[0].contains("schema 4 of the writer cannot be read as schema 3 of the reader"),
        "{reasons:?}"
    );
    assert!(reasons[1].contains("does not start with the id of a schema"), "{reasons:?}");
    assert!(reasons[2].contains("schema 99 of the payload does not exist"), "{reasons:?}");
    let json = [messages("json"), messages("json-other")].concat();
    let (_, failures) = decode(&decoder(PayloadFormat::JsonSchema, &url, None), "json", &json).await;
    assert_eq!(failures.len(), 1);
    assert!(failures[0].reason.contains("schema 6 of the writer cannot be read as schema 5"), "{failures:?}");
}

#[tokio::test]
async fn json_schema_determines_the_columns() {
    let (columns, failures) =
        decode(&decoder(PayloadFormat::JsonSchema, &serve(), None), "json", &messages("json")).await;
    assert_eq!(failures, []);
    assert_eq!(columns["id"].as_primitive::<Int64Type>().values()[..], [1, 2]);
    assert_eq!(text(&columns, "name"), [Some("a".to_owned()), None]);
    assert_eq!((columns["tags"].as_list::<i32>().value(0).len(), columns["tags"].is_null(1)), (2, true));
}

#[tokio::test]
async fn protobuf_has_nested_messages_imports_and_an_index() {
    let url = serve();
    let (columns, failures) =
        decode(&decoder(PayloadFormat::Protobuf, &url, None), "protobuf", &messages("protobuf")).await;
    assert_eq!(columns["id"].as_primitive::<Int64Type>().values()[..2], [-7, 1]);
    assert_eq!(text(&columns, "name")[..2], some(&["ä", ""]));
    assert_eq!(columns["data"].as_binary_view().value(0), [0, 1]);
    let ratios = columns["ratios"].as_list::<i32>().value(0);
    assert_eq!(ratios.as_primitive::<Float32Type>().values()[..], [0.5, 1.5]);
    assert_eq!(text(&columns, "place.city")[..2], [Some("c".to_owned()), None]);
    assert_eq!(columns["place.zip"].as_primitive::<Int32Type>().value(0), -3);
    assert_eq!(text(&columns, "kind")[..2], some(&["CLICK", "UNKNOWN"]));
    let small = columns["small"].as_primitive::<UInt32Type>();
    assert_eq!((small.is_null(0), small.value(0), small.is_null(1)), (false, 0, true));
    assert_eq!(columns["at.seconds"].as_primitive::<Int64Type>().value(0), 9);
    assert_eq!(failures.len(), 1, "the third payload is another message");
    assert!(failures[0].reason.contains("is a `test.Other`, not a `test.Event`"), "{failures:?}");
    let nested = decoder(PayloadFormat::Protobuf, &url, Some("test.Event.Place"));
    let (columns, failures) = decode(&nested, "place", &messages("place")).await;
    assert_eq!((failures, text(&columns, "city")), (Vec::new(), some(&["nested"])));
}

#[tokio::test]
async fn protobuf_imports_the_schema_of_another_subject() {
    let decoder = decoder(PayloadFormat::Protobuf, &serve(), None);
    let (columns, failures) = decode(&decoder, "route", &messages("route")).await;
    assert_eq!(failures, []);
    assert_eq!(text(&columns, "name"), some(&["both", "none"]));
    let start = columns["start.x"].as_primitive::<Float64Type>();
    assert_eq!((start.value(0), start.is_null(1)), (1.5, true), "the second message has no `start`");
    let end = columns["end.y"].as_primitive::<Float64Type>();
    assert_eq!((end.value(0), end.is_null(1)), (-2.0, true));
}

#[tokio::test]
async fn a_registry_that_is_down_stops_only_unknown_ids() {
    let server = RegistryServer::start(None);
    let url = server.url.clone();
    let cached = decoder(PayloadFormat::Avro, &url, None);
    let (_, failures) = decode(&cached, "avro", &messages("avro")).await;
    assert_eq!(failures, []);
    server.stop();
    let (columns, failures) = decode(&cached, "avro", &messages("avro")).await;
    assert_eq!(failures, []);
    assert_eq!(columns["id"].as_primitive::<Int64Type>().values()[..], [1, 2, 3]);
    let is_down = |error: &SourceError| {
        error.is_retryable() && error.to_string().contains("the schema registry does not answer")
    };
    let reader = reader_schema(&cached, "avro").await.unwrap();
    let unknown = [messages("avro"), messages("other")].concat();
    let error = cached.for_block(&row_set(&unknown), reader).await.err().expect("the id 4 is unknown");
    assert!(is_down(&error), "{error}");
    let error = reader_schema(&decoder(PayloadFormat::Avro, &url, None), "avro").await.unwrap_err();
    assert!(is_down(&error), "a new worker knows no ids: {error}");
    let error = cached.reader_schema("avro", &mut NewestSchemas::new()).await.unwrap_err();
    assert!(is_down(&error), "a new job asks for the newest schema: {error}");
}

#[tokio::test]
async fn a_subject_without_a_schema_is_an_error() {
    let error = reader_schema(&decoder(PayloadFormat::Avro, &serve(), None), "none").await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    assert!(error.to_string().contains("the subject `none-value` does not exist"), "{error}");
}

#[tokio::test]
async fn requests_have_the_credentials_of_the_registry() {
    let basic = [("kafka_registry_username", "reader"), ("kafka_registry_password", "hush")];
    let bearer = [("kafka_registry_token", "hush")];
    for (header, options) in [("Basic cmVhZGVyOmh1c2g=", &basic[..]), ("Bearer hush", &bearer[..])] {
        let server = RegistryServer::start(Some(header));
        let authorized = decoder_with_options(&server.url, options);
        let (columns, failures) = decode(&authorized, "avro", &messages("avro")).await;
        assert_eq!((columns["id"].len(), failures), (3, Vec::new()), "{header}");
        let rejected: [&[(&str, &str)]; 2] = [&[], &[("kafka_registry_token", "wrong-token")]];
        for options in rejected {
            let error = reader_schema(&decoder_with_options(&server.url, options), "avro").await.unwrap_err();
            let message = error.to_string();
            assert!(!error.is_retryable(), "{message}");
            assert!(message.contains("access denied with status 401"), "{message}");
            assert!(
                message.contains("`credentials` of the source") && !message.contains("wrong-token"),
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn truncated_payloads_fail_alone() {
    let url = serve();
    for (format, topic) in [
        (PayloadFormat::Avro, "avro"),
        (PayloadFormat::Protobuf, "protobuf"),
        (PayloadFormat::JsonSchema, "json"),
    ] {
        let decoder = decoder(format, &url, None);
        let whole = messages(topic).remove(1);
        for length in 0..whole.len() {
            let payloads = [whole.clone(), whole[..length].to_vec(), whole.clone()];
            let (_, failures) = decode(&decoder, topic, &payloads).await;
            assert!(failures.iter().all(|failure| failure.row == 1), "{topic} {length}: {failures:?}");
        }
    }
}
