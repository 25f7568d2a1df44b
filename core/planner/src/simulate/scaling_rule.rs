//! The rules that can decide the number of workers of a simulation: ours, those of two other systems, or none.

use serde::{Deserialize, Serialize};

/// A scaling rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingRule {
    /// Our rule: the number of workers that the plan wants. Grows at once and shrinks after some time.
    #[default]
    Plan,
    /// The rule of tf.data service: see [`rate_quotient`](crate::plan::rate_quotient). The sum over all jobs.
    RateQuotient,
    /// The rule of Cachew: see [`HillClimber`](crate::plan::HillClimber).
    Climb,
    /// The number of workers never changes.
    None,
}

impl ScalingRule {
    /// All rules that change the number of workers.
    pub const SCALING: [Self; 3] = [Self::Plan, Self::RateQuotient, Self::Climb];

    /// The name in scenarios and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::RateQuotient => "rate_quotient",
            Self::Climb => "climb",
            Self::None => "none",
        }
    }
}
