//! When the number of workers changes: at once up to what is needed, and down only after a while.
//!
//! Beside our rule are those of two other systems as pure functions, to compare with on the same scenario.

use std::collections::VecDeque;

use feedline_data::ids::Millis;
use feedline_data::view::BottleneckKind;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Bounds and patience of scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScaleSettings {
    /// The fewest workers.
    pub min_workers: u32,
    /// The most workers.
    pub max_workers: u32,
    /// Milliseconds for which fewer workers must have been enough before some are let go.
    pub shrink_after_ms: Millis,
}

impl Default for ScaleSettings {
    fn default() -> Self {
        Self { min_workers: 1, max_workers: 1, shrink_after_ms: 30_000 }
    }
}

/// What is known when a decision is due.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScaleInput {
    /// Now.
    pub now: Millis,
    /// Workers that are there or on their way; those that leave do not count.
    pub present: u32,
    /// Workers that the plan wants.
    pub wanted: u32,
    /// The smallest fed fraction.
    pub fed_fraction: f64,
    /// What bounds the least fed job, where it is known; of several that are short, one that more workers would help.
    pub bound: Option<BottleneckKind>,
}

/// How many workers there shall be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleDecision {
    /// Workers that there shall be.
    pub wanted: u32,
    /// One sentence.
    pub why: String,
}

/// Remembers what was wanted while there were more workers than needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScaleHistory {
    /// Since when there have been more than needed.
    since: Option<Millis>,
    /// What was wanted at each time of the last while, the most first: whoever was followed by as much has no say.
    wanted: VecDeque<(Millis, u32)>,
}

impl ScaleHistory {
    /// Decides; to be asked whenever there is a new plan, and at least each second.
    pub fn decide(&mut self, settings: &ScaleSettings, input: &ScaleInput) -> ScaleDecision {
        let wanted = input.wanted.clamp(settings.min_workers, settings.max_workers);
        if wanted < input.present {
            return self.on_surplus(settings, input, wanted);
        }
        self.forget();
        if wanted == input.present {
            return stay(input, why_enough(settings, input));
        }
        if input.present < settings.min_workers {
            return ScaleDecision {
                wanted,
                why: format!("at least {} shall be there", workers(settings.min_workers)),
            };
        }
        if let Some(kind @ (BottleneckKind::Consumer | BottleneckKind::Store)) = input.bound {
            return stay(
                input,
                format!("more workers would not help: what bounds the jobs is the {}", kind.name()),
            );
        }
        let why = format!(
            "the least fed job has {:.0} % of what it could take, and {} would feed all",
            100.0 * input.fed_fraction,
            workers(wanted)
        );
        ScaleDecision { wanted, why }
    }

    /// As many stay as were wanted at any time of the last while.
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
            return stay(
                input,
                format!("{} would be enough; some may go if this lasts {left} s more", workers(target)),
            );
        }
        if target >= input.present {
            return stay(input, format!("{} were wanted within the last while", workers(target)));
        }
        let have = if target == 1 { "has" } else { "have" };
        let lasted = settings.shrink_after_ms / 1000;
        let why = format!("{} {have} been enough for {lasted} s", workers(target));
        ScaleDecision { wanted: target, why }
    }

    fn forget(&mut self) {
        self.since = None;
        self.wanted.clear();
    }
}

fn stay(input: &ScaleInput, why: String) -> ScaleDecision {
    ScaleDecision { wanted: input.present, why }
}

fn why_enough(settings: &ScaleSettings, input: &ScaleInput) -> String {
    if input.wanted > settings.max_workers {
        return format!(
            "{} would feed all, but {} is the limit",
            workers(input.wanted),
            settings.max_workers
        );
    }
    if input.wanted < settings.min_workers {
        return format!("fewer would be enough, but {} is the least", settings.min_workers);
    }
    let are = if input.wanted == 1 { "is" } else { "are" };
    format!("{} {are} what is needed", workers(input.wanted))
}

fn workers(count: u32) -> String {
    if count == 1 { "1 worker".into() } else { format!("{count} workers") }
}

/// tf.data service's rule (Audibert et al., "tf.data service: A Case for Disaggregating ML Input Data Processing", SoCC
/// 2023): the consumers' rates over the mean rate of a worker, rounded up; rates in rows per second. The workers present
/// where no worker has a rate yet.
pub fn rate_quotient(consumer_rates: &[f64], worker_rates: &[f64], present: u32) -> u32 {
    let working: Vec<f64> = worker_rates.iter().copied().filter(|rate| *rate > 0.0).collect();
    if working.is_empty() {
        return present;
    }
    let mean = working.iter().sum::<f64>() / working.len() as f64;
    (consumer_rates.iter().sum::<f64>() / mean).ceil() as u32
}

/// Cachew's rule (Graur et al., "Cachew: Machine Learning Input Data Processing as a Service", USENIX ATC 2022): one
/// worker more as long as each shortens the time for a batch, then one less as long as that costs nothing, then rest
/// until the time for a batch changes, either way: a consumer that takes more is also one whose batches come faster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Climber {
    phase: Phase,
    /// Time for a batch before the last step, in seconds.
    before_s: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Up,
    Down,
    Rest,
}

impl Climber {
    /// Workers that there shall be. `batch_s` is the time for a batch since the last step; changes of less than the
    /// share `threshold` count as none.
    pub fn step(&mut self, present: u32, batch_s: f64, threshold: f64) -> u32 {
        let change = self.before_s.map_or(-1.0, |before_s| (batch_s - before_s) / before_s);
        self.before_s = Some(batch_s);
        let shorter = change < -threshold;
        let longer = change > threshold;
        self.phase = match self.phase {
            Phase::Up if !shorter => Phase::Down,
            Phase::Down if longer => {
                // The last one was needed: take the step back, whose time is not known yet.
                (self.phase, self.before_s) = (Phase::Rest, None);
                return present + 1;
            }
            Phase::Rest if self.rests(change, threshold) => return present,
            Phase::Rest => Phase::Up,
            same => same,
        };
        if self.phase == Phase::Up { present + 1 } else { (present - 1).max(1) }
    }

    /// The first time at rest is what later ones are compared with.
    fn rests(&self, change: f64, threshold: f64) -> bool {
        change == -1.0 || change.abs() <= threshold
    }
}
