//! `feedline simulate`: runs a scenario of workers, jobs and demand in simulated time, and tells what each scaling rule
//! costs and reaches, and what the coordinator's side costs.

mod clock;
mod results;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use feedline_planner::simulate::{ScalingRule, Scenario, ScenarioControl, Simulation};

use self::clock::PhaseClock;
use self::results::{Results, RuleResult};
use crate::cli::ReportFormat;
use crate::failure::{Failure, reason};
use crate::output;

/// What `feedline simulate` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline simulate examples/scenarios/demand-steps.yaml --rule all\n  \
    feedline simulate examples/scenarios/fair.yaml --equal\n  \
    feedline simulate examples/scenarios/size.yaml --format json\n  \
    feedline simulate --workers 1000")]
pub(crate) struct SimulateArgs {
    /// The scenario file.
    #[arg(value_name = "SCENARIO", required_unless_present = "workers")]
    scenario: Option<PathBuf>,
    /// Instead of a file, a cluster of so many workers at steady demand, with a job for each ten and a consumer for each
    /// two.
    #[arg(long, value_name = "N", conflicts_with = "scenario", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: Option<u32>,
    /// Whose scaling rule [default: the scenario's].
    #[arg(long, value_enum, value_name = "RULE")]
    rule: Option<RuleArg>,
    /// Let jobs share all workers evenly instead of by the plan.
    #[arg(long)]
    equal: bool,
    /// How the report looks; json is one object on one line, with each second of each run.
    #[arg(long, alias = "report", value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
}

/// Whose rule decides how many workers there shall be.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum RuleArg {
    /// Feedline's: what the plan wants, at once up and down after a while.
    Plan,
    /// tf.data service's: the consumers' rates over the mean rate of a worker.
    #[value(name = "rate_quotient")]
    RateQuotient,
    /// Cachew's: one worker more as long as each makes batches come faster.
    Climb,
    /// None: the workers at the start stay.
    None,
    /// Feedline's, tf.data service's and Cachew's, one after the other.
    All,
}

impl RuleArg {
    fn rules(self) -> Vec<ScalingRule> {
        match self {
            Self::Plan => vec![ScalingRule::Plan],
            Self::RateQuotient => vec![ScalingRule::RateQuotient],
            Self::Climb => vec![ScalingRule::Climb],
            Self::None => vec![ScalingRule::None],
            Self::All => ScalingRule::SCALING.to_vec(),
        }
    }
}

/// Simulated seconds of a cluster that no file describes.
const SIZE_SECONDS: u32 = 60;

/// Simulates and prints.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let scenario = match (&args.scenario, args.workers) {
        (Some(file), _) => load(file)?,
        (None, workers) => Scenario::of_size(workers.unwrap_or(100), SIZE_SECONDS),
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
    output::print(&match args.format {
        ReportFormat::Text => results.to_text(),
        ReportFormat::Json => results.to_json().map_err(Failure::failed)?,
    })?;
    Ok(())
}

fn simulate(scenario: &Scenario, rule: ScalingRule) -> Result<RuleResult, Failure> {
    let mut simulation = Simulation::new(scenario, rule).map_err(Failure::wrong_use)?;
    let mut clock = PhaseClock::default();
    while !simulation.is_over() {
        simulation.tick(&mut clock);
    }
    Ok(RuleResult::new(simulation.finish(), &clock, scenario))
}

fn load(file: &Path) -> Result<Scenario, Failure> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::wrong_use(format!(
            "cannot read {name}: {}; give the path of a scenario file",
            reason(&error)
        ))
    })?;
    Scenario::from_yaml(&text).map_err(|sentence| Failure::wrong_use(format!("{name}: {sentence}")))
}
