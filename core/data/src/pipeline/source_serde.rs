//! Serialization of sources: the keys of one dataset, or `mix` with a list of datasets and their weights.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::spec::{Format, Mix, MixPart, MixStop, Source};

const SOURCE_KEYS: &[&str] = &["url", "format", "features", "credentials", "mix", "stop"];
const PART_KEYS: &[&str] = &["weight", "url", "format", "features", "credentials"];

/// The values of all keys of a source, or of one dataset of a mix.
#[derive(Default)]
struct SourceEntries {
    url: Option<Urls>,
    format: Option<Format>,
    features: Option<BTreeMap<String, String>>,
    credentials: Option<String>,
    weight: Option<f64>,
    mix: Option<Vec<MixPart>>,
    stop: Option<MixStop>,
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
                "weight" => set_once(&mut entries.weight, "weight", map.next_value()?)?,
                "mix" => set_once(&mut entries.mix, "mix", map.next_value()?)?,
                _ => set_once(&mut entries.stop, "stop", map.next_value()?)?,
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
            ];
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
        Ok(Source {
            url: self.url.ok_or_else(|| E::missing_field("url"))?.0,
            format: self.format.ok_or_else(|| E::missing_field("format"))?,
            features: self.features.unwrap_or_default(),
            credentials: self.credentials,
            mix: None,
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

fn set_once<T, E: de::Error>(field: &mut Option<T>, key: &'static str, value: T) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(key)),
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
        map.serialize_entry("features", &source.features)?;
    }
    match &source.credentials {
        Some(name) => map.serialize_entry("credentials", name),
        None => Ok(()),
    }
}

/// One string or a list of strings.
struct Urls(Vec<String>);

impl<'de> Deserialize<'de> for Urls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Urls;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, glob or URL, or a list of them")
            }

            fn visit_str<E: de::Error>(self, one: &str) -> Result<Urls, E> {
                Ok(Urls(vec![one.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut many: A) -> Result<Urls, A::Error> {
                let mut urls = Vec::new();
                while let Some(url) = many.next_element()? {
                    urls.push(url);
                }
                Ok(Urls(urls))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

#[cfg(test)]
mod tests;
