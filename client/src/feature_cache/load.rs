//! Loads the rows of features from a worker, and compares them with the hash of the feature in the index of the job.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float16Array, Float32Array, Float64Array};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use feedline_data::graph::FeatureSummary;
use feedline_data::graph::description::{BlockHash, GraphFeature, HASH_BLOCK_BYTES, StoredFile};
use feedline_data::ids::JobId;
use feedline_data::messages::JobDetails;
use feedline_data::pipeline::{GraphColumn, GraphColumnContent};
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_proto::services::{CachedFeature, FeatureRowsRequest, FetchRequest, Frame};
use feedline_proto::{CoordinatorService, WorkerService};
use futures::{StreamExt, stream};
use tokio::time::{Duration, timeout};
use xxhash_rust::xxh3::xxh3_64;

use super::allocation::{CacheableFeature, divide_cache};
use super::cached_rows::CachedRows;

/// Rows of at most this size are not cached, because the position of a node has 4 bytes in a piece.
const MIN_ROW_BYTES: usize = 8;
/// Size of a number before the rows in a response.
const NUMBER_BYTES: usize = 8;
/// Maximum time between two frames of a response.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Loads the first rows of each feature of nodes. All rows together have at most `limit_bytes`. Returns no features if batches
/// contain none.
///
/// # Errors
/// Returns a message if the coordinator or the worker cannot be reached, or the rows differ from the feature of the job.
pub(super) async fn load_features(
    coordinator: &Arc<dyn CoordinatorService>,
    worker: &dyn WorkerService,
    job: JobId,
    ticket: &str,
    limit_bytes: u64,
) -> Result<CachedRows, String> {
    let details = coordinator.job_details(job).await.map_err(|error| error.message)?;
    let planned = PlannedFeature::all(&details)?;
    let sizes: Vec<CacheableFeature> = planned.iter().map(PlannedFeature::size).collect();
    let mut cached = CachedRows::default();
    for (feature, rows) in planned.iter().zip(divide_cache(&sizes, limit_bytes)) {
        if rows == 0 {
            continue;
        }
        let content = feature.summary.content;
        let request = FeatureRowsRequest { job, ticket: ticket.to_owned(), content, rows };
        let bytes = feature.load(worker, request).await?;
        let rows = u32::try_from(bytes.len() / feature.row_bytes).map_err(|error| error.to_string())?;
        if rows == 0 {
            continue;
        }
        let row_bytes = u32::try_from(feature.row_bytes).map_err(|error| error.to_string())?;
        let column = feature.column.clone();
        cached.push(CachedFeature { column, content, rows, row_bytes }, bytes);
    }
    Ok(cached)
}

/// A feature in the batches of a job.
struct PlannedFeature {
    column: String,
    summary: FeatureSummary,
    /// The type of the numbers in batches.
    dtype: ScalarType,
    /// The size of a row in batches.
    row_bytes: usize,
    /// The number of nodes.
    nodes: u32,
}

impl PlannedFeature {
    fn all(details: &JobDetails) -> Result<Vec<Self>, String> {
        let (Some(plan), Some(graph)) =
            (details.pipeline.graph_batches(&details.dataset)?, &details.dataset.graph)
        else {
            return Ok(Vec::new());
        };
        let planned = |column: &GraphColumn| {
            let GraphColumnContent::NodeFeature { node_type, feature } = column.content else { return None };
            let ColumnType::List(item) = &column.column_type else { return None };
            let (ColumnType::Scalar(dtype) | ColumnType::Tensor { scalar: dtype, .. }) = item.as_ref() else {
                return None;
            };
            let nodes = graph.nodes.get(node_type)?;
            Some(Self {
                column: column.name.clone(),
                summary: nodes.features.get(feature)?.clone(),
                dtype: *dtype,
                row_bytes: item.fixed_row_bytes().filter(|bytes| *bytes > MIN_ROW_BYTES)?,
                nodes: nodes.count,
            })
        };
        Ok(plan.columns.iter().filter_map(planned).collect())
    }

    fn size(&self) -> CacheableFeature {
        CacheableFeature { row_bytes: self.row_bytes as u64, rows: self.nodes }
    }

    /// The size of a stored row.
    fn stored_row_bytes(&self) -> u64 {
        self.summary.row_elements().saturating_mul(self.summary.dtype.width_bytes() as u64)
    }

    /// Loads rows, and converts them to the type of batches. Returns fewer rows if the worker does not hold all of them in memory.
    async fn load(&self, worker: &dyn WorkerService, request: FeatureRowsRequest) -> Result<Vec<u8>, String> {
        let rows = request.rows;
        let file_bytes = self.stored_row_bytes().saturating_mul(u64::from(self.nodes));
        let blocks = file_bytes.div_ceil(HASH_BLOCK_BYTES);
        let needed_bytes = self.stored_row_bytes().saturating_mul(u64::from(rows));
        let cached_bytes =
            self.row_bytes.checked_mul(rows as usize).ok_or("the feature cache is too large")?;
        let mut reader = FeatureRowReader {
            feature: self,
            head_bytes: usize::try_from(blocks)
                .ok()
                .and_then(|blocks| blocks.checked_add(1)?.checked_mul(NUMBER_BYTES))
                .ok_or("the feature is too large")?,
            blocks: None,
            buffer: Vec::new(),
            block: 0,
            rest_bytes: needed_bytes
                .div_ceil(HASH_BLOCK_BYTES)
                .saturating_mul(HASH_BLOCK_BYTES)
                .min(file_bytes),
            cached_bytes,
            rows: Vec::new(),
        };
        let requests = stream::iter([FetchRequest::Features(request)]).boxed();
        let mut frames = worker.fetch(requests).await.map_err(|error| error.message)?;
        loop {
            let next = timeout(FRAME_TIMEOUT, frames.next()).await;
            let next = next.map_err(|_| "the worker stopped sending the rows of a feature".to_owned())?;
            let frame = next.ok_or("the stream ended before the end of the feature")?;
            match frame.map_err(|error| error.message)? {
                Frame::Chunk { data, .. } => reader.push(&data)?,
                Frame::End => return reader.finish(),
                Frame::Failed(message) => return Err(message),
                Frame::Schema(_) | Frame::Piece(_) | Frame::Working => {
                    return Err("the worker sent a batch instead of the rows of a feature".to_owned());
                }
            }
        }
    }

    /// Checks the hashes of the blocks of a file, and returns them.
    fn check_head(&self, head: &[u8]) -> Result<Vec<BlockHash>, String> {
        let mut numbers = head.as_chunks::<NUMBER_BYTES>().0.iter().map(|number| u64::from_le_bytes(*number));
        let bytes = numbers.next().unwrap_or_default();
        let blocks: Vec<BlockHash> = numbers.map(BlockHash).collect();
        let FeatureSummary { name, dtype, shape, content } = self.summary.clone();
        let file = StoredFile { path: String::new(), bytes, blocks };
        let stored = GraphFeature { name, dtype, shape, file };
        if stored.content_hash() != content {
            return Err(self.differs());
        }
        Ok(stored.file.blocks)
    }

    fn differs(&self) -> String {
        format!("the worker sent rows that differ from the feature in the column `{}`", self.column)
    }

    /// Converts stored numbers to the type of batches.
    fn convert(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        if self.summary.dtype == self.dtype {
            return Ok(bytes.to_vec());
        }
        let buffer = Buffer::from_slice_ref(bytes);
        let numbers: ArrayRef = match self.summary.dtype {
            ScalarType::Float16 => Arc::new(Float16Array::new(ScalarBuffer::from(buffer), None)),
            ScalarType::Float32 => Arc::new(Float32Array::new(ScalarBuffer::from(buffer), None)),
            ScalarType::Float64 => Arc::new(Float64Array::new(ScalarBuffer::from(buffer), None)),
            other => return Err(format!("{} cannot be converted to {}", other.name(), self.dtype.name())),
        };
        let target = match self.dtype {
            ScalarType::Float16 => DataType::Float16,
            ScalarType::Float32 => DataType::Float32,
            ScalarType::Float64 => DataType::Float64,
            other => return Err(format!("the numbers cannot be converted to {}", other.name())),
        };
        // float64 becomes float16 through float32, as in workers.
        let converted = cast(&numbers, &target).map_err(|error| error.to_string())?;
        let data = converted.to_data();
        data.buffers().first().map(|buffer| buffer.as_slice().to_vec()).ok_or_else(|| self.differs())
    }
}

/// Reads the response with the rows of a feature.
struct FeatureRowReader<'a> {
    feature: &'a PlannedFeature,
    /// Size of the numbers before the rows.
    head_bytes: usize,
    /// The hashes of the blocks, after they were checked.
    blocks: Option<Vec<BlockHash>>,
    /// Received bytes of the head, or of the current block.
    buffer: Vec<u8>,
    /// Index of the current block.
    block: usize,
    /// Number of bytes of the blocks that are not complete.
    rest_bytes: u64,
    /// Size of the rows in the cache.
    cached_bytes: usize,
    /// The rows of complete blocks, as in batches.
    rows: Vec<u8>,
}

impl FeatureRowReader<'_> {
    fn push(&mut self, mut received: &[u8]) -> Result<(), String> {
        while !received.is_empty() {
            let wanted = match &self.blocks {
                None => self.head_bytes,
                // A block has 8 MiB.
                Some(_) => self.rest_bytes.min(HASH_BLOCK_BYTES) as usize,
            };
            if wanted == 0 {
                return Err("the worker sent more rows than were requested".to_owned());
            }
            let missing = wanted.saturating_sub(self.buffer.len());
            let (part, rest) = received.split_at(missing.min(received.len()));
            self.buffer.extend_from_slice(part);
            received = rest;
            if self.buffer.len() == wanted {
                self.finish_part()?;
            }
        }
        Ok(())
    }

    /// Checks the head or the current block, whose bytes have arrived.
    fn finish_part(&mut self) -> Result<(), String> {
        let Some(blocks) = &self.blocks else {
            self.blocks = Some(self.feature.check_head(&self.buffer)?);
            self.buffer.clear();
            return Ok(());
        };
        if blocks.get(self.block) != Some(&BlockHash(xxh3_64(&self.buffer))) {
            return Err(self.feature.differs());
        }
        // Rows and blocks have different sizes, so numbers are converted, and not rows.
        let converted = self.feature.convert(&self.buffer)?;
        let missing = self.cached_bytes.saturating_sub(self.rows.len());
        if self.rows.is_empty() {
            self.rows.reserve_exact(self.cached_bytes);
        }
        self.rows.extend_from_slice(&converted[..missing.min(converted.len())]);
        self.rest_bytes = self.rest_bytes.saturating_sub(self.buffer.len() as u64);
        self.block += 1;
        self.buffer.clear();
        Ok(())
    }

    /// Returns the rows of which all bytes have arrived.
    fn finish(mut self) -> Result<Vec<u8>, String> {
        if self.blocks.is_none() || !self.buffer.is_empty() {
            return Err("the stream ended before the end of a block of the feature".to_owned());
        }
        self.rows.truncate(self.rows.len() / self.feature.row_bytes * self.feature.row_bytes);
        self.rows.shrink_to_fit();
        Ok(self.rows)
    }
}

#[cfg(test)]
mod tests;
