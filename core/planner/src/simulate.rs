//! A cluster in simulated time: the real state machine, observer, planner and scaling rules, with simulated workers and
//! consumers.
//!
//! A simulation shows the cost and the effect of a scaling rule for a given demand, and the load of a coordinator at cluster
//! sizes that no test system has. Time, demand and seed come from a [`Scenario`], so all runs of a scenario are equal. Workers and
//! consumers send the same reports as real ones, but decode and send no rows: computed rows are a rate times a time step.

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

/// Runs a scenario with one scaling rule from start to end.
///
/// # Errors
/// Returns a message on what is wrong with the scenario.
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
