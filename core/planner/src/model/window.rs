//! Cumulative counters over time: what happened in the last seconds, and in total over a worker's restarts.

use std::collections::VecDeque;

use feedline_data::ids::Millis;

use super::samples::{JobConsumerSample, JobWorkerSample, OperatorSample, StoreSample};

#[cfg(test)]
mod tests;

/// Counts that only grow while their owner lives. Fields that tell a state, not a count, follow the newer sample.
pub trait CumulativeCounters: Clone {
    /// What was counted after `earlier`.
    fn since(&self, earlier: &Self) -> Self;
    /// The counts of two lives together; states are those of `self`, which is the later.
    fn after(&self, earlier: &Self) -> Self;
    /// Whether a count is below that of `earlier`, so its owner began anew.
    fn is_below(&self, earlier: &Self) -> bool;
}

/// Samples of one owner, thinned out: at most [`SampleWindow::POINTS`] over the span.
#[derive(Debug, Clone)]
pub struct SampleWindow<S> {
    span_ms: Millis,
    /// Counts of earlier lives.
    past: Option<S>,
    /// The newest sample as it came.
    last: Option<S>,
    /// Sums over all lives at points in time, oldest first.
    points: VecDeque<(Millis, S)>,
}

impl<S: CumulativeCounters> SampleWindow<S> {
    /// Points kept over the span.
    pub const POINTS: u64 = 32;

    /// A window that can tell what happened within the last `span_ms`.
    pub fn new(span_ms: Millis) -> Self {
        Self { span_ms: span_ms.max(1), past: None, last: None, points: VecDeque::new() }
    }

    /// Takes a sample counted up to `now`. Samples must come in order of time; one from the past is passed over.
    pub fn push(&mut self, now: Millis, sample: S) {
        if self.points.back().is_some_and(|(at, _)| *at > now) {
            return;
        }
        if let Some(last) = self.last.as_ref().filter(|last| sample.is_below(last)) {
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
        self.keep(now, total);
    }

    fn keep(&mut self, now: Millis, total: S) {
        // Two points close together tell nothing that one does not.
        let step = self.span_ms / Self::POINTS;
        let count = self.points.len();
        if count >= 2 && now - self.points[count - 2].0 < step {
            self.points.pop_back();
        }
        self.points.push_back((now, total));
        // One point from before the span is its beginning.
        while self.points.len() > 2 && self.points[1].0 + self.span_ms <= now {
            self.points.pop_front();
        }
    }

    /// Whether nothing but the newest sample is kept.
    pub fn is_at_rest(&self) -> bool {
        self.points.len() == 1
    }

    /// Whether the oldest and the newest sample kept are the same to `same`, over all of the span or since it was at rest.
    pub fn is_unchanged(&self, was_at_rest: bool, same: impl Fn(&S, &S) -> bool) -> bool {
        let (Some(oldest), Some(newest)) = (self.points.front(), self.points.back()) else { return false };
        (was_at_rest || newest.0 - oldest.0 >= self.span_ms) && same(&oldest.1, &newest.1)
    }

    /// Keeps the newest sample alone: nothing has happened for a while.
    pub fn rest(&mut self) {
        self.points.drain(..self.points.len().saturating_sub(1));
        self.points.shrink_to_fit();
    }

    /// Everything counted since the first sample's owner began.
    pub fn total(&self) -> Option<&S> {
        self.points.back().map(|(_, total)| total)
    }

    /// What was counted within about the last `span_ms` before the newest sample, and the milliseconds it took; `None`
    /// before the second sample.
    pub fn recent(&self, span_ms: Millis) -> Option<(Millis, S)> {
        let (end, newest) = self.points.back()?;
        let old_enough = |(at, _): &&(Millis, S)| at + span_ms <= *end;
        let (start, oldest) = self.points.iter().rev().find(old_enough).or_else(|| self.points.front())?;
        (start < end).then(|| (end - start, newest.since(oldest)))
    }
}

/// Applies a function to each count of two samples, and keeps the first's other fields.
macro_rules! counted {
    ($type:ty, $($field:ident),+) => {
        impl $type {
            fn merged(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self {
                Self { $($field: merge(self.$field, other.$field),)+ ..self.clone() }
            }

            fn any_below(&self, other: &Self) -> bool {
                $(self.$field < other.$field)||+
            }
        }
    };
}

counted!(
    OperatorSample,
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
counted!(StoreSample, requests, bytes, wait_ns);
// What of its process's CPU time counts as the job's may fall as other jobs work: that is no new life.
counted!(JobWorkerSample, elapsed_ns, memory_wait_ns);
counted!(JobConsumerSample, batches, rows, bytes, network_bytes, stall_ns, step_ns, elapsed_ns);

impl JobWorkerSample {
    fn all_merged(&self, other: &Self, merge: fn(u64, u64) -> u64) -> Self {
        let mut merged = self.merged(other, merge);
        merged.process_cpu_ns = merge(self.process_cpu_ns, other.process_cpu_ns);
        merged.store = self.store.merged(&other.store, merge);
        for operator in &mut merged.operators {
            if let Some(same) = other.operators.iter().find(|other| other.name == operator.name) {
                *operator = operator.merged(same, merge);
            }
        }
        merged
    }
}

impl CumulativeCounters for JobWorkerSample {
    fn since(&self, earlier: &Self) -> Self {
        self.all_merged(earlier, u64::saturating_sub)
    }

    fn after(&self, earlier: &Self) -> Self {
        self.all_merged(earlier, u64::saturating_add)
    }

    fn is_below(&self, earlier: &Self) -> bool {
        let operator_is_below = |operator: &OperatorSample| {
            let before = earlier.operators.iter().find(|other| other.name == operator.name);
            before.is_some_and(|before| operator.any_below(before))
        };
        self.worker != earlier.worker
            || self.any_below(earlier)
            || self.store.any_below(&earlier.store)
            || self.operators.iter().any(operator_is_below)
    }
}

impl CumulativeCounters for JobConsumerSample {
    fn since(&self, earlier: &Self) -> Self {
        self.merged(earlier, u64::saturating_sub)
    }

    fn after(&self, earlier: &Self) -> Self {
        self.merged(earlier, u64::saturating_add)
    }

    fn is_below(&self, earlier: &Self) -> bool {
        self.any_below(earlier)
    }
}
