//! The scaling rules of a simulation: Feedline's rule, the rules of two other systems, and a fixed number of workers.

use serde::{Deserialize, Serialize};

/// A scaling rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingRule {
    /// Feedline's rule: the number of workers that the plan wants. Grows immediately and shrinks after a delay.
    #[default]
    Plan,
    /// The rule of tf.data service, summed over all jobs: see [`rate_quotient`](crate::plan::rate_quotient).
    RateQuotient,
    /// The rule of Cachew: see [`HillClimber`](crate::plan::HillClimber).
    Climb,
    /// A fixed number of workers.
    None,
}

impl ScalingRule {
    /// The rules that change the number of workers.
    pub const SCALING_RULES: [Self; 3] = [Self::Plan, Self::RateQuotient, Self::Climb];

    /// Returns the name in scenarios and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::RateQuotient => "rate_quotient",
            Self::Climb => "climb",
            Self::None => "none",
        }
    }
}
