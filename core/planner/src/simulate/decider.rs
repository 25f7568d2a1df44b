//! Decides the number of workers of a simulation according to one scaling rule.

use feedline_data::ids::{JobId, Millis};

use super::scaling_rule::ScalingRule;
use super::scenario::ScenarioScaling;

use crate::observe::Observer;
use crate::plan::{HillClimber, Plan, Problem, ScaleDecision, ScaleHistory, ScaleSettings, rate_quotient};

/// Delivered batches and elapsed time of all consumers since the start of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DeliveredTotals {
    pub(super) batches: u64,
    pub(super) elapsed_ns: u64,
}

/// The input of a scaling decision.
pub(super) struct ScalingInput<'a> {
    pub(super) now: Millis,
    pub(super) current_workers: u32,
    pub(super) observer: &'a Observer,
    pub(super) problem: &'a Problem,
    pub(super) plan: Option<&'a Plan>,
    pub(super) delivered: DeliveredTotals,
}

/// Applies one scaling rule.
#[derive(Debug)]
pub(super) struct ScalingDecider {
    rule: ScalingRule,
    settings: ScenarioScaling,
    scaling: ScaleHistory,
    climber: HillClimber,
    /// Time of the hill climber's last step, and the totals at that time.
    last_climb: Option<(Millis, DeliveredTotals)>,
}

impl ScalingDecider {
    pub(super) fn new(rule: ScalingRule, settings: &ScenarioScaling) -> Self {
        Self {
            rule,
            settings: settings.clone(),
            scaling: ScaleHistory::default(),
            climber: HillClimber::default(),
            last_climb: None,
        }
    }

    /// Makes a decision. Returns `None` if no decision is due or possible yet.
    pub(super) fn decide(&mut self, input: &ScalingInput) -> Option<ScaleDecision> {
        let decision = match self.rule {
            ScalingRule::Plan => self.decide_by_plan(input)?,
            ScalingRule::RateQuotient => decide_by_quotient(input)?,
            ScalingRule::Climb => self.decide_by_climbing(input)?,
            ScalingRule::None => return None,
        };
        let wanted = decision.wanted.clamp(self.settings.min_workers, self.settings.max_workers);
        Some(ScaleDecision { wanted, ..decision })
    }

    fn decide_by_plan(&mut self, input: &ScalingInput) -> Option<ScaleDecision> {
        let needs = input.observer.needs(input.plan, input.problem);
        let settings = ScaleSettings {
            min_workers: self.settings.min_workers,
            max_workers: self.settings.max_workers,
            shrink_after_ms: 1_000 * u64::from(self.settings.shrink_after_s),
        };
        let input = needs.scale_input(input.now, input.current_workers);
        Some(self.scaling.decide(&settings, &input))
    }

    fn decide_by_climbing(&mut self, input: &ScalingInput) -> Option<ScaleDecision> {
        let Some((at, before)) = self.last_climb else {
            self.last_climb = Some((input.now, input.delivered));
            return None;
        };
        let batches = input.delivered.batches - before.batches;
        if input.now - at < 1_000 * u64::from(self.settings.climb_every_s) || batches == 0 {
            return None;
        }
        self.last_climb = Some((input.now, input.delivered));
        let batch_s = (input.delivered.elapsed_ns - before.elapsed_ns) as f64 / 1e9 / batches as f64;
        let wanted = self.climber.step(input.current_workers, batch_s, self.settings.climb_threshold);
        Some(ScaleDecision {
            wanted,
            explanation: format!(
                "the time per batch was {batch_s:.3} s with {} workers",
                input.current_workers
            ),
        })
    }
}

fn decide_by_quotient(input: &ScalingInput) -> Option<ScaleDecision> {
    if input.problem.jobs.is_empty() {
        return None;
    }
    let mut wanted = 0;
    for job in &input.problem.jobs {
        let (consumers, workers) = consumer_and_worker_rates(input.observer, job.id);
        wanted +=
            if consumers.is_empty() { 0 } else { rate_quotient(&consumers, &workers, input.current_workers) };
    }
    let explanation = format!("the total consumer rate divided by the mean worker rate is {wanted}");
    Some(ScaleDecision { wanted, explanation })
}

/// Returns two lists of rows per second: how many each consumer could process, and how many each worker could compute
/// on all its cores.
fn consumer_and_worker_rates(observer: &Observer, job: JobId) -> (Vec<f64>, Vec<f64>) {
    let Some(observed) = observer.observation(job) else { return (Vec::new(), Vec::new()) };
    let active = observed.consumers.iter().filter(|consumer| consumer.stats.step_ns > 0);
    let consumers = active.map(|consumer| consumer.stats.rows as f64 / (consumer.stats.step_ns as f64 / 1e9));
    let workers = observed.recent.iter().filter_map(|worker| {
        let cpu_ns: u64 = worker.operators.iter().map(|operator| operator.cpu_ns).sum();
        let rows = worker.operators.last()?.rows_out;
        (cpu_ns > 0).then(|| worker.cores * rows as f64 / (cpu_ns as f64 / 1e9))
    });
    (consumers.collect(), workers.collect())
}
