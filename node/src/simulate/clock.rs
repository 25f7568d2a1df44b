//! The wall time that a simulation's phases take on this machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use feedline_planner::simulate::{Meter, Phase};

/// Measures phases.
#[derive(Debug, Default)]
pub(super) struct PhaseClock {
    begun: Option<Instant>,
    spent: BTreeMap<Phase, Duration>,
}

impl Meter for PhaseClock {
    fn begin(&mut self, _: Phase) {
        self.begun = Some(Instant::now());
    }

    fn end(&mut self, phase: Phase) {
        let Some(begun) = self.begun.take() else { return };
        *self.spent.entry(phase).or_default() += begun.elapsed();
    }
}

impl PhaseClock {
    /// Seconds that a phase has taken in all.
    pub(super) fn seconds(&self, phase: Phase) -> f64 {
        self.spent.get(&phase).copied().unwrap_or_default().as_secs_f64()
    }
}
