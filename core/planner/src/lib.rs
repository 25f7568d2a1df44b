//! The planner: from the reports of workers and consumers to models of jobs, and from models to one plan for all
//! jobs.
//!
//! - [`model`]: the costs of a job, and the resources that bound its rate.
//! - [`observe`]: from reports to models and to the planner's problem.
//! - [`plan`]: solves the problem.
//! - [`view`]: the view of the cluster that users see.
//! - [`simulate`]: a simulated cluster under the planner, which runs the state machine of `feedline-cluster`.
//!
//! Nothing here reads the clock, entropy, the environment, files or the network: time, seeds and data are arguments.

pub mod model;
pub mod observe;
pub mod plan;
pub mod simulate;
pub mod view;
