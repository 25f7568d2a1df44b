//! Kafka topics: a shard is a range of offsets of one partition, and a row is one offset. Offsets without a record are absent rows.

mod avro;
mod blocks;
pub(crate) mod clients;
mod columns;
mod decoding;
mod fuzzed;
mod json_schema;
mod oauth;
mod partition;
mod payload;
mod protobuf;
mod registry;
mod schemas;
mod values;
mod wire;

pub use self::fuzzed::{decode_payloads, read_registry_answer};

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_data::committed_offsets::PartitionOffset;
use feedline_data::kafka_range::KafkaRange;
use feedline_data::manifest::{ColumnNotes, ShardIndex, ShardRef};
use feedline_data::pipeline::{EndOffset, Isolation, KafkaOptions, OnGap, Source, StartOffset};
use feedline_data::schema::Schema;
use feedline_data::urls::kafka_servers;
use feedline_kafka::{
    GapPolicy, GroupOffset, KafkaClient, KafkaError, MissingRecords, PartitionRange, RangeEnd, RangeRequest,
    RangeStart, ReadRequest, RecordBlock, RecordParts, ReplacementCheck,
};

use self::blocks::{divide, newest_ranges, sample_ranges};
use self::columns::{RequestedColumns, build_rows, payload_column_name, record_columns};
use self::partition::Partition;
use self::payload::{ColumnsError, NewestSchemas, PayloadDecoder};
use self::registry::{Authorization, Registry};
use crate::error::SourceError;
use crate::reader::{BlockRead, BlockRows, LostRows};
use crate::select::Selection;
use crate::stores::ScopedStores;

/// Maximum number of bytes of one sample of a partition.
const SAMPLE_BYTES: u64 = 1 << 20;

/// Number of payloads that determine the columns if the newest records have none.
const SEARCHED_PAYLOADS: usize = 100;

/// How long a read of a block waits for the next record at first. Longer than a new leader needs to know the end of a partition. The
/// caller holds memory meanwhile, which other reads may need.
const READ_PATIENCE: Duration = Duration::from_secs(15);

/// The topics of one dataset.
pub(crate) struct KafkaDataset {
    /// The URL of the pipeline, without a path.
    url: String,
    options: KafkaOptions,
    client: Arc<KafkaClient>,
    reads: ScopedStores,
    selection: Selection,
    payload: PayloadDecoder,
}

impl KafkaDataset {
    pub(crate) fn new(
        source: &Source,
        reads: &ScopedStores,
        selection: &Selection,
    ) -> Result<Self, SourceError> {
        let given = source.url.first().cloned().unwrap_or_default();
        let invalid = |reason: String| SourceError::Url { url: given.clone(), reason };
        let servers: Vec<&str> = kafka_servers(&given)
            .ok_or_else(|| invalid("expected `kafka://HOST:PORT`".to_owned()))?
            .collect();
        let url = format!("kafka://{}", servers.join(","));
        let Some(options) = source.kafka.as_deref().cloned() else {
            return Err(invalid("the source has no `topics`".to_owned()));
        };
        let (clients, access) = reads.kafka();
        let is_committed = options.isolation == Isolation::ReadCommitted;
        let client =
            clients.get(access, reads.credentials(), &servers.join(","), is_committed).map_err(&invalid)?;
        if let Some(registry) = &options.payload.registry {
            reads.check_url(registry)?;
        }
        let registry = options
            .payload
            .registry
            .as_deref()
            .map(|url| open_registry(url, reads))
            .transpose()
            .map_err(&invalid)?;
        let payload = PayloadDecoder::new(&options.payload, registry);
        Ok(Self { url, options, client, reads: reads.clone(), selection: selection.clone(), payload })
    }

    /// Lists the partitions, with the offsets that a new job reads.
    pub(crate) async fn list(&self) -> Result<Vec<ShardRef>, SourceError> {
        let request = RangeRequest {
            topics: self.options.topics.clone(),
            start: match &self.options.start {
                StartOffset::Earliest => RangeStart::Earliest,
                StartOffset::Latest => RangeStart::Latest,
                StartOffset::Offsets(offsets) => RangeStart::Offsets(offsets.clone()),
                StartOffset::Time(time) => RangeStart::Time(time.0),
            },
            end: match &self.options.until {
                EndOffset::Latest | EndOffset::Unbounded => RangeEnd::Latest,
                EndOffset::Offsets(offsets) => RangeEnd::Offsets(offsets.clone()),
                EndOffset::Time(time) => RangeEnd::Time(time.0),
            },
            skips_gaps: self.options.on_gap == OnGap::Skip,
        };
        let ranges = self.client.list(request).await.map_err(|error| failed(&self.url, error))?;
        // A new job reads the schemas that are newest now.
        self.shards(ranges, NewestSchemas::new()).await
    }

    /// Lists the present ends of the partitions for a job that follows the topics. Partitions that were added while the job
    /// runs start at their first record. The shards of partitions whose leader does not answer have no range.
    pub(crate) async fn list_growth(&self) -> Result<Vec<ShardRef>, SourceError> {
        let listed = self.client.list_ends(self.options.topics.clone()).await;
        let listed = listed.map_err(|error| failed(&self.url, error))?;
        let mut shards = self.shards(listed.ranges, self.payload.newest_schemas()).await?;
        // A shard without a range has no known end.
        shards.extend(listed.unreachable.into_iter().map(|(topic, partition)| ShardRef {
            url: format!("{}/{topic}/{partition}", self.url),
            ..ShardRef::default()
        }));
        Ok(shards)
    }

    /// `newest` contains the schemas that are not requested.
    async fn shards(
        &self,
        ranges: Vec<PartitionRange>,
        mut newest: NewestSchemas,
    ) -> Result<Vec<ShardRef>, SourceError> {
        let mut shards = Vec::with_capacity(ranges.len());
        for range in ranges {
            let url = format!("{}/{}/{}", self.url, range.topic, range.partition);
            self.reads.check_url(&url)?;
            let schema_id = self.payload.reader_schema(&range.topic, &mut newest).await?;
            let PartitionRange { topic_id, from, to, leader_epoch, .. } = range;
            let range = KafkaRange { topic_id, from, to, leader_epoch, schema_id };
            shards.push(ShardRef { url, size_bytes: 0, version: range.to_string(), ..ShardRef::default() });
        }
        self.payload.store_newest(newest);
        Ok(shards)
    }

    /// Divides a partition into blocks, and infers its columns from samples.
    pub(crate) async fn index(&self, shard: &ShardRef) -> Result<ShardIndex, SourceError> {
        let partition = self.partition(shard)?;
        if self.options.until == EndOffset::Unbounded {
            return self.index_unbounded(shard, &partition).await;
        }
        let (from, to) = (partition.range.from, partition.range.to);
        if from == to {
            return Ok(ShardIndex {
                blocks: Vec::new(),
                schema: None,
                defects: Vec::new(),
                ..ShardIndex::default()
            });
        }
        let mut samples = Vec::new();
        for offsets in sample_ranges(from, to) {
            samples.push(self.sample(shard, &partition, offsets, None).await?);
        }
        // Compaction may have removed all records of the samples.
        if samples.len() > 1 && samples.iter().all(|(_, block)| payloads(block).next().is_none()) {
            samples.push(self.sample(shard, &partition, from..to, Some(SEARCHED_PAYLOADS)).await?);
        }
        let blocks = divide(shard, from..to, &samples)?;
        let (schema, columns) = self.columns(shard, &partition, &samples).await?.unzip();
        Ok(ShardIndex { blocks, schema, columns: columns.unwrap_or_default(), ..ShardIndex::default() })
    }

    /// Infers the columns of a partition of an unbounded job from its newest records, even if the job starts after them. If these
    /// have no payload, such as tombstones, searches older records. The blocks contain the newest records, and determine only the
    /// expected size of later blocks.
    async fn index_unbounded(
        &self,
        shard: &ShardRef,
        partition: &Partition,
    ) -> Result<ShardIndex, SourceError> {
        let mut samples: Vec<(u64, RecordBlock)> = Vec::new();
        let mut found = self.columns(shard, partition, &samples).await;
        for offsets in newest_ranges(partition.range.to) {
            let is_older = !samples.is_empty();
            let wanted = is_older.then_some(SEARCHED_PAYLOADS);
            let (start, block) = self.sample(shard, partition, offsets, wanted).await?;
            let is_log_start = !block.missing.is_empty();
            samples.push((start, block));
            let columns = self.columns(shard, partition, &samples).await;
            let is_found = columns.as_ref().is_ok_and(Option::is_some);
            // A few old payloads may be malformed, while even older ones determine the columns.
            let may_be_older = is_older && matches!(columns, Err(SourceError::Unsupported { .. }));
            found = columns;
            if is_found || is_log_start || (found.is_err() && !may_be_older) {
                break;
            }
        }
        let (schema, columns) = found?.unzip();
        let newest = newest_ranges(partition.range.to).next();
        let blocks = newest.map(|offsets| divide(shard, offsets, &samples)).transpose()?.unwrap_or_default();
        Ok(ShardIndex { blocks, schema, columns: columns.unwrap_or_default(), ..ShardIndex::default() })
    }

    /// Returns the columns of a partition; `None` if the samples do not determine them.
    async fn columns(
        &self,
        shard: &ShardRef,
        partition: &Partition,
        samples: &[(u64, RecordBlock)],
    ) -> Result<Option<(Schema, ColumnNotes)>, SourceError> {
        let payloads: Vec<&[u8]> = samples.iter().flat_map(|(_, block)| payloads(block)).collect();
        let found =
            self.payload.columns(&payloads, partition.range.schema_id).await.map_err(
                |error| match error {
                    ColumnsError::Registry(error) => error,
                    ColumnsError::Data(reason) => SourceError::unsupported(shard, reason),
                },
            )?;
        let Some((found, inferred)) = found else { return Ok(None) };
        let names: HashSet<String> =
            found.iter().map(|(name, _)| payload_column_name(name.clone())).collect();
        let inferred = inferred.renamed(payload_column_name);
        let (schema, mut columns) =
            self.selection.resolve_sampled(shard, &record_columns(found), &inferred)?;
        // The columns of records, such as the offset, are not listed as ignored.
        columns.ignored.retain(|name| names.contains(name));
        Ok(Some((schema, columns)))
    }

    /// Reads the rows of a block.
    pub(crate) async fn read(&self, read: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
        let started = Instant::now();
        let partition = self.partition(read.shard)?;
        let columns = RequestedColumns::new(read.schema, &self.selection);
        let from = read.block.offset;
        let mut request = self.request(&partition, from..from + u64::from(read.block.rows), columns.parts());
        request.expected_bytes = usize::try_from(read.block.bytes).unwrap_or(0).min(64 << 20);
        request.patience = Some(READ_PATIENCE);
        let block = self.client.read(request).await.map_err(|error| failed(&read.shard.url, error))?;
        let store_wait = started.elapsed();
        let store_bytes = block.read_bytes;
        let lost = match self.options.on_gap {
            OnGap::Fail => block.missing.iter().map(|missing| lost_rows(missing, from)).collect(),
            OnGap::Skip => Vec::new(),
        };
        let newest_ms = block.records.iter().filter_map(|record| record.timestamp_ms).max();
        let rows = build_rows(block, read, &columns, &partition, &self.options, &self.payload).await?;
        Ok(BlockRows {
            batch: rows.batch,
            failures: rows.failures,
            absent: rows.absent,
            lost,
            newest_ms: newest_ms.and_then(|newest| u64::try_from(newest).ok()),
            held_bytes: rows.held_bytes,
            store_bytes,
            store_requests: 1,
            store_wait,
            // Threads of the client receive and copy the records.
            blocking_bytes: store_bytes,
        })
    }

    /// How long a read of a block is repeated while the brokers do not answer.
    pub(crate) fn outage_budget(&self) -> Duration {
        self.client.budget()
    }

    /// Waits until the leader of a partition answers, or for a few seconds.
    pub(crate) async fn wait_for_leader(&self, shard: &ShardRef) -> Result<(), SourceError> {
        let partition = self.partition(shard)?;
        match self.client.wait_for_leader(partition.topic, partition.number).await {
            Err(error) if error.is_retryable => Err(failed(&shard.url, error)),
            // A permanent error is an answer too, which the next read explains.
            _ => Ok(()),
        }
    }

    /// Writes offsets to the consumer group of the source.
    pub(crate) async fn commit(&self, offsets: &[PartitionOffset]) -> Result<(), SourceError> {
        let Some(group) = self.options.commit_group.clone() else { return Ok(()) };
        let offset = |one: &PartitionOffset| GroupOffset {
            topic: one.topic.clone(),
            partition: one.partition,
            offset: one.offset,
        };
        let offsets = offsets.iter().map(offset).collect();
        self.client.commit(group, offsets).await.map_err(|error| failed(&self.url, error))
    }

    /// Reads the first records of a range, or a number of records with a payload. Also returns the first offset of the range.
    async fn sample(
        &self,
        shard: &ShardRef,
        partition: &Partition,
        offsets: std::ops::Range<u64>,
        payloads: Option<usize>,
    ) -> Result<(u64, RecordBlock), SourceError> {
        let start = offsets.start;
        let mut request = self.request(partition, offsets, PAYLOAD_ONLY);
        request.max_bytes = Some(SAMPLE_BYTES);
        request.payloads = payloads;
        // Only a read of the job reports missing and replaced records.
        request.gaps = GapPolicy::Report;
        request.replacements = ReplacementCheck::None;
        let block = self.client.read(request).await.map_err(|error| failed(&shard.url, error))?;
        Ok((start, block))
    }

    fn request(
        &self,
        partition: &Partition,
        offsets: std::ops::Range<u64>,
        parts: RecordParts,
    ) -> ReadRequest {
        ReadRequest {
            topic: Arc::clone(&partition.topic),
            topic_id: partition.range.topic_id.as_str().into(),
            partition: partition.number,
            offsets,
            parts,
            gaps: match self.options.on_gap {
                OnGap::Fail => GapPolicy::Report,
                OnGap::Skip => GapPolicy::Warn,
            },
            replacements: match partition.range.leader_epoch {
                Some(epoch) => ReplacementCheck::LeaderEpoch(epoch),
                None => ReplacementCheck::Continuation,
            },
            expected_bytes: 0,
            patience: None,
            max_bytes: None,
            payloads: None,
        }
    }

    /// Parses the URL and the version of a shard. Another worker may have listed the shard, so this worker checks it again.
    fn partition(&self, shard: &ShardRef) -> Result<Partition, SourceError> {
        self.reads.check_url(&shard.url)?;
        let bad = || SourceError::Url {
            url: shard.url.clone(),
            reason: "expected a partition of the source's cluster: run the same release on all hosts"
                .to_owned(),
        };
        let path = shard
            .url
            .strip_prefix(self.url.as_str())
            .and_then(|path| path.strip_prefix('/'))
            .ok_or_else(bad)?;
        let (topic, number) = path.rsplit_once('/').ok_or_else(bad)?;
        let range = shard.kafka_range().ok_or_else(bad)?;
        Ok(Partition { topic: topic.into(), number: number.parse().map_err(|_| bad())?, range })
    }
}

const PAYLOAD_ONLY: RecordParts = RecordParts { key: false, headers: false, value: true };

/// Creates the client of a schema registry, with the credentials of the pipeline.
fn open_registry(url: &str, reads: &ScopedStores) -> Result<Registry, String> {
    let (_, access) = reads.kafka();
    let options: Vec<(&str, &str)> =
        access.options(reads.credentials()).into_iter().flat_map(|options| options.iter()).collect();
    let option =
        |name: &str| options.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let basic = option("kafka_registry_username").zip(option("kafka_registry_password"));
    let authority =
        match option("kafka_registry_ca_file") {
            Some(path) => {
                let pem = std::fs::read(&path)
                    .map_err(|error| format!("cannot read `kafka_registry_ca_file` {path}: {error}"))?;
                let parsed = reqwest::Certificate::from_pem(&pem);
                Some(parsed.map_err(|_| {
                    format!("`kafka_registry_ca_file` {path} is not a certificate in PEM form")
                })?)
            }
            None => None,
        };
    let authorization = Authorization { basic, bearer: option("kafka_registry_token") };
    Registry::new(url, reads.web_guard(), authorization, authority, access.retry_budget())
}

fn payloads(block: &RecordBlock) -> impl Iterator<Item = &[u8]> {
    block.records.iter().filter_map(|record| Some(block.bytes(record.value?)))
}

/// Returns missing records of a block that starts at an offset.
fn lost_rows(missing: &MissingRecords, block_start: u64) -> LostRows {
    let row = |offset: u64| offset.saturating_sub(block_start) as u32;
    let rows = row(missing.offsets.start)..row(missing.offsets.end);
    LostRows { rows, block_start, reason: missing.reason.clone() }
}

fn failed(url: &str, error: KafkaError) -> SourceError {
    SourceError::Store { url: url.to_owned(), reason: error.message, retryable: error.is_retryable }
}
