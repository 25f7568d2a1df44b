//! Decides when to change the number of workers. The number grows immediately, and shrinks after a delay.
//!
//! The scaling rules of two other systems are implemented for comparison on the same scenario.

use std::collections::VecDeque;

use feedline_data::ids::Millis;
use feedline_data::view::BottleneckKind;
use serde::{Deserialize, Serialize};

use crate::model::format_count;

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
    /// Time, in milliseconds, for which fewer workers must be enough before workers are removed.
    pub shrink_after_ms: Millis,
}

impl Default for ScaleSettings {
    fn default() -> Self {
        Self { min_workers: 1, max_workers: 1, shrink_after_ms: 30_000 }
    }
}

/// The input of a scaling decision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScaleInput {
    /// The time of the decision.
    pub now: Millis,
    /// The number of running and starting workers, except draining workers.
    pub current_workers: u32,
    /// The number of workers that the plan wants.
    pub wanted_workers: u32,
    /// The smallest fed fraction.
    pub fed_fraction: f64,
    /// The bottleneck of the job with the smallest fed fraction, if known. If more workers would not help this job but
    /// would help another underfed job, the bottleneck of that job.
    pub bottleneck: Option<BottleneckKind>,
}

/// The wanted number of workers, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleDecision {
    /// The wanted number of workers.
    pub wanted: u32,
    /// The reason, as text for users.
    #[serde(rename = "why")]
    pub explanation: String,
}

/// History of the wanted number of workers since the current surplus of workers began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScaleHistory {
    /// Time at which the surplus began; `None` without a surplus.
    surplus_since: Option<Millis>,
    /// The wanted numbers with their times, in descending order. A number is dropped when a later number is at least
    /// as large.
    recent_wanted: VecDeque<(Millis, u32)>,
}

impl ScaleHistory {
    /// Makes a scaling decision. Must be called for each new plan, and at least once per second.
    pub fn decide(&mut self, settings: &ScaleSettings, input: &ScaleInput) -> ScaleDecision {
        let wanted = input.wanted_workers.clamp(settings.min_workers, settings.max_workers);
        if wanted < input.current_workers {
            return self.decide_on_surplus(settings, input, wanted);
        }
        self.clear();
        if wanted == input.current_workers {
            return keep_workers(input, reason_to_keep(settings, input));
        }
        if input.current_workers < settings.min_workers {
            let explanation = format!("the configured minimum is {}", format_workers(settings.min_workers));
            return ScaleDecision { wanted, explanation };
        }
        if let Some(kind @ (BottleneckKind::Consumer | BottleneckKind::Store)) = input.bottleneck {
            return keep_workers(
                input,
                format!("more workers would not help: the bottleneck is the {}", kind.name()),
            );
        }
        let explanation = format!(
            "the smallest fed fraction is {:.0} %, and {} would feed all jobs",
            100.0 * input.fed_fraction,
            format_workers(wanted)
        );
        ScaleDecision { wanted, explanation }
    }

    /// Shrinks to the largest number of workers that was wanted over the last `shrink_after_ms`.
    fn decide_on_surplus(
        &mut self,
        settings: &ScaleSettings,
        input: &ScaleInput,
        wanted: u32,
    ) -> ScaleDecision {
        let since = *self.surplus_since.get_or_insert(input.now);
        while self.recent_wanted.back().is_some_and(|(_, before)| *before <= wanted) {
            self.recent_wanted.pop_back();
        }
        self.recent_wanted.push_back((input.now, wanted));
        while self.recent_wanted.len() > 1 && self.recent_wanted[0].0 + settings.shrink_after_ms <= input.now
        {
            self.recent_wanted.pop_front();
        }
        let target = self.recent_wanted.front().map_or(wanted, |(_, most)| *most);
        let lasted = input.now.saturating_sub(since);
        if lasted < settings.shrink_after_ms {
            let left = (settings.shrink_after_ms - lasted).div_ceil(1000);
            return keep_workers(
                input,
                format!(
                    "{} would be enough; surplus workers will be removed in {left} s unless they are needed before then",
                    format_workers(target)
                ),
            );
        }
        if target >= input.current_workers {
            return keep_workers(input, format!("{} were needed recently", format_workers(target)));
        }
        let have = if target == 1 { "has" } else { "have" };
        let lasted = settings.shrink_after_ms / 1000;
        let explanation = format!("{} {have} been enough for {lasted} s", format_workers(target));
        ScaleDecision { wanted: target, explanation }
    }

    fn clear(&mut self) {
        self.surplus_since = None;
        self.recent_wanted.clear();
    }
}

fn keep_workers(input: &ScaleInput, explanation: String) -> ScaleDecision {
    ScaleDecision { wanted: input.current_workers, explanation }
}

fn reason_to_keep(settings: &ScaleSettings, input: &ScaleInput) -> String {
    if input.wanted_workers > settings.max_workers {
        return format!(
            "{} would feed all jobs, but the configured maximum is {}",
            format_workers(input.wanted_workers),
            settings.max_workers
        );
    }
    if input.wanted_workers < settings.min_workers {
        return format!(
            "fewer workers would be enough, but the configured minimum is {}",
            settings.min_workers
        );
    }
    let are = if input.wanted_workers == 1 { "is" } else { "are" };
    format!("{} {are} needed", format_workers(input.wanted_workers))
}

fn format_workers(number: u32) -> String {
    format_count(f64::from(number), "worker")
}

/// The scaling rule of tf.data service (Audibert et al., "tf.data service: A Case for Disaggregating ML Input Data
/// Processing", SoCC 2023): the sum of the consumers' rates divided by the mean rate of a worker, rounded up. Rates are
/// in rows per second. Returns the current number of workers if the rate of the workers is unknown.
pub fn rate_quotient(consumer_rates: &[f64], worker_rates: &[f64], current_workers: u32) -> u32 {
    let working: Vec<f64> = worker_rates.iter().copied().filter(|rate| *rate > 0.0).collect();
    if working.is_empty() {
        return current_workers;
    }
    let mean = working.iter().sum::<f64>() / working.len() as f64;
    (consumer_rates.iter().sum::<f64>() / mean).ceil() as u32
}

/// The scaling rule of Cachew (Graur et al., "Cachew: Machine Learning Input Data Processing as a Service", USENIX ATC
/// 2022). Adds workers one by one while each addition reduces the time per batch. Then removes workers one by one while
/// the time does not increase. Then waits until the time changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HillClimber {
    phase: ClimbPhase,
    /// The time per batch at the last step, in seconds.
    last_batch_s: Option<f64>,
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
    /// below `threshold` are ignored.
    pub fn step(&mut self, current_workers: u32, batch_s: f64, threshold: f64) -> u32 {
        let change = self.last_batch_s.map_or(-1.0, |last_batch_s| (batch_s - last_batch_s) / last_batch_s);
        self.last_batch_s = Some(batch_s);
        let shorter = change < -threshold;
        let longer = change > threshold;
        self.phase = match self.phase {
            ClimbPhase::Up if !shorter => ClimbPhase::Down,
            ClimbPhase::Down if longer => {
                // The removed worker was needed, so add a worker again. The time per batch with this worker is unknown.
                (self.phase, self.last_batch_s) = (ClimbPhase::Rest, None);
                return current_workers + 1;
            }
            ClimbPhase::Rest if self.is_unchanged(change, threshold) => return current_workers,
            ClimbPhase::Rest => ClimbPhase::Up,
            same => same,
        };
        if self.phase == ClimbPhase::Up { current_workers + 1 } else { (current_workers - 1).max(1) }
    }

    /// Whether the time per batch is unchanged. In the resting phase, the first time per batch is the reference for
    /// later steps.
    fn is_unchanged(&self, change: f64, threshold: f64) -> bool {
        change == -1.0 || change.abs() <= threshold
    }
}
