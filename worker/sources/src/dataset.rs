//! A dataset: the source of a pipeline, which workers list, index and read.

mod nearest;
mod sample;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use feedline_data::committed_offsets::PartitionOffset;
use feedline_data::ids::JobId;
use feedline_data::manifest::{IndexedShard, ShardDigest, ShardRef};
use feedline_data::pipeline::{Format, Partitions, Source};
use feedline_data::tenants::TenantReads;

use crate::content::{FileCompression, RunTurn};
use crate::error::SourceError;
use crate::formats;
use crate::graph_description;
use crate::kafka::KafkaDataset;
use crate::location::Location;
use crate::object::Object;
use crate::partitions;
use crate::reader::{BlockRead, BlockRows, DecodedBlock, FormatReader, default_peak_bytes};
use crate::select::Selection;
use crate::shard_values;
use crate::stores::{ScopedStores, Stores};

pub use sample::{SampledRows, SampledShard};

/// The datasets of a pipeline source. A mix has several datasets.
pub struct Dataset {
    parts: Vec<DatasetPart>,
}

/// One dataset of a mix.
struct DatasetPart {
    source: Source,
    reads: ScopedStores,
    selection: Selection,
    reader: Box<dyn FormatReader>,
    /// Replaces the reader for `format: kafka`.
    kafka: Option<KafkaDataset>,
}

/// The opened shard of a block.
pub struct OpenBlock {
    /// `None` for a partition of a topic.
    object: Option<Arc<Object>>,
    peak_bytes: u64,
}

impl OpenBlock {
    /// Maximum memory for reading all rows of the block, in encoded and in decoded form. [`Dataset::fetch_block`] may increase it.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }
}

impl std::fmt::Debug for OpenBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenBlock").field("peak_bytes", &self.peak_bytes).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sources: Vec<&Source> = self.parts.iter().map(|part| &part.source).collect();
        f.debug_struct("Dataset").field("sources", &sources).finish_non_exhaustive()
    }
}

impl Dataset {
    /// Creates a dataset. Checks the URLs of the source and the permission to read them, without requests.
    ///
    /// # Errors
    /// Returns an error if a URL is invalid or the read policy rejects it.
    pub fn new(source: Source, stores: Arc<Stores>) -> Result<Self, SourceError> {
        Self::of_tenant(source, stores, &TenantReads::default())
    }

    /// Creates a dataset for a job of a tenant. Both the worker's read policy and the tenant's permissions apply.
    ///
    /// # Errors
    /// Returns an error if a URL is invalid, or if the read policy or the tenant's permissions reject it.
    pub fn of_tenant(source: Source, stores: Arc<Stores>, tenant: &TenantReads) -> Result<Self, SourceError> {
        let parts = source.datasets().into_iter();
        let parts = parts.map(|part| DatasetPart::new(part.clone(), Arc::clone(&stores), tenant));
        Ok(Self { parts: parts.collect::<Result<_, _>>()? })
    }

    /// Sets the job that reads the datasets. Jobs share the requests to a throttled store fairly.
    #[must_use]
    pub fn with_job(mut self, job: JobId) -> Self {
        self.parts.iter_mut().for_each(|part| part.reads.set_job(job));
        self
    }

    /// Lists the shards of all datasets, in the order of the datasets and their source URLs. The shards of each source URL are
    /// sorted by URL. A source URL that occurs several times in a dataset lists its shards each time.
    pub async fn list(&self) -> Result<Vec<ShardRef>, SourceError> {
        let mut shards = Vec::new();
        for (number, part) in (0..).zip(&self.parts) {
            let listed = part.list().await?;
            shards.extend(listed.into_iter().map(|shard| ShardRef { part: number, ..shard }));
        }
        Ok(shards)
    }

    /// Lists the description of the graph that the job samples, if the source has its folder. A shard without rows.
    ///
    /// # Errors
    /// Returns an error if the folder has no description, or the store fails.
    pub async fn list_graph(&self) -> Result<Vec<ShardRef>, SourceError> {
        let mut shards = Vec::new();
        for (number, part) in (0..).zip(&self.parts) {
            if let Some(folder) = &part.source.graph {
                let listed = graph_description::list(&part.reads, folder).await?;
                shards.extend(listed.into_iter().map(|shard| ShardRef { part: number, ..shard }));
            }
        }
        Ok(shards)
    }

    /// Lists the present ends of the partitions of an unbounded source. Such a source is not part of a mix.
    ///
    /// # Errors
    /// Returns an error if a topic does not exist, or the source is unavailable.
    pub async fn list_growth(&self) -> Result<Vec<ShardRef>, SourceError> {
        match self.parts.first().and_then(|part| part.kafka.as_ref()) {
            Some(kafka) => kafka.list_growth().await,
            None => self.list().await,
        }
    }

    /// Indexes a shard: its rows, blocks and columns, and the digest of its bytes.
    pub async fn index_shard(&self, shard: &ShardRef) -> Result<IndexedShard, SourceError> {
        self.index_shard_with_progress(shard, Arc::default()).await
    }

    /// Indexes a shard like [`Self::index_shard`], and adds the bytes that were read to `progress` meanwhile.
    ///
    /// # Errors
    /// Returns the errors of [`Self::index_shard`].
    pub async fn index_shard_with_progress(
        &self,
        shard: &ShardRef,
        progress: Arc<AtomicU64>,
    ) -> Result<IndexedShard, SourceError> {
        self.part_of(shard)?.index_shard(shard, progress).await
    }

    /// Opens the shard of a block, and determines the memory that the read needs.
    pub async fn open_block(&self, read: &BlockRead<'_>) -> Result<OpenBlock, SourceError> {
        self.part_of(read.shard)?.open_block(read).await
    }

    /// Reads the encoded bytes of an open block, if only they say how much memory the read needs. `open` then contains this memory.
    pub async fn fetch_block(&self, read: &BlockRead<'_>, open: &mut OpenBlock) -> Result<(), SourceError> {
        self.part_of(read.shard)?.fetch_block(read, open).await
    }

    /// Reads rows of a block. Rows that cannot be read are listed in the result, and do not affect other rows.
    pub async fn read_block(&self, read: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
        self.part_of(read.shard)?.read_block(read).await
    }

    /// Reads rows of a block that [`open_block`](Self::open_block) opened with the same request.
    pub async fn read_open_block(
        &self,
        read: &BlockRead<'_>,
        open: OpenBlock,
    ) -> Result<BlockRows, SourceError> {
        self.part_of(read.shard)?.read_open_block(read, open).await
    }

    /// How long reads of a shard are repeated that fail because its source is unavailable. Zero if the store repeats its requests
    /// itself.
    pub fn outage_budget(&self, shard: &ShardRef) -> Duration {
        let kafka = self.part_of(shard).ok().and_then(|part| part.kafka.as_ref());
        kafka.map_or(Duration::ZERO, KafkaDataset::outage_budget)
    }

    /// Waits until the source of a shard answers, or for a few seconds.
    ///
    /// # Errors
    /// Returns an error if the source does not answer.
    pub async fn wait_for_source(&self, shard: &ShardRef) -> Result<(), SourceError> {
        match &self.part_of(shard)?.kafka {
            Some(kafka) => kafka.wait_for_leader(shard).await,
            None => Ok(()),
        }
    }

    /// Writes the offsets that a job has delivered to the consumer group of a Kafka source. Other sources have no group.
    ///
    /// # Errors
    /// Returns an error if the brokers reject the offsets or do not answer within a few seconds.
    pub async fn commit_offsets(&self, offsets: &[PartitionOffset]) -> Result<(), SourceError> {
        match self.parts.first().and_then(|part| part.kafka.as_ref()) {
            Some(kafka) => kafka.commit(offsets).await,
            None => Ok(()),
        }
    }

    /// Waits until no other read of the job decodes the long run that contains a block. Keep the turn until the read ends.
    pub async fn run_turn(&self, read: &BlockRead<'_>) -> Option<RunTurn> {
        let part = self.part_of(read.shard).ok()?;
        part.reads.decoders().run_turn(part.reads.job(), read).await
    }

    fn part_of(&self, shard: &ShardRef) -> Result<&DatasetPart, SourceError> {
        self.parts.get(shard.part as usize).ok_or_else(|| SourceError::Url {
            url: shard.url.clone(),
            reason: format!(
                "the shard belongs to dataset {}, but the source has only {} datasets",
                shard.part + 1,
                self.parts.len()
            ),
        })
    }
}

impl DatasetPart {
    fn new(source: Source, stores: Arc<Stores>, tenant: &TenantReads) -> Result<Self, SourceError> {
        if source.url.is_empty() {
            return Err(SourceError::Url {
                url: String::new(),
                reason: "`source.url` is empty: list the URLs of the dataset".to_owned(),
            });
        }
        let reads = ScopedStores::new(stores, source.credentials.clone(), tenant);
        for url in source.url.iter().chain(&source.graph) {
            Location::parse(url)?;
            reads.check(url)?;
        }
        reads.check_credentials(&source.url)?;
        let selection = Selection::new(&source);
        let reader = formats::create_reader(&source, &reads);
        let kafka = (source.format == Format::Kafka)
            .then(|| KafkaDataset::new(&source, &reads, &selection))
            .transpose()?;
        Ok(Self { source, reads, selection, reader, kafka })
    }

    async fn list(&self) -> Result<Vec<ShardRef>, SourceError> {
        self.list_urls(&self.source.url).await
    }

    /// Lists some of the URLs of the source.
    async fn list_urls(&self, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        if let Some(kafka) = &self.kafka {
            return kafka.list().await;
        }
        let mut listed = self.reader.list(&self.reads, urls).await?;
        if self.source.partitions == Some(Partitions::Hive) {
            partitions::add_values(&mut listed)?;
        }
        Ok(listed)
    }

    async fn index_shard(
        &self,
        shard: &ShardRef,
        progress: Arc<AtomicU64>,
    ) -> Result<IndexedShard, SourceError> {
        let graph = self.source.graph.as_deref();
        let describes_graph = graph.is_some_and(|folder| graph_description::is_description(shard, folder));
        if let Some(kafka) = self.kafka.as_ref().filter(|_| !describes_graph) {
            let digest = ShardDigest::of_version(&shard.version);
            return Ok(IndexedShard { index: kafka.index(shard).await?, digest: Some(digest) });
        }
        let object = Arc::new(self.open(shard)?.with_digest().with_progress(progress));
        if let Some(wait) = object.settling_time() {
            tokio::time::sleep(wait).await;
        }
        let index = match describes_graph {
            true => graph_description::index(&object).await?,
            false => shard_values::index(self.reader.as_ref(), &object, &self.selection, false).await?,
        };
        let digest = object.finish_digest(index.compression.is_some()).await?;
        Ok(IndexedShard { index, digest })
    }

    async fn open_block(&self, read: &BlockRead<'_>) -> Result<OpenBlock, SourceError> {
        if self.kafka.is_some() {
            return Ok(OpenBlock { object: None, peak_bytes: default_peak_bytes(read) });
        }
        let object = Arc::new(self.open(read.shard)?);
        let peak_bytes =
            shard_values::peak_bytes(self.reader.as_ref(), &object, read, &self.selection).await?;
        Ok(OpenBlock { object: Some(object), peak_bytes })
    }

    async fn fetch_block(&self, read: &BlockRead<'_>, open: &mut OpenBlock) -> Result<(), SourceError> {
        let Some(object) = &open.object else { return Ok(()) };
        if let Some(peak_bytes) = self.reader.fetch(object, read).await? {
            open.peak_bytes = open.peak_bytes.max(peak_bytes);
        }
        Ok(())
    }

    async fn read_block(&self, read: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
        let open = self.open_block(read).await?;
        self.read_open_block(read, open).await
    }

    async fn read_open_block(&self, read: &BlockRead<'_>, open: OpenBlock) -> Result<BlockRows, SourceError> {
        if let Some(kafka) = &self.kafka {
            return kafka.read(read).await;
        }
        let object = match open.object {
            Some(object) => object,
            None => Arc::new(self.open(read.shard)?),
        };
        let decoded = shard_values::read(self.reader.as_ref(), &object, read, &self.selection).await?;
        let (store_bytes, store_requests, store_wait) = object.traffic();
        let DecodedBlock { batch, failures, held_bytes } = decoded;
        let blocking_bytes = object.blocking_bytes();
        let absent = Vec::new();
        Ok(BlockRows {
            batch,
            failures,
            absent,
            lost: Vec::new(),
            newest_ms: None,
            held_bytes,
            store_bytes,
            store_requests,
            store_wait,
            blocking_bytes,
        })
    }

    fn open(&self, shard: &ShardRef) -> Result<Object, SourceError> {
        self.open_beginning(shard, shard.size_bytes)
    }

    /// Opens the first bytes of a shard.
    fn open_beginning(&self, shard: &ShardRef, size_bytes: u64) -> Result<Object, SourceError> {
        let location = Location::parse(&shard.url)?;
        // Another worker may have listed the shard, so this worker checks it again.
        let file = self.reads.check_shard(&location, shard)?;
        let store = self.reads.open(&location)?;
        let object = self.reads.object(store, location.key()?, shard.clone());
        let object = object.with_compression(FileCompression::of(&self.source));
        Ok(object.with_file(file).with_beginning(size_bytes))
    }
}

#[cfg(test)]
mod tests;
