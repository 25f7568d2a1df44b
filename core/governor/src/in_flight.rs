//! The control law of the requests in flight: how many requests a store serves at a time without a queue.
//!
//! A store with a bandwidth limit does not reject requests, but serves them later. If requests take much longer than the
//! fastest ones of their size, most of them wait in a queue, and fewer requests in flight yield the same throughput (Little's
//! law). The law therefore reduces the number, and restores it if the throughput falls. From time to time it tries a larger
//! number, and keeps it if the throughput rises. This is the idea of TCP Vegas, with a check of the throughput, since latencies
//! also differ for other reasons.

use std::collections::VecDeque;

/// A queue is assumed if requests take this multiple of the time of the fastest requests.
const QUEUE_FACTOR: f64 = 6.0;
/// The multiple that a decrease aims at. Below it, the number grows again.
const TARGET_FACTOR: f64 = 3.0;
/// Largest decrease in one step.
const MAX_DECREASE: f64 = 16.0;
/// Time after which the throughput of a new limit is compared with the previous throughput, in seconds.
const TRIAL_S: f64 = 4.0;
/// The number of intervals over which a throughput is averaged.
const MEAN_INTERVALS: usize = 3;
/// A decrease is kept if the throughput stays above this fraction.
const KEPT_THROUGHPUT: f64 = 0.9;
/// Factor of a tried increase, and the factor of the throughput that keeps it.
const INCREASE: f64 = 1.25;
const RAISED_THROUGHPUT: f64 = 1.08;
/// Time without changes before a larger number is tried, and after a change that was reverted, in seconds.
const INCREASE_AFTER_S: f64 = 20.0;
const HOLD_S: f64 = 60.0;
/// A decrease that is reverted again and again is tried at most this seldom, in seconds.
const MAX_HOLD_S: f64 = 960.0;
/// Growth per second while there is no queue.
const GROWTH: f64 = 0.25;
/// The number does not grow while the workers use less than this fraction of it, because nothing shows whether more would be served.
/// Workers use half of it if half of them have requests that wait, and half of that if their requests are large.
const USED_FRACTION: f64 = 0.25;

/// What all workers observed in one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LatencyInterval {
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// Finished requests.
    pub finished: f64,
    /// The total time of the finished requests, from the request to the last byte, in seconds.
    pub latency_s: f64,
    /// Their total time if each had been as fast as the fastest request of a similar size.
    pub base_latency_s: f64,
    /// Bytes read.
    pub bytes: f64,
    /// Workers that read the store. Each of them has at least one request in flight.
    pub workers: f64,
    /// Whether requests waited for the limit.
    pub is_backlogged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Trial {
    previous: Option<f64>,
    throughput: f64,
    ends_s: f64,
    is_increase: bool,
}

/// The control law of one store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InFlightLaw {
    now_s: f64,
    limit: Option<f64>,
    trial: Option<Trial>,
    /// No change before this time.
    hold_until_s: f64,
    reverted: u32,
    changed_s: f64,
    /// The throughput of the last intervals, in bytes per second.
    throughputs: VecDeque<f64>,
    request_bytes: f64,
}

impl InFlightLaw {
    /// The allowed requests in flight; `None` without a limit.
    pub fn limit(&self) -> Option<f64> {
        self.limit
    }

    /// The allowed bytes in flight, from the mean size of a request; `None` without a limit.
    pub fn limit_bytes(&self) -> Option<f64> {
        Some(self.limit? * self.request_bytes * 2.0)
    }

    /// Takes the observations since the last call.
    pub fn on_interval(&mut self, interval: &LatencyInterval) {
        if interval.seconds <= 0.0 {
            return;
        }
        self.now_s += interval.seconds;
        if interval.finished < 1.0 {
            return;
        }
        self.throughputs.push_back(interval.bytes / interval.seconds);
        if self.throughputs.len() > MEAN_INTERVALS {
            self.throughputs.pop_front();
        }
        self.request_bytes = interval.bytes / interval.finished;
        if let Some(trial) = self.trial {
            if self.now_s >= trial.ends_s {
                self.trial = None;
                self.end_trial(trial);
            }
            return;
        }
        let in_flight = interval.latency_s / interval.seconds;
        let factor = interval.latency_s / interval.base_latency_s.max(f64::MIN_POSITIVE);
        let lowest = interval.workers.max(1.0);
        let current = self.limit.unwrap_or(f64::INFINITY).min(in_flight);
        if factor > QUEUE_FACTOR && current > 1.5 * lowest && self.now_s >= self.hold_until_s {
            let change = (TARGET_FACTOR / factor).max(1.0 / MAX_DECREASE);
            self.try_limit((current * change).max(lowest), false);
            return;
        }
        let is_used = |limit: &f64| interval.is_backlogged && in_flight >= USED_FRACTION * limit;
        let Some(limit) = self.limit.filter(is_used) else { return };
        if factor < TARGET_FACTOR {
            self.limit = Some(limit * (1.0 + GROWTH * interval.seconds));
        } else if self.now_s - self.changed_s > INCREASE_AFTER_S {
            self.try_limit((limit * INCREASE).max(limit + 1.0), true);
        }
    }

    fn throughput(&self) -> f64 {
        self.throughputs.iter().sum::<f64>() / self.throughputs.len().max(1) as f64
    }

    fn try_limit(&mut self, limit: f64, is_increase: bool) {
        let ends_s = self.now_s + TRIAL_S;
        self.trial = Some(Trial { previous: self.limit, throughput: self.throughput(), ends_s, is_increase });
        self.limit = Some(limit);
        self.changed_s = self.now_s;
    }

    fn end_trial(&mut self, trial: Trial) {
        let ratio = self.throughput() / trial.throughput.max(f64::MIN_POSITIVE);
        let is_kept = ratio >= if trial.is_increase { RAISED_THROUGHPUT } else { KEPT_THROUGHPUT };
        self.changed_s = self.now_s;
        if is_kept && trial.is_increase {
            // A further increase may help too.
            self.changed_s = self.now_s - INCREASE_AFTER_S;
        }
        if is_kept {
            self.reverted = 0;
        } else {
            self.limit = trial.previous;
            let hold_s = HOLD_S * f64::from(self.reverted.min(8)).exp2();
            self.hold_until_s = self.now_s + hold_s.min(MAX_HOLD_S);
            self.reverted += u32::from(!trial.is_increase);
        }
    }
}

#[cfg(test)]
mod tests;
