//! What may be kept of a job, which people write in more than one way.

use std::fmt;

use feedline_data::pipeline::CacheTier;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

/// What of a job may be kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::plan) enum CacheChoice {
    /// The planner chooses.
    #[default]
    Free,
    /// Nothing.
    Never,
    /// The output of one operator.
    Kept(KeptOutput),
}

/// Where the output of an operator is kept.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct KeptOutput {
    /// The operator.
    pub(in crate::plan) after: String,
    /// Where.
    pub(in crate::plan) tier: CacheTier,
}

impl<'de> Deserialize<'de> for CacheChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CacheVisitor)
    }
}

struct CacheVisitor;

impl<'de> Visitor<'de> for CacheVisitor {
    type Value = CacheChoice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`free`, `never` or {after: OPERATOR, tier: memory | disk | store}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<CacheChoice, E> {
        match text {
            "free" => Ok(CacheChoice::Free),
            "never" => Ok(CacheChoice::Never),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CacheChoice, A::Error> {
        KeptOutput::deserialize(MapAccessDeserializer::new(map)).map(CacheChoice::Kept)
    }
}
