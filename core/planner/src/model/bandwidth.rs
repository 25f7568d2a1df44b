//! The store's bandwidth as a concave function of the number of requests in flight, fitted to observations.
//!
//! Two functions are fitted, and the better one is used:
//!
//! - a roofline, `b(c) = min(a c, B)`: requests do not slow each other down until a limit `B` is reached. By Little's
//!   law, `a` = bytes per request / latency. A store that throttles requests behaves like this.
//! - a hyperbola, `b(c) = B c / (c + k)`: each request slows the others a little. `1/b = 1/B + (k/B)(1/c)` is a line,
//!   fitted by least squares. Disks and shared networks behave like this (Michaelis-Menten kinetics; Gunther's
//!   universal scalability law without coherency).
//!
//! Observations at only one concurrency determine the slope, but not the limit.

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Bandwidth in bytes per second as a function of the mean number of requests in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bandwidth {
    /// No bytes were read.
    #[default]
    Unknown,
    /// Proportional to the number of requests. No limit was observed.
    Linear {
        /// Bytes per second of one request in flight.
        slope: f64,
    },
    /// Linear up to a limit.
    #[serde(rename = "roof")]
    Roofline {
        /// Bytes per second of one request in flight.
        slope: f64,
        /// Limit in bytes per second.
        cap: f64,
    },
    /// Approaches a limit.
    Hyperbola {
        /// Limit in bytes per second.
        cap: f64,
        /// Number of requests in flight at which half of the limit is reached.
        #[serde(rename = "half")]
        half_concurrency: f64,
    },
}

/// The bandwidth at one concurrency, observed over several seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BandwidthObservation {
    /// Mean number of requests in flight.
    pub concurrency: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

impl BandwidthObservation {
    /// Whether the store has changed since `before`: the same concurrency yields less than half or more than twice the
    /// bandwidth.
    pub fn contradicts(&self, before: &Self) -> bool {
        let like = |factor: f64| (0.5..2.0).contains(&factor);
        self.has_concurrency_of(before) && !like(self.bytes_per_s / before.bytes_per_s)
    }

    /// Whether both concurrencies are nearly the same.
    pub(crate) fn has_concurrency_of(&self, other: &Self) -> bool {
        let factor = self.concurrency / other.concurrency;
        (1.0 / CONCURRENCY_MERGE_FACTOR..CONCURRENCY_MERGE_FACTOR).contains(&factor)
    }
}

/// Observations are merged if their concurrencies differ by less than this factor.
const CONCURRENCY_MERGE_FACTOR: f64 = 1.2;
/// A function with a limit replaces the straight line if its error is below this fraction of the line's error.
const MAX_LIMITED_FIT_ERROR_RATIO: f64 = 0.5;
/// A straight line is good enough if its mean squared relative error is at most this value, which corresponds to a
/// relative error of about 3 %.
const MAX_LINEAR_FIT_ERROR: f64 = 0.001;

impl Bandwidth {
    /// Fits a function to the observations. Ignores observations without requests in flight or without bytes.
    pub fn fit(observations: &[BandwidthObservation]) -> Self {
        let groups = merge_by_concurrency(observations);
        let [first, .., last] = groups.as_slice() else {
            return match groups.as_slice() {
                [only] => Self::Linear { slope: only.bytes_per_s / only.concurrency },
                _ => Self::Unknown,
            };
        };
        debug_assert!(first.concurrency < last.concurrency, "groups are sorted by concurrency");
        let slope = mean(groups.iter().map(|seen| seen.bytes_per_s / seen.concurrency));
        let straight = Self::Linear { slope };
        let straight_error = straight.fit_error(&groups);
        let bent = [fit_roofline(&groups), fit_hyperbola(&groups)].into_iter().flatten();
        let best = bent.min_by(|a, b| a.fit_error(&groups).total_cmp(&b.fit_error(&groups)));
        match best {
            Some(bent)
                if straight_error > MAX_LINEAR_FIT_ERROR
                    && bent.fit_error(&groups) < MAX_LIMITED_FIT_ERROR_RATIO * straight_error =>
            {
                bent
            }
            _ => straight,
        }
    }

    /// Returns the bandwidth in bytes per second at this number of requests in flight; infinity if unknown.
    pub fn bytes_per_s_at(&self, concurrency: f64) -> f64 {
        match *self {
            Self::Unknown => f64::INFINITY,
            Self::Linear { slope } => slope * concurrency,
            Self::Roofline { slope, cap } => (slope * concurrency).min(cap),
            Self::Hyperbola { cap, half_concurrency } => cap * concurrency / (concurrency + half_concurrency),
        }
    }

    /// Returns the bandwidth limit in bytes per second, if known.
    pub fn cap(&self) -> Option<f64> {
        match *self {
            Self::Unknown | Self::Linear { .. } => None,
            Self::Roofline { cap, .. } | Self::Hyperbola { cap, .. } => Some(cap),
        }
    }

    /// Returns the number of requests in flight that reaches this bandwidth; `None` if no number does.
    pub fn concurrency_for(&self, bytes_per_s: f64) -> Option<f64> {
        match *self {
            Self::Unknown => None,
            Self::Linear { slope } => Some(bytes_per_s / slope),
            Self::Roofline { slope, cap } => (bytes_per_s <= cap).then(|| bytes_per_s / slope),
            Self::Hyperbola { cap, half_concurrency } => {
                (bytes_per_s < cap).then(|| half_concurrency * bytes_per_s / (cap - bytes_per_s))
            }
        }
    }

    /// Returns the request time per byte, in seconds, of an unsaturated store: the reciprocal of the slope, or the
    /// value at three quarters of a hyperbola's limit. Excludes the queueing time in a saturated store, because it
    /// grows with the number of requests. Returns `None` if no bytes were read.
    pub fn seconds_per_byte(&self) -> Option<f64> {
        match *self {
            Self::Unknown => None,
            Self::Linear { slope } | Self::Roofline { slope, .. } => Some(1.0 / slope),
            Self::Hyperbola { cap, half_concurrency } => Some(4.0 * half_concurrency / cap),
        }
    }

    /// Whether doubling the concurrency would increase the bandwidth by less than 20 %.
    pub fn is_saturated(&self, concurrency: f64) -> bool {
        self.cap().is_some()
            && self.bytes_per_s_at(2.0 * concurrency) < 1.2 * self.bytes_per_s_at(concurrency)
    }

    /// Returns the mean squared relative error of this function.
    fn fit_error(&self, groups: &[BandwidthObservation]) -> f64 {
        mean(
            groups
                .iter()
                .map(|seen| (self.bytes_per_s_at(seen.concurrency) / seen.bytes_per_s - 1.0).powi(2)),
        )
    }
}

/// Sorts observations by concurrency and merges neighbours. If a group has a lower bandwidth than the previous group,
/// its bandwidth is set to that of the previous group: more requests never reduce the actual bandwidth, but reads are
/// counted when they complete, which takes longer in a saturated store.
fn merge_by_concurrency(observations: &[BandwidthObservation]) -> Vec<BandwidthObservation> {
    let usable = |seen: &&BandwidthObservation| seen.concurrency > 0.0 && seen.bytes_per_s > 0.0;
    let mut sorted: Vec<BandwidthObservation> = observations.iter().filter(usable).copied().collect();
    sorted.sort_by(|a, b| a.concurrency.total_cmp(&b.concurrency));
    let mut groups: Vec<Vec<BandwidthObservation>> = Vec::new();
    for seen in sorted {
        match groups.last_mut() {
            Some(group) if seen.concurrency < CONCURRENCY_MERGE_FACTOR * group[0].concurrency => {
                group.push(seen)
            }
            _ => groups.push(vec![seen]),
        }
    }
    let middle = |group: Vec<BandwidthObservation>| BandwidthObservation {
        concurrency: mean(group.iter().map(|seen| seen.concurrency)),
        bytes_per_s: mean(group.iter().map(|seen| seen.bytes_per_s)),
    };
    let mut most: f64 = 0.0;
    let rising = groups.into_iter().map(middle).map(|seen| {
        most = most.max(seen.bytes_per_s);
        BandwidthObservation { bytes_per_s: most, ..seen }
    });
    rising.collect()
}

/// Returns the roofline with the smallest error among those with a knee between two neighbouring observations.
fn fit_roofline(groups: &[BandwidthObservation]) -> Option<Bandwidth> {
    let at_knee = |knee: usize| {
        let (rising, flat) = groups.split_at(knee);
        let slope = mean(rising.iter().map(|seen| seen.bytes_per_s / seen.concurrency));
        Bandwidth::Roofline { slope, cap: mean(flat.iter().map(|seen| seen.bytes_per_s)) }
    };
    let roofs = (1..groups.len()).map(at_knee);
    roofs.min_by(|a, b| a.fit_error(groups).total_cmp(&b.fit_error(groups)))
}

fn fit_hyperbola(groups: &[BandwidthObservation]) -> Option<Bandwidth> {
    // The weights b² turn the error of 1/b into a relative error.
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
    is_concave.then(|| Bandwidth::Hyperbola { cap: 1.0 / intercept, half_concurrency: slope / intercept })
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}
