//! Paces the requests of one worker to one store.
//!
//! A worker sends at most its part of the cluster's budget, evenly over time. It reacts to a rejection by itself: it pauses
//! for the time that the store asks for (`Retry-After`) or for a growing, random time. Only the workers with rejections pause,
//! so that a few rejections reduce the rate of the cluster a little, and many reduce it a lot, before the leader reacts.
//! Without a leader, the worker applies the same control laws to its own observations.

use std::time::Duration;

use feedline_data::messages::{StoreReport, StoreShare};

use crate::hedging::Hedging;
use crate::in_flight::{InFlightLaw, LatencyInterval};
use crate::latency::{BaseLatencies, ExpectedLatency};
use crate::queue::DemandQueue;
pub use crate::queue::PacedRequest;
use crate::rate::{RateInterval, RateLaw};

/// Requests in flight of a worker that has not read the store yet. The number doubles with each round trip.
const FIRST_WINDOW: f64 = 4.0;
const MIN_WINDOW: f64 = 4.0;
/// The largest number of requests in flight.
const MAX_WINDOW: f64 = 65_536.0;
/// Slow start ends if this number of consecutive requests took [`SLOW_FACTOR`] times the usual time of a request of a similar
/// size.
const SLOW_STREAK: u32 = 8;
const SLOW_FACTOR: u32 = 4;
/// Pause after a rejection without `Retry-After`. It doubles with each further rejection.
const FIRST_PAUSE: Duration = Duration::from_millis(300);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Without `Retry-After`, a worker pauses if at least this fraction of its last requests was rejected, or if its rate is low. A
/// few rejections of many requests are not a reason to stop all of them.
const PAUSE_FRACTION: f64 = 0.2;
const PAUSE_RATE: f64 = 20.0;
/// The weight of a request in the fraction of rejected requests.
const FRACTION_WEIGHT: f64 = 1.0 / 16.0;
/// Unused time that a worker may catch up after a late timer, if it is longer than the time of one request.
const MIN_CATCH_UP: Duration = Duration::from_millis(50);
/// Maximum delay of the first request after a time without requests. Many workers may begin to read at the same moment, and a store
/// allows only a small burst. The leader knows the demand of a worker after about this time.
const MAX_START_DELAY: Duration = Duration::from_secs(1);
/// Pauses that the store asks for do not count as rejections up to this time.
const MAX_ASKED_PAUSES: Duration = Duration::from_secs(300);
/// A part that the leader has not confirmed for this time is reduced by this factor in each interval with a rejection, since the
/// leader may have left while it looked for a higher limit. Intervals in which the store accepts all requests restore the part.
const UNCONFIRMED_SHARE: Duration = Duration::from_secs(5);
const UNCONFIRMED_DECREASE: f64 = 0.97;
const UNCONFIRMED_INCREASE: f64 = 1.01;
/// The smallest fraction of an unconfirmed part. A leader that probes exceeds the limit of the store by much less.
const MIN_UNCONFIRMED_FRACTION: f64 = 0.5;
/// Time between two applications of the control laws without a leader.
const LOCAL_INTERVAL: Duration = Duration::from_secs(1);
/// The lowest rate. The leader may divide a small budget among many workers.
pub(crate) const MIN_RATE: f64 = 1e-3;

/// What the worker may do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRequest {
    /// Send this request now.
    Send(PacedRequest),
    /// Ask again at this time.
    At(Duration),
    /// Ask again after a request was added or has finished.
    Blocked,
}

/// The counters of a worker's requests to the store.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counters {
    at: Duration,
    accepted: u64,
    rejected: u64,
    bytes: u64,
    latency: Duration,
    base_latency: Duration,
    paused: Duration,
}

/// The control laws that a worker applies to its own observations.
#[derive(Debug, Default)]
struct LocalLaws {
    rate: RateLaw,
    in_flight: InFlightLaw,
    last: Counters,
}

/// The requests of one worker to one store. Times are those since the start of the worker.
#[derive(Debug)]
pub struct Pacer {
    random: u64,
    requests_per_s: Option<f64>,
    in_flight_limit: Option<u32>,
    bytes_limit: Option<u64>,
    /// Whether the leader has set the limits, the rate that it has set, and when it did so last.
    has_share: bool,
    share_rate: Option<f64>,
    share_at: Duration,
    window: f64,
    is_slow_start: bool,
    latencies: BaseLatencies,
    /// The current number of consecutive slow requests.
    slow_streak: u32,
    next_slot: Duration,
    paused_until: Duration,
    pauses: u32,
    /// The recent fraction of rejected requests.
    rejected_fraction: f64,
    queue: DemandQueue,
    in_flight: u32,
    bytes_in_flight: u64,
    counters: Counters,
    /// The first rejection after the last success.
    rejecting_since: Option<Duration>,
    /// The pauses since then that the store asked for.
    asked_pauses: Duration,
    local: LocalLaws,
    hedging: Hedging,
}

impl Pacer {
    /// Creates a pacer without limits. `seed` differs between workers, so that they do not send at the same times.
    pub fn new(seed: u64) -> Self {
        Self {
            random: seed | 1,
            requests_per_s: None,
            in_flight_limit: None,
            bytes_limit: None,
            has_share: false,
            share_rate: None,
            share_at: Duration::ZERO,
            window: FIRST_WINDOW,
            is_slow_start: true,
            latencies: BaseLatencies::default(),
            slow_streak: 0,
            next_slot: Duration::ZERO,
            paused_until: Duration::ZERO,
            pauses: 0,
            rejected_fraction: 0.0,
            queue: DemandQueue::default(),
            in_flight: 0,
            bytes_in_flight: 0,
            counters: Counters::default(),
            rejecting_since: None,
            asked_pauses: Duration::ZERO,
            local: LocalLaws::default(),
            hedging: Hedging::default(),
        }
    }

    /// Adds a request. A request that the store rejected before is the next one of its job.
    pub fn push(&mut self, now: Duration, request: PacedRequest, is_repeated: bool) {
        if self.queue.is_empty()
            && let Some(interval) = self.interval()
            && let delay = interval.min(MAX_START_DELAY)
            && self.next_slot + delay < now
        {
            self.next_slot = now + delay.mul_f64(self.next_random());
        }
        self.queue.push(now, request, is_repeated);
    }

    /// Removes a waiting request that is no longer needed.
    pub fn remove(&mut self, request: PacedRequest) {
        self.queue.remove(request);
    }

    /// Returns the request to send now, or when to ask again.
    pub fn next(&mut self, now: Duration) -> NextRequest {
        let Some(request) = self.queue.peek() else { return NextRequest::Blocked };
        if now < self.paused_until {
            return NextRequest::At(self.paused_until);
        }
        if self.in_flight > 0 && !self.has_room(request.bytes) {
            return NextRequest::Blocked;
        }
        if let Some(interval) = self.interval() {
            if self.next_slot > now {
                return NextRequest::At(self.next_slot);
            }
            let earliest = now.saturating_sub(interval.max(MIN_CATCH_UP));
            self.next_slot = self.next_slot.max(earliest) + interval;
        }
        let Some(request) = self.queue.pop() else { return NextRequest::Blocked };
        self.in_flight += 1;
        self.bytes_in_flight = self.bytes_in_flight.saturating_add(request.bytes);
        NextRequest::Send(request)
    }

    /// Whether one more request of this size may be in flight. The limit of bytes reduces that of requests at most by half: large
    /// requests take longer, so that those in flight are larger than the mean, from which the limit of bytes was made.
    fn has_room(&self, bytes: u64) -> bool {
        let limit = self.in_flight_limit.unwrap_or(u32::MAX);
        let is_large =
            self.bytes_limit.is_some_and(|limit| self.bytes_in_flight.saturating_add(bytes) > limit);
        let limit = if is_large { limit.div_ceil(2) } else { limit };
        f64::from(self.in_flight) < f64::from(limit).min(self.window)
    }

    fn interval(&self) -> Option<Duration> {
        self.requests_per_s.map(|rate| Duration::from_secs_f64(1.0 / rate.max(MIN_RATE)))
    }

    /// A request that was sent asks for a different number of bytes, because others have joined it.
    pub fn set_bytes(&mut self, request: &mut PacedRequest, bytes: u64) {
        self.bytes_in_flight = self.bytes_in_flight.saturating_sub(request.bytes).saturating_add(bytes);
        request.bytes = bytes;
    }

    /// A request has returned `bytes` after `latency`.
    pub fn on_success(&mut self, request: PacedRequest, bytes: u64, latency: Duration) {
        self.finish(request);
        self.counters.accepted += 1;
        self.counters.bytes = self.counters.bytes.saturating_add(bytes);
        self.counters.latency += latency;
        self.grow_window(bytes, latency);
        self.hedging.on_answer();
        if bytes > 0 {
            self.hedging.on_read(bytes, latency);
        }
        self.rejecting_since = None;
        self.asked_pauses = Duration::ZERO;
        self.rejected_fraction *= 1.0 - FRACTION_WEIGHT;
        self.pauses = 0;
    }

    /// A round trip doubles the window at first, and then adds one request to it.
    fn grow_window(&mut self, bytes: u64, latency: Duration) {
        // Pages of listings and metadata have no size that explains their latency.
        let expected = if bytes > 0 {
            self.latencies.add(bytes, latency)
        } else {
            ExpectedLatency { base: latency, usual: latency }
        };
        self.counters.base_latency += expected.base;
        self.slow_streak = if latency > expected.usual * SLOW_FACTOR { self.slow_streak + 1 } else { 0 };
        self.is_slow_start &= self.slow_streak < SLOW_STREAK;
        self.window += if self.is_slow_start { 1.0 } else { 1.0 / self.window };
        self.window = self.window.min(MAX_WINDOW);
    }

    /// A request has failed, but not because of the store's load.
    pub fn on_failure(&mut self, request: PacedRequest) {
        self.finish(request);
        self.counters.accepted += 1;
        self.hedging.on_answer();
    }

    /// A read of this number of bytes was cancelled after `latency`, because its second request was faster.
    pub fn on_hedge_won(&mut self, bytes: u64, latency: Duration) {
        self.hedging.on_read(bytes, latency);
    }

    /// The time after which a read of this number of bytes is slow; `None` while too few reads are known.
    pub fn slow_after(&self, bytes: u64) -> Option<Duration> {
        self.hedging.slow_after(bytes)
    }

    /// Whether a slow read may be sent a second time now. A second request takes nothing from other requests, so that none is
    /// sent while the store limits the worker or requests wait.
    pub fn try_hedge(&mut self, now: Duration) -> bool {
        !self.is_limited() && self.queue.is_empty() && self.hedging.try_take(now)
    }

    /// A request was not sent, or its result is unknown.
    pub fn on_cancel(&mut self, request: PacedRequest) {
        self.finish(request);
    }

    /// The store rejected a request because of its load, and may have stated when to try again.
    pub fn on_rejection(&mut self, now: Duration, request: PacedRequest, retry_after: Option<Duration>) {
        self.finish(request);
        self.counters.rejected += 1;
        self.hedging.on_rejection(now);
        self.rejecting_since.get_or_insert(now);
        self.rejected_fraction += FRACTION_WEIGHT * (1.0 - self.rejected_fraction);
        let is_slow = self.requests_per_s.is_some_and(|rate| rate < PAUSE_RATE);
        let pause = match retry_after {
            Some(pause) => pause,
            None if self.rejected_fraction < PAUSE_FRACTION && !is_slow => return,
            // Requests that were in flight when the pause began do not extend it.
            None if now < self.paused_until => return,
            None => {
                let pause = FIRST_PAUSE * 2u32.saturating_pow(self.pauses.min(8));
                self.pauses += 1;
                pause.min(MAX_PAUSE).mul_f64(0.75 + 0.5 * self.next_random())
            }
        };
        let end = now + pause;
        if end <= self.paused_until {
            return;
        }
        if now >= self.paused_until {
            self.window = (0.5 * f64::from(self.in_flight + 1)).max(MIN_WINDOW).min(self.window);
            self.is_slow_start = false;
        }
        let added = end - self.paused_until.max(now);
        self.counters.paused += added;
        self.asked_pauses += if retry_after.is_some() { added } else { Duration::ZERO };
        self.paused_until = end;
        let spread = self.interval().unwrap_or(FIRST_PAUSE);
        self.next_slot = end + spread.mul_f64(self.next_random());
    }

    fn finish(&mut self, request: PacedRequest) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.bytes_in_flight = self.bytes_in_flight.saturating_sub(request.bytes);
    }

    /// A number in [0, 1).
    fn next_random(&mut self) -> f64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Sets the worker's part of the budget. A part without limits lets the worker find its limits by itself.
    pub fn set_share(&mut self, now: Duration, share: &StoreShare) {
        let rate = (share.requests_per_s > 0.0).then_some(share.requests_per_s);
        self.has_share = rate.is_some() || share.in_flight > 0;
        self.share_rate = rate;
        self.share_at = now;
        self.in_flight_limit = (share.in_flight > 0).then_some(share.in_flight);
        self.bytes_limit = (share.bytes_in_flight > 0).then_some(share.bytes_in_flight);
        self.queue.set_weights(&share.jobs);
        self.set_rate(now, rate);
        if !self.has_share {
            self.local = LocalLaws { last: self.counters_at(now), ..LocalLaws::default() };
        }
    }

    fn set_rate(&mut self, now: Duration, requests_per_s: Option<f64>) {
        if self.requests_per_s == requests_per_s {
            return;
        }
        let was_limited = self.requests_per_s.is_some();
        self.requests_per_s = requests_per_s;
        let Some(interval) = self.interval() else { return };
        let latest = now.max(self.paused_until) + interval;
        if !was_limited || self.next_slot > latest {
            // An idle worker has a small part until the leader knows its demand.
            let is_start = !was_limited && self.in_flight == 0 && self.queue.is_empty();
            let delay = if is_start { interval.min(MAX_START_DELAY) } else { interval };
            self.next_slot = now.max(self.paused_until) + delay.mul_f64(self.next_random());
        }
    }

    /// The counters without the rest of the current pause.
    fn counters_at(&self, now: Duration) -> Counters {
        let paused = self.counters.paused.saturating_sub(self.paused_until.saturating_sub(now));
        Counters { at: now, paused, ..self.counters }
    }

    /// Applies the control laws if the worker has no part of a leader. Call it at least once per second while requests wait.
    pub fn tick(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.local.last.at);
        if seconds < LOCAL_INTERVAL {
            return;
        }
        let (last, current) = (self.local.last, self.counters_at(now));
        self.local.last = current;
        self.queue.forget_idle_jobs(now);
        if self.has_share {
            self.adjust_unconfirmed_share(now, last, current);
            return;
        }
        let seconds = seconds.as_secs_f64();
        let is_backlogged = !self.queue.is_empty();
        self.local.rate.on_interval(&RateInterval {
            seconds,
            accepted: (current.accepted - last.accepted) as f64,
            rejected: (current.rejected - last.rejected) as f64,
            paused: current.paused.saturating_sub(last.paused).as_secs_f64() / seconds,
            is_backlogged,
        });
        self.local.in_flight.on_interval(&LatencyInterval {
            seconds,
            finished: (current.accepted - last.accepted) as f64,
            latency_s: (current.latency - last.latency).as_secs_f64(),
            base_latency_s: (current.base_latency - last.base_latency).as_secs_f64(),
            bytes: (current.bytes - last.bytes) as f64,
            workers: 1.0,
            is_backlogged,
        });
        self.in_flight_limit = self.local.in_flight.limit().map(|limit| limit.ceil() as u32);
        self.bytes_limit = self.local.in_flight.limit_bytes().map(|limit| limit as u64);
        self.set_rate(now, self.local.rate.limit());
    }

    /// Changes a part without a leader between a fraction of it and the whole part.
    fn adjust_unconfirmed_share(&mut self, now: Duration, last: Counters, current: Counters) {
        let (Some(share), Some(rate)) = (self.share_rate, self.requests_per_s) else { return };
        let factor = if now.saturating_sub(self.share_at) < UNCONFIRMED_SHARE {
            1.0
        } else if current.rejected > last.rejected {
            UNCONFIRMED_DECREASE
        } else if current.accepted > last.accepted {
            UNCONFIRMED_INCREASE
        } else {
            1.0
        };
        self.set_rate(now, Some((rate * factor).clamp(share * MIN_UNCONFIRMED_FRACTION, share)));
    }

    /// Whether the rate or the number of requests is limited, or the store has rejected requests.
    pub fn is_limited(&self) -> bool {
        self.requests_per_s.is_some() || self.in_flight_limit.is_some() || self.rejecting_since.is_some()
    }

    /// How long the store has rejected all requests of the worker, without the first minutes of the pauses that it asked for;
    /// `None` if the last request was not rejected.
    pub fn rejecting_for(&self, now: Duration) -> Option<Duration> {
        let asked = self.asked_pauses.min(MAX_ASKED_PAUSES);
        self.rejecting_since.map(|since| now.saturating_sub(since).saturating_sub(asked))
    }

    /// Returns the counters and gauges, without the key and the name of the store.
    pub fn report(&self, now: Duration) -> StoreReport {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        StoreReport {
            key: String::new(),
            name: String::new(),
            accepted: self.counters.accepted,
            rejected: self.counters.rejected,
            bytes: self.counters.bytes,
            latency_ns: nanos(self.counters.latency),
            base_latency_ns: nanos(self.counters.base_latency),
            paused_ns: nanos(self.counters_at(now).paused),
            elapsed_ns: nanos(now),
            requests_per_s: self.requests_per_s.unwrap_or(0.0),
            jobs: self.queue.reports(),
        }
    }
}

#[cfg(test)]
mod tests;
