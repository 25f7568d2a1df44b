//! A job on one worker: the compiled pipeline, its current limits, its counters and its measured sizes.

mod compiled;
mod counters;
mod row_order;
mod tensors;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feedline_data::ids::JobId;
use feedline_data::layout::Layout;
use feedline_data::messages::OperatorStats;
use feedline_data::mix::MixChange;
use feedline_data::order::RowRef;
use feedline_data::sequence::Sequence;

pub(crate) use self::compiled::{CompileContext, CompiledJob, JobSource};
pub(crate) use self::counters::JobCounters;
pub(crate) use self::row_order::RowOrder;
use super::allocation::JobLimits;
use super::cache_point::CachePoint;
use super::encodings::{EncodingTrials, KernelTime};
use super::pace::Pace;
use crate::process::ProcessClock;

pub(crate) struct JobContext {
    pub(crate) compiled: CompiledJob,
    /// What the job may use at present.
    pub(crate) limits: JobLimits,
    pub(crate) counters: JobCounters,
    /// Sizes of groups and chunks.
    pub(crate) pace: Arc<Pace>,
    /// The kernel's part of the pool's time, where the plan caches rows.
    pub(crate) kernel_time: KernelTime,
    order: RowOrder,
    clock: Arc<ProcessClock>,
    /// Largest number of bytes per row in the columns of varying size of any batch so far.
    tail_row_bytes: AtomicU64,
    /// Time by which waits of operators were too long.
    pub(super) wait_overshoot: WaitOvershoot,
}

/// Resolution of the runtime's timers.
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);

/// Time by which timers have fired too late because of their resolution. Later waits are shorter, so that waits have the right
/// length on average.
#[derive(Debug, Default)]
pub(super) struct WaitOvershoot(AtomicU64);

impl WaitOvershoot {
    /// Takes at most `limit` of the overshoot.
    pub(super) fn take(&self, limit: Duration) -> Duration {
        let take = |ns: u64| Some(ns - ns.min(limit.as_nanos() as u64));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        Duration::from_nanos(before).min(limit)
    }

    /// Adds the overshoot of one wait. A delay beyond the resolution has another cause, and does not count.
    pub(super) fn add(&self, overshoot: Duration) {
        let ns = overshoot.min(TIMER_RESOLUTION).as_nanos() as u64;
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl JobContext {
    /// Compiles a job. Counters, pace and limits of the `previous` compilation continue.
    ///
    /// # Errors
    /// Returns a message if a file of the pipeline cannot be read, or the worker does not run the pipeline's functions.
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
        if previous.is_none() && tracing.on && pipeline.cached_prefix().is_none() {
            counters.trials = EncodingTrials::new(pipeline, operators).map(Arc::new);
        }
        if let Some(cache_point) = &compiled.cache_point {
            counters.cache = Some(cache_point.counters.clone());
        }
        let layout = &compiled.details.layout;
        let new_pace = || Arc::new(Pace::new(layout, compiled.chunk_rows_max, threads));
        Ok(Self {
            pace: previous.map_or_else(new_pace, |job| Arc::clone(&job.pace)),
            order: RowOrder::new(Sequence::new(pipeline, &compiled.manifest, &layout.mix_changes)),
            tail_row_bytes: AtomicU64::new(compiled.tail_row_bytes),
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

    /// The rows at these indexes of an epoch's sequence.
    pub(crate) fn rows(&self, epoch: u32, indexes: Range<u64>) -> Vec<RowRef> {
        self.order.rows(self.layout(), epoch, indexes)
    }

    /// Applies changes of a mix's weights. They affect only rows that no lease has been granted for.
    pub(crate) fn set_mix(&self, changes: &[MixChange]) {
        self.order.set_mix(changes);
    }

    /// Bytes of a group's buffer: its tensors, and the largest tail so far.
    pub(crate) fn slab_bytes(&self, rows: usize) -> usize {
        let tail = match self.compiled.has_tail() {
            true => self.tail_row_bytes.load(Ordering::Relaxed) as usize * rows + 4096,
            false => 0,
        };
        (self.compiled.tensor_bytes(rows) + tail).next_multiple_of(4096)
    }

    /// Records the bytes of the columns of varying size in a batch of `rows` rows.
    pub(crate) fn record_tail(&self, rows: usize, bytes: usize) {
        if rows > 0 {
            let per_row = (bytes * 5 / 4).div_ceil(rows) as u64;
            self.tail_row_bytes.fetch_max(per_row, Ordering::Relaxed);
        }
    }

    /// Rows of the next group at the present pace, or fewer where the worker's memory is too small for them.
    pub(crate) fn group_rows(&self, memory_bytes: u64) -> u32 {
        let batch_rows = self.layout().batch_rows;
        let mut rows = self.pace.group_rows();
        while rows > batch_rows && self.group_bytes(rows) > memory_bytes {
            rows = (rows / 2 / batch_rows).max(1) * batch_rows;
        }
        rows
    }

    /// Bytes that a running group of this many rows needs: encoded rows and the finished buffer.
    pub(crate) fn group_bytes(&self, rows: u32) -> u64 {
        let dataset = &self.compiled.details.dataset;
        let encoded = dataset.bytes / dataset.rows.max(1);
        let cached = self.compiled.cache_point.as_ref().map_or(0, CachePoint::row_bytes);
        encoded.max(cached) * u64::from(rows) + self.slab_bytes(rows as usize) as u64
    }

    /// Whether operators are measured.
    pub(crate) fn is_traced(&self) -> bool {
        self.counters.source.is_on()
    }

    /// Adds CPU time that a thread outside the pool used for an operator.
    pub(super) fn charge(&self, cpu: Duration) {
        if self.is_traced() {
            self.clock.charge(cpu);
        }
    }

    /// The value of a cached byte: seconds of CPU and of waiting for the store that a row takes before the cache point, by
    /// its size; 0 before the first row.
    pub(crate) fn saved_s_per_byte(&self, cache_point: &CachePoint) -> f64 {
        let source = self.counters.source.snapshot();
        let before = self.counters.operators[..cache_point.operator].iter();
        let operators_ns: u64 = before.map(|counters| counters.snapshot().cpu_ns).sum();
        let cpu_ns = source.cpu_ns + self.counters.store.blocking_cpu_ns() + operators_ns;
        let ns = cpu_ns + self.counters.store.snapshot().wait_ns;
        let bytes = source.rows_out as f64 * cache_point.mean_row_bytes();
        if bytes > 0.0 { ns as f64 / 1e9 / bytes } else { 0.0 }
    }

    /// The counters of each operator; empty where nothing is measured.
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
        (0..5).for_each(|_| overshoot.add(ms(1)));
        overshoot.add(ms(20));
        let taken = [overshoot.take(ms(4)), overshoot.take(ms(4)), overshoot.take(ms(4))];
        assert_eq!(taken, [ms(4), ms(2), ms(0)], "the long delay counts as one millisecond");
    }
}
