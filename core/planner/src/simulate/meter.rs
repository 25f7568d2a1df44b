//! Which part of a simulation runs, so that a caller with a clock can measure each part.

/// A part of a simulation step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The simulated workers and consumers. No coordinator does this work.
    World,
    /// Inputs of the state machine: reports of workers and consumers, leases, replies.
    Inputs,
    /// The observer makes models and a problem from the reports, and the view for users.
    Observe,
    /// The planner solves the problem and makes allocations.
    Solve,
}

/// Receives the start and the end of each phase. Phases do not overlap.
pub trait Meter {
    /// A phase begins.
    fn begin(&mut self, phase: Phase);
    /// A phase ends.
    fn end(&mut self, phase: Phase);
}

/// Measures nothing.
impl Meter for () {
    fn begin(&mut self, _: Phase) {}
    fn end(&mut self, _: Phase) {}
}
