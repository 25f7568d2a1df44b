//! Parses `tf.train.Example` from its protobuf encoding without copying values.
//!
//! `Example { 1: Features { 1: map<1: name, 2: Feature> } }`, where a `Feature` holds one of `1: BytesList`,
//! `2: FloatList`, `3: Int64List`, each `{ 1: repeated value }`, numbers packed or not.

use feedline_data::schema::MAX_COLUMNS;
use feedline_data::schema::{ColumnType, ScalarType};

use crate::limits::MAX_FEATURES;
use crate::select::ResolvedColumn;

pub(crate) type MalformedExample = &'static str;

/// One feature's values: the body of its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeatureValues<'a> {
    Unset,
    Bytes(&'a [u8]),
    Floats(&'a [u8]),
    Ints(&'a [u8]),
}

impl<'a> FeatureValues<'a> {
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Unset => "unset",
            Self::Bytes(_) => "bytes",
            Self::Floats(_) => "float",
            Self::Ints(_) => "int64",
        }
    }
}

/// Calls `on_feature` with every feature's name and values.
pub(crate) fn read_features<'a>(
    example: &'a [u8],
    mut on_feature: impl FnMut(&'a [u8], FeatureValues<'a>),
) -> Result<(), MalformedExample> {
    let mut example = Wire(example);
    let mut count = 0;
    while let Some((number, value)) = example.next_field()? {
        let (1, Value::Bytes(features)) = (number, value) else { continue };
        let mut features = Wire(features);
        while let Some((number, value)) = features.next_field()? {
            let (1, Value::Bytes(entry)) = (number, value) else { continue };
            count += 1;
            if count > MAX_FEATURES {
                return Err("it has more than 65536 features");
            }
            let (name, values) = read_entry(entry)?;
            on_feature(name, values);
        }
    }
    Ok(())
}

fn read_entry(entry: &[u8]) -> Result<(&[u8], FeatureValues<'_>), MalformedExample> {
    let mut name: &[u8] = &[];
    let mut values = FeatureValues::Unset;
    let mut entry = Wire(entry);
    while let Some((number, value)) = entry.next_field()? {
        match (number, value) {
            (1, Value::Bytes(bytes)) => name = bytes,
            (2, Value::Bytes(feature)) => {
                let mut feature = Wire(feature);
                while let Some((number, value)) = feature.next_field()? {
                    values = match (number, value) {
                        (1, Value::Bytes(list)) => FeatureValues::Bytes(list),
                        (2, Value::Bytes(list)) => FeatureValues::Floats(list),
                        (3, Value::Bytes(list)) => FeatureValues::Ints(list),
                        _ => values,
                    };
                }
            }
            _ => {}
        }
    }
    Ok((name, values))
}

/// The values of a bytes list.
pub(crate) fn each_bytes<'a>(
    list: &'a [u8],
    mut on_value: impl FnMut(&'a [u8]),
) -> Result<(), MalformedExample> {
    let mut list = Wire(list);
    while let Some((number, value)) = list.next_field()? {
        if let (1, Value::Bytes(bytes)) = (number, value) {
            on_value(bytes);
        }
    }
    Ok(())
}

/// The values of an int64 list.
pub(crate) fn each_int(list: &[u8], mut on_value: impl FnMut(i64)) -> Result<(), MalformedExample> {
    let mut list = Wire(list);
    while let Some((number, value)) = list.next_field()? {
        match (number, value) {
            (1, Value::Varint(value)) => on_value(value as i64),
            (1, Value::Bytes(packed)) => {
                let mut packed = Wire(packed);
                while !packed.0.is_empty() {
                    on_value(packed.varint()? as i64);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The values of a float list.
pub(crate) fn each_float(list: &[u8], mut on_value: impl FnMut(f32)) -> Result<(), MalformedExample> {
    let mut list = Wire(list);
    while let Some((number, value)) = list.next_field()? {
        match (number, value) {
            (1, Value::Fixed32(value)) => on_value(f32::from_le_bytes(value)),
            (1, Value::Bytes(packed)) => {
                let (values, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err("a float list is not a multiple of 4 bytes");
                }
                values.iter().for_each(|value| on_value(f32::from_le_bytes(*value)));
            }
            _ => {}
        }
    }
    Ok(())
}

enum Value<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
    Other,
}

/// The unread rest of a protobuf message.
struct Wire<'a>(&'a [u8]);

impl<'a> Wire<'a> {
    fn next_field(&mut self) -> Result<Option<(u64, Value<'a>)>, MalformedExample> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Other
            }
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(*self.take(4)?.first_chunk().ok_or("a number is cut short")?),
            _ => return Err("it is not a tf.train.Example"),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Result<u64, MalformedExample> {
        let mut value = 0;
        for (at, &byte) in self.0.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(value);
            }
        }
        Err("a number does not end")
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], MalformedExample> {
        let length = usize::try_from(length).map_err(|_| "a value reaches beyond the record")?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or("a value reaches beyond the record")?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Finds the columns of the first records.
#[derive(Default)]
pub(crate) struct SchemaScan {
    examples: usize,
    features: Vec<Seen>,
}

struct Seen {
    name: String,
    kind: &'static str,
    /// The number of examples in which the feature has exactly one value.
    single: usize,
}

impl SchemaScan {
    /// Adds a record. A malformed record is skipped, because reading it will report the error.
    pub(crate) fn add(&mut self, example: &[u8]) -> Result<(), String> {
        let mut features = Vec::new();
        let is_example = read_features(example, |name, values| features.push((name, values))).is_ok();
        if !is_example {
            return Ok(());
        }
        self.examples += 1;
        for (name, values) in features {
            let mut count = 0;
            let counted = match values {
                FeatureValues::Unset => continue,
                FeatureValues::Bytes(list) => each_bytes(list, |_| count += 1),
                FeatureValues::Floats(list) => each_float(list, |_| count += 1),
                FeatureValues::Ints(list) => each_int(list, |_| count += 1),
            };
            if counted.is_ok() {
                self.see(&String::from_utf8_lossy(name), values.kind(), count)?;
            }
        }
        Ok(())
    }

    /// The columns by name; `None` if no record was an example.
    pub(crate) fn found(&self) -> Option<Vec<ResolvedColumn>> {
        if self.examples == 0 {
            return None;
        }
        let mut found: Vec<ResolvedColumn> =
            self.features.iter().map(|seen| (seen.name.clone(), Ok(self.type_of(seen)))).collect();
        // A protobuf map has no order.
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Some(found)
    }

    fn see(&mut self, name: &str, kind: &'static str, count: usize) -> Result<(), String> {
        let known = self.features.iter().position(|seen| seen.name == name);
        if known.is_none() && self.features.len() == MAX_COLUMNS {
            return Err(format!(
                "the first records have more than {MAX_COLUMNS} features: write fewer, or lists"
            ));
        }
        let at = known.unwrap_or_else(|| {
            self.features.push(Seen { name: name.to_owned(), kind, single: 0 });
            self.features.len() - 1
        });
        let seen = &mut self.features[at];
        if seen.kind != kind {
            return Err(format!("the feature `{name}` is {kind} here and {} in records before", seen.kind));
        }
        seen.single += usize::from(count == 1);
        Ok(())
    }

    fn type_of(&self, seen: &Seen) -> ColumnType {
        let item = match seen.kind {
            "bytes" => ColumnType::Binary,
            "float" => ColumnType::Scalar(ScalarType::Float32),
            _ => ColumnType::Scalar(ScalarType::Int64),
        };
        if seen.single == self.examples { item } else { ColumnType::List(Box::new(item)) }
    }
}
