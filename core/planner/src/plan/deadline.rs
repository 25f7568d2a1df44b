//! Deadlines for the planner. It checks them between linear problems and between tenants.

/// Decides when the planner must return. A plan may exceed its deadline by the time that it takes to solve one linear
/// problem, which is a few hundredths of a second for 1,000 jobs on 4 worker types.
pub trait Deadline {
    /// Whether the deadline has passed.
    fn is_over(&self) -> bool;
}

/// A deadline that never passes.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDeadline;

impl Deadline for NoDeadline {
    fn is_over(&self) -> bool {
        false
    }
}

/// A deadline that passes after a number of checks, so that plans are identical on all machines.
#[derive(Debug)]
pub struct CheckLimit(std::cell::Cell<u32>);

impl CheckLimit {
    /// Creates a deadline that passes after `checks` checks.
    pub fn new(checks: u32) -> Self {
        Self(std::cell::Cell::new(checks))
    }
}

impl Deadline for CheckLimit {
    fn is_over(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 0
    }
}

impl<F: Fn() -> bool> Deadline for F {
    fn is_over(&self) -> bool {
        self()
    }
}
