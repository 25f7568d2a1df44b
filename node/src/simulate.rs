//! `feedline simulate`: simulates workers, jobs and demand, and reports the cost and the effect of each scaling rule, and
//! the CPU time of the coordinator.

mod clock;
mod results;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use feedline_planner::simulate::{ScalingRule, Scenario, ScenarioControl, Simulation};

use self::clock::PhaseClock;
use self::results::{Results, RuleResult};
use crate::failure::{Failure, reason};
use crate::output::ReportFormat;

/// Arguments of `feedline simulate`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline simulate examples/scenarios/demand-steps.yaml --rule all\n  \
    feedline simulate examples/scenarios/fair.yaml --equal\n  \
    feedline simulate examples/scenarios/size.yaml --format json\n  \
    feedline simulate --workers 1000")]
pub(crate) struct SimulateArgs {
    /// Scenario file.
    #[arg(value_name = "SCENARIO", required_unless_present = "workers")]
    scenario: Option<PathBuf>,
    /// Simulate a cluster of this size at constant demand, instead of a scenario file. It has one job per ten workers
    /// and one consumer per two workers.
    #[arg(long, value_name = "N", conflicts_with = "scenario", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: Option<u32>,
    /// Scaling rule [default: the rule of the scenario].
    #[arg(long, value_enum, value_name = "RULE")]
    rule: Option<RuleArg>,
    /// Ignore the plan, and share all workers equally among jobs.
    #[arg(long)]
    equal: bool,
    /// Format of the report; json prints a single object on one line, which contains the data of every simulated second.
    #[arg(long, alias = "report", value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
}

/// The rule that decides the number of workers.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum RuleArg {
    /// Feedline's rule: the number of workers that the plan wants, with a delay before shrinking.
    Plan,
    /// The rule of tf.data service: the consumers' rate divided by the mean rate of a worker.
    #[value(name = "rate_quotient")]
    RateQuotient,
    /// The rule of Cachew: add workers one by one while each addition reduces the time per batch.
    Climb,
    /// No scaling.
    None,
    /// The rules of Feedline, tf.data service and Cachew in turn.
    All,
}

impl RuleArg {
    fn rules(self) -> Vec<ScalingRule> {
        match self {
            Self::Plan => vec![ScalingRule::Plan],
            Self::RateQuotient => vec![ScalingRule::RateQuotient],
            Self::Climb => vec![ScalingRule::Climb],
            Self::None => vec![ScalingRule::None],
            Self::All => ScalingRule::SCALING_RULES.to_vec(),
        }
    }
}

/// Simulated seconds with --workers.
const DEFAULT_SECONDS: u32 = 60;

/// Simulates the rules and prints the report.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let scenario = match (&args.scenario, args.workers) {
        (Some(file), _) => load(file)?,
        (None, workers) => Scenario::of_size(workers.unwrap_or(100), DEFAULT_SECONDS),
    };
    let control = ScenarioControl {
        follow_plan: scenario.control.follow_plan && !args.equal,
        ..scenario.control.clone()
    };
    let scenario = Scenario { control, ..scenario };
    let rules = args.rule.map_or_else(|| vec![scenario.scaling.rule], RuleArg::rules);
    let mut results = Results::new(&scenario);
    for rule in rules {
        results.push(simulate(&scenario, rule)?);
    }
    args.format.print(&results, Results::to_text)
}

fn simulate(scenario: &Scenario, rule: ScalingRule) -> Result<RuleResult, Failure> {
    let mut simulation = Simulation::new(scenario, rule).map_err(Failure::invalid_usage)?;
    let mut clock = PhaseClock::default();
    while !simulation.is_over() {
        simulation.tick(&mut clock);
    }
    Ok(RuleResult::new(simulation.finish(), &clock, scenario))
}

fn load(file: &Path) -> Result<Scenario, Failure> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::invalid_usage(format!(
            "cannot read {name}: {}; pass the path of a scenario file",
            reason(&error)
        ))
    })?;
    Scenario::from_yaml(&text, &name).map_err(Failure::invalid_usage)
}
