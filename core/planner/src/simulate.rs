//! A cluster in simulated time. The state machine, observer, planner and scaling rules are the production code; workers
//! and consumers are simulated.
//!
//! A simulation measures the cost and the effect of a scaling rule for a given demand, and the load of a coordinator at
//! cluster sizes beyond any test system. A [`Scenario`] defines time, demand and seed, so all runs of a scenario are
//! identical. Simulated workers and consumers send the same reports as real ones, but do not process data: the number
//! of computed rows is the rate times the time step.

mod consumer;
mod decider;
mod fleet;
mod job;
mod lease;
mod meter;
mod recording;
mod report;
mod scaling_rule;
mod scenario;
mod worker;
mod world;

#[cfg(test)]
mod tests;

pub use meter::{Meter, Phase};
pub use report::{
    DemandChange, JobOutcome, ScalingChange, SimulatedAudit, SimulatedSecond, SimulationReport,
};
pub use scaling_rule::ScalingRule;
pub use scenario::{
    Scenario, ScenarioControl, ScenarioDemand, ScenarioJob, ScenarioOperator, ScenarioScaling,
    ScenarioWorkerType,
};
pub use world::Simulation;

/// Runs a whole scenario with one scaling rule.
///
/// # Errors
/// Returns a message that names the invalid value of the scenario.
pub fn run(
    scenario: &Scenario,
    rule: ScalingRule,
    meter: &mut dyn Meter,
) -> Result<SimulationReport, String> {
    let mut simulation = Simulation::new(scenario, rule)?;
    while !simulation.is_over() {
        simulation.tick(meter);
    }
    Ok(simulation.finish())
}
