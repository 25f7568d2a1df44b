//! The report of `feedline simulate`, as text or as JSON.

use feedline_planner::simulate::{DemandChange, Phase, Scenario, SimulationReport};
use serde::Serialize;

use super::clock::PhaseClock;
use crate::table;

/// The results of all rules on one scenario.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    scenario: String,
    duration_s: u32,
    warm_up_s: u32,
    rules: Vec<RuleResult>,
}

/// The result of one rule, and the cost of planning on this machine.
#[derive(Debug, Serialize)]
pub(super) struct RuleResult {
    #[serde(flatten)]
    report: SimulationReport,
    audit_is_clean: bool,
    /// Mean wall time to build the models for one plan, in seconds.
    observe_s: f64,
    /// Mean wall time to compute one plan, in seconds.
    solve_s: f64,
    /// CPU seconds of the state machine per simulated second.
    inputs_cpu_s_per_s: f64,
}

impl RuleResult {
    pub(super) fn new(report: SimulationReport, clock: &PhaseClock, scenario: &Scenario) -> Self {
        let simulated_s = f64::from(scenario.duration_s).max(1.0);
        let plans = (1e3 * simulated_s / scenario.control.plan_ms as f64).max(1.0);
        Self {
            audit_is_clean: report.audit.is_clean(),
            observe_s: clock.seconds(Phase::Observe) / plans,
            solve_s: clock.seconds(Phase::Solve) / plans,
            inputs_cpu_s_per_s: clock.seconds(Phase::Inputs) / simulated_s,
            report,
        }
    }

    fn cells(&self) -> Vec<String> {
        let report = &self.report;
        let ups: Vec<&DemandChange> =
            report.demand_changes.iter().filter(|step| step.is_increase()).collect();
        let downs: Vec<&DemandChange> =
            report.demand_changes.iter().filter(|step| !step.is_increase()).collect();
        vec![
            report.rule.name().to_owned(),
            format!("{:.2}", report.worker_seconds / 3600.0),
            format!("{:.1}", report.stall_seconds),
            format!("{:.2}", report.mean_fed),
            format!("{:.2}", report.smallest_fed),
            format!("{}", report.decision_count),
            format_longest(ups.iter().map(|step| step.fed_after_s)),
            format_longest(downs.iter().map(|step| step.released_after_s)),
            format!("{}", report.oscillations),
            if self.audit_is_clean { "clean".to_owned() } else { "broken".to_owned() },
        ]
    }
}

/// Maximum number of jobs that the text report lists.
const MAX_LISTED_JOBS: usize = 20;

fn job_rows(report: &SimulationReport) -> Vec<Vec<String>> {
    let share = |fed: f64| format!("{:.1} %", 100.0 * fed);
    let rows = report.jobs.iter().map(|job| {
        vec![
            format!("  {}", job.name),
            share(job.fed_fraction),
            job.planned_fed.map_or_else(|| "-".to_owned(), share),
        ]
    });
    let header = ["  job", "fed", "planned"].map(str::to_owned).to_vec();
    std::iter::once(header).chain(rows).collect()
}

/// Formats the longest time in seconds. Returns `never` if a time is missing.
fn format_longest(times: impl Iterator<Item = Option<u32>>) -> String {
    let mut longest = None;
    for time in times {
        match time {
            None => return "never".to_owned(),
            Some(seconds) => longest = longest.max(Some(seconds)),
        }
    }
    longest.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s"))
}

impl Results {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            scenario: scenario.name.clone(),
            duration_s: scenario.duration_s,
            warm_up_s: scenario.warm_up_s,
            rules: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, result: RuleResult) {
        self.rules.push(result);
    }

    pub(super) fn to_text(&self) -> String {
        let header = [
            "rule",
            "worker-hours",
            "stall s",
            "mean fed",
            "smallest fed",
            "actions",
            "fed after",
            "released after",
            "oscillations",
            "audit",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(self.rules.iter().map(RuleResult::cells));
        let mut text = format!(
            "{}: {} simulated seconds; the first {} s are excluded from the results\n\n{}",
            self.scenario,
            self.duration_s,
            self.warm_up_s,
            table::render(&rows, &[0])
        );
        for result in &self.rules {
            text.push_str(&format!(
                "\n{}: planning takes {:.1} ms per plan, the state machine uses {:.2} % of a core\n",
                result.report.rule.name(),
                1e3 * (result.observe_s + result.solve_s),
                100.0 * result.inputs_cpu_s_per_s
            ));
            if result.report.jobs.len() <= MAX_LISTED_JOBS {
                text.push_str(&table::render(&job_rows(&result.report), &[0]));
            }
            for decision in &result.report.decisions {
                text.push_str(&format!(
                    "{:>6} s  {} -> {}: {}\n",
                    decision.at_s, decision.from_workers, decision.to_workers, decision.explanation
                ));
            }
        }
        text
    }
}
