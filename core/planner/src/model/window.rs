//! Cumulative counters over time: the counts of the last few seconds, and totals that survive restarts of a worker or
//! consumer.

use std::collections::VecDeque;

use feedline_data::ids::Millis;
use feedline_data::messages::{ConsumerStats, GraphStats, OperatorStats, StoreStats};

use super::samples::{JobConsumerSample, JobWorkerSample};

#[cfg(test)]
mod tests;

/// Counters of a worker or consumer. They never decrease, except when the worker or consumer restarts.
pub trait CumulativeCounters: Clone {
    /// Combines each counter with the same counter of `other`. Other fields keep their values.
    fn combine(&self, other: &Self, combine: fn(u64, u64) -> u64) -> Self;
    /// Whether the worker or consumer has restarted since `earlier`, which is the case if a counter has decreased.
    fn has_restarted_since(&self, earlier: &Self) -> bool;

    /// Returns the counts since `earlier`.
    fn since(&self, earlier: &Self) -> Self {
        self.combine(earlier, u64::saturating_sub)
    }

    /// Adds the counts from before a restart.
    fn plus(&self, earlier: &Self) -> Self {
        self.combine(earlier, u64::saturating_add)
    }
}

/// The samples of one worker or consumer over a time span, downsampled to about [`SampleWindow::POINTS`] samples.
#[derive(Debug, Clone)]
pub struct SampleWindow<S> {
    span_ms: Millis,
    /// Counts from before the last restart.
    earlier_total: Option<S>,
    /// The newest sample, without `earlier_total`.
    last: Option<S>,
    /// Totals that include the counts from before restarts, with their times, the oldest first.
    points: VecDeque<(Millis, S)>,
}

impl<S: CumulativeCounters> SampleWindow<S> {
    /// Approximate number of samples that the window stores.
    pub const POINTS: u64 = 32;

    /// Creates a window over the last `span_ms`.
    pub fn new(span_ms: Millis) -> Self {
        Self { span_ms: span_ms.max(1), earlier_total: None, last: None, points: VecDeque::new() }
    }

    /// Adds the sample with the counts up to `now`. Ignores a sample that is older than the last sample.
    pub fn push(&mut self, now: Millis, sample: S) {
        if self.points.back().is_some_and(|(at, _)| *at > now) {
            return;
        }
        if let Some(last) = self.last.as_ref().filter(|last| sample.has_restarted_since(last)) {
            self.earlier_total = Some(match &self.earlier_total {
                Some(earlier_total) => last.plus(earlier_total),
                None => last.clone(),
            });
        }
        let total = match &self.earlier_total {
            Some(earlier_total) => sample.plus(earlier_total),
            None => sample.clone(),
        };
        self.last = Some(sample);
        self.push_point(now, total);
    }

    fn push_point(&mut self, now: Millis, total: S) {
        // A sample replaces the previous sample if it arrives shortly after it.
        let step = self.span_ms / Self::POINTS;
        let count = self.points.len();
        if count >= 2 && now - self.points[count - 2].0 < step {
            self.points.pop_back();
        }
        self.points.push_back((now, total));
        // Keep the newest sample from before the span as the start of the span.
        while self.points.len() > 2 && self.points[1].0 + self.span_ms <= now {
            self.points.pop_front();
        }
    }

    /// Whether the window contains only the newest sample.
    pub fn is_idle(&self) -> bool {
        self.points.len() == 1
    }

    /// Whether `same` returns true for the oldest and the newest sample. Returns false if the samples do not cover the whole
    /// span, unless the window was idle before the newest sample.
    pub fn is_unchanged(&self, was_idle: bool, same: impl Fn(&S, &S) -> bool) -> bool {
        let (Some(oldest), Some(newest)) = (self.points.front(), self.points.back()) else { return false };
        (was_idle || newest.0 - oldest.0 >= self.span_ms) && same(&oldest.1, &newest.1)
    }

    /// Drops all samples but the newest.
    pub fn set_idle(&mut self) {
        self.points.drain(..self.points.len().saturating_sub(1));
        self.points.shrink_to_fit();
    }

    /// Returns the total counts, including those from before restarts.
    pub fn total(&self) -> Option<&S> {
        self.points.back().map(|(_, total)| total)
    }

    /// Returns the counts of about the last `span_ms` before the newest sample, and the actual span in milliseconds.
    /// Returns `None` if the window contains fewer than two samples.
    pub fn recent(&self, span_ms: Millis) -> Option<(Millis, S)> {
        let (end, newest) = self.points.back()?;
        let is_old_enough = |(at, _): &&(Millis, S)| at + span_ms <= *end;
        let (start, oldest) = self.points.iter().rev().find(is_old_enough).or_else(|| self.points.front())?;
        (start < end).then(|| (end - start, newest.since(oldest)))
    }
}

/// A struct with cumulative counters. The other fields describe the current state and are copied from the newer sample.
trait CounterFields: Clone {
    /// Combines each counter with the same counter of `other`.
    fn merge(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self;
    /// Whether any counter is less than the same counter of `earlier`.
    fn has_decreased(&self, earlier: &Self) -> bool;
}

macro_rules! counter_fields {
    ($type:ty, $($field:ident),+) => {
        impl CounterFields for $type {
            fn merge(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self {
                Self { $($field: merge(self.$field, other.$field),)+ ..self.clone() }
            }

            fn has_decreased(&self, earlier: &Self) -> bool {
                $(self.$field < earlier.$field)||+
            }
        }
    };
}

counter_fields!(
    OperatorStats,
    rows_in,
    rows_out,
    bytes_in,
    bytes_out,
    cpu_ns,
    busy_ns,
    wait_input_ns,
    wait_output_ns,
    latency_ns
);
counter_fields!(StoreStats, requests, bytes, wait_ns);
counter_fields!(GraphStats, batches, seeds, nodes, edges, bytes, sample_ns, map_ns, gather_ns, encode_ns);
counter_fields!(ConsumerStats, batches, rows, bytes, network_bytes, stall_ns, step_ns, skipped_rows);

impl CumulativeCounters for JobWorkerSample {
    fn combine(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self {
        let operator = |own: &OperatorStats| {
            let other = other.operators.iter().find(|other| other.name == own.name);
            other.map_or_else(|| own.clone(), |other| own.merge(other, merge))
        };
        Self {
            elapsed_ns: merge(self.elapsed_ns, other.elapsed_ns),
            process_cpu_ns: merge(self.process_cpu_ns, other.process_cpu_ns),
            memory_wait_ns: merge(self.memory_wait_ns, other.memory_wait_ns),
            operators: self.operators.iter().map(operator).collect(),
            store: self.store.merge(&other.store, merge),
            graph: match (self.graph, other.graph) {
                (Some(own), Some(other)) => Some(own.merge(&other, merge)),
                (own, _) => own,
            },
            ..self.clone()
        }
    }

    fn has_restarted_since(&self, earlier: &Self) -> bool {
        let has_decreased = |operator: &OperatorStats| {
            let before = earlier.operators.iter().find(|other| other.name == operator.name);
            before.is_some_and(|before| operator.has_decreased(before))
        };
        // `process_cpu_ns` may decrease without a restart, because the job's share of the process CPU time changes.
        self.worker != earlier.worker
            || self.elapsed_ns < earlier.elapsed_ns
            || self.memory_wait_ns < earlier.memory_wait_ns
            || self.store.has_decreased(&earlier.store)
            || self.operators.iter().any(has_decreased)
    }
}

impl CumulativeCounters for JobConsumerSample {
    fn combine(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self {
        Self {
            consumer: self.consumer,
            stats: self.stats.merge(&other.stats, merge),
            elapsed_ns: merge(self.elapsed_ns, other.elapsed_ns),
        }
    }

    fn has_restarted_since(&self, earlier: &Self) -> bool {
        self.elapsed_ns < earlier.elapsed_ns || self.stats.has_decreased(&earlier.stats)
    }
}
