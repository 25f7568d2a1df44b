//! The governor of requests to object stores: how fast a cluster reads each store, and how much of it each worker and job may
//! use.
//!
//! - [`rate`] and [`in_flight`]: the control laws, which observe rejections and latencies.
//! - [`division`]: divides a budget among tenants, jobs and workers.
//! - [`fleet`]: the governors of all stores, which the leader owns.
//! - [`pacer`]: paces the requests of one worker.
//! - [`hedging`]: decides when a slow read is sent a second time.
//!
//! Everything is pure: times are arguments. One governor exists for each endpoint, bucket and identity of credentials.

pub mod division;
pub mod fleet;
pub mod hedging;
pub mod in_flight;
mod latency;
pub mod pacer;
mod queue;
pub mod rate;

#[cfg(test)]
mod simulation;
