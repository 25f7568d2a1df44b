//! Writes TFRecord files of `tf.train.Example`.
//!
//! A frame consists of the length (u64, little-endian), the masked CRC of the length, the data, and the masked CRC of
//! the data. The data is the message `Example { Features { map<string, Feature> } }` of
//! tensorflow/core/example/{example,feature}.proto. This file encodes it without a code generator, because only three
//! list types are needed.

use std::io::Write;

use anyhow::{Result, bail};
use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef};

use super::output::Sink;
use super::shard_writer::ShardWriter;

/// Feature names in TensorFlow's ImageNet files.
const IMAGE_FEATURES: [(&str, &str); 3] =
    [("image", "image/encoded"), ("label", "image/class/label"), ("filename", "image/filename")];

/// Writes one feature per column: bytes for text and images, int64 for integers, and float (32 bits, the only float type
/// of an Example) for other numbers.
pub(super) struct TfRecordWriter {
    sink: Sink,
    features: Vec<String>,
}

impl TfRecordWriter {
    pub(super) fn new(sink: Sink, schema: &SchemaRef) -> Self {
        let images = schema.column_with_name("image").is_some();
        let feature = |column: &String| match IMAGE_FEATURES.iter().find(|(name, _)| images && name == column)
        {
            Some((_, feature)) => String::from(*feature),
            None => column.clone(),
        };
        let features = schema.fields().iter().map(|field| feature(field.name())).collect();
        Self { sink, features }
    }
}

impl ShardWriter for TfRecordWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for row in 0..batch.num_rows() {
            let mut features = Vec::new();
            for (name, column) in self.features.iter().zip(batch.columns()) {
                let mut entry = Vec::new();
                append_bytes(&mut entry, 1, name.as_bytes());
                append_bytes(&mut entry, 2, &feature(column, row)?);
                append_bytes(&mut features, 1, &entry);
            }
            let mut example = Vec::with_capacity(features.len() + 8);
            append_bytes(&mut example, 1, &features);
            write_frame(&mut self.sink, &example)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.sink.flush()?)
    }
}

/// Encodes a `Feature` with one value. The field number identifies the type: 1 is bytes, 2 is float, 3 is int64.
fn feature(column: &ArrayRef, row: usize) -> Result<Vec<u8>> {
    let mut list = Vec::new();
    let kind = match column.data_type() {
        DataType::Binary => {
            append_bytes(&mut list, 1, column.as_binary::<i32>().value(row));
            1
        }
        DataType::Utf8 => {
            append_bytes(&mut list, 1, column.as_string::<i32>().value(row).as_bytes());
            1
        }
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(row) as f32;
            append_bytes(&mut list, 1, &value.to_le_bytes());
            2
        }
        DataType::Int64 => {
            let mut packed = Vec::new();
            append_varint(&mut packed, column.as_primitive::<Int64Type>().value(row) as u64);
            append_bytes(&mut list, 1, &packed);
            3
        }
        other => bail!("a tf.train.Example cannot contain a column of type {other}"),
    };
    let mut feature = Vec::with_capacity(list.len() + 8);
    append_bytes(&mut feature, kind, &list);
    Ok(feature)
}

/// Appends a length-delimited protobuf field.
fn append_bytes(message: &mut Vec<u8>, field: u64, content: &[u8]) {
    append_varint(message, field << 3 | 2);
    append_varint(message, content.len() as u64);
    message.extend_from_slice(content);
}

fn append_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

fn write_frame(sink: &mut Sink, data: &[u8]) -> Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    sink.write_all(&length)?;
    sink.write_all(&masked_crc(&length).to_le_bytes())?;
    sink.write_all(data)?;
    Ok(sink.write_all(&masked_crc(data).to_le_bytes())?)
}

/// Returns the masked CRC-32C of `data`, as defined in tensorflow/core/lib/hash/crc32c.h.
pub(super) fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}
