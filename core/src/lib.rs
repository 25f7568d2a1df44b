//! The pure part of Feedline: what a pipeline is, in which order its rows come, who works on them, and where a
//! consumer stands.
//!
//! Nothing here knows the clock, entropy, the environment, files or the network: time, seeds and data are arguments,
//! and what to do is the return value. So the same code is driven by a coordinator process, by the embedded mode and
//! by a simulator.

pub mod cluster;
pub mod consumer;
pub mod contained;
pub mod coordinated;
pub mod ids;
pub mod layout;
pub mod manifest;
pub mod mix;
pub mod model;
pub mod observe;
pub mod order;
pub mod permutation;
pub mod pipeline;
pub mod plan;
pub mod position;
pub mod position_history;
pub mod random;
pub mod schema;
pub mod sequence;
pub mod simulate;
pub mod tenants;
pub mod urls;
pub mod view;
