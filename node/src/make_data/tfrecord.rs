//! TFRecord files of `tf.train.Example`.
//!
//! The frame is `length (u64), masked crc of it, data, masked crc of it`, little-endian; the message is
//! `Example { Features { map<string, Feature> } }` of tensorflow/core/example/{example,feature}.proto, written by
//! hand as its three list types need no code generator.

use std::io::Write;

use anyhow::{Result, bail};
use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef};

use super::output::Sink;
use super::writer::ShardWriter;

/// Names that TensorFlow's own ImageNet files use.
const IMAGE_FEATURES: [(&str, &str); 3] =
    [("image", "image/encoded"), ("label", "image/class/label"), ("filename", "image/filename")];

/// One feature per column: bytes for text and images, int64 for whole numbers, float (32 bit, all there is in an
/// Example) for the others.
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
                put_bytes(&mut entry, 1, name.as_bytes());
                put_bytes(&mut entry, 2, &feature(column, row)?);
                put_bytes(&mut features, 1, &entry);
            }
            let mut example = Vec::with_capacity(features.len() + 8);
            put_bytes(&mut example, 1, &features);
            write_frame(&mut self.sink, &example)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.sink.flush()?)
    }
}

/// A `Feature`: the list its kind is known by (1 bytes, 2 float, 3 int64), holding one value.
fn feature(column: &ArrayRef, row: usize) -> Result<Vec<u8>> {
    let mut list = Vec::new();
    let kind = match column.data_type() {
        DataType::Binary => {
            put_bytes(&mut list, 1, column.as_binary::<i32>().value(row));
            1
        }
        DataType::Utf8 => {
            put_bytes(&mut list, 1, column.as_string::<i32>().value(row).as_bytes());
            1
        }
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(row) as f32;
            put_bytes(&mut list, 1, &value.to_le_bytes());
            2
        }
        DataType::Int64 => {
            let mut packed = Vec::new();
            put_varint(&mut packed, column.as_primitive::<Int64Type>().value(row) as u64);
            put_bytes(&mut list, 1, &packed);
            3
        }
        other => bail!("a column of type {other} has no place in a tf.train.Example"),
    };
    let mut feature = Vec::with_capacity(list.len() + 8);
    put_bytes(&mut feature, kind, &list);
    Ok(feature)
}

/// A length-delimited protobuf field.
fn put_bytes(message: &mut Vec<u8>, field: u64, content: &[u8]) {
    put_varint(message, field << 3 | 2);
    put_varint(message, content.len() as u64);
    message.extend_from_slice(content);
}

fn put_varint(message: &mut Vec<u8>, mut value: u64) {
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

/// The masked CRC-32C of tensorflow/core/lib/hash/crc32c.h.
pub(super) fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}
