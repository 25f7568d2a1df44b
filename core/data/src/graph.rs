//! Neighbor sampling: the random draws, the sampler of a batch, the sampled graph, and the description of a stored graph.
//!
//! A sampled graph is a pure function of the topology, the settings and the seeds. The code uses integers only. It neither
//! owns nor loads graphs: the topology consists of slices. `docs/graphs.md` defines the draws.

pub mod description;

mod bidirectional;
mod draws;
mod excluded;
mod negatives;
mod node_draws;
mod node_map;
mod pick;
mod placement;
mod sample_error;
mod sampled;
mod sampler;
mod sampler_meter;
mod seeds;
mod settings;
mod summary;
mod target_chunk;
mod topology;

pub use self::draws::Resample;
pub use self::negatives::{MAX_NEGATIVES, NegativeMode, NegativeRule, NegativeWeights};
pub use self::placement::FeaturePlacement;
pub use self::sample_error::SampleError;
pub use self::sampled::{SampledEdges, SampledGraph, SampledHop, SampledNodes};
pub use self::sampler::NeighborSampler;
pub use self::sampler_meter::SamplerMeter;
pub use self::seeds::{BatchSeeds, Seed, SeedEdge, SeedRow};
pub use self::settings::{Fanout, GraphLayout, SamplingSettings, TemporalRule, TemporalStrategy};
pub use self::summary::{FeatureSummary, GraphSummary, NodeTypeSummary, RelationSummary, SeedSetSummary};
pub use self::topology::{GraphView, RelationView};

#[cfg(test)]
mod tests;
