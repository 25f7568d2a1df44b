//! A job on one worker: the compiled pipeline, its current limits, its counters and its measured sizes.

mod compiled;
mod counters;
mod group_blocks;
mod row_order;
mod segments;
mod tensors;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feedline_data::ids::JobId;
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::messages::{JobSegments, OperatorStats};
use feedline_data::mix::MixChange;
use feedline_data::order::RowRef;
use feedline_data::sequence::Sequence;

pub(crate) use self::compiled::{CompileContext, CompiledJob, JobSource};
pub(crate) use self::counters::JobCounters;
pub(crate) use self::group_blocks::GroupBlocks;
pub(crate) use self::row_order::RowOrder;
use self::segments::SegmentTable;
use super::allocation::JobLimits;
use super::cache_point::CachePoint;
use super::encodings::{EncodingTrials, KernelTime};
use super::pace::Pace;
use crate::process::ProcessClock;

pub(crate) struct JobContext {
    pub(crate) compiled: CompiledJob,
    /// The current limits of the job.
    pub(crate) limits: JobLimits,
    pub(crate) counters: JobCounters,
    /// Determines the sizes of groups and chunks.
    pub(crate) pace: Arc<Pace>,
    /// The kernel's fraction of the pool's CPU time. Measured only if the plan caches rows.
    pub(crate) kernel_time: KernelTime,
    order: RowOrder,
    /// The segments of the plan, in an unbounded job.
    segments: Option<Arc<SegmentTable>>,
    clock: Arc<ProcessClock>,
    /// Largest number of bytes per row so far in a batch's columns of varying size.
    tail_row_bytes: AtomicU64,
    /// The size of sampled graphs. `None` if batches consist of rows.
    graph_bytes: Option<GraphBytes>,
    /// Total time by which `wait` operators have waited too long.
    pub(super) wait_overshoot: WaitOvershoot,
}

/// Total time by which waits were too long, because timers have a resolution of 1 ms and tasks run late on a busy machine.
/// Later waits are shortened by this time, so that waits have the correct length on average.
#[derive(Debug, Default)]
pub(super) struct WaitOvershoot(AtomicU64);

impl WaitOvershoot {
    /// Removes and returns the accumulated overshoot, at most `limit`.
    pub(super) fn take(&self, limit: Duration) -> Duration {
        let take = |ns: u64| Some(ns - ns.min(limit.as_nanos() as u64));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        Duration::from_nanos(before).min(limit)
    }

    /// Adds the overshoot of one wait, at most the length of the wait.
    pub(super) fn add(&self, overshoot: Duration, wanted: Duration) {
        self.0.fetch_add(overshoot.min(wanted).as_nanos() as u64, Ordering::Relaxed);
    }
}

/// The size of sampled graphs: the expected size until the first one is known, and then the largest size so far.
#[derive(Debug)]
struct GraphBytes {
    expected: AtomicU64,
    largest: AtomicU64,
}

impl GraphBytes {
    fn of_next_batch(&self) -> u64 {
        match self.largest.load(Ordering::Relaxed) {
            0 => self.expected.load(Ordering::Relaxed),
            largest => largest,
        }
    }
}

impl JobContext {
    /// Compiles a job. Counters, pace and permits of the `previous` compilation are kept.
    ///
    /// # Errors
    /// Returns a message if a file that the pipeline uses cannot be read, or if the worker does not run Python
    /// functions.
    pub(crate) async fn load(
        source: JobSource,
        context: CompileContext<'_>,
        previous: Option<&Self>,
    ) -> Result<Self, String> {
        let cache_counters = previous.and_then(|job| job.counters.cache.clone());
        let (before, tracing) = (previous.map(|job| &job.compiled), context.tracing);
        let compiled = CompiledJob::compile(source, context, before, cache_counters).await?;
        let pipeline = &compiled.details.pipeline;
        let batch_parallelism = pipeline.operators.last().and_then(|batch| batch.parallelism);
        let operators = &compiled.operators;
        let cache_operator = compiled.cache_point.as_ref().map(|cache_point| cache_point.operator);
        let threads = context.settings.threads;
        let mut limits = JobLimits::new(operators, cache_operator, batch_parallelism, threads);
        let mut counters = match previous {
            Some(previous) => {
                limits.share_permits(&previous.limits);
                previous.counters.clone()
            }
            None => JobCounters::new(operators, batch_parallelism, &compiled.manifest, tracing),
        };
        if previous.is_none() && tracing.is_on && pipeline.cached_prefix().is_none() {
            counters.trials = EncodingTrials::new(pipeline, operators).map(Arc::new);
        }
        if let Some(cache_point) = &compiled.cache_point {
            counters.cache = Some(cache_point.counters.clone());
        }
        let layout = &compiled.details.layout;
        let new_pace = || Arc::new(Pace::new(layout, compiled.chunk_rows_max, threads));
        let new_segments = || Arc::new(SegmentTable::new(pipeline, layout.streams));
        let segments = previous.and_then(|job| job.segments.clone());
        Ok(Self {
            segments: layout.unbounded.then(|| segments.unwrap_or_else(new_segments)),
            pace: previous.map_or_else(new_pace, |job| Arc::clone(&job.pace)),
            order: RowOrder::new(Sequence::new(pipeline, &compiled.manifest, layout)),
            tail_row_bytes: AtomicU64::new(compiled.tail_row_bytes),
            graph_bytes: compiled.graph.as_ref().map(|graph| GraphBytes {
                expected: AtomicU64::new(graph.expected_bytes),
                largest: AtomicU64::new(previous.map_or(0, Self::largest_graph_bytes)),
            }),
            kernel_time: KernelTime::default(),
            wait_overshoot: WaitOvershoot::default(),
            clock: Arc::clone(&tracing.clock),
            counters,
            limits,
            compiled,
        })
    }

    pub(crate) fn id(&self) -> JobId {
        self.compiled.details.job
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.compiled.details.layout
    }

    /// Returns the rows at a range of offsets in a split without padding, which follows all other rows, and their blocks.
    ///
    /// # Errors
    /// Returns a message if the plan does not contain the segment of the split.
    pub(crate) fn rows(
        &self,
        split: SplitRef,
        offsets: Range<u32>,
    ) -> Result<(Vec<RowRef>, GroupBlocks), String> {
        if let Some(segments) = &self.segments {
            let segment = segments.rows_of(split).ok_or_else(|| {
                format!("the plan has no segment of round {}; please report this", split.ordinal)
            })?;
            return Ok((segment.order.rows(split, offsets), GroupBlocks::Segment(segment)));
        }
        let start = self.layout().split_range(split).start;
        let indexes = start + u64::from(offsets.start)..start + u64::from(offsets.end);
        let rows = self.order.rows(self.layout(), split.epoch, indexes);
        Ok((rows, GroupBlocks::Manifest(Arc::clone(&self.compiled.manifest))))
    }

    /// Extends the offsets of a group that contains the last row of a split by the padding of the split. Returns the offsets,
    /// and the number of rows without padding.
    pub(crate) fn with_padding(&self, split: SplitRef, offsets: Range<u32>) -> (Range<u32>, u32) {
        let rows = self.segments.as_ref().and_then(|segments| segments.split_rows(split));
        match rows {
            Some(rows) if offsets.end >= rows => {
                (offsets.start..self.layout().split_len(split), rows.saturating_sub(offsets.start))
            }
            _ => (offsets.clone(), offsets.end - offsets.start),
        }
    }

    /// Replaces the segments of an unbounded job.
    pub(crate) fn set_segments(&self, planned: &JobSegments) {
        if let Some(segments) = &self.segments {
            segments.set(planned);
        }
    }

    /// Applies changes to the mix weights. They affect only rows for which no lease has been granted.
    pub(crate) fn set_mix(&self, changes: &[MixChange]) {
        self.order.set_mix(changes);
    }

    /// The size of the largest sampled graph so far; 0 before the first one.
    fn largest_graph_bytes(&self) -> u64 {
        self.graph_bytes.as_ref().map_or(0, |bytes| bytes.largest.load(Ordering::Relaxed))
    }

    /// Limits the expected size of sampled graphs to a size that fits the worker's memory. The expected size is an upper bound, so
    /// the first batch may fit although its bound does not.
    pub(crate) fn limit_expected_bytes(&self, memory_bytes: u64) {
        if let Some(bytes) = &self.graph_bytes {
            bytes.expected.fetch_min(memory_bytes / 4, Ordering::Relaxed);
        }
    }

    /// Records the size of a sampled graph.
    pub(crate) fn record_batch_bytes(&self, batch_bytes: u64) {
        if let Some(bytes) = &self.graph_bytes {
            bytes.largest.fetch_max(batch_bytes, Ordering::Relaxed);
        }
    }

    /// Bytes of a group's buffer: the tensors, and the other columns at their largest size per row so far. Of a sampled graph, its
    /// expected size, or the largest size so far.
    pub(crate) fn slab_bytes(&self, rows: usize) -> usize {
        if let Some(bytes) = &self.graph_bytes {
            return usize::try_from(bytes.of_next_batch()).unwrap_or(usize::MAX >> 1).next_multiple_of(4096);
        }
        let tail = match self.compiled.has_tail() {
            true => self.tail_row_bytes.load(Ordering::Relaxed) as usize * rows + 4096,
            false => 0,
        };
        (self.compiled.tensor_bytes(rows) + tail).next_multiple_of(4096)
    }

    /// Records the bytes of the columns other than tensors in a batch of `rows` rows.
    pub(crate) fn record_tail(&self, rows: usize, bytes: usize) {
        if rows > 0 {
            let per_row = (bytes * 5 / 4).div_ceil(rows) as u64;
            self.tail_row_bytes.fetch_max(per_row, Ordering::Relaxed);
        }
    }

    /// Returns the number of rows of the next group at the current pace, or fewer if they do not fit the worker's
    /// memory.
    pub(crate) fn group_rows(&self, memory_bytes: u64) -> u32 {
        let batch_rows = self.layout().batch_rows;
        let mut rows = self.pace.group_rows();
        while rows > batch_rows && self.group_bytes(rows) > memory_bytes {
            rows = (rows / 2 / batch_rows).max(1) * batch_rows;
        }
        rows
    }

    /// Returns the memory that a running group of `rows` rows needs: encoded rows and the output buffer.
    pub(crate) fn group_bytes(&self, rows: u32) -> u64 {
        let dataset = &self.compiled.details.dataset;
        let encoded = dataset.bytes / dataset.rows.max(1);
        let cached = self.compiled.cache_point.as_ref().map_or(0, CachePoint::row_bytes);
        encoded.max(cached) * u64::from(rows) + self.slab_bytes(rows as usize) as u64
    }

    /// Whether operators are traced.
    pub(crate) fn is_traced(&self) -> bool {
        self.counters.source.is_on()
    }

    /// Adds CPU time that a thread outside the pool has spent on an operator.
    pub(super) fn charge(&self, cpu: Duration) {
        if self.is_traced() {
            self.clock.charge(cpu);
        }
    }

    /// The value of a cached byte: the CPU time and store wait time per row before the cache point, in seconds, divided
    /// by the mean size of a cached row. 0 before the first row.
    pub(crate) fn saved_s_per_byte(&self, cache_point: &CachePoint) -> f64 {
        let source = self.counters.source.snapshot();
        let before = self.counters.operators[..cache_point.operator].iter();
        let operators_ns: u64 = before.map(|counters| counters.snapshot().cpu_ns).sum();
        let cpu_ns = source.cpu_ns + self.counters.store.blocking_cpu_ns() + operators_ns;
        let ns = cpu_ns + self.counters.store.snapshot().wait_ns;
        let bytes = source.rows_out as f64 * cache_point.mean_row_bytes();
        if bytes > 0.0 { ns as f64 / 1e9 / bytes } else { 0.0 }
    }

    /// Returns the counters of each operator. Empty if operators are not traced.
    pub(crate) fn stats(&self) -> Vec<OperatorStats> {
        if !self.is_traced() {
            return Vec::new();
        }
        let counters = &self.counters;
        let mut source = counters.source.snapshot();
        source.cpu_ns += counters.store.blocking_cpu_ns();
        let mut stats = vec![source];
        stats.extend(counters.operators.iter().map(|counters| counters.snapshot()));
        if let Some(cache_point) = &self.compiled.cache_point {
            stats.insert(1 + cache_point.operator, cache_point.stats());
        }
        stats.push(counters.batch.snapshot());
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_waits_make_up_for_late_timers() {
        let (overshoot, ms) = (WaitOvershoot::default(), Duration::from_millis);
        assert_eq!(overshoot.take(ms(4)), ms(0));
        (0..5).for_each(|_| overshoot.add(ms(1), ms(4)));
        overshoot.add(ms(20), ms(4));
        let taken =
            [overshoot.take(ms(4)), overshoot.take(ms(4)), overshoot.take(ms(4)), overshoot.take(ms(4))];
        assert_eq!(taken, [ms(4), ms(4), ms(1), ms(0)], "the long delay counts as one wait");
    }
}
