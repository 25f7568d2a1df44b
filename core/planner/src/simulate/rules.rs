//! Whose rule decides how many workers there shall be: ours, those of two other systems, or none.

use feedline_data::ids::{JobId, Millis};
use serde::{Deserialize, Serialize};

use super::scenario;

use crate::observe::Observer;
use crate::plan::{Climber, Plan, Problem, ScaleDecision, ScaleHistory, ScaleSettings, rate_quotient};

/// A rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingRule {
    /// Ours: what the plan wants, at once up and down after a while.
    #[default]
    Plan,
    /// tf.data service's: see [`rate_quotient`]. Jobs are reckoned one by one and summed.
    RateQuotient,
    /// Cachew's: see [`Climber`].
    Climb,
    /// The workers at the start stay.
    None,
}

impl ScalingRule {
    /// All rules that change something.
    pub const SCALING: [Self; 3] = [Self::Plan, Self::RateQuotient, Self::Climb];

    /// The name used in scenarios and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::RateQuotient => "rate_quotient",
            Self::Climb => "climb",
            Self::None => "none",
        }
    }
}

/// What consumers took since the run began, summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DeliveredTotals {
    pub(super) batches: u64,
    pub(super) elapsed_ns: u64,
}

/// What a decision is made from.
pub(super) struct ScalingInput<'a> {
    pub(super) now: Millis,
    pub(super) present: u32,
    pub(super) observer: &'a Observer,
    pub(super) problem: &'a Problem,
    pub(super) plan: Option<&'a Plan>,
    pub(super) taken: DeliveredTotals,
}

/// Decides by one rule.
#[derive(Debug)]
pub(super) struct Decider {
    rule: ScalingRule,
    settings: scenario::ScenarioScaling,
    scaling: ScaleHistory,
    climber: Climber,
    /// When the climber decided last, and what had been taken then.
    climbed: Option<(Millis, DeliveredTotals)>,
}

impl Decider {
    pub(super) fn new(rule: ScalingRule, settings: &scenario::ScenarioScaling) -> Self {
        Self {
            rule,
            settings: settings.clone(),
            scaling: ScaleHistory::default(),
            climber: Climber::default(),
            climbed: None,
        }
    }

    /// How many workers there shall be; `None` where nothing is known yet, or nothing is due.
    pub(super) fn decide(&mut self, seen: &ScalingInput) -> Option<ScaleDecision> {
        let decision = match self.rule {
            ScalingRule::Plan => self.by_plan(seen)?,
            ScalingRule::RateQuotient => by_quotient(seen)?,
            ScalingRule::Climb => self.by_climbing(seen)?,
            ScalingRule::None => return None,
        };
        let wanted = decision.wanted.clamp(self.settings.min_workers, self.settings.max_workers);
        Some(ScaleDecision { wanted, ..decision })
    }

    fn by_plan(&mut self, seen: &ScalingInput) -> Option<ScaleDecision> {
        let needs = seen.observer.needs(seen.plan, seen.problem);
        let settings = ScaleSettings {
            min_workers: self.settings.min_workers,
            max_workers: self.settings.max_workers,
            shrink_after_ms: 1_000 * u64::from(self.settings.shrink_after_s),
        };
        let input = needs.input(seen.now, seen.present);
        Some(self.scaling.decide(&settings, &input))
    }

    fn by_climbing(&mut self, seen: &ScalingInput) -> Option<ScaleDecision> {
        let Some((at, before)) = self.climbed else {
            self.climbed = Some((seen.now, seen.taken));
            return None;
        };
        let batches = seen.taken.batches - before.batches;
        if seen.now - at < 1_000 * u64::from(self.settings.climb_every_s) || batches == 0 {
            return None;
        }
        self.climbed = Some((seen.now, seen.taken));
        let batch_s = (seen.taken.elapsed_ns - before.elapsed_ns) as f64 / 1e9 / batches as f64;
        let wanted = self.climber.step(seen.present, batch_s, self.settings.climb_threshold);
        Some(ScaleDecision { wanted, why: format!("a batch took {batch_s:.3} s with {}", seen.present) })
    }
}

fn by_quotient(seen: &ScalingInput) -> Option<ScaleDecision> {
    if seen.problem.jobs.is_empty() {
        return None;
    }
    let mut wanted = 0;
    for job in &seen.problem.jobs {
        let (consumers, workers) = rates(seen.observer, job.id);
        wanted += if consumers.is_empty() { 0 } else { rate_quotient(&consumers, &workers, seen.present) };
    }
    let why = format!("consumers' rates over the mean worker's are {wanted}");
    Some(ScaleDecision { wanted, why })
}

/// Rows per second that each consumer could take, and that each worker could make on all its cores.
fn rates(observer: &Observer, job: JobId) -> (Vec<f64>, Vec<f64>) {
    let Some(observed) = observer.observation(job) else { return (Vec::new(), Vec::new()) };
    let taking = observed.consumers.iter().filter(|consumer| consumer.step_ns > 0);
    let consumers = taking.map(|consumer| consumer.rows as f64 / (consumer.step_ns as f64 / 1e9));
    let workers = observed.recent.iter().filter_map(|worker| {
        let cpu_ns: u64 = worker.operators.iter().map(|operator| operator.cpu_ns).sum();
        let rows = worker.operators.last()?.rows_out;
        (cpu_ns > 0).then(|| worker.cores * rows as f64 / (cpu_ns as f64 / 1e9))
    });
    (consumers.collect(), workers.collect())
}
