//! Notifies the caller of the phases of a simulation step, so that the caller can measure them with a clock.

/// A phase of a simulation step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Workers and consumers are simulated. A real coordinator does not do this work.
    World,
    /// The state machine processes inputs: worker and consumer reports, allocations and ticks.
    Inputs,
    /// The observer builds models, the planner's problem and the view for users from the reports.
    Observe,
    /// The planner solves the problem and builds allocations.
    Solve,
}

/// Is notified of the start and the end of each phase. Phases do not overlap.
pub trait Meter {
    /// Called when a phase begins.
    fn begin(&mut self, phase: Phase);
    /// Called when a phase ends.
    fn end(&mut self, phase: Phase);
}

/// A meter that ignores all phases.
impl Meter for () {
    fn begin(&mut self, _: Phase) {}
    fn end(&mut self, _: Phase) {}
}
