//! Tests of reads that need no broker.

use std::fmt::{Debug, Write};
use std::sync::Mutex;

use rdkafka::config::FromClientConfigAndContext;
use tracing::field::Field;
use tracing::span;

use super::*;
use crate::context::Context;
use crate::memory::ClientLimits;
use crate::native::Client;
use crate::records::RecordParts;
use crate::request::GapPolicy;
use crate::settings::ConnectionSettings;

/// Collects the fields of each line of the log.
#[derive(Clone, Default)]
struct CollectedLog(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for CollectedLog {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            write!(line, "{field}={value:?} ").expect("a string grows");
        });
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn connection(budget: Duration) -> Connection {
    let settings = ConnectionSettings::new("127.0.0.1:1", []);
    let config = settings.connection_config().expect("the options are valid");
    let context = Context::new(settings, config.clone(), None);
    let client = Client::from_config_and_context(&config, context).expect("it connects when it is used");
    Connection::new(&Arc::new(client), budget)
}

fn request(offsets: Range<u64>, gaps: GapPolicy) -> ReadRequest {
    ReadRequest {
        topic: "t".into(),
        topic_id: "id".into(),
        partition: 3,
        offsets,
        parts: RecordParts { key: false, headers: false, value: true },
        gaps,
        expected_bytes: 0,
        patience: None,
        max_bytes: None,
        payloads: None,
    }
}

#[test]
fn a_gap_is_logged_once_for_the_jobs_that_skip_it() {
    let connection = connection(Duration::ZERO);
    let checked = ("id".to_owned(), Instant::now() + Duration::from_secs(3_600));
    connection.checked_ids.lock().unwrap().insert("t".to_owned(), checked);
    let limits = ClientLimits { budget_bytes: 1 << 20, block_bytes: 1 << 20, prefetch_bytes: 1 << 20 };
    let mut stream = PartitionStream::new(&ClientMemory::new(limits, Arc::default()));
    // A read of a job with `on_gap: fail`, or of the index, has found the start of the log.
    stream.log_start = Some(LogStart { topic_id: "id".into(), offset: 100, logged_from: None });
    let log = CollectedLog::default();
    let mut lines_of_read = |offsets: Range<u64>, gaps: GapPolicy| {
        let read = || stream.read(&connection, &request(offsets.clone(), gaps), &|| false);
        let block = tracing::subscriber::with_default(log.clone(), read).expect("no request is necessary");
        assert_eq!((block.missing[0].offsets.clone(), block.next), (offsets.clone(), offsets.end));
        std::mem::take(&mut *log.0.lock().unwrap())
    };
    assert!(lines_of_read(0..10, GapPolicy::Report).is_empty());
    let lines = lines_of_read(10..20, GapPolicy::Warn);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    for field in ["skipping records ", "topic=t ", "partition=3 ", "from=10 ", "to=100 "] {
        assert!(line.contains(field), "{line}");
    }
    assert!(lines_of_read(20..30, GapPolicy::Warn).is_empty(), "the line contains these offsets");
    // Another job begins earlier.
    let lines = lines_of_read(0..10, GapPolicy::Warn);
    assert!(lines.len() == 1 && lines[0].contains("from=0 ") && lines[0].contains("to=10 "), "{lines:?}");
    assert!(lines_of_read(5..30, GapPolicy::Warn).is_empty());
}

#[test]
fn the_check_of_the_topic_waits_for_brokers_no_longer_than_the_read() {
    let connection = connection(Duration::from_secs(300));
    let limits = ClientLimits { budget_bytes: 1 << 20, block_bytes: 1 << 20, prefetch_bytes: 1 << 20 };
    let mut stream = PartitionStream::new(&ClientMemory::new(limits, Arc::default()));
    // The read itself needs no request.
    stream.log_start = Some(LogStart { topic_id: "id".into(), offset: 100, logged_from: None });
    let patience = Some(Duration::from_millis(100));
    let started = Instant::now();
    let request = ReadRequest { patience, ..request(0..10, GapPolicy::Report) };
    let error = stream.read(&connection, &request, &|| false).expect_err("no broker listens");
    assert!(error.is_retryable && error.message.contains("does not answer"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(100), "the engine reads again, and says that it waits");
}
