//! A cluster in simulated time: the real state machine, observer, planner and scaling rules, with simulated workers and
//! consumers around them.
//!
//! It answers what a scaling rule costs and reaches on a given demand, and what the coordinator's side costs at a size
//! that no test bench has. Time, demand and seed come from a [`Scenario`], so a run is the same each time. Workers and
//! consumers report what the real ones would; nothing is decoded or sent. What is computed rows is a rate in time steps.

mod consumer;
mod fleet;
mod job;
mod lease;
mod recording;
mod report;
mod rules;
mod scenario;
mod worker;
mod world;

#[cfg(test)]
mod tests;

pub use report::{
    DemandChange, JobOutcome, ScalingChange, SimulatedAudit, SimulatedSecond, SimulationReport,
};
pub use rules::ScalingRule;
pub use scenario::{
    Scenario, ScenarioControl, ScenarioDemand, ScenarioJob, ScenarioOperator, ScenarioScaling,
    ScenarioWorkerType,
};
pub use world::Simulation;

/// What the simulation is at work on: told to a [`Meter`], since the core reads no clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Simulated workers and consumers: what no coordinator does.
    World,
    /// Inputs of the state machine: reports of workers and consumers, leases, answers.
    Inputs,
    /// Reports become models, a problem, and what users see.
    Observe,
    /// The problem becomes a plan, and the plan what workers are told.
    Solve,
}

/// Told when a phase begins and ends; phases do not lie within each other.
pub trait Meter {
    /// A phase begins.
    fn begin(&mut self, phase: Phase);
    /// It ends.
    fn end(&mut self, phase: Phase);
}

/// Measures nothing.
impl Meter for () {
    fn begin(&mut self, _: Phase) {}
    fn end(&mut self, _: Phase) {}
}

/// Runs a scenario by one rule from its beginning to its end.
///
/// # Errors
/// One sentence on what is wrong with the scenario.
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
