//! The store's bandwidth as a concave function of how many requests are in flight, fitted to what was seen.
//!
//! Two laws are tried, and the one that fits better is kept:
//!
//! - a roof, `b(c) = min(a c, B)`: requests do not hinder each other until a limit `B` is reached. Little's law gives
//!   `a` = bytes per request / latency. So behaves a store that throttles.
//! - a hyperbola, `b(c) = B c / (c + k)`: each request slows the others a little; `1/b = 1/B + (k/B)(1/c)` is a line, and
//!   is fitted by least squares. So behave disks and shared networks (the law of Michaelis and Menten; the universal
//!   scalability law of Gunther without its term of coherence).
//!
//! From observations at one concurrency only, the slope is known and the limit is not.

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// A law of bandwidth in bytes per second against mean requests in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bandwidth {
    /// Nothing was read.
    #[default]
    Unknown,
    /// As many times a single request's bandwidth as there are requests; no limit was seen.
    Linear {
        /// Bytes per second of one request in flight.
        slope: f64,
    },
    /// Linear up to a limit.
    Roof {
        /// Bytes per second of one request in flight.
        slope: f64,
        /// Limit in bytes per second.
        cap: f64,
    },
    /// Approaches a limit.
    Hyperbola {
        /// Limit in bytes per second.
        cap: f64,
        /// Requests in flight at which half of the limit is reached.
        half: f64,
    },
}

/// What was seen over some seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Mean requests in flight.
    pub concurrency: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

impl Observation {
    /// Whether the store has changed since `before`: as many requests bring less than half of it, or more than twice as much.
    pub fn contradicts(&self, before: &Self) -> bool {
        let same = |factor: f64| (1.0 / SAME_CONCURRENCY..SAME_CONCURRENCY).contains(&factor);
        let like = |factor: f64| (0.5..2.0).contains(&factor);
        same(self.concurrency / before.concurrency) && !like(self.bytes_per_s / before.bytes_per_s)
    }
}

/// Observations whose concurrency differs by less than this factor are one.
const SAME_CONCURRENCY: f64 = 1.2;
/// A law that bends must fit this much better than one that does not.
const BEND_GAIN: f64 = 0.5;
/// Below this mean squared relative error a straight line is good enough: 3 % each way.
const STRAIGHT_ENOUGH: f64 = 0.001;

impl Bandwidth {
    /// Fits observations; those with nothing in flight or nothing read are passed over.
    pub fn fit(observations: &[Observation]) -> Self {
        let groups = grouped(observations);
        let [first, .., last] = groups.as_slice() else {
            return match groups.as_slice() {
                [only] => Self::Linear { slope: only.bytes_per_s / only.concurrency },
                _ => Self::Unknown,
            };
        };
        debug_assert!(first.concurrency < last.concurrency, "groups are sorted");
        let slope = mean(groups.iter().map(|seen| seen.bytes_per_s / seen.concurrency));
        let straight = Self::Linear { slope };
        let straight_error = straight.error(&groups);
        let bent = [roof(&groups), hyperbola(&groups)].into_iter().flatten();
        let best = bent.min_by(|a, b| a.error(&groups).total_cmp(&b.error(&groups)));
        match best {
            Some(bent)
                if straight_error > STRAIGHT_ENOUGH && bent.error(&groups) < BEND_GAIN * straight_error =>
            {
                bent
            }
            _ => straight,
        }
    }

    /// Bytes per second with this many requests in flight; infinite where nothing is known.
    pub fn at(&self, concurrency: f64) -> f64 {
        match *self {
            Self::Unknown => f64::INFINITY,
            Self::Linear { slope } => slope * concurrency,
            Self::Roof { slope, cap } => (slope * concurrency).min(cap),
            Self::Hyperbola { cap, half } => cap * concurrency / (concurrency + half),
        }
    }

    /// What no concurrency exceeds, in bytes per second, where it is known.
    pub fn cap(&self) -> Option<f64> {
        match *self {
            Self::Unknown | Self::Linear { .. } => None,
            Self::Roof { cap, .. } | Self::Hyperbola { cap, .. } => Some(cap),
        }
    }

    /// Requests in flight that give this bandwidth; `None` where none does.
    pub fn concurrency_for(&self, bytes_per_s: f64) -> Option<f64> {
        match *self {
            Self::Unknown => None,
            Self::Linear { slope } => Some(bytes_per_s / slope),
            Self::Roof { slope, cap } => (bytes_per_s <= cap).then(|| bytes_per_s / slope),
            Self::Hyperbola { cap, half } => {
                (bytes_per_s < cap).then(|| half * bytes_per_s / (cap - bytes_per_s))
            }
        }
    }

    /// Seconds that a byte keeps a request busy where the store is not full: the slope's reciprocal, or what it takes at three
    /// quarters of a hyperbola's limit. What requests wait for in a full store's queue does not count: it grows with their
    /// number. `None` where nothing was read.
    pub fn seconds_per_byte(&self) -> Option<f64> {
        match *self {
            Self::Unknown => None,
            Self::Linear { slope } | Self::Roof { slope, .. } => Some(1.0 / slope),
            Self::Hyperbola { cap, half } => Some(4.0 * half / cap),
        }
    }

    /// Whether twice the concurrency would give less than a fifth more.
    pub fn is_saturated(&self, concurrency: f64) -> bool {
        self.cap().is_some() && self.at(2.0 * concurrency) < 1.2 * self.at(concurrency)
    }

    /// Mean squared relative error.
    fn error(&self, groups: &[Observation]) -> f64 {
        mean(groups.iter().map(|seen| (self.at(seen.concurrency) / seen.bytes_per_s - 1.0).powi(2)))
    }
}

/// Sorted by concurrency, neighbours that hardly differ put together. More requests bring no less: where less was seen, reads
/// had not come to their end yet, when they are counted, which takes the longer the more of them share a full store.
fn grouped(observations: &[Observation]) -> Vec<Observation> {
    let usable = |seen: &&Observation| seen.concurrency > 0.0 && seen.bytes_per_s > 0.0;
    let mut sorted: Vec<Observation> = observations.iter().filter(usable).copied().collect();
    sorted.sort_by(|a, b| a.concurrency.total_cmp(&b.concurrency));
    let mut groups: Vec<Vec<Observation>> = Vec::new();
    for seen in sorted {
        match groups.last_mut() {
            Some(group) if seen.concurrency < SAME_CONCURRENCY * group[0].concurrency => group.push(seen),
            _ => groups.push(vec![seen]),
        }
    }
    let middle = |group: Vec<Observation>| Observation {
        concurrency: mean(group.iter().map(|seen| seen.concurrency)),
        bytes_per_s: mean(group.iter().map(|seen| seen.bytes_per_s)),
    };
    let mut most: f64 = 0.0;
    let rising = groups.into_iter().map(middle).map(|seen| {
        most = most.max(seen.bytes_per_s);
        Observation { bytes_per_s: most, ..seen }
    });
    rising.collect()
}

/// The roof with the knee between two neighbouring observations that fits best.
fn roof(groups: &[Observation]) -> Option<Bandwidth> {
    let at_knee = |knee: usize| {
        let (rising, flat) = groups.split_at(knee);
        let slope = mean(rising.iter().map(|seen| seen.bytes_per_s / seen.concurrency));
        Bandwidth::Roof { slope, cap: mean(flat.iter().map(|seen| seen.bytes_per_s)) }
    };
    let roofs = (1..groups.len()).map(at_knee);
    roofs.min_by(|a, b| a.error(groups).total_cmp(&b.error(groups)))
}

fn hyperbola(groups: &[Observation]) -> Option<Bandwidth> {
    // Weights b² make the error of 1/b a relative one.
    let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for seen in groups {
        let (x, y) = (1.0 / seen.concurrency, 1.0 / seen.bytes_per_s);
        let weight = seen.bytes_per_s.powi(2);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    let slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
    let intercept = (wy - slope * wx) / w;
    let is_concave = slope.is_finite() && slope > 0.0 && intercept > 0.0;
    is_concave.then(|| Bandwidth::Hyperbola { cap: 1.0 / intercept, half: slope / intercept })
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}
