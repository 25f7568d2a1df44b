//! The planner: from reports of workers and consumers to models of jobs, from models to a plan for all jobs together.
//!
//! - [`model`]: costs of a job, and what bounds its rate.
//! - [`observe`]: from reports to models and to the planner's problem.
//! - [`plan`]: solves the problem.
//! - [`view`]: the cluster as users see it.
//! - [`simulate`]: a simulated cluster under the planner, which drives the state machine of `feedline-cluster`.
//!
//! Nothing here reads the clock, entropy, the environment, files or the network: time, seeds and data are arguments.

pub mod model;
pub mod observe;
pub mod plan;
pub mod simulate;
pub mod view;
