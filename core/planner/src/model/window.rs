//! Cumulative counters over time: the counts of the last seconds, and totals that survive a restart of their owner.

use std::collections::VecDeque;

use feedline_data::ids::Millis;
use feedline_data::messages::{ConsumerStats, OperatorStats, StoreStats};

use super::samples::{JobConsumerSample, JobWorkerSample};

#[cfg(test)]
mod tests;

/// Counters that only grow until their owner restarts.
pub trait CumulativeCounters: Clone {
    /// The counts after `earlier`.
    fn since(&self, earlier: &Self) -> Self;
    /// The counts of two lives of the owner together. Fields that are not counters are those of `self`, the later life.
    fn after(&self, earlier: &Self) -> Self;
    /// Whether the owner restarted after `earlier`, because a counter has decreased.
    fn is_restarted(&self, earlier: &Self) -> bool;
}

/// The samples of one owner over a time span, thinned out to about [`SampleWindow::POINTS`].
#[derive(Debug, Clone)]
pub struct SampleWindow<S> {
    span_ms: Millis,
    /// Counts of the owner's earlier lives.
    past: Option<S>,
    /// The newest sample, without the counts of earlier lives.
    last: Option<S>,
    /// Totals over all lives, with their times, oldest first.
    points: VecDeque<(Millis, S)>,
}

impl<S: CumulativeCounters> SampleWindow<S> {
    /// The number of points that the window stores over its span.
    pub const POINTS: u64 = 32;

    /// A window over the last `span_ms`.
    pub fn new(span_ms: Millis) -> Self {
        Self { span_ms: span_ms.max(1), past: None, last: None, points: VecDeque::new() }
    }

    /// Adds a sample counted up to `now`. Ignores a sample that is older than the last one.
    pub fn push(&mut self, now: Millis, sample: S) {
        if self.points.back().is_some_and(|(at, _)| *at > now) {
            return;
        }
        if let Some(last) = self.last.as_ref().filter(|last| sample.is_restarted(last)) {
            self.past = Some(match &self.past {
                Some(past) => last.after(past),
                None => last.clone(),
            });
        }
        let total = match &self.past {
            Some(past) => sample.after(past),
            None => sample.clone(),
        };
        self.last = Some(sample);
        self.push_point(now, total);
    }

    fn push_point(&mut self, now: Millis, total: S) {
        // A point close to the one before replaces it.
        let step = self.span_ms / Self::POINTS;
        let count = self.points.len();
        if count >= 2 && now - self.points[count - 2].0 < step {
            self.points.pop_back();
        }
        self.points.push_back((now, total));
        // The newest point before the span is the start of the span.
        while self.points.len() > 2 && self.points[1].0 + self.span_ms <= now {
            self.points.pop_front();
        }
    }

    /// Whether the window has only the newest sample.
    pub fn is_idle(&self) -> bool {
        self.points.len() == 1
    }

    /// Whether `same` holds for the oldest and the newest sample, if these cover the whole span or the window was idle before
    /// the newest sample.
    pub fn is_unchanged(&self, was_idle: bool, same: impl Fn(&S, &S) -> bool) -> bool {
        let (Some(oldest), Some(newest)) = (self.points.front(), self.points.back()) else { return false };
        (was_idle || newest.0 - oldest.0 >= self.span_ms) && same(&oldest.1, &newest.1)
    }

    /// Drops all samples but the newest.
    pub fn set_idle(&mut self) {
        self.points.drain(..self.points.len().saturating_sub(1));
        self.points.shrink_to_fit();
    }

    /// The counts since the first sample's owner started.
    pub fn total(&self) -> Option<&S> {
        self.points.back().map(|(_, total)| total)
    }

    /// The counts of about the last `span_ms` before the newest sample, and the milliseconds that they cover; `None` before
    /// the second sample.
    pub fn recent(&self, span_ms: Millis) -> Option<(Millis, S)> {
        let (end, newest) = self.points.back()?;
        let is_old_enough = |(at, _): &&(Millis, S)| at + span_ms <= *end;
        let (start, oldest) = self.points.iter().rev().find(is_old_enough).or_else(|| self.points.front())?;
        (start < end).then(|| (end - start, newest.since(oldest)))
    }
}

/// The cumulative counters of a struct. Its other fields describe the present and are copied from the newer sample.
trait CounterFields: Clone {
    /// Combines each counter with that of `other`.
    fn merge(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self;
    /// Whether a counter is less than that of `earlier`.
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
counter_fields!(ConsumerStats, batches, rows, bytes, network_bytes, stall_ns, step_ns);

impl JobWorkerSample {
    fn merge(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self {
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
            ..self.clone()
        }
    }
}

impl CumulativeCounters for JobWorkerSample {
    fn since(&self, earlier: &Self) -> Self {
        self.merge(earlier, u64::saturating_sub)
    }

    fn after(&self, earlier: &Self) -> Self {
        self.merge(earlier, u64::saturating_add)
    }

    fn is_restarted(&self, earlier: &Self) -> bool {
        let has_decreased = |operator: &OperatorStats| {
            let before = earlier.operators.iter().find(|other| other.name == operator.name);
            before.is_some_and(|before| operator.has_decreased(before))
        };
        // `process_cpu_ns` may decrease without a restart, since the job's share of the process changes.
        self.worker != earlier.worker
            || self.elapsed_ns < earlier.elapsed_ns
            || self.memory_wait_ns < earlier.memory_wait_ns
            || self.store.has_decreased(&earlier.store)
            || self.operators.iter().any(has_decreased)
    }
}

impl JobConsumerSample {
    fn merge(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self {
        Self {
            consumer: self.consumer,
            stats: self.stats.merge(&other.stats, merge),
            elapsed_ns: merge(self.elapsed_ns, other.elapsed_ns),
        }
    }
}

impl CumulativeCounters for JobConsumerSample {
    fn since(&self, earlier: &Self) -> Self {
        self.merge(earlier, u64::saturating_sub)
    }

    fn after(&self, earlier: &Self) -> Self {
        self.merge(earlier, u64::saturating_add)
    }

    fn is_restarted(&self, earlier: &Self) -> bool {
        self.elapsed_ns < earlier.elapsed_ns || self.stats.has_decreased(&earlier.stats)
    }
}
