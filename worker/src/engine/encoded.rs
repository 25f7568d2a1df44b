//! The encoded rows of a group, and the schedule of its chunks. A chunk starts as soon as its own rows have arrived.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use feedline_operators::OutputBuffers;

use super::chunk::ChunkRows;
use super::failures::{FailedRow, GroupFailures};
use super::pace::{ChunkPlan, Pace};
use super::read::EncodedBlock;

/// The rows of a group that have arrived.
pub(super) struct EncodedRows {
    batches: Vec<Arc<RecordBatch>>,
    /// Mean bytes of a row in each batch.
    row_bytes: Vec<u64>,
    rows: Vec<RowState>,
    /// Rows that could not be read.
    pub(super) failures: GroupFailures,
    /// The newest timestamp of the records, in milliseconds since 1970.
    pub(super) newest_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowState {
    Awaited,
    /// The row was found in the cache.
    Cached,
    Arrived {
        batch: u32,
        row: u32,
    },
    /// The row has no record in the source, so the chunk does not contain it.
    Absent {
        batch: u32,
    },
}

impl EncodedRows {
    /// `cached` has an entry for each row of the group. It is empty if the job has no cache point.
    pub(super) fn new(rows: usize, cached: &[Option<Bytes>]) -> Self {
        let is_cached = |index: usize| cached.get(index).is_some_and(Option::is_some);
        let state = |index| if is_cached(index) { RowState::Cached } else { RowState::Awaited };
        Self {
            batches: Vec::new(),
            row_bytes: Vec::new(),
            rows: (0..rows).map(state).collect(),
            failures: GroupFailures::new(),
            newest_ms: None,
        }
    }

    /// Indexes of the rows that must be read.
    pub(super) fn awaited(&self) -> Vec<usize> {
        (0..self.rows.len()).filter(|&index| self.rows[index] == RowState::Awaited).collect()
    }

    pub(super) fn add(&mut self, block: EncodedBlock) {
        let batch = self.batches.len() as u32;
        self.row_bytes.push(block.bytes / block.batch.num_rows().max(1) as u64);
        self.batches.push(Arc::new(block.batch));
        self.newest_ms = self.newest_ms.max(block.newest_ms);
        for (index, row) in block.rows {
            self.rows[index] = RowState::Arrived { batch, row: row as u32 };
        }
        for index in block.absent {
            self.rows[index] = RowState::Absent { batch };
        }
        for failure in block.failures {
            let failed = FailedRow { offset: Some(failure.offset), reason: failure.reason };
            self.failures.insert(failure.index, failed);
        }
    }

    /// Marks all rows as arrived and failed. `row` is a batch of one row, which replaces each of them.
    pub(super) fn fail_all(&mut self, row: RecordBatch, reason: &str) {
        self.row_bytes.push(0);
        self.batches.push(Arc::new(row));
        self.rows.fill(RowState::Arrived { batch: 0, row: 0 });
        for index in 0..self.rows.len() {
            self.failures.insert(index, FailedRow { offset: None, reason: reason.to_owned() });
        }
    }

    /// Releases the rows. Called when all chunks have started, because each chunk has its own reference to its rows.
    pub(super) fn release(&mut self) {
        self.batches.clear();
    }

    /// Returns the rows of one chunk, with only the batches that contain these rows.
    fn chunk_rows(&self, range: &Range<usize>) -> ChunkRows {
        let mut chunk = ChunkRows::default();
        let mut numbers: Vec<Option<usize>> = vec![None; self.batches.len()];
        for index in range.clone() {
            let (batch, row) = match self.rows[index] {
                RowState::Arrived { batch, row } => (batch as usize, Some(row)),
                RowState::Absent { batch } => (batch as usize, None),
                RowState::Awaited | RowState::Cached => continue,
            };
            let number = *numbers[batch].get_or_insert_with(|| {
                chunk.batches.push(Arc::clone(&self.batches[batch]));
                chunk.batches.len() - 1
            });
            let Some(row) = row else {
                chunk.absent += 1;
                continue;
            };
            chunk.indexes.push(index);
            chunk.locations.push((number, row as usize));
            chunk.bytes += self.row_bytes[batch];
        }
        let failures = self.failures.range(range.clone());
        chunk.failures = failures.map(|(index, failure)| (*index, failure.reason.clone())).collect();
        chunk
    }
}

/// The chunks of a group that have not started.
pub(super) struct ChunkSchedule {
    plan: ChunkPlan,
    pending: Vec<PendingChunk>,
}

struct PendingChunk {
    range: Range<usize>,
    /// All rows of the chunk before this index have arrived.
    arrived_to: usize,
    buffers: OutputBuffers,
}

/// A chunk whose rows have all arrived.
pub(super) struct ReadyChunk {
    pub(super) range: Range<usize>,
    pub(super) encoded: ChunkRows,
    pub(super) buffers: OutputBuffers,
}

impl ChunkSchedule {
    pub(super) fn new(rows: usize) -> Self {
        Self { plan: ChunkPlan::new(rows), pending: Vec::new() }
    }

    /// Plans chunks at the current pace, in row order. `buffers` returns the output buffers for a chunk with a given
    /// number of rows.
    pub(super) fn plan(&mut self, pace: &Pace, mut buffers: impl FnMut(usize) -> OutputBuffers) {
        while let Some(range) = self.plan.next_chunk(pace) {
            let buffers = buffers(range.len());
            self.pending.push(PendingChunk { arrived_to: range.start, range, buffers });
        }
    }

    /// Whether all chunks of the group have started.
    pub(super) fn is_complete(&self) -> bool {
        self.plan.is_complete() && self.pending.is_empty()
    }

    /// Removes the chunks whose rows have all arrived.
    pub(super) fn take_ready(&mut self, encoded: &EncodedRows) -> Vec<ReadyChunk> {
        let is_ready = |pending: &mut PendingChunk| {
            let rest = &encoded.rows[pending.arrived_to..pending.range.end];
            pending.arrived_to += rest.iter().take_while(|row| **row != RowState::Awaited).count();
            pending.arrived_to == pending.range.end
        };
        let ready = self.pending.extract_if(.., is_ready).map(|pending| ReadyChunk {
            encoded: encoded.chunk_rows(&pending.range),
            range: pending.range,
            buffers: pending.buffers,
        });
        ready.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::array::{ArrayRef, Int32Array};
    use feedline_data::layout::Layout;
    use feedline_data::pipeline::Remainder;

    use super::super::read::ReadFailure;
    use super::*;

    fn block(rows: &[(usize, usize)], failures: Vec<ReadFailure>) -> EncodedBlock {
        let numbers = Arc::new(Int32Array::from(vec![0; rows.len()])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("n", numbers)]).expect("one column");
        let bytes = 10 * rows.len() as u64;
        let (absent, newest_ms, cpu) = (Vec::new(), None, Duration::ZERO);
        EncodedBlock { batch, rows: rows.to_vec(), failures, absent, newest_ms, bytes, cpu }
    }

    /// A pace at which a chunk has this number of rows.
    fn pace(chunk_rows: u32) -> Pace {
        let layout = Layout {
            dataset_rows: 64,
            passes: 1,
            epochs: 1,
            streams: 1,
            batch_rows: 8,
            remainder: Remainder::Emit,
            changes_rows: false,
            split_rows: 64,
            group_rows: 8,
            coordinated: false,
            runs: Default::default(),
            mix_changes: Vec::new(),
            unbounded: false,
            indivisible: false,
        };
        let pace = Pace::new(&layout, chunk_rows, 2);
        pace.record_chunk(1000, Duration::from_nanos(1));
        pace
    }

    /// First rows of the chunks that are ready.
    fn ready(schedule: &mut ChunkSchedule, encoded: &EncodedRows) -> Vec<usize> {
        schedule.take_ready(encoded).into_iter().map(|chunk| chunk.range.start).collect()
    }

    #[test]
    fn a_chunk_starts_when_its_own_rows_have_arrived() {
        let mut encoded = EncodedRows::new(6, &[]);
        let mut schedule = ChunkSchedule::new(6);
        let mut sizes = Vec::new();
        schedule.plan(&pace(2), |rows| {
            sizes.push(rows);
            OutputBuffers::new()
        });
        assert_eq!(sizes, [2, 2, 2]);
        assert!(ready(&mut schedule, &encoded).is_empty());
        encoded.add(block(&[(4, 0), (5, 1), (0, 2)], Vec::new()));
        assert_eq!(ready(&mut schedule, &encoded), [4], "its rows arrived before those of other chunks");
        encoded.add(block(&[(1, 0)], Vec::new()));
        assert_eq!(ready(&mut schedule, &encoded), [0]);
        assert!(ready(&mut schedule, &encoded).is_empty(), "each chunk starts once");
        encoded.add(block(&[(3, 0), (2, 1)], Vec::new()));
        assert!(!schedule.is_complete());
        assert_eq!(ready(&mut schedule, &encoded), [2]);
        assert!(schedule.is_complete());
        let batch = Arc::downgrade(&encoded.batches[0]);
        encoded.release();
        assert!(batch.upgrade().is_none());
    }

    #[test]
    fn cached_rows_are_not_read_and_do_not_delay_a_chunk() {
        let cached = [Some(Bytes::new()), None, Some(Bytes::new()), Some(Bytes::new())];
        let mut encoded = EncodedRows::new(4, &cached);
        assert_eq!(encoded.awaited(), [1]);
        let mut schedule = ChunkSchedule::new(4);
        schedule.plan(&pace(2), |_| OutputBuffers::new());
        let chunk = schedule.take_ready(&encoded).pop().expect("all its rows are cached");
        assert_eq!((chunk.range, chunk.encoded.indexes.len()), (2..4, 0));
        encoded.add(block(&[(1, 0)], Vec::new()));
        let chunk = schedule.take_ready(&encoded).pop().expect("its row has arrived");
        assert_eq!((chunk.range, chunk.encoded.indexes), (0..2, vec![1]));
    }

    #[test]
    fn a_chunk_does_not_contain_rows_without_a_record() {
        let mut encoded = EncodedRows::new(3, &[]);
        encoded.add(EncodedBlock { absent: vec![0, 2], ..block(&[(0, 0), (1, 1), (2, 2)], Vec::new()) });
        assert!(encoded.awaited().is_empty());
        let rows = encoded.chunk_rows(&(0..3));
        assert_eq!((rows.indexes, rows.locations, rows.absent), (vec![1], vec![(0, 1)], 2));
        let rows = encoded.chunk_rows(&(2..3));
        assert_eq!(
            (rows.batches.len(), rows.indexes.len(), rows.absent),
            (1, 0, 1),
            "the batch has the columns"
        );
    }

    #[test]
    fn a_chunk_holds_only_the_batches_and_failures_of_its_rows() {
        let mut encoded = EncodedRows::new(4, &[]);
        encoded.add(block(&[(0, 7), (1, 3)], Vec::new()));
        let failure = ReadFailure { index: 3, offset: 99, reason: "bad checksum".to_owned() };
        encoded.add(block(&[(2, 5), (3, 1)], vec![failure]));
        assert!(encoded.awaited().is_empty());
        let rows = encoded.chunk_rows(&(2..4));
        assert_eq!(rows.batches.len(), 1);
        assert!(Arc::ptr_eq(&rows.batches[0], &encoded.batches[1]));
        assert_eq!((rows.indexes, rows.locations, rows.bytes), (vec![2, 3], vec![(0, 5), (0, 1)], 20));
        assert_eq!(rows.failures, [(3, "bad checksum".to_owned())]);
        assert_eq!(encoded.failures[&3].offset, Some(99));
        let rows = encoded.chunk_rows(&(1..3));
        assert_eq!((rows.batches.len(), rows.locations), (2, vec![(0, 3), (1, 5)]));
        assert!(rows.failures.is_empty());
    }
}
