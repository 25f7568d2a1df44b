//! Serialization of sources: the keys of one dataset, or `mix` with a list of datasets and their weights.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use self::kafka::KafkaEntries;
use self::urls::{Urls, set_once};
use super::spec::{Format, Mix, MixPart, MixStop, Partitions, Source};
use crate::compression::SourceCompression;

mod kafka;
mod urls;

const SOURCE_KEYS: &[&str] = &[
    "url",
    "format",
    "features",
    "credentials",
    "compression",
    "partitions",
    "config",
    "split",
    "seeds",
    "mix",
    "stop",
    "topics",
    "start",
    "until",
    "isolation",
    "payload",
    "on_tombstone",
    "on_gap",
    "commit_group",
    "epoch",
];
const FEATURE_KEYS: &[&str] = &["name", "optional"];
const PART_KEYS: &[&str] = &[
    "weight",
    "url",
    "format",
    "features",
    "credentials",
    "compression",
    "partitions",
    "config",
    "split",
    "seeds",
    "topics",
    "start",
    "until",
    "isolation",
    "payload",
    "on_tombstone",
    "on_gap",
    "commit_group",
    "epoch",
];

/// The values of all keys of a source, or of one dataset of a mix.
#[derive(Default)]
struct SourceEntries {
    url: Option<Urls>,
    format: Option<Format>,
    features: Option<BTreeMap<String, Feature>>,
    credentials: Option<String>,
    compression: Option<SourceCompression>,
    partitions: Option<Partitions>,
    config: Option<String>,
    split: Option<String>,
    seeds: Option<String>,
    weight: Option<f64>,
    mix: Option<Vec<MixPart>>,
    stop: Option<MixStop>,
    kafka: KafkaEntries,
}

impl SourceEntries {
    fn read<'de, A: MapAccess<'de>>(mut map: A, known: &'static [&'static str]) -> Result<Self, A::Error> {
        let mut entries = Self::default();
        while let Some(key) = map.next_key_seed(KnownKey(known))? {
            match key {
                "url" => set_once(&mut entries.url, "url", map.next_value()?)?,
                "format" => set_once(&mut entries.format, "format", map.next_value()?)?,
                "features" => set_once(&mut entries.features, "features", map.next_value()?)?,
                "credentials" => {
                    if let Some(name) = map.next_value::<Option<String>>()? {
                        set_once(&mut entries.credentials, "credentials", name)?;
                    }
                }
                "compression" => set_once(&mut entries.compression, "compression", map.next_value()?)?,
                "partitions" => set_once(&mut entries.partitions, "partitions", map.next_value()?)?,
                "config" => set_once(&mut entries.config, "config", map.next_value()?)?,
                "split" => set_once(&mut entries.split, "split", map.next_value()?)?,
                "seeds" => set_once(&mut entries.seeds, "seeds", map.next_value()?)?,
                "weight" => set_once(&mut entries.weight, "weight", map.next_value()?)?,
                "mix" => set_once(&mut entries.mix, "mix", map.next_value()?)?,
                "stop" => set_once(&mut entries.stop, "stop", map.next_value()?)?,
                other => entries.kafka.read(other, &mut map)?,
            }
        }
        Ok(entries)
    }

    fn into_source<E: de::Error>(self) -> Result<Source, E> {
        if let Some(parts) = self.mix {
            let dataset_keys = [
                ("url", self.url.is_some()),
                ("format", self.format.is_some()),
                ("features", self.features.is_some()),
                ("credentials", self.credentials.is_some()),
                ("compression", self.compression.is_some()),
                ("partitions", self.partitions.is_some()),
                ("config", self.config.is_some()),
                ("split", self.split.is_some()),
                ("seeds", self.seeds.is_some()),
            ];
            let dataset_keys = dataset_keys.into_iter().chain(self.kafka.keys());
            if let Some((key, _)) = dataset_keys.into_iter().find(|(_, is_set)| *is_set) {
                return Err(E::custom(format!(
                    "`{key}` cannot be combined with `mix`; write `{key}` for each dataset of the mix"
                )));
            }
            return Ok(Source::mixed(Mix { parts, stop: self.stop.unwrap_or_default() }));
        }
        if self.stop.is_some() {
            return Err(E::custom("`stop` needs a `mix`; remove `stop`, or list datasets under `mix`"));
        }
        let entries = self.features.unwrap_or_default();
        let optional = entries
            .iter()
            .filter(|(_, feature)| feature.optional)
            .map(|(column, _)| column.clone())
            .collect();
        let features = entries.into_iter().map(|(column, feature)| {
            let name = feature.name.unwrap_or_else(|| column.clone());
            (column, name)
        });
        let format = self.format.ok_or_else(|| E::missing_field("format"))?;
        Ok(Source {
            url: self.url.ok_or_else(|| E::missing_field("url"))?.0,
            format,
            features: features.collect(),
            optional,
            credentials: self.credentials,
            kafka: self.kafka.into_options(format)?.map(Box::new),
            mix: None,
            compression: self.compression,
            partitions: self.partitions,
            config: self.config,
            split: self.split,
            seeds: self.seeds,
            shard_filter: None,
            graph: None,
        })
    }
}

/// Reads a key. Rejects unknown keys immediately, so that the parser reports their line.
struct KnownKey(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for KnownKey {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for KnownKey {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("field identifier")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<&'static str, E> {
        let known = self.0.iter().find(|known| **known == key);
        known.copied().ok_or_else(|| E::unknown_field(key, self.0))
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SourceVisitor;
        impl<'de> Visitor<'de> for SourceVisitor {
            type Value = Source;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("struct Source")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Source, A::Error> {
                SourceEntries::read(map, SOURCE_KEYS)?.into_source()
            }
        }
        deserializer.deserialize_struct("Source", SOURCE_KEYS, SourceVisitor)
    }
}

impl<'de> Deserialize<'de> for MixPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PartVisitor;
        impl<'de> Visitor<'de> for PartVisitor {
            type Value = MixPart;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("struct MixPart")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MixPart, A::Error> {
                let mut entries = SourceEntries::read(map, PART_KEYS)?;
                let weight = entries.weight.take().unwrap_or(1.0);
                Ok(MixPart { weight, source: entries.into_source()? })
            }
        }
        deserializer.deserialize_struct("MixPart", PART_KEYS, PartVisitor)
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.mix {
            Some(mix) => {
                map.serialize_entry("mix", &mix.parts)?;
                map.serialize_entry("stop", &mix.stop)?;
            }
            None => write_dataset(self, &mut map)?,
        }
        map.end()
    }
}

impl Serialize for MixPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("weight", &self.weight)?;
        write_dataset(&self.source, &mut map)?;
        map.end()
    }
}

fn write_dataset<M: SerializeMap>(source: &Source, map: &mut M) -> Result<(), M::Error> {
    match source.url.as_slice() {
        [one] => map.serialize_entry("url", one)?,
        many => map.serialize_entry("url", many)?,
    }
    map.serialize_entry("format", &source.format)?;
    if !source.features.is_empty() {
        let features = source.features.iter().map(|(column, name)| {
            let feature = Feature { name: Some(name.clone()), optional: source.optional.contains(column) };
            (column, feature)
        });
        map.serialize_entry("features", &features.collect::<BTreeMap<_, _>>())?;
    }
    if let Some(name) = &source.credentials {
        map.serialize_entry("credentials", name)?;
    }
    if let Some(options) = &source.kafka {
        kafka::write_options(options, map)?;
    }
    if let Some(compression) = &source.compression {
        map.serialize_entry("compression", compression)?;
    }
    if let Some(partitions) = &source.partitions {
        map.serialize_entry("partitions", partitions)?;
    }
    let optional = [
        ("config", &source.config),
        ("split", &source.split),
        ("seeds", &source.seeds),
        ("shard_filter", &source.shard_filter),
        ("graph", &source.graph),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            map.serialize_entry(key, value)?;
        }
    }
    Ok(())
}

/// An entry of `features`: a name in the data, or a mapping with the keys [`FEATURE_KEYS`].
struct Feature {
    /// The name in the data; `None` if it is the name of the column.
    name: Option<String>,
    optional: bool,
}

impl Serialize for Feature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = self.name.as_deref().unwrap_or_default();
        if !self.optional {
            return serializer.serialize_str(name);
        }
        let mut map = serializer.serialize_map(Some(FEATURE_KEYS.len()))?;
        map.serialize_entry("name", name)?;
        map.serialize_entry("optional", &self.optional)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Feature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FeatureVisitor;
        impl<'de> Visitor<'de> for FeatureVisitor {
            type Value = Feature;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name in the data, or a mapping with `name` and `optional`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Feature, E> {
                Ok(Feature { name: Some(name.to_owned()), optional: false })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Feature, A::Error> {
                let (mut name, mut optional) = (None, None);
                while let Some(key) = map.next_key_seed(KnownKey(FEATURE_KEYS))? {
                    match key {
                        "name" => set_once(&mut name, "name", map.next_value()?)?,
                        _ => set_once(&mut optional, "optional", map.next_value()?)?,
                    }
                }
                Ok(Feature { name, optional: optional.unwrap_or_default() })
            }
        }
        deserializer.deserialize_any(FeatureVisitor)
    }
}

#[cfg(test)]
mod tests;
