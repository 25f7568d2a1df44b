//! Determines the sizes of groups and chunks from the measured time per row.
//!
//! A chunk of slow rows takes one thread 5 to 31 ms, so that all threads of a worker can work on the same group. A group
//! of slow rows has few batches, so that the first rows are delivered early, but enough rows to keep all threads busy.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feedline_data::layout::Layout;

/// Maximum time that a thread spends on a chunk if the worker has many threads, including waits in operators. A single row
/// may take longer.
const SMALL_CHUNK_TIME: Duration = Duration::from_millis(5);
/// Maximum time that one thread would need for a group, or [`SMALL_CHUNK_TIME`] for each thread if that is more. A single
/// batch may take longer.
const GROUP_TIME: Duration = Duration::from_millis(250);
/// Number of chunks for each thread in a group of [`GROUP_TIME`], if the worker has few threads. Larger chunks cost less
/// CPU time per row, and the threads still finish a group at about the same time.
const CHUNKS_PER_THREAD: u32 = 8;
/// Weight of the newest chunk in the moving average of the time per row.
const NEWEST_WEIGHT: f64 = 0.125;

/// The measured time per row of a job, and the sizes of its next groups and chunks.
#[derive(Debug)]
pub(crate) struct Pace {
    batch_rows: u32,
    group_rows_max: u32,
    chunk_rows_max: u32,
    threads: u32,
    /// Moving average of the seconds that one thread spends on a row, stored as the bits of an `f64`. 0 before the
    /// first chunk.
    row_seconds: AtomicU64,
}

impl Pace {
    /// Creates the pace of a job on a worker with `threads` threads. No chunk has more than `chunk_rows_max` rows.
    pub(crate) fn new(layout: &Layout, chunk_rows_max: u32, threads: u32) -> Self {
        Self {
            batch_rows: layout.batch_rows,
            group_rows_max: layout.group_rows,
            chunk_rows_max,
            threads: threads.max(1),
            row_seconds: AtomicU64::new(0),
        }
    }

    /// Records the time that one thread spent on a chunk of `rows` rows.
    pub(crate) fn record_chunk(&self, rows: usize, took: Duration) {
        if rows == 0 {
            return;
        }
        let newest = (took.as_secs_f64() / rows as f64).max(f64::MIN_POSITIVE);
        let average =
            self.row_seconds().map_or(newest, |average| average + NEWEST_WEIGHT * (newest - average));
        // If two chunks finish at the same moment, one of them may not be counted.
        self.row_seconds.store(average.to_bits(), Ordering::Relaxed);
    }

    /// Returns `None` before the first chunk has finished.
    fn row_seconds(&self) -> Option<f64> {
        Some(f64::from_bits(self.row_seconds.load(Ordering::Relaxed))).filter(|seconds| *seconds > 0.0)
    }

    /// Returns the number of rows of the next group: one batch before the first measurement, and whole batches later.
    /// The number of batches is a power of two or the maximum, so that small changes in pace do not change the size.
    pub(crate) fn group_rows(&self) -> u32 {
        let Some(row_seconds) = self.row_seconds() else {
            return self.batch_rows.min(self.group_rows_max);
        };
        let group_time = GROUP_TIME.max(SMALL_CHUNK_TIME * self.threads);
        let batches = group_time.as_secs_f64() / (row_seconds * f64::from(self.batch_rows));
        if batches >= f64::from(self.group_rows_max / self.batch_rows) {
            return self.group_rows_max;
        }
        self.batch_rows * (1 << (batches.max(1.0) as u32).ilog2())
    }

    /// Returns the number of groups of the current size that together have as many rows as a group of maximum size.
    pub(crate) fn groups_per_full_group(&self) -> usize {
        (self.group_rows_max / self.group_rows().max(1)).max(1) as usize
    }

    /// Returns the number of rows of the next chunk, or `None` before the first measurement.
    fn chunk_rows(&self) -> Option<usize> {
        let row_seconds = self.row_seconds()?;
        let small = SMALL_CHUNK_TIME.as_secs_f64() / row_seconds;
        let large = (GROUP_TIME / (CHUNKS_PER_THREAD * self.threads)).as_secs_f64() / row_seconds;
        // Each thread receives a part of a group that is shorter than GROUP_TIME.
        let rows = small.max(large.min(f64::from(self.group_rows().div_ceil(self.threads))));
        Some(rows.clamp(1.0, f64::from(self.chunk_rows_max.max(1))) as usize)
    }
}

/// Divides the rows of one group into chunks. Before the pace is measured, it yields a chunk with a single row for each
/// thread.
#[derive(Debug)]
pub(super) struct ChunkPlan {
    rows: usize,
    next: usize,
}

impl ChunkPlan {
    pub(super) fn new(rows: usize) -> Self {
        Self { rows, next: 0 }
    }

    /// Whether all rows of the group have been assigned to chunks.
    pub(super) fn is_complete(&self) -> bool {
        self.next == self.rows
    }

    /// Returns the next chunk. `None` at the end of the group, or while no measurement is available and each thread has
    /// a chunk.
    pub(super) fn next_chunk(&mut self, pace: &Pace) -> Option<Range<usize>> {
        let is_probing = self.next < pace.threads as usize;
        let rows = pace.chunk_rows().or_else(|| is_probing.then_some(1))?;
        let start = self.next;
        self.next = (start + rows).min(self.rows);
        (start < self.next).then_some(start..self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pace(batch_rows: u32, group_rows_max: u32, threads: u32) -> Pace {
        Pace { batch_rows, group_rows_max, chunk_rows_max: 500, threads, row_seconds: AtomicU64::new(0) }
    }

    fn chunks(plan: &mut ChunkPlan, pace: &Pace) -> Vec<Range<usize>> {
        std::iter::from_fn(|| plan.next_chunk(pace)).collect()
    }

    #[test]
    fn a_job_starts_with_one_batch_and_continues_with_full_groups() {
        let pace = pace(128, 640, 2);
        assert_eq!((pace.group_rows(), pace.chunk_rows()), (128, None));
        pace.record_chunk(128, MS / 10);
        assert_eq!(pace.group_rows(), 640, "the largest group need not be a power of two");
        assert_eq!((pace.groups_per_full_group(), pace.chunk_rows()), (1, Some(500)));
    }

    #[test]
    fn a_group_of_slow_rows_takes_one_thread_a_quarter_of_a_second() {
        let pace = pace(20, 1040, 2);
        pace.record_chunk(20, 20 * 4 * MS);
        assert_eq!(pace.group_rows(), 40, "40 rows take 160 ms, and 80 rows would take 320 ms");
        assert_eq!(pace.groups_per_full_group(), 26);
        (0..100).for_each(|_| pace.record_chunk(1, 1000 * MS));
        assert_eq!(pace.group_rows(), 20, "a group has at least one batch");
        (0..200).for_each(|_| pace.record_chunk(20, MS / 50));
        assert_eq!(pace.group_rows(), 1040, "the size follows when rows become fast");
    }

    #[test]
    fn a_group_has_a_chunk_for_each_of_many_threads() {
        let pace = pace(1, 4096, 1000);
        pace.record_chunk(1, 5 * MS);
        assert_eq!(pace.group_rows(), 512, "the power of two below 1000 rows of 5 ms");
    }

    #[test]
    fn a_chunk_of_many_threads_takes_at_most_five_milliseconds_but_has_at_least_one_row() {
        let of_rows = |time: Duration| {
            let pace = pace(1, 4096, 64);
            pace.record_chunk(10, 10 * time);
            pace.chunk_rows()
        };
        assert_eq!([MS, 2 * MS, 3 * MS, 400 * MS].map(of_rows), [Some(5), Some(2), Some(1), Some(1)]);
        assert_eq!(of_rows(MS / 1000), Some(500), "chunks are limited in bytes as well");
    }

    #[test]
    fn each_of_a_few_threads_has_eight_chunks_of_a_group() {
        let on_threads = |group_rows_max: u32, threads: u32| {
            let pace = pace(1, group_rows_max, threads);
            pace.record_chunk(1, MS);
            pace.chunk_rows()
        };
        let long = [1, 2, 4, 8].map(|threads| on_threads(4096, threads));
        assert_eq!(long, [Some(31), Some(15), Some(7), Some(5)]);
        let short = [1, 2, 4].map(|threads| on_threads(16, threads));
        assert_eq!(short, [Some(16), Some(8), Some(5)], "each thread has a part of a short group");
    }

    #[test]
    fn the_average_moves_by_an_eighth_and_ignores_chunks_without_rows() {
        let pace = pace(20, 1040, 2);
        pace.record_chunk(0, 1000 * MS);
        assert_eq!(pace.row_seconds(), None);
        pace.record_chunk(2, 8 * MS);
        pace.record_chunk(0, 1000 * MS);
        pace.record_chunk(1, 12 * MS);
        assert_eq!(pace.row_seconds().map(|seconds| (seconds * 1e6).round()), Some(5000.0));
    }

    #[test]
    fn the_first_group_starts_with_one_row_for_each_thread() {
        let (pace, mut plan) = (pace(512, 512, 4), ChunkPlan::new(512));
        assert_eq!(chunks(&mut plan, &pace), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(plan.next_chunk(&pace), None, "the rest waits for a measurement");
        pace.record_chunk(1, Duration::from_nanos(19_900));
        assert_eq!(chunks(&mut plan, &pace), [4..255, 255..506, 506..512]);
    }

    #[test]
    fn one_group_of_slow_rows_keeps_all_threads_busy() {
        let pace = pace(512, 512, 64);
        pace.record_chunk(1, 4 * MS);
        let chunks = chunks(&mut ChunkPlan::new(512), &pace);
        assert_eq!(chunks.len(), 512, "each of 64 threads gets eight chunks of one row");
    }

    #[test]
    fn chunks_cover_a_group_whatever_the_pace() {
        for step in 1..200_u32 {
            let (pace, mut plan) = (pace(64, 64, 1 + step % 7), ChunkPlan::new(64));
            let mut covered = 0;
            loop {
                for chunk in chunks(&mut plan, &pace) {
                    assert!(chunk.start == covered && chunk.end > covered, "step {step}");
                    covered = chunk.end;
                }
                assert_eq!(plan.is_complete(), covered == 64);
                if covered == 64 {
                    break;
                }
                pace.record_chunk(1, MS * (step % 13) / 3);
            }
            assert_eq!(plan.next_chunk(&pace), None);
        }
    }
}
