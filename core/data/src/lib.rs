//! The data model: pipelines, datasets, row order, positions of consumers, and messages between the roles.
//!
//! Every other crate may depend on this crate, and this crate depends on no other. The code reads no clock, entropy,
//! environment, file or socket: time, seeds and data are arguments.

pub mod checkpoint;
pub mod committed_offsets;
pub mod compression;
pub mod consumer;
pub mod coordinated;
pub mod graph;
mod graph_batches;
pub mod growth;
pub mod ids;
pub mod kafka_range;
pub mod layout;
pub mod manifest;
pub mod memory;
pub mod messages;
pub mod mix;
pub mod order;
pub mod permutation;
pub mod pipeline;
pub mod random;
pub mod read_policy;
pub mod runs;
pub mod schema;
pub mod segments;
pub mod sequence;
pub mod shared_vec;
pub mod tenants;
pub mod urls;
pub mod view;
pub mod yaml;
