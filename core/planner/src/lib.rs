//! The planner. It builds a model of each job from worker and consumer reports, and one plan for all jobs from the
//! models.
//!
//! - [`graph`]: the model of graph batches, before the first batch is sampled.
//! - [`model`]: the costs of a job, and the resources that bound its rate.
//! - [`observe`]: builds the models and the planner's problem from reports.
//! - [`plan`]: solves the problem.
//! - [`view`]: the view of the cluster that users see.
//! - [`simulate`]: a simulated cluster that runs the planner and the state machine of `feedline-cluster`.
//!
//! Nothing here reads the clock, entropy, the environment, files or the network: time, seeds and data are arguments.

/// Returns the formatted message as an error if the condition is false.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

pub mod graph;
pub mod model;
pub mod observe;
pub mod plan;
pub mod simulate;
pub mod view;
