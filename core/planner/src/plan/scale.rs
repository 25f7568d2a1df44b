//! Decides when the number of workers changes: it grows at once, and shrinks after some time.
//!
//! The rules of two other systems are pure functions, for comparison on the same scenario.

use std::collections::VecDeque;

use feedline_data::ids::Millis;
use feedline_data::view::BottleneckKind;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Bounds and delays of scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScaleSettings {
    /// The smallest number of workers.
    pub min_workers: u32,
    /// The largest number of workers.
    pub max_workers: u32,
    /// Milliseconds for which fewer workers must have been enough before workers are removed.
    pub shrink_after_ms: Millis,
}

impl Default for ScaleSettings {
    fn default() -> Self {
        Self { min_workers: 1, max_workers: 1, shrink_after_ms: 30_000 }
    }
}

/// The input of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScaleInput {
    /// The time of the decision.
    pub now: Millis,
    /// Workers that run or start, except draining ones.
    pub present: u32,
    /// The number of workers that the plan wants.
    pub wanted: u32,
    /// The smallest fed fraction.
    pub fed_fraction: f64,
    /// The bottleneck of the job with the smallest fed fraction, if known. If several jobs are short of rows, the
    /// bottleneck of one that more workers would help.
    pub bound: Option<BottleneckKind>,
}

/// The wanted number of workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleDecision {
    /// The number of workers.
    pub wanted: u32,
    /// The reason, as text for users.
    pub why: String,
}

/// The wanted numbers of workers since there have been more than needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScaleHistory {
    /// When there were first more workers than needed.
    since: Option<Millis>,
    /// The wanted number at each time, in descending order. A number is dropped when a later one is at least as
    /// large.
    wanted: VecDeque<(Millis, u32)>,
}

impl ScaleHistory {
    /// Makes a decision. Call this for each new plan, and at least once per second.
    pub fn decide(&mut self, settings: &ScaleSettings, input: &ScaleInput) -> ScaleDecision {
        let wanted = input.wanted.clamp(settings.min_workers, settings.max_workers);
        if wanted < input.present {
            return self.on_surplus(settings, input, wanted);
        }
        self.clear();
        if wanted == input.present {
            return keep_workers(input, reason_to_keep(settings, input));
        }
        if input.present < settings.min_workers {
            return ScaleDecision {
                wanted,
                why: format!("the minimum is {}", workers(settings.min_workers)),
            };
        }
        if let Some(kind @ (BottleneckKind::Consumer | BottleneckKind::Store)) = input.bound {
            return keep_workers(
                input,
                format!("more workers would not help: the bottleneck is the {}", kind.name()),
            );
        }
        let why = format!(
            "the smallest fed fraction is {:.0} %, and {} would feed all jobs",
            100.0 * input.fed_fraction,
            workers(wanted)
        );
        ScaleDecision { wanted, why }
    }

    /// Keeps the largest number of workers that was wanted over the last `shrink_after_ms`.
    fn on_surplus(&mut self, settings: &ScaleSettings, input: &ScaleInput, wanted: u32) -> ScaleDecision {
        let since = *self.since.get_or_insert(input.now);
        while self.wanted.back().is_some_and(|(_, before)| *before <= wanted) {
            self.wanted.pop_back();
        }
        self.wanted.push_back((input.now, wanted));
        while self.wanted.len() > 1 && self.wanted[0].0 + settings.shrink_after_ms <= input.now {
            self.wanted.pop_front();
        }
        let target = self.wanted.front().map_or(wanted, |(_, most)| *most);
        let lasted = input.now.saturating_sub(since);
        if lasted < settings.shrink_after_ms {
            let left = (settings.shrink_after_ms - lasted).div_ceil(1000);
            return keep_workers(
                input,
                format!(
                    "{} would be enough; workers are removed if this lasts {left} s more",
                    workers(target)
                ),
            );
        }
        if target >= input.present {
            return keep_workers(input, format!("{} were wanted recently", workers(target)));
        }
        let have = if target == 1 { "has" } else { "have" };
        let lasted = settings.shrink_after_ms / 1000;
        let why = format!("{} {have} been enough for {lasted} s", workers(target));
        ScaleDecision { wanted: target, why }
    }

    fn clear(&mut self) {
        self.since = None;
        self.wanted.clear();
    }
}

fn keep_workers(input: &ScaleInput, why: String) -> ScaleDecision {
    ScaleDecision { wanted: input.present, why }
}

fn reason_to_keep(settings: &ScaleSettings, input: &ScaleInput) -> String {
    if input.wanted > settings.max_workers {
        return format!(
            "{} would feed all jobs, but the limit is {}",
            workers(input.wanted),
            settings.max_workers
        );
    }
    if input.wanted < settings.min_workers {
        return format!("fewer workers would be enough, but the minimum is {}", settings.min_workers);
    }
    let are = if input.wanted == 1 { "is" } else { "are" };
    format!("{} {are} needed", workers(input.wanted))
}

fn workers(count: u32) -> String {
    if count == 1 { "1 worker".into() } else { format!("{count} workers") }
}

/// The rule of tf.data service (Audibert et al., "tf.data service: A Case for Disaggregating ML Input Data
/// Processing", SoCC 2023): the sum of the consumers' rates over the mean rate of a worker, rounded up. Rates are in
/// rows per second. Returns the current number of workers if no worker has a rate yet.
pub fn rate_quotient(consumer_rates: &[f64], worker_rates: &[f64], present: u32) -> u32 {
    let working: Vec<f64> = worker_rates.iter().copied().filter(|rate| *rate > 0.0).collect();
    if working.is_empty() {
        return present;
    }
    let mean = working.iter().sum::<f64>() / working.len() as f64;
    (consumer_rates.iter().sum::<f64>() / mean).ceil() as u32
}

/// The rule of Cachew (Graur et al., "Cachew: Machine Learning Input Data Processing as a Service", USENIX ATC 2022):
/// adds one worker as long as each one shortens the time per batch, then removes one as long as the time does not
/// grow, then rests until the time changes in either direction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HillClimber {
    phase: ClimbPhase,
    /// The time per batch before the last step, in seconds.
    before_s: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ClimbPhase {
    #[default]
    Up,
    Down,
    Rest,
}

impl HillClimber {
    /// Returns the wanted number of workers. `batch_s` is the time per batch since the last step. Relative changes
    /// below `threshold` count as none.
    pub fn step(&mut self, present: u32, batch_s: f64, threshold: f64) -> u32 {
        let change = self.before_s.map_or(-1.0, |before_s| (batch_s - before_s) / before_s);
        self.before_s = Some(batch_s);
        let shorter = change < -threshold;
        let longer = change > threshold;
        self.phase = match self.phase {
            ClimbPhase::Up if !shorter => ClimbPhase::Down,
            ClimbPhase::Down if longer => {
                // The removed worker was needed, so add it again. The time with it is not known yet.
                (self.phase, self.before_s) = (ClimbPhase::Rest, None);
                return present + 1;
            }
            ClimbPhase::Rest if self.is_unchanged(change, threshold) => return present,
            ClimbPhase::Rest => ClimbPhase::Up,
            same => same,
        };
        if self.phase == ClimbPhase::Up { present + 1 } else { (present - 1).max(1) }
    }

    /// The first time per batch at rest is the reference for later ones.
    fn is_unchanged(&self, change: f64, threshold: f64) -> bool {
        change == -1.0 || change.abs() <= threshold
    }
}
