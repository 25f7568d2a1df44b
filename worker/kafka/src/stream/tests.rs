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
        replacements: ReplacementCheck::None,
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

#[test]
fn a_read_that_continues_after_a_record_is_verified_by_its_leader_epoch() {
    let limits = ClientLimits { budget_bytes: 1 << 20, block_bytes: 1 << 20, prefetch_bytes: 1 << 20 };
    let mut stream = PartitionStream::new(&ClientMemory::new(limits, Arc::default()));
    let continued =
        ReadRequest { replacements: ReplacementCheck::Continuation, ..request(20..30, GapPolicy::Report) };
    assert_eq!(stream.leader_epoch_before(&continued, 20), None);
    (stream.next, stream.last_record) = (20, Some((19, 4)));
    stream.store_read_end(&continued.topic_id);
    stream.stop();
    assert!(stream.has_read_end());
    assert_eq!(stream.leader_epoch_before(&continued, 20), Some(4));
    assert_eq!(stream.leader_epoch_before(&continued, 21), None);
    let bounded = ReadRequest { replacements: ReplacementCheck::LeaderEpoch(4), ..continued.clone() };
    assert_eq!(stream.leader_epoch_before(&bounded, 20), None);
    let again = ReadRequest { topic_id: "other".into(), ..continued.clone() };
    assert_eq!(stream.leader_epoch_before(&again, 20), None, "the topic was created again");
    (stream.next, stream.last_record) = (20, Some((18, 4)));
    stream.store_read_end(&continued.topic_id);
    assert_eq!(stream.leader_epoch_before(&continued, 20), None, "a marker has an unknown leader epoch");
}

#[test]
fn a_record_of_a_later_leader_has_replaced_one_of_the_range() {
    let of_epoch = |epoch| ReadRequest {
        replacements: ReplacementCheck::LeaderEpoch(epoch),
        ..request(0..10, GapPolicy::Report)
    };
    assert!(!is_replaced(&of_epoch(4), 4) && is_replaced(&of_epoch(4), 5));
    assert!(!is_replaced(&of_epoch(4), -1), "a record of an early version of Kafka");
    assert!(!is_replaced(&request(0..10, GapPolicy::Report), 5));
}

#[test]
fn a_truncated_log_ends_a_read_that_reports_gaps_and_not_one_that_skips_them() {
    let connection = connection(Duration::ZERO);
    let limits = ClientLimits { budget_bytes: 1 << 20, block_bytes: 1 << 20, prefetch_bytes: 1 << 20 };
    let memory = ClientMemory::new(limits, Arc::default());
    let never = || false;
    let text = "Partition log truncation detected at offset 20 (leader epoch 4)";
    for (gaps, missing) in [(GapPolicy::Report, 1), (GapPolicy::Warn, 0)] {
        let replacements = ReplacementCheck::Continuation;
        let request = ReadRequest { replacements, ..request(15..30, gaps) };
        let mut read = RunningRead::new(&connection, &request, &never, memory.block(0), 0);
        let mut stream = PartitionStream::new(&memory);
        (stream.next, stream.last_record) = (20, Some((19, 4)));
        stream.on_event(&mut read, Code::AutoOffsetReset, -1001, text).expect("no request is necessary");
        assert_eq!(read.block.missing.len(), missing);
        assert_eq!(stream.next, if missing > 0 { 30 } else { 20 });
        assert_eq!(stream.is_fetching(), missing == 0);
    }
}
