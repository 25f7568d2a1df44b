//! `cache`: caches the rows that reach it, for later passes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::schema::Schema;

/// Parameters of `cache`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Where rows are kept.
    pub tier: CacheTier,
}

/// Where rows are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheTier {
    /// In the worker's memory, within its budget.
    Memory,
    /// On the worker's disk, where they outlive the worker.
    Disk,
    /// In an object store, where all workers find them.
    Store,
}

/// In which form a kept row has the images that the next operator decodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheEncoding {
    /// As the row is.
    #[default]
    AsIs,
    /// JPEGs with an index, as `recode_jpeg` makes them.
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
    /// Keeps the rows that come here, so that later passes begin here.
    pub fn cache(self, tier: CacheTier) -> Self {
        self.operator(OperatorKind::Cache(Cache { tier }))
    }
}

impl CacheTier {
    /// All tiers, the fastest first.
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
    /// The forms that something else than the row as it is.
    pub const MADE: [Self; 2] = [Self::Indexed, Self::Pixels];

    /// The name used in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AsIs => "as it is",
            Self::Indexed => "indexed JPEG",
            Self::Pixels => "decoded pixels",
        }
    }
}
