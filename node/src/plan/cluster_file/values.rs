//! The value of `cache` in a cluster file: a string or a mapping.

use std::fmt;

use feedline_data::pipeline::CacheTier;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

/// The output of a job that may be cached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::plan) enum CacheOverride {
    /// The planner decides.
    #[default]
    Free,
    /// No output is cached.
    Never,
    /// The output of one operator is cached.
    Pinned(PinnedCache),
}

/// A cache of the output of an operator.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct PinnedCache {
    /// The operator.
    pub(in crate::plan) after: String,
    /// The tier of the cache.
    pub(in crate::plan) tier: CacheTier,
}

impl<'de> Deserialize<'de> for CacheOverride {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CacheVisitor)
    }
}

struct CacheVisitor;

impl<'de> Visitor<'de> for CacheVisitor {
    type Value = CacheOverride;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`free`, `never` or {after: OPERATOR, tier: memory | disk | store}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<CacheOverride, E> {
        match text {
            "free" => Ok(CacheOverride::Free),
            "never" => Ok(CacheOverride::Never),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CacheOverride, A::Error> {
        PinnedCache::deserialize(MapAccessDeserializer::new(map)).map(CacheOverride::Pinned)
    }
}
