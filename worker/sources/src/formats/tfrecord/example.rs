//! Parses protobuf messages of type `tf.train.Example` without copying values.
//!
//! An example is `Example { 1: Features { 1: map<1: name, 2: Feature> } }`. A `Feature` contains one of `1: BytesList`,
//! `2: FloatList` and `3: Int64List`. Each list is `{ 1: repeated value }`. Numbers may be packed.

use feedline_data::schema::MAX_COLUMNS;
use feedline_data::schema::{ColumnType, ScalarType};

use crate::limits::MAX_FEATURES;
use crate::select::ResolvedColumn;

pub(crate) type MalformedExample = &'static str;

/// The encoded values of a feature.
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

/// Calls `on_feature` for each feature, with its name and values.
pub(crate) fn read_features<'a>(
    example: &'a [u8],
    mut on_feature: impl FnMut(&'a [u8], FeatureValues<'a>),
) -> Result<(), MalformedExample> {
    let mut example = MessageReader(example);
    let mut count = 0;
    while let Some((number, value)) = example.next_field()? {
        let (1, Value::Bytes(features)) = (number, value) else { continue };
        let mut features = MessageReader(features);
        while let Some((number, value)) = features.next_field()? {
            let (1, Value::Bytes(entry)) = (number, value) else { continue };
            count += 1;
            if count > MAX_FEATURES {
                return Err("the record exceeds the limit of 65536 features");
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
    let mut entry = MessageReader(entry);
    while let Some((number, value)) = entry.next_field()? {
        match (number, value) {
            (1, Value::Bytes(bytes)) => name = bytes,
            (2, Value::Bytes(feature)) => {
                let mut feature = MessageReader(feature);
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

/// Calls `on_value` for each value of a bytes list.
pub(crate) fn each_bytes<'a>(
    list: &'a [u8],
    mut on_value: impl FnMut(&'a [u8]),
) -> Result<(), MalformedExample> {
    let mut list = MessageReader(list);
    while let Some((number, value)) = list.next_field()? {
        if let (1, Value::Bytes(bytes)) = (number, value) {
            on_value(bytes);
        }
    }
    Ok(())
}

/// Calls `on_value` for each value of an int64 list.
pub(crate) fn each_int(list: &[u8], mut on_value: impl FnMut(i64)) -> Result<(), MalformedExample> {
    let mut list = MessageReader(list);
    while let Some((number, value)) = list.next_field()? {
        match (number, value) {
            (1, Value::Varint(value)) => on_value(value as i64),
            (1, Value::Bytes(packed)) => {
                let mut packed = MessageReader(packed);
                while !packed.0.is_empty() {
                    on_value(packed.varint()? as i64);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Calls `on_value` for each value of a float list.
pub(crate) fn each_float(list: &[u8], mut on_value: impl FnMut(f32)) -> Result<(), MalformedExample> {
    let mut list = MessageReader(list);
    while let Some((number, value)) = list.next_field()? {
        match (number, value) {
            (1, Value::Fixed32(value)) => on_value(f32::from_le_bytes(value)),
            (1, Value::Bytes(packed)) => {
                let (values, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err("the size of a packed float list is not a multiple of 4 bytes");
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

/// Reads a protobuf message. The field contains the unread bytes.
struct MessageReader<'a>(&'a [u8]);

impl<'a> MessageReader<'a> {
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
            5 => Value::Fixed32(*self.take(4)?.first_chunk().ok_or("a number is truncated")?),
            _ => return Err("the record contains an unknown field type"),
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
        Err("a number is truncated")
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], MalformedExample> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (taken, rest) = self.0.split_at_checked(length).ok_or("a value exceeds the end of the record")?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Infers the columns from the first records.
#[derive(Default)]
pub(crate) struct SchemaScan {
    example_count: usize,
    features: Vec<FeatureSummary>,
}

/// Statistics of a feature in the first records.
struct FeatureSummary {
    name: String,
    kind: &'static str,
    /// The number of examples in which the feature has exactly one value.
    single_value_count: usize,
}

impl SchemaScan {
    /// Adds a record. Skips a malformed record. The error is reported when the record is read.
    pub(crate) fn add(&mut self, example: &[u8]) -> Result<(), String> {
        let mut features = Vec::new();
        let is_example = read_features(example, |name, values| features.push((name, values))).is_ok();
        if !is_example {
            return Ok(());
        }
        self.example_count += 1;
        for (name, values) in features {
            let mut count = 0;
            let counted = match values {
                FeatureValues::Unset => continue,
                FeatureValues::Bytes(list) => each_bytes(list, |_| count += 1),
                FeatureValues::Floats(list) => each_float(list, |_| count += 1),
                FeatureValues::Ints(list) => each_int(list, |_| count += 1),
            };
            if counted.is_ok() {
                self.record(&String::from_utf8_lossy(name), values.kind(), count)?;
            }
        }
        Ok(())
    }

    /// The number of records that were valid examples.
    pub(crate) fn example_count(&self) -> usize {
        self.example_count
    }

    /// Returns the columns, sorted by name. `None` if no record was a valid example.
    pub(crate) fn columns(&self) -> Option<Vec<ResolvedColumn>> {
        if self.example_count == 0 {
            return None;
        }
        let mut found: Vec<ResolvedColumn> =
            self.features.iter().map(|seen| (seen.name.clone(), Ok(self.type_of(seen)))).collect();
        // Sort, because the order of a protobuf map is undefined.
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Some(found)
    }

    fn record(&mut self, name: &str, kind: &'static str, count: usize) -> Result<(), String> {
        let known = self.features.iter().position(|seen| seen.name == name);
        if known.is_none() && self.features.len() == MAX_COLUMNS {
            return Err(format!(
                "the first records exceed the limit of {MAX_COLUMNS} features: write fewer features, or combine \
                 features into lists"
            ));
        }
        let at = known.unwrap_or_else(|| {
            self.features.push(FeatureSummary { name: name.to_owned(), kind, single_value_count: 0 });
            self.features.len() - 1
        });
        let seen = &mut self.features[at];
        if seen.kind != kind {
            return Err(format!(
                "feature `{name}` has type {kind} in this record, but {} in earlier records",
                seen.kind
            ));
        }
        seen.single_value_count += usize::from(count == 1);
        Ok(())
    }

    fn type_of(&self, seen: &FeatureSummary) -> ColumnType {
        let item = match seen.kind {
            "bytes" => ColumnType::Binary,
            "float" => ColumnType::Scalar(ScalarType::Float32),
            _ => ColumnType::Scalar(ScalarType::Int64),
        };
        if seen.single_value_count == self.example_count { item } else { ColumnType::List(Box::new(item)) }
    }
}
