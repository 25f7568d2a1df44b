//! A dataset: the source of a pipeline, which workers list, index and read.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::pipeline::Source;
use feedline_data::tenants::TenantReads;

use crate::error::SourceError;
use crate::formats;
use crate::list;
use crate::location::Location;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, RowFailure};
use crate::select::Selection;
use crate::stores::{ScopedStores, Stores};

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
}

/// Rows that were read from a block.
#[derive(Debug, Clone)]
pub struct BlockRows {
    /// The requested columns of the requested rows, in row order.
    pub batch: RecordBatch,
    /// The rows that could not be read. The batch contains a placeholder for each of them.
    pub failures: Vec<RowFailure>,
    /// Memory that the batch uses, including buffers that its columns reference.
    pub held_bytes: usize,
    /// Number of bytes that were read from the store.
    pub store_bytes: u64,
    /// Number of requests to the store.
    pub store_requests: u32,
    /// Total duration of all requests, from the request to the last byte.
    pub store_wait: Duration,
    /// The part of `store_bytes` that was read with blocking calls.
    pub blocking_bytes: u64,
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

    /// Lists the shards of all datasets, in the order of the datasets and their source URLs. The shards of each source URL are
    /// sorted by URL. Duplicates within a dataset are removed.
    pub async fn list(&self) -> Result<Vec<ShardRef>, SourceError> {
        let mut shards = Vec::new();
        for (number, part) in (0..).zip(&self.parts) {
            let listed = list::list(&part.reads, &part.source.url).await?;
            shards.extend(listed.into_iter().map(|shard| ShardRef { part: number, ..shard }));
        }
        Ok(shards)
    }

    /// Indexes a shard: its rows, blocks and columns.
    pub async fn index_shard(&self, shard: &ShardRef) -> Result<ShardIndex, SourceError> {
        self.part_of(shard)?.index_shard(shard).await
    }

    /// Reads rows of a block. Rows that cannot be read are listed in the result, and do not affect other rows.
    pub async fn read_block(&self, read: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
        self.part_of(read.shard)?.read_block(read).await
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
        for url in &source.url {
            Location::parse(url)?;
            reads.check(url)?;
        }
        reads.check_credentials(&source.url)?;
        let selection = Selection::new(source.features.clone());
        let reader = formats::create_reader(source.format);
        Ok(Self { source, reads, selection, reader })
    }

    async fn index_shard(&self, shard: &ShardRef) -> Result<ShardIndex, SourceError> {
        let object = self.open(shard)?;
        self.reader.index(&object, &self.selection).await
    }

    async fn read_block(&self, read: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
        let object = self.open(read.shard)?;
        let decoded = self.reader.read(&object, read, &self.selection).await?;
        let (store_bytes, store_requests, store_wait) = object.traffic();
        let DecodedBlock { batch, failures, held_bytes } = decoded;
        let blocking_bytes = object.blocking_bytes();
        Ok(BlockRows { batch, failures, held_bytes, store_bytes, store_requests, store_wait, blocking_bytes })
    }

    fn open(&self, shard: &ShardRef) -> Result<Arc<Object>, SourceError> {
        let location = Location::parse(&shard.url)?;
        // Another worker may have listed the shard, so this worker checks it again.
        let file = self.reads.check_shard(&location, shard)?;
        let store = self.reads.open(&location)?;
        let object = self.reads.object(store, location.key()?, shard.clone());
        Ok(Arc::new(object.with_file(file)))
    }
}
