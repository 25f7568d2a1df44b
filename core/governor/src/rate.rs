//! The control law of the request rate: how many requests per second a store accepts.
//!
//! A store that limits requests rejects those beyond its rate, so that the accepted rate during rejections is an estimate of
//! the allowed rate. The law keeps the largest rate that the store is known to accept, the *ceiling*, and asks for slightly less:
//!
//! 1. *Unlimited* until the first rejection.
//! 2. *Learning*: heavy rejections reduce the limit to the accepted rate. The limit then grows by 1 to 20 % per second, until a few
//!    rejections confirm the ceiling.
//! 3. *Holding*: the limit is 97 % of the ceiling for a time that depends on the rejections that confirmed the ceiling, so that
//!    they are at most 0.05 % of the requests.
//! 4. *Probing*: the limit grows by 1 % per second, and faster after 18 s. Rejections end the probe. A store that allows bursts
//!    for a second rejects requests only when the limit exceeds its rate by 14 %, which this growth reaches before.
//!
//! Additive growth towards a remembered ceiling is the idea of CUBIC (RFC 9438), and the estimate from the accepted rate is
//! that of BBR.

use std::collections::VecDeque;

/// The fraction of the ceiling that is used between probes.
const HOLD_FRACTION: f64 = 0.97;
/// The fraction of the accepted rate that is used directly after rejections, so that the store recovers.
const BACKOFF_FRACTION: f64 = 0.93;
/// Fewer rejections than this fraction mean that the limit is only a little above the allowed rate.
const LIGHT_REJECTIONS: f64 = 0.15;
/// The lowest limit, in requests per second.
const MIN_RATE: f64 = 1.0;
/// Growth per second after heavy rejections, up to the estimate of the allowed rate and above it. Above, it doubles for each
/// [`EXCESS_DOUBLING`] by which the limit exceeds [`NEAR_ESTIMATE`] times the estimate.
const RETURN_GROWTH: f64 = 0.05;
const LEARNING_GROWTH: f64 = 0.01;
const NEAR_ESTIMATE: f64 = 1.05;
const EXCESS_DOUBLING: f64 = 0.08;
/// Growth per second after a rough estimate.
const ROUGH_GROWTH: f64 = 0.15;
const MAX_LEARNING_GROWTH: f64 = 0.2;
/// Growth per second of a probe. It doubles every [`PROBE_DOUBLING_S`] seconds after [`PROBE_SLOW_S`] seconds.
const PROBE_GROWTH: f64 = 0.01;
const PROBE_SLOW_S: f64 = 18.0;
const PROBE_DOUBLING_S: f64 = 3.0;
/// Largest growth per second.
const MAX_GROWTH: f64 = 0.5;
/// Limits of the time between two probes.
const MIN_HOLD_S: f64 = 20.0;
const MAX_HOLD_S: f64 = 300.0;
/// The fraction of requests that probes may lose to rejections.
const PROBE_REJECTIONS: f64 = 0.0005;
/// Rejections within this time after a decrease belong to requests of the previous limit.
const DECREASE_DELAY_S: f64 = 1.2;
/// Rejections are observed over this time, because shorter intervals contain too few requests.
const WINDOW_S: f64 = 1.0;
/// Consecutive decreases after which rejections that have not become fewer do not depend on the rate.
const MAX_DECREASES: u32 = 4;
/// A decrease follows another one if it comes within this time.
const STREAK_S: f64 = 6.0;
/// Time for which such rejections are ignored, unless there are many.
const IGNORE_S: f64 = 60.0;
/// A limit without rejections is removed if the demand stays below half of it for this time.
const FORGET_S: f64 = 600.0;

/// What all workers observed in one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RateInterval {
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// Requests that the store accepted.
    pub accepted: f64,
    /// Requests that the store rejected because of its load.
    pub rejected: f64,
    /// The fraction of the interval, averaged over the workers with requests, in which a pause after a rejection stopped requests.
    pub paused: f64,
    /// Whether requests waited for the limit.
    pub is_backlogged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The limit grows from an estimate of the allowed rate. It is rough if most workers paused when it was made.
    Learning {
        estimate: f64,
        is_rough: bool,
    },
    /// The limit approaches [`HOLD_FRACTION`] of the ceiling, and stays there until the time.
    Holding {
        until_s: f64,
    },
    Probing {
        since_s: f64,
    },
}

/// Decreases in a row because of few rejections.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Streak {
    decreases: u32,
    /// The limit and the fraction of rejected requests before the first decrease.
    limit: f64,
    fraction: f64,
}

/// The control law of one store.
#[derive(Debug, Clone, PartialEq)]
pub struct RateLaw {
    now_s: f64,
    limit: Option<f64>,
    ceiling: f64,
    phase: Phase,
    decreased_s: f64,
    streak: Streak,
    /// Few rejections are ignored until this time.
    ignores_until_s: f64,
    /// Rejections since the last probe, or since the last heavy rejections.
    episode_rejections: f64,
    /// Rejections of the last light intervals, and when they began.
    noise: f64,
    /// The intervals of the last second, and their sum.
    history: VecDeque<RateInterval>,
    recent: RateInterval,
    last_rejected: f64,
    quiet_since_s: f64,
}

impl Default for RateLaw {
    fn default() -> Self {
        Self {
            now_s: 0.0,
            limit: None,
            ceiling: 0.0,
            phase: Phase::Holding { until_s: 0.0 },
            decreased_s: f64::NEG_INFINITY,
            streak: Streak::default(),
            ignores_until_s: 0.0,
            episode_rejections: 0.0,
            noise: 0.0,
            history: VecDeque::new(),
            recent: RateInterval::default(),
            last_rejected: 0.0,
            quiet_since_s: 0.0,
        }
    }
}

impl RateLaw {
    /// Continues with a limit that another governor has found.
    pub fn with_limit(requests_per_s: f64) -> Self {
        let limit = requests_per_s.max(MIN_RATE);
        Self {
            limit: Some(limit),
            ceiling: limit / HOLD_FRACTION,
            phase: Phase::Holding { until_s: MIN_HOLD_S },
            ..Self::default()
        }
    }

    /// The allowed requests per second; `None` without a limit.
    pub fn limit(&self) -> Option<f64> {
        self.limit
    }

    /// Takes the observations since the last call.
    pub fn on_interval(&mut self, interval: &RateInterval) {
        if interval.seconds <= 0.0 {
            return;
        }
        self.now_s += interval.seconds;
        self.last_rejected = interval.rejected;
        self.add_recent(interval);
        if interval.rejected > 0.0 {
            self.quiet_since_s = self.now_s;
            self.on_rejections();
        } else if let Some(limit) = self.limit {
            self.on_acceptance(limit, interval);
        }
    }

    fn on_rejections(&mut self) {
        let RateInterval { seconds, accepted, rejected, paused, is_backlogged } = self.recent;
        self.episode_rejections += self.last_rejected;
        // While most workers pause, the store accepts fewer requests than it allows.
        let goodput = (accepted / seconds / (1.0 - (paused - 0.5).clamp(0.0, 0.5))).max(MIN_RATE);
        let Some(limit) = self.limit else {
            let is_rough = paused > 0.3 || seconds < 0.8 * WINDOW_S;
            self.learn(goodput / (1.0 - paused).clamp(0.4, 1.0), is_rough);
            return;
        };
        let is_stale = self.now_s - self.decreased_s < DECREASE_DELAY_S;
        // Pauses hide rejections, so that few of them may belong to a limit that is far too high.
        let is_hidden = paused > 0.15 && goodput < 0.85 * limit && is_backlogged;
        let fraction = rejected / (accepted + rejected);
        if !is_hidden && fraction < LIGHT_REJECTIONS {
            if !is_stale && self.now_s >= self.ignores_until_s && !self.ignore_streak(limit, fraction) {
                self.on_light_rejections(limit, goodput);
            }
        } else if !is_stale {
            self.learn(goodput.clamp(0.3 * limit, 0.97 * limit), paused > 0.5);
        } else if paused < 0.5 && BACKOFF_FRACTION * goodput < limit {
            // The store was far beyond its rate, so that the estimate still falls.
            self.learn(goodput.max(0.7 * limit), false);
        }
    }

    /// Some stores reject a part of the requests at any rate. Returns whether decreases have not helped, and then restores the
    /// limit and ignores few rejections for a while.
    fn ignore_streak(&mut self, limit: f64, fraction: f64) -> bool {
        if self.streak.decreases == 0 || self.now_s - self.decreased_s > STREAK_S {
            self.streak = Streak { decreases: 0, limit, fraction };
        }
        self.streak.decreases += 1;
        if self.streak.decreases <= MAX_DECREASES || fraction < 0.5 * self.streak.fraction {
            return false;
        }
        let estimate = self.streak.limit;
        self.limit = Some(estimate);
        self.ceiling = estimate;
        self.phase = Phase::Learning { estimate, is_rough: true };
        self.ignores_until_s = self.now_s + IGNORE_S;
        self.streak = Streak::default();
        true
    }

    fn on_light_rejections(&mut self, limit: f64, goodput: f64) {
        let crossed = goodput.clamp(0.85 * limit, limit);
        let (ceiling, until_s) = match self.phase {
            // The limit crossed the allowed rate.
            Phase::Learning { .. } | Phase::Probing { .. } => {
                let hold_s = self.episode_rejections / (PROBE_REJECTIONS * crossed);
                (crossed, self.now_s + hold_s.clamp(MIN_HOLD_S, MAX_HOLD_S))
            }
            // A few rejections below the ceiling come from bursts.
            Phase::Holding { until_s } => {
                self.noise += self.last_rejected;
                if self.noise < 0.002 * limit.max(500.0) {
                    return;
                }
                // The store has no burst left, so that it accepts its rate.
                let ceiling = goodput.clamp(0.9 * limit, 0.98 * limit);
                (ceiling, until_s.max(self.now_s + MIN_HOLD_S / 4.0))
            }
        };
        self.decrease(ceiling, Phase::Holding { until_s });
    }

    /// Adds an interval to those of the last second.
    fn add_recent(&mut self, interval: &RateInterval) {
        self.history.push_back(*interval);
        while self.history.iter().skip(1).map(|interval| interval.seconds).sum::<f64>() >= WINDOW_S {
            self.history.pop_front();
        }
        let sum = |value: fn(&RateInterval) -> f64| self.history.iter().map(value).sum::<f64>();
        let seconds = sum(|interval| interval.seconds);
        self.recent = RateInterval {
            seconds,
            accepted: sum(|interval| interval.accepted),
            rejected: sum(|interval| interval.rejected),
            paused: sum(|interval| interval.paused * interval.seconds) / seconds,
            is_backlogged: interval.is_backlogged,
        };
    }

    fn learn(&mut self, estimate: f64, is_rough: bool) {
        self.episode_rejections = 0.0;
        self.decrease(estimate, Phase::Learning { estimate, is_rough });
    }

    fn decrease(&mut self, ceiling: f64, phase: Phase) {
        self.ceiling = ceiling.max(MIN_RATE);
        self.limit = Some((BACKOFF_FRACTION * self.ceiling).max(MIN_RATE));
        self.phase = phase;
        self.decreased_s = self.now_s;
        self.noise = 0.0;
    }

    fn on_acceptance(&mut self, limit: f64, interval: &RateInterval) {
        let used = interval.accepted / interval.seconds;
        let is_used = interval.is_backlogged && used > 0.8 * limit;
        if used > 0.5 * limit {
            self.quiet_since_s = self.quiet_since_s.max(self.now_s - FORGET_S / 2.0);
        } else if self.now_s - self.quiet_since_s > FORGET_S {
            *self = Self { now_s: self.now_s, ..Self::default() };
            return;
        }
        let seconds = interval.seconds;
        match self.phase {
            Phase::Learning { estimate, is_rough } if is_used => {
                let excess = (limit / estimate - NEAR_ESTIMATE).max(0.0) / EXCESS_DOUBLING;
                let growth = if is_rough {
                    ROUGH_GROWTH
                } else if limit < estimate {
                    RETURN_GROWTH
                } else {
                    LEARNING_GROWTH * excess.exp2()
                };
                self.grow(limit, growth.min(MAX_LEARNING_GROWTH), seconds);
            }
            Phase::Learning { .. } => {}
            Phase::Holding { until_s } => {
                let target = HOLD_FRACTION * self.ceiling;
                let step = (0.5 * seconds).min(1.0) * (target - limit);
                self.limit = Some((limit + step).max(MIN_RATE));
                if self.now_s >= until_s && is_used {
                    self.episode_rejections = 0.0;
                    self.noise = 0.0;
                    self.phase = Phase::Probing { since_s: self.now_s };
                }
            }
            Phase::Probing { since_s } if is_used => {
                let doublings = (self.now_s - since_s - PROBE_SLOW_S).max(0.0) / PROBE_DOUBLING_S;
                let growth = (PROBE_GROWTH * doublings.floor().exp2()).min(MAX_GROWTH);
                self.grow(limit, growth, seconds);
            }
            Phase::Probing { .. } => {}
        }
    }

    fn grow(&mut self, limit: f64, growth_per_s: f64, seconds: f64) {
        let grown = limit * (1.0 + growth_per_s * seconds);
        self.limit = Some(grown.max(limit + 0.1 * seconds));
        self.ceiling = self.ceiling.max(limit);
    }
}

#[cfg(test)]
mod tests;
