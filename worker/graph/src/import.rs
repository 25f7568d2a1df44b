//! Datasets of other tools as the input of a build: the raw folders of OGB, and the datasets of GraphBolt.

mod graphbolt;
mod ogb;

pub use self::graphbolt::{GraphBoltMetadata, METADATA_FILE, graphbolt_spec};
pub use self::ogb::ogb_spec;
