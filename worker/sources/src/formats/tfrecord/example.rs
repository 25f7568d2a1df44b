//! Parses protobuf messages of type `tf.train.Example` without copying values.
//!
//! An example is `Example { 1: Features { 1: map<1: name, 2: Feature> } }`. A `SequenceExample` has feature lists in field 2. A `Feature` contains one of `1: BytesList`,
//! `2: FloatList` and `3: Int64List`. Each list is `{ 1: repeated value }`. Numbers may be packed.

use std::mem::discriminant;

use crate::limits::MAX_FEATURES;

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
        let features = match (number, value) {
            (1, Value::Bytes(features)) => features,
            (2, Value::Bytes(_)) => {
                return Err("the record is a SequenceExample, whose feature lists are not supported");
            }
            _ => continue,
        };
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

/// Returns the name and the values of an entry of the feature map.
pub(super) fn read_entry(entry: &[u8]) -> Result<(&[u8], FeatureValues<'_>), MalformedExample> {
    let mut name: &[u8] = &[];
    let mut values = FeatureValues::Unset;
    let mut entry = MessageReader(entry);
    while let Some((number, value)) = entry.next_field()? {
        match (number, value) {
            (1, Value::Bytes(bytes)) => name = bytes,
            (2, Value::Bytes(feature)) => {
                let mut feature = MessageReader(feature);
                while let Some((number, value)) = feature.next_field()? {
                    let list = match (number, value) {
                        (1, Value::Bytes(list)) => FeatureValues::Bytes(list),
                        (2, Value::Bytes(list)) => FeatureValues::Floats(list),
                        (3, Value::Bytes(list)) => FeatureValues::Ints(list),
                        _ => continue,
                    };
                    // Protobuf would merge two lists of one kind. Of two kinds, the last one counts.
                    if discriminant(&list) == discriminant(&values) {
                        return Err("a feature has two lists of values");
                    }
                    values = list;
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
