//! Deserializers that validate sizes and positive numbers, so that an error contains the line.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};

use crate::size::parse_bytes;

/// Deserializes a number of bytes or bytes per second: a number, or text such as `64GiB`.
pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(BytesVisitor)
}

/// Deserializes a number of bytes of a key that may be missing.
pub(crate) fn optional_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    bytes(deserializer).map(Some)
}

/// Deserializes a number above 0.
pub(crate) fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(PositiveVisitor)
}

/// Deserializes a number above 0 of a key that may be missing.
pub(crate) fn optional_positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    positive(deserializer).map(Some)
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as 64GiB")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<f64, E> {
        let is_size = number.is_finite() && number >= 0.0;
        is_size.then_some(number).ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<f64, E> {
        parse_bytes(text).map(|bytes| bytes as f64).map_err(E::custom)
    }
}

struct PositiveVisitor;

impl Visitor<'_> for PositiveVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number above 0")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<f64, E> {
        if number == 0 {
            Err(E::invalid_value(de::Unexpected::Unsigned(number), &self))
        } else {
            Ok(number as f64)
        }
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<f64, E> {
        let is_positive = number.is_finite() && number > 0.0;
        is_positive.then_some(number).ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
    }
}
