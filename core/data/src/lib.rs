//! The data model: pipelines, datasets, the order of rows, positions of consumers, and the messages between roles.
//!
//! Every other crate may depend on this one, and it depends on none of them. Nothing here reads the clock, entropy, the
//! environment, files or the network: time, seeds and data are arguments.

pub mod checkpoint;
pub mod consumer;
pub mod coordinated;
pub mod ids;
pub mod layout;
pub mod manifest;
pub mod messages;
pub mod mix;
pub mod order;
pub mod permutation;
pub mod pipeline;
pub mod random;
pub mod read_policy;
pub mod schema;
pub mod sequence;
pub mod tenants;
pub mod urls;
pub mod view;
