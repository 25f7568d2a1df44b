//! A chunk of a group's rows on its way through the operators: built from what was read, worked on, kept at a cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::DataType;
use bytes::Bytes;
use feedline_data::order::RowRef;
use feedline_data::pipeline::OnError;
use feedline_operators::{Chunk, Column, Image, OutputBuffers};

use super::encodings::EncodingPermission;
use super::group::MemoryReservation;
use super::job::JobContext;
use super::trace::{Lap, QueuedRows};
use crate::cache::Caches;

/// A chunk with what the engine keeps beside it.
pub(super) struct WorkChunk {
    pub(super) chunk: Chunk,
    pub(super) slots: OutputBuffers,
    /// Place of its first row in the group.
    pub(super) start: usize,
    /// Rows it entered with: of its range, or, before a `cache`, those that are not kept.
    pub(super) entered: usize,
    /// Rows that were read for it.
    pub(super) made: usize,
    /// Failures that the engine has dealt with.
    pub(super) handled: usize,
    /// Parts of the final buffer that no operator may write to any more, since rows have moved.
    pub(super) reclaimed: Vec<(usize, bytes::BytesMut)>,
    /// Bytes of its rows.
    pub(super) bytes: u64,
    /// Its decoded images, in the worker's memory.
    pub(super) images: MemoryReservation,
    /// Rows, by origin, and addresses of images that a cache had: they count as kept in memory, or as read.
    pub(super) found_images: BTreeSet<(u32, usize)>,
    /// What it has taken so far, without waiting for turns.
    pub(super) took: Duration,
    /// Once it has passed all operators: it waits to be put into its batch.
    pub(super) waiting: Option<QueuedRows>,
}

/// What a chunk is made of.
pub(super) struct ChunkInput {
    pub(super) rows: Arc<Vec<RowRef>>,
    pub(super) batches: Arc<Vec<RecordBatch>>,
    /// Where in the batches the rows are that were read.
    pub(super) places: Arc<Vec<(usize, (usize, usize))>>,
    /// The rows that a cache has; empty where the pipeline has none.
    pub(super) found: Arc<Vec<Option<Bytes>>>,
    pub(super) failed: Arc<BTreeMap<usize, (Option<u64>, String)>>,
    pub(super) range: Range<usize>,
    /// Bytes of its rows as they were read, for what waits.
    pub(super) bytes: u64,
}

impl ChunkInput {
    /// Places of its rows that were read, with where they are in the batches.
    fn read(&self) -> &[(usize, (usize, usize))] {
        let at = |place: usize| self.places.partition_point(|(read, _)| *read < place);
        &self.places[at(self.range.start)..at(self.range.end)]
    }

    pub(super) fn is_read(&self) -> bool {
        !self.read().is_empty()
    }

    /// Gathers the chunk's rows that were read: views of the blocks' buffers, not copies.
    /// Its images count in `image_bytes`.
    pub(super) fn build(
        &self,
        job: &JobContext,
        slots: OutputBuffers,
        image_bytes: &Arc<AtomicU64>,
        lap: &mut Lap,
    ) -> Result<WorkChunk, String> {
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        let (places, picked): (Vec<usize>, Vec<(usize, usize)>) = self.read().iter().copied().unzip();
        let rows = || places.iter().map(|&place| &self.rows[place]);
        let mut columns = Vec::new();
        if !picked.is_empty() {
            let batch = interleave_record_batch(&batches, &picked).map_err(|error| {
                format!("blocks of a dataset differ in their columns: {error}; index it again")
            })?;
            let names = batch.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
            columns.extend(names.into_iter().zip(batch.columns().iter().cloned().map(Column::Arrow)));
        }
        let mut chunk =
            Chunk::new(columns, rows().map(|row| row.row_id).collect(), rows().map(|row| row.pass).collect());
        chunk.origins = places.iter().map(|place| (place - self.range.start) as u32).collect();
        for (row, place) in places.iter().enumerate() {
            if let Some((_, reason)) = self.failed.get(place) {
                chunk.fail(row, reason.clone());
            }
        }
        let mut work = WorkChunk {
            chunk,
            slots,
            start: self.range.start,
            entered: picked.len(),
            made: picked.len(),
            handled: 0,
            reclaimed: Vec::new(),
            bytes: 0,
            images: MemoryReservation::new(0, image_bytes),
            found_images: BTreeSet::new(),
            took: Duration::ZERO,
            waiting: None,
        };
        work.settle_failures(job);
        if job.is_traced() {
            work.bytes = chunk_bytes(&work.chunk);
            job.source_counters.add_bytes(0, work.bytes);
        }
        lap.to(&job.source_counters);
        Ok(work)
    }

    /// Keeps the rows that were made up to the cut, and adds those that were kept.
    pub(super) fn join(
        &self,
        job: &JobContext,
        (caches, is_idle): (&Caches, bool),
        work: &mut WorkChunk,
        lap: &mut Lap,
    ) -> Result<(), String> {
        let Some(cut) = &job.cut else { return Ok(()) };
        let leave = EncodingPermission {
            is_idle,
            is_cheap: job.kernel_time.is_low(),
            used_ns: job.operator_counters.get(cut.place).map_or(0, |counters| counters.snapshot().cpu_ns),
            trials: job.trials.as_deref(),
            passes_left: job.passes_after(self.rows[self.range.start].pass),
        };
        let found = &self.found[self.range.clone()];
        cut.join(work, caches, found, &self.rows[self.range.clone()], &leave)?;
        work.found_images = found_images(&work.chunk, found);
        work.entered = self.range.len();
        if work.chunk.rows() != work.entered {
            work.reclaim(job);
        }
        if job.is_traced() {
            work.bytes = chunk_bytes(&work.chunk);
        }
        lap.to(&cut.counters);
        Ok(())
    }
}

impl WorkChunk {
    /// Runs one operator and counts what it did.
    pub(super) fn apply(&mut self, job: &JobContext, place: usize, lap: &mut Lap) -> Result<(), String> {
        let operator = &job.operators[place];
        let rows_in = self.chunk.rows();
        if let Some(trials) = job.trials.as_ref().filter(|trials| trials.place == place) {
            trials.try_one(&self.chunk, operator);
        }
        let result = operator.operator.apply(&mut self.chunk, &mut self.slots);
        result.map_err(|error| format!("operator {} ({}): {error}", place + 1, operator.name))?;
        self.applied(job, place, rows_in);
        lap.to(&job.operator_counters[place]);
        Ok(())
    }

    /// Settles what an operator has done to the chunk, which had so many rows.
    pub(super) fn applied(&mut self, job: &JobContext, place: usize, rows_in: usize) {
        self.settle_failures(job);
        self.count_images();
        if self.chunk.rows() != self.entered {
            self.reclaim(job);
        }
        let counters = &job.operator_counters[place];
        if counters.is_on() {
            let bytes = chunk_bytes(&self.chunk);
            counters.add_rows(rows_in, self.chunk.rows());
            counters.add_bytes(std::mem::replace(&mut self.bytes, bytes), bytes);
        }
    }

    /// Counts the decoded images that it has now, so that no groups begin in the room that they take: also those that an
    /// operator has made of found ones.
    fn count_images(&mut self) {
        let is_found = |origin: u32, image: &Image| self.found_images.contains(&(origin, address(image)));
        let own = images(&self.chunk).filter(|(origin, image)| !is_found(*origin, image));
        let bytes = own.map(|(_, image)| image.data.len() as u64).sum();
        self.images.set(bytes);
    }

    /// Under `on_error: skip` rows that failed leave at once.
    fn settle_failures(&mut self, job: &JobContext) {
        if self.chunk.failures.len() == self.handled {
            return;
        }
        self.handled = self.chunk.failures.len();
        if job.on_error() == OnError::Skip {
            let failed = self.chunk.failed_rows();
            let keep: Vec<bool> = (0..self.chunk.rows()).map(|row| !failed.contains(row)).collect();
            self.chunk.retain(&keep);
            if self.chunk.rows() != self.entered {
                self.reclaim(job);
            }
        }
    }

    /// Rows have moved: what is not written yet is written elsewhere and copied when the batch is put together.
    fn reclaim(&mut self, job: &JobContext) {
        for (number, tensor) in job.tensors.iter().enumerate() {
            if let Some((operator, column)) = &tensor.writer
                && let Some(storage) = self.slots.take(*operator, column)
            {
                self.reclaimed.push((number, storage));
            }
        }
    }
}

/// Bytes of a chunk's values, without what its buffers hold beside them.
fn chunk_bytes(chunk: &Chunk) -> u64 {
    let bytes = |column: &Column| match column {
        Column::Arrow(array) => array_bytes(array),
        Column::Images(images) => images.iter().map(|image| image.data.len()).sum(),
        Column::Tensor(tensor) => tensor.rows * tensor.row_bytes(),
    };
    chunk.columns.iter().map(|(_, column)| bytes(column) as u64).sum()
}

/// A chunk's decoded images, each with the origin of its row.
fn images(chunk: &Chunk) -> impl Iterator<Item = (u32, &Image)> {
    let columns = chunk.columns.iter().filter_map(|(_, column)| match column {
        Column::Images(images) => Some(images),
        Column::Arrow(_) | Column::Tensor(_) => None,
    });
    columns.flat_map(move |images| chunk.origins.iter().copied().zip(images))
}

/// Origins and addresses of the images in rows that a cache had.
fn found_images(chunk: &Chunk, found: &[Option<Bytes>]) -> BTreeSet<(u32, usize)> {
    let is_found = |origin: u32| found.get(origin as usize).is_some_and(Option::is_some);
    let images = images(chunk).filter(|(origin, _)| is_found(*origin));
    images.map(|(origin, image)| (origin, address(image))).collect()
}

fn address(image: &Image) -> usize {
    image.data.as_ptr().addr()
}

/// Parts of other arrays may be behind an array: only its own values count.
fn array_bytes(array: &ArrayRef) -> usize {
    // A view's length is the lower half of its first word.
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
    use std::sync::atomic::Ordering;

    use arrow::array::{BinaryViewArray, ListArray, StringArray};
    use arrow::datatypes::Int32Type;
    use feedline_data::pipeline::{OperatorKind, Pipeline, RandomHorizontalFlip, Resize, Source};
    use feedline_data::schema::{ColumnType, Schema};
    use feedline_operators::build_operators;

    use super::*;

    fn image_column(sizes: &[usize]) -> (String, Column) {
        let image = |size: &usize| Image { width: 1, height: 1, data: vec![0; *size].into() };
        ("image".to_owned(), Column::Images(sizes.iter().map(image).collect()))
    }

    /// A chunk with images of these sizes.
    fn work(sizes: &[usize], all: &Arc<AtomicU64>) -> WorkChunk {
        let rows = sizes.len();
        WorkChunk {
            chunk: Chunk::new(vec![image_column(sizes)], (0..rows as u64).collect(), vec![0; rows]),
            slots: OutputBuffers::new(),
            start: 0,
            entered: rows,
            made: rows,
            handled: 0,
            reclaimed: Vec::new(),
            bytes: 0,
            images: MemoryReservation::new(0, all),
            found_images: BTreeSet::new(),
            took: Duration::ZERO,
            waiting: None,
        }
    }

    #[test]
    fn decoded_images_count_as_long_as_a_chunk_has_them_and_found_ones_count_where_they_are_kept() {
        let all = Arc::new(AtomicU64::new(0));
        let mut work = work(&[300, 600], &all);
        work.count_images();
        assert_eq!(all.load(Ordering::Relaxed), 900);
        let beside = MemoryReservation::new(50, &all);
        work.found_images = found_images(&work.chunk, &[None, Some(Bytes::new())]);
        work.count_images();
        assert_eq!(all.load(Ordering::Relaxed), 350);
        work.chunk.columns.clear();
        work.count_images();
        assert_eq!(all.load(Ordering::Relaxed), 50, "they have become a part of the batch");
        work.chunk.columns.push(image_column(&[30, 30]));
        work.count_images();
        assert_eq!(all.load(Ordering::Relaxed), 110);
        drop((work, beside));
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn images_that_an_operator_makes_of_found_ones_count() {
        let all = Arc::new(AtomicU64::new(0));
        let mut work = work(&[300, 600, 90], &all);
        // What the cache holds.
        let _kept = work.chunk.columns.clone();
        work.found_images = found_images(&work.chunk, &[Some(Bytes::new()), Some(Bytes::new()), None]);
        work.count_images();
        assert_eq!(all.load(Ordering::Relaxed), 90);
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
        let operators = build_operators(&pipeline, &schema, &|_| Err("nothing is read".to_owned())).unwrap();
        operators[0].operator.apply(&mut work.chunk, &mut work.slots).unwrap();
        work.count_images();
        assert_eq!(all.load(Ordering::Relaxed), 990);
    }

    #[test]
    fn bytes_are_those_of_the_values_and_not_of_their_buffers() {
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
