//! `cache`: caches its input rows for later passes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::schema::Schema;

/// Parameters of `cache`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// The tier that stores the rows.
    pub tier: CacheTier,
}

/// The storage of cached rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheTier {
    /// The memory of a worker, within its memory budget.
    Memory,
    /// The disk of a worker. Rows survive a restart of the worker.
    Disk,
    /// An object store, which all workers share.
    Store,
}

/// The encoding of images in cached rows if the operator after the cache decodes images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheEncoding {
    /// The unchanged bytes of the row.
    #[default]
    AsIs,
    /// JPEGs with the index that `recode_jpeg` adds.
    Indexed,
    /// Decoded pixels.
    Pixels,
}

impl OperatorDefinition for Cache {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        format!("in {}", self.tier.name())
    }

    fn require_inputs(&self, _input: &Schema, _required: &mut BTreeSet<String>) {}

    fn role(&self) -> OperatorRole {
        OperatorRole::Engine
    }
}

impl PipelineBuilder {
    /// Caches rows, so that later passes start from the cached rows.
    pub fn cache(self, tier: CacheTier) -> Self {
        self.operator(OperatorKind::Cache(Cache { tier }))
    }
}

impl CacheTier {
    /// All tiers, fastest first.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Store];

    /// The name used in pipeline files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Store => "store",
        }
    }
}

impl CacheEncoding {
    /// The encodings that do not store the row unchanged.
    pub const TRANSFORMED: [Self; 2] = [Self::Indexed, Self::Pixels];

    /// The name used in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AsIs => "as it is",
            Self::Indexed => "indexed JPEG",
            Self::Pixels => "decoded pixels",
        }
    }
}
