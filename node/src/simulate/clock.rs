//! Measures the wall time of the phases of a simulation.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use feedline_planner::simulate::{Meter, Phase};

/// Measures the time of each phase.
#[derive(Debug, Default)]
pub(super) struct PhaseClock {
    started: Option<Instant>,
    total: BTreeMap<Phase, Duration>,
}

impl Meter for PhaseClock {
    fn begin(&mut self, _: Phase) {
        self.started = Some(Instant::now());
    }

    fn end(&mut self, phase: Phase) {
        let Some(started) = self.started.take() else { return };
        *self.total.entry(phase).or_default() += started.elapsed();
    }
}

impl PhaseClock {
    /// Returns the total seconds of a phase.
    pub(super) fn seconds(&self, phase: Phase) -> f64 {
        self.total.get(&phase).copied().unwrap_or_default().as_secs_f64()
    }
}
