//! A chunk of a group's rows: it is built from encoded rows, transformed by operators, and joined with cached rows at
//! the cache point.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::DataType;
use bytes::{Bytes, BytesMut};
use feedline_data::memory::MemoryAccount;
use feedline_data::order::RowRef;
use feedline_data::pipeline::OnError;
use feedline_data::schema::{ColumnType, Schema};
use feedline_operators::{Chunk, Column, Image, OutputBuffers};
use feedline_sources::empty_batch;

use super::cache_point::ChunkAtCache;
use super::encodings::EncodingPermission;
use super::job::JobContext;
use super::memory_budget::{MemoryBudget, MemoryReservation};
use super::trace::{LapTimer, QueuedRows};
use crate::cache::Caches;

/// A chunk with the state that the engine needs until the chunk is part of a batch.
pub(super) struct WorkChunk {
    pub(super) chunk: Chunk,
    /// Parts of the group's buffer that operators write tensors to.
    pub(super) buffers: OutputBuffers,
    /// Index of the chunk's first row in the group.
    pub(super) start: usize,
    /// Number of rows before the first operator, not counting cached rows. After the cache point, the number of all
    /// rows of the chunk.
    rows_at_start: usize,
    /// Rows that were read for the chunk.
    rows_read: usize,
    /// Number of failures that `on_error` has already been applied to.
    settled_failures: usize,
    /// Parts of the group's buffer that operators must not write to, because rows have moved.
    pub(super) reclaimed: Vec<ReclaimedBuffer>,
    /// Bytes of the chunk's rows. Updated only if operators are traced.
    pub(super) bytes: u64,
    /// Reserves the memory of the chunk's decoded images.
    images: MemoryReservation,
    /// Images that came from a cache. They already count as memory of the cache or as encoded rows.
    cached_images: BTreeSet<ImageKey>,
    /// Time that one thread has spent on the chunk, without time in queues.
    pub(super) took: Duration,
    /// Measures the wait between the last operator and assembly.
    pub(super) queued: Option<QueuedRows>,
}

/// The unused part of the group's buffer that was meant for one tensor column of a chunk.
pub(super) struct ReclaimedBuffer {
    /// Index among the job's tensors.
    pub(super) tensor: usize,
    pub(super) storage: BytesMut,
}

/// Identifies an image by the origin of its row and the address of its pixels.
type ImageKey = (u32, usize);

/// The encoded rows that a chunk is built from.
pub(super) struct ChunkInput {
    /// All rows of the group.
    pub(super) rows: Arc<Vec<RowRef>>,
    /// The cached form of each row of the group. Empty if the job has no cache point.
    pub(super) cached: Arc<Vec<Option<Bytes>>>,
    /// The range of the group's rows that the chunk contains.
    pub(super) range: Range<usize>,
    pub(super) encoded: ChunkRows,
}

/// The rows that were read for one chunk.
#[derive(Debug, Default)]
pub(super) struct ChunkRows {
    pub(super) batches: Vec<Arc<RecordBatch>>,
    /// Indexes in the group, ascending.
    pub(super) indexes: Vec<usize>,
    /// For each row, the index of its batch and its index in the batch.
    pub(super) locations: Vec<(usize, usize)>,
    /// Rows that could not be read: index in the group, and the reason.
    pub(super) failures: Vec<(usize, String)>,
    /// Number of rows without a record in the source. The chunk does not contain them.
    pub(super) absent: usize,
    /// Bytes of the rows.
    pub(super) bytes: u64,
}

impl ChunkRows {
    /// Creates the rows of a chunk without rows, with the columns of the source.
    pub(super) fn without_rows(schema: &Schema) -> Self {
        Self { batches: vec![Arc::new(empty_batch(schema))], ..Self::default() }
    }
}

impl ChunkInput {
    /// Whether any row of the chunk was read, so that operators before a cache point must run.
    pub(super) fn has_read_rows(&self) -> bool {
        !self.encoded.batches.is_empty()
    }

    /// Builds the chunk from the rows that were read. Decoded images count against `budget`.
    pub(super) fn build(
        &self,
        job: &JobContext,
        buffers: OutputBuffers,
        budget: &MemoryBudget,
        lap: &mut LapTimer,
    ) -> Result<WorkChunk, String> {
        let ChunkRows { batches, indexes, locations, failures, absent, .. } = &self.encoded;
        let batches: Vec<&RecordBatch> = batches.iter().map(AsRef::as_ref).collect();
        let rows = || indexes.iter().map(|&index| &self.rows[index]);
        let mut columns = Vec::new();
        if let Some(first) = batches.first() {
            let batch = match locations.is_empty() {
                true => first.slice(0, 0),
                false => interleave_record_batch(&batches, locations).map_err(|error| {
                    format!("blocks of the dataset have different columns: {error}; index the dataset again")
                })?,
            };
            let schema = batch.schema();
            let names = schema.fields().iter().map(|field| field.name().clone());
            columns.extend(names.zip(batch.columns().iter().cloned().map(Column::Arrow)));
        }
        let mut chunk =
            Chunk::new(columns, rows().map(|row| row.row_id).collect(), rows().map(|row| row.pass).collect());
        chunk.origins = indexes.iter().map(|index| (index - self.range.start) as u32).collect();
        for (index, reason) in failures {
            if let Ok(row) = indexes.binary_search(index) {
                chunk.fail(row, reason.clone());
            }
        }
        let mut work = WorkChunk::new(chunk, buffers, self.range.start, budget);
        if *absent > 0 {
            work.reclaim_buffers(job);
        }
        work.settle_failures(job);
        if job.is_traced() {
            work.bytes = chunk_bytes(&work.chunk);
            job.counters.source.add_bytes(0, work.bytes);
        }
        lap.record(&job.counters.source);
        Ok(work)
    }

    /// Adds the computed rows of the chunk to the cache, and inserts the cached rows into the chunk.
    pub(super) fn join_cached(
        &self,
        job: &JobContext,
        caches: &Caches,
        has_idle_thread: bool,
        work: &mut WorkChunk,
        lap: &mut LapTimer,
    ) -> Result<(), String> {
        let Some(cache_point) = &job.compiled.cache_point else { return Ok(()) };
        let next = job.counters.operators.get(cache_point.operator);
        let permission = EncodingPermission {
            has_idle_thread,
            is_allocation_cheap: job.kernel_time.is_low(),
            operator_cpu_ns: next.map_or(0, |counters| counters.snapshot().cpu_ns),
            trials: job.counters.trials.as_deref(),
            passes_left: job.compiled.passes_after(self.rows[self.range.start].pass),
        };
        let (cached, rows) = (&self.cached[self.range.clone()], &self.rows[self.range.clone()]);
        let input = ChunkAtCache { caches, cached, rows, permission };
        cache_point.join(&mut work.chunk, work.rows_read, &input)?;
        work.cached_images = cached_images(&work.chunk, cached);
        work.rows_at_start = self.range.len();
        if work.chunk.rows() != work.rows_at_start {
            work.reclaim_buffers(job);
        }
        if job.is_traced() {
            work.bytes = chunk_bytes(&work.chunk);
        }
        lap.record(&cache_point.counters.rows);
        Ok(())
    }
}

impl WorkChunk {
    fn new(chunk: Chunk, buffers: OutputBuffers, start: usize, budget: &MemoryBudget) -> Self {
        let rows = chunk.rows();
        Self {
            chunk,
            buffers,
            start,
            rows_at_start: rows,
            rows_read: rows,
            settled_failures: 0,
            reclaimed: Vec::new(),
            bytes: 0,
            images: budget.reserve(MemoryAccount::Images, 0),
            cached_images: BTreeSet::new(),
            took: Duration::ZERO,
            queued: None,
        }
    }

    /// Returns the indexes in the group of the rows that the chunk still contains.
    pub(super) fn indexes(&self) -> impl Iterator<Item = usize> {
        self.chunk.origins.iter().map(|origin| self.start + *origin as usize)
    }

    /// Runs one operator, and updates its counters.
    pub(super) fn apply(&mut self, job: &JobContext, index: usize, lap: &mut LapTimer) -> Result<(), String> {
        let operator = &job.compiled.operators[index];
        let rows_in = self.chunk.rows();
        if let Some(trials) = job.counters.trials.as_ref().filter(|trials| trials.operator == index) {
            trials.measure_some(&self.chunk, operator);
        }
        let result = operator.operator.apply(&mut self.chunk, &mut self.buffers);
        result.map_err(|error| format!("operator {} ({}): {error}", index + 1, operator.name))?;
        self.record_output(job, index, rows_in);
        lap.record(&job.counters.operators[index]);
        Ok(())
    }

    /// Applies `on_error` to an operator's output, and counts its rows and bytes.
    pub(super) fn record_output(&mut self, job: &JobContext, index: usize, rows_in: usize) {
        self.settle_failures(job);
        self.count_images();
        if self.chunk.rows() != self.rows_at_start {
            self.reclaim_buffers(job);
        }
        let counters = &job.counters.operators[index];
        if counters.is_on() {
            let bytes = chunk_bytes(&self.chunk);
            counters.add_rows(rows_in, self.chunk.rows());
            counters.add_bytes(std::mem::replace(&mut self.bytes, bytes), bytes);
        }
    }

    /// Converts the tensors of the source that no operator has converted. Applies `on_error` to rows with nulls, which a batch
    /// of tensors cannot represent.
    pub(super) fn convert_source_tensors(&mut self, job: &JobContext) -> Result<(), String> {
        for field in &job.compiled.computed_schema().fields {
            if let ColumnType::Tensor { scalar, shape } = &field.column_type {
                let converted = self.chunk.convert_source_tensors(&field.name, (*scalar, shape));
                converted.map_err(|error| error.to_string())?;
            }
        }
        self.settle_failures(job);
        Ok(())
    }

    /// Counts the decoded images against the memory budget, except images that are shared with a cache.
    fn count_images(&mut self) {
        let is_cached = |origin: u32, image: &Image| self.cached_images.contains(&(origin, address(image)));
        let own = images(&self.chunk).filter(|(origin, image)| !is_cached(*origin, image));
        let bytes = own.map(|(_, image)| image.data.len() as u64).sum();
        self.images.resize(bytes);
    }

    /// Removes failed rows if the pipeline has `on_error: skip`.
    fn settle_failures(&mut self, job: &JobContext) {
        if self.chunk.failures.len() == self.settled_failures {
            return;
        }
        self.settled_failures = self.chunk.failures.len();
        if job.compiled.on_error() == OnError::Skip {
            let failed = self.chunk.failed_rows();
            let keep: Vec<bool> = (0..self.chunk.rows()).map(|row| !failed.contains(row)).collect();
            self.chunk.retain(&keep);
            if self.chunk.rows() != self.rows_at_start {
                self.reclaim_buffers(job);
            }
        }
    }

    /// Reclaims the unused parts of the group's buffer after rows have moved. From here on, operators write to their
    /// own buffers, and assembly copies the rows from these buffers.
    fn reclaim_buffers(&mut self, job: &JobContext) {
        for (number, tensor) in job.compiled.tensors.iter().enumerate() {
            if let Some(writer) = &tensor.writer
                && let Some(storage) = self.buffers.take(writer.operator, &writer.column)
            {
                self.reclaimed.push(ReclaimedBuffer { tensor: number, storage });
            }
        }
    }
}

/// Bytes of a chunk's values, without other bytes of shared buffers.
fn chunk_bytes(chunk: &Chunk) -> u64 {
    let bytes = |column: &Column| match column {
        Column::Arrow(array) => array_bytes(array),
        Column::Images(images) => images.iter().map(|image| image.data.len()).sum(),
        Column::Tensor(tensor) => tensor.rows * tensor.row_bytes(),
    };
    chunk.columns.iter().map(|(_, column)| bytes(column) as u64).sum()
}

/// Returns the decoded images of a chunk, each with the origin of its row.
fn images(chunk: &Chunk) -> impl Iterator<Item = (u32, &Image)> {
    let columns = chunk.columns.iter().filter_map(|(_, column)| match column {
        Column::Images(images) => Some(images),
        Column::Arrow(_) | Column::Tensor(_) => None,
    });
    columns.flat_map(move |images| chunk.origins.iter().copied().zip(images))
}

/// Returns the keys of the images whose rows came from a cache.
fn cached_images(chunk: &Chunk, cached: &[Option<Bytes>]) -> BTreeSet<ImageKey> {
    let is_cached = |origin: u32| cached.get(origin as usize).is_some_and(Option::is_some);
    let images = images(chunk).filter(|(origin, _)| is_cached(*origin));
    images.map(|(origin, image)| (origin, address(image))).collect()
}

fn address(image: &Image) -> usize {
    image.data.as_ptr().addr()
}

/// Bytes of an array's own values. The buffers may be shared with other arrays.
fn array_bytes(array: &ArrayRef) -> usize {
    // The length of a view is the lower half of its first word.
    let lengths = |views: &[u128]| views.iter().map(|view| *view as u32 as usize).sum();
    match array.data_type() {
        DataType::BinaryView => lengths(array.as_binary_view().views()),
        DataType::Utf8View => lengths(array.as_string_view().views()),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let (from, to) = (list.value_offsets()[0] as usize, list.value_offsets()[list.len()] as usize);
            array_bytes(&list.values().slice(from, to - from)) + list.len() * size_of::<i32>()
        }
        DataType::FixedSizeList(..) => array_bytes(array.as_fixed_size_list().values()),
        _ => array.to_data().get_slice_memory_size().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryViewArray, ListArray, StringArray};
    use arrow::datatypes::Int32Type;
    use feedline_data::pipeline::{OperatorKind, Pipeline, RandomHorizontalFlip, Resize, Source};
    use feedline_data::schema::Schema;
    use feedline_operators::build_operators;

    use super::*;

    fn image_column(sizes: &[usize]) -> (String, Column) {
        let image = |size: &usize| Image { width: 1, height: 1, data: vec![0; *size].into() };
        ("image".to_owned(), Column::Images(sizes.iter().map(image).collect()))
    }

    /// A chunk with images of these sizes.
    fn work(sizes: &[usize], budget: &MemoryBudget) -> WorkChunk {
        let rows = sizes.len();
        let chunk = Chunk::new(vec![image_column(sizes)], (0..rows as u64).collect(), vec![0; rows]);
        WorkChunk::new(chunk, OutputBuffers::new(), 0, budget)
    }

    #[test]
    fn decoded_images_count_while_a_chunk_holds_them_and_cached_ones_do_not() {
        let budget = MemoryBudget::new(0);
        let mut work = work(&[300, 600], &budget);
        work.count_images();
        assert_eq!(budget.total_used_bytes(), 900);
        let other = budget.reserve(MemoryAccount::Images, 50);
        work.cached_images = cached_images(&work.chunk, &[None, Some(Bytes::new())]);
        work.count_images();
        assert_eq!(budget.total_used_bytes(), 350);
        work.chunk.columns.clear();
        work.count_images();
        assert_eq!(budget.total_used_bytes(), 50, "the images have become part of the batch");
        work.chunk.columns.push(image_column(&[30, 30]));
        work.count_images();
        assert_eq!(budget.total_used_bytes(), 110);
        drop((work, other));
        assert_eq!(budget.total_used_bytes(), 0);
    }

    #[test]
    fn images_that_an_operator_makes_from_cached_ones_count() {
        let budget = MemoryBudget::new(0);
        let mut work = work(&[300, 600, 90], &budget);
        // The cache holds the images.
        let _cached = work.chunk.columns.clone();
        work.cached_images = cached_images(&work.chunk, &[Some(Bytes::new()), Some(Bytes::new()), None]);
        work.count_images();
        assert_eq!(budget.total_used_bytes(), 90);
        let flip = RandomHorizontalFlip { column: "image".to_owned(), p: 1.0 };
        let resize = Resize { column: "image".to_owned(), size: [1, 1] };
        let pipeline = Pipeline::builder("p")
            .source(Source::files("x"))
            .operator(OperatorKind::RandomHorizontalFlip(flip))
            .operator(OperatorKind::Resize(resize))
            .batch(3)
            .build()
            .unwrap();
        let schema = Schema::new([("image", ColumnType::Image)]);
        let operators = build_operators(&pipeline, &schema, &|_| Err("no file is read".to_owned())).unwrap();
        operators[0].operator.apply(&mut work.chunk, &mut work.buffers).unwrap();
        work.count_images();
        assert_eq!(budget.total_used_bytes(), 990);
    }

    #[test]
    fn only_the_values_of_shared_buffers_count() {
        let long = [b'x'; 1000];
        let views = BinaryViewArray::from_iter_values([&long[..], b"short", &long[..]]);
        let of = |array: ArrayRef| array_bytes(&array);
        assert_eq!(of(Arc::new(views.slice(0, 2))), 1005);
        let lists = (0..10).map(|_| Some((0..100).map(Some)));
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
        let bytes = of(Arc::new(lists.slice(0, 2)));
        assert_eq!(bytes, 808);
        let texts = StringArray::from_iter_values(["a".repeat(50), "b".repeat(5000)]);
        let bytes = of(Arc::new(texts.slice(0, 1)));
        assert!((50..70).contains(&bytes), "{bytes}");
    }
}
