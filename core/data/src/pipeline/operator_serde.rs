//! Serialization of operators: a mapping with one key, the operator's name. The value contains the parameters and
//! `parallelism`.
//!
//! The parameters are read directly from the underlying deserializer, so that its errors keep their line numbers.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::{OPERATOR_NAMES, Operator, OperatorKind};

const PARALLELISM: &str = "parallelism";

impl Serialize for Operator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry<'a> {
            #[serde(flatten)]
            parameters: Parameters<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            parallelism: Option<u32>,
        }
        let entry = Entry { parameters: Parameters(&self.kind), parallelism: self.parallelism };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(self.kind.name(), &entry)?;
        map.end()
    }
}

/// Serializes the parameters of an operator without its name.
struct Parameters<'a>(&'a OperatorKind);

impl Serialize for Parameters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize_parameters(serializer)
    }
}

impl<'de> Deserialize<'de> for Operator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not `deserialize_map`, so that an error for another type shows what the visitor expects.
        deserializer.deserialize_any(EntryVisitor)
    }
}

/// Reads `{name: parameters}`.
struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Operator;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an operator with its parameters, such as `- batch: {size: 128}`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Operator, A::Error> {
        let Some(name) = map.next_key_seed(NameSeed { previous: None })? else {
            return Err(A::Error::custom(
                "an operator entry is empty; write an operator, such as `- batch: {size: 128}`",
            ));
        };
        let operator = map.next_value_seed(ParametersSeed { name })?;
        map.next_key_seed(NameSeed { previous: Some(name) })?;
        Ok(operator)
    }
}

/// Reads an operator's name. Rejects every key after the first name, so that the error reports the line of that key.
struct NameSeed {
    previous: Option<&'static str>,
}

impl<'de> DeserializeSeed<'de> for NameSeed {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for NameSeed {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an operator's name")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<&'static str, E> {
        let known = OPERATOR_NAMES.iter().find(|name| **name == key);
        match (self.previous, known) {
            (None, Some(name)) => Ok(name),
            (None, None) => Err(E::unknown_variant(key, OPERATOR_NAMES)),
            (Some(_), Some(_)) => Err(E::custom(format!(
                "`{key}` is a second operator in the same entry; start a new entry with `- {key}:`"
            ))),
            (Some(name), None) => Err(E::custom(format!(
                "unexpected key `{key}` next to `{name}`; if it is a parameter of {name}, indent it further"
            ))),
        }
    }
}

/// Reads the parameters of the named operator.
struct ParametersSeed {
    name: &'static str,
}

impl<'de> DeserializeSeed<'de> for ParametersSeed {
    type Value = Operator;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Operator, D::Error> {
        let mut parallelism = None;
        let parameters =
            ParametersDeserializer { inner: deserializer, name: self.name, parallelism: &mut parallelism };
        let kind = OperatorKind::deserialize_parameters(self.name, parameters)?;
        Ok(Operator { kind, parallelism })
    }
}

/// A deserializer of parameters that extracts `parallelism` and forwards all other keys.
struct ParametersDeserializer<'p, D> {
    inner: D,
    name: &'static str,
    parallelism: &'p mut Option<u32>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ParametersDeserializer<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_map(ParametersVisitor {
            inner: visitor,
            name: self.name,
            parallelism: self.parallelism,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_struct(
            name,
            fields,
            ParametersVisitor { inner: visitor, name: self.name, parallelism: self.parallelism },
        )
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct ParametersVisitor<'p, V> {
    inner: V,
    name: &'static str,
    parallelism: &'p mut Option<u32>,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for ParametersVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let access =
            ParametersAccess { inner: map, name: self.name, has_key: false, parallelism: self.parallelism };
        self.inner.visit_map(access)
    }
}

struct ParametersAccess<'p, A> {
    inner: A,
    name: &'static str,
    /// Whether a key was read. Every operator has a required parameter, so an empty mapping usually means wrong indentation.
    has_key: bool,
    parallelism: &'p mut Option<u32>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for ParametersAccess<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, mut seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            let key = self.inner.next_key_seed(KeySeed { inner: seed })?;
            if key.is_none() && !self.has_key {
                let name = self.name;
                return Err(A::Error::custom(format!(
                    "{name} has no parameters; indent them below {name}, or write `- {name}: {{...}}`"
                )));
            }
            self.has_key = true;
            match key {
                None => return Ok(None),
                Some(ParameterKey::Parameter(key)) => return Ok(Some(key)),
                Some(ParameterKey::Parallelism(unused)) => {
                    if self.parallelism.is_some() {
                        return Err(A::Error::duplicate_field(PARALLELISM));
                    }
                    *self.parallelism = Some(self.inner.next_value()?);
                    seed = unused;
                }
            }
        }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }
}

/// A key in an operator's parameters. `Parallelism` contains the unused seed.
enum ParameterKey<P, K> {
    Parameter(P),
    Parallelism(K),
}

struct KeySeed<K> {
    inner: K,
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for KeySeed<K> {
    type Value = ParameterKey<K::Value, K>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for KeySeed<K> {
    type Value = ParameterKey<K::Value, K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a parameter's name")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
        if key == PARALLELISM {
            return Ok(ParameterKey::Parallelism(self.inner));
        }
        self.inner.deserialize(key.into_deserializer()).map(ParameterKey::Parameter)
    }
}
