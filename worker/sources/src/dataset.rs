//! A dataset: one source of a pipeline, and the reads that workers make of it.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};
use feedline_data::pipeline::{Format, Source};
use feedline_data::schema::Schema;
use feedline_data::tenants::TenantReads;

use crate::cache::ShardCache;
use crate::error::SourceError;
use crate::formats::{arrow_ipc, csv, files, jsonl, parquet, text, tfrecord, webdataset};
use crate::list;
use crate::location::Location;
use crate::object::Object;
use crate::select::Selection;
use crate::stores::{ScopedStores, Stores};

/// The source of a pipeline: one dataset, or several that are mixed.
pub struct Dataset {
    parts: Vec<Part>,
}

/// One dataset.
struct Part {
    source: Source,
    reads: ScopedStores,
    selection: Selection,
    parquet_footers: ShardCache<parquet::ParquetFooter>,
    arrow_footers: ShardCache<arrow_ipc::ArrowFooter>,
    csv_headers: ShardCache<csv::CsvHeader>,
}

/// What to read of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockRead<'a> {
    /// The shard, as it was listed.
    pub shard: &'a ShardRef,
    /// One of its blocks.
    pub block: &'a Block,
    /// The columns wanted, possibly fewer than the dataset has.
    pub schema: &'a Schema,
    /// Ascending rows inside the block; only where `block.row_bytes` is filled. `None`: all rows.
    pub rows: Option<&'a [u32]>,
}

/// Rows of a block.
#[derive(Debug, Clone)]
pub struct BlockRows {
    /// The rows asked for, in order; columns exactly as asked for.
    pub batch: RecordBatch,
    /// Rows of the batch that could not be read.
    pub failures: Vec<RowFailure>,
    /// Bytes of memory that the batch keeps alive.
    pub held_bytes: usize,
    /// Bytes read from the store.
    pub store_bytes: u64,
    /// Requests made to the store.
    pub store_requests: u32,
    /// Time from a request to its last byte, summed over requests.
    pub store_wait: Duration,
    /// Bytes of these that blocking calls read.
    pub blocking_bytes: u64,
}

/// A row that could not be read. The batch holds a placeholder in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFailure {
    /// Index in the batch.
    pub row: u32,
    /// Byte offset in the shard.
    pub offset: u64,
    /// What is wrong, in one clause.
    pub reason: String,
}

/// What a format makes of a block.
pub(crate) struct DecodedBlock {
    pub(crate) batch: RecordBatch,
    pub(crate) failures: Vec<RowFailure>,
    pub(crate) held_bytes: usize,
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sources: Vec<&Source> = self.parts.iter().map(|part| &part.source).collect();
        f.debug_struct("Dataset").field("sources", &sources).finish_non_exhaustive()
    }
}

impl Dataset {
    /// Checks the source's URLs, and that pipelines may read there; reads nothing yet.
    ///
    /// # Errors
    /// One sentence with the fix.
    pub fn new(source: Source, stores: Arc<Stores>) -> Result<Self, SourceError> {
        Self::of_tenant(source, stores, &TenantReads::default())
    }

    /// The same for a job of a tenant, which reads no more than both the role and the tenant may.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_tenant(source: Source, stores: Arc<Stores>, tenant: &TenantReads) -> Result<Self, SourceError> {
        let parts = source.datasets().into_iter();
        let parts = parts.map(|part| Part::new(part.clone(), Arc::clone(&stores), tenant));
        Ok(Self { parts: parts.collect::<Result<_, _>>()? })
    }

    /// The dataset's shards: each URL's sorted by URL, in the order in which the URLs were given, none twice in a dataset of a mix; those
    /// of one dataset behind those of another.
    pub async fn list(&self) -> Result<Vec<ShardRef>, SourceError> {
        let mut shards = Vec::new();
        for (number, part) in (0..).zip(&self.parts) {
            let listed = list::list(&part.reads, &part.source.url).await?;
            shards.extend(listed.into_iter().map(|shard| ShardRef { part: number, ..shard }));
        }
        Ok(shards)
    }

    /// Finds a shard's rows, blocks and columns.
    pub async fn index_shard(&self, shard: &ShardRef) -> Result<ShardIndex, SourceError> {
        self.part_of(shard)?.index_shard(shard).await
    }

    /// Reads rows of a block. Rows that fail are listed, and do not fail the others.
    pub async fn read_block(&self, read: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
        self.part_of(read.shard)?.read_block(read).await
    }

    fn part_of(&self, shard: &ShardRef) -> Result<&Part, SourceError> {
        self.parts.get(shard.part as usize).ok_or_else(|| SourceError::Url {
            url: shard.url.clone(),
            reason: format!("it is of dataset {} of a mix of {}", shard.part + 1, self.parts.len()),
        })
    }
}

impl Part {
    fn new(source: Source, stores: Arc<Stores>, tenant: &TenantReads) -> Result<Self, SourceError> {
        if source.url.is_empty() {
            return Err(SourceError::Url {
                url: String::new(),
                reason: "the source names no URL".to_owned(),
            });
        }
        let reads = ScopedStores::new(stores, source.credentials.clone(), tenant);
        for url in &source.url {
            Location::parse(url)?;
            reads.check(url)?;
        }
        reads.check_credentials(&source.url)?;
        let selection = Selection::new(source.features.clone());
        Ok(Self {
            source,
            reads,
            selection,
            parquet_footers: ShardCache::default(),
            arrow_footers: ShardCache::default(),
            csv_headers: ShardCache::default(),
        })
    }

    async fn index_shard(&self, shard: &ShardRef) -> Result<ShardIndex, SourceError> {
        let object = self.open(shard)?;
        let selection = &self.selection;
        match self.source.format {
            Format::TfRecord => tfrecord::index(&object, selection).await,
            Format::WebDataset => webdataset::index(&object, selection).await,
            Format::Files => files::index(&object, selection),
            Format::Parquet => parquet::index(object, selection, &self.parquet_footers).await,
            Format::Arrow => arrow_ipc::index(&object, selection, &self.arrow_footers).await,
            Format::Jsonl => jsonl::index(&object, selection).await,
            Format::Csv => csv::index(&object, selection, &self.csv_headers).await,
            Format::Text => text::index(&object, selection).await,
        }
    }

    async fn read_block(&self, read: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
        let object = self.open(read.shard)?;
        let selection = &self.selection;
        let decoded = match self.source.format {
            Format::TfRecord => tfrecord::read(&object, read, selection).await,
            Format::WebDataset => webdataset::read(&object, read, selection).await,
            Format::Files => files::read(&object, read, selection).await,
            Format::Parquet => parquet::read(object.clone(), read, selection, &self.parquet_footers).await,
            Format::Arrow => arrow_ipc::read(&object, read, selection, &self.arrow_footers).await,
            Format::Jsonl => jsonl::read(&object, read, selection).await,
            Format::Csv => csv::read(&object, read, selection, &self.csv_headers).await,
            Format::Text => text::read(&object, read, selection).await,
        }?;
        let (store_bytes, store_requests, store_wait) = object.traffic();
        let DecodedBlock { batch, failures, held_bytes } = decoded;
        let blocking_bytes = object.blocking_bytes();
        Ok(BlockRows { batch, failures, held_bytes, store_bytes, store_requests, store_wait, blocking_bytes })
    }

    fn open(&self, shard: &ShardRef) -> Result<Arc<Object>, SourceError> {
        let location = Location::parse(&shard.url)?;
        // The shard was listed elsewhere.
        let file = self.reads.check_shard(&location, shard)?;
        let store = self.reads.open(&location)?;
        let object = Object::new(store, location.key()?, shard.clone());
        Ok(Arc::new(object.at(file)))
    }
}
