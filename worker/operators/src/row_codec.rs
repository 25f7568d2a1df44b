//! Encodes each row of a chunk to one buffer, and decodes buffers to columns. Caches store rows in this format.
//!
//! Large values (bytes, text, images, tensors) are stored unchanged, so that most decoded values reference the buffer without a copy.
//! Other values are stored in Arrow's row format.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryViewBuilder, StringViewBuilder};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::arrow_types::{arrow_type, bytes_at, cast_to, text_at};
use crate::{Chunk, Column, Image, OperatorError, Tensor};

/// The length prefix of a null value.
const NULL_LENGTH: u32 = u32::MAX;

/// Encodes and decodes the rows of one schema.
#[derive(Debug)]
pub struct RowCodec {
    columns: Vec<(String, ValueFormat)>,
    /// Converts all columns with format [`ValueFormat::Small`], in their order.
    small: Option<RowConverter>,
}

/// The format of a column's values in the buffer of a row.
#[derive(Debug)]
enum ValueFormat {
    Bytes,
    Text,
    Image,
    Tensor {
        scalar: ScalarType,
        shape: Vec<u32>,
        bytes: usize,
    },
    /// Arrow's row format. The small values of all columns follow the large values.
    Small(DataType),
}

/// An error while decoding a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a cached row is corrupted: {0}")]
pub struct RowCodecError(String);

impl RowCodec {
    /// Creates a codec for chunks with the columns of a schema.
    ///
    /// # Errors
    /// Returns an error if a column has a type that cannot be cached.
    pub fn new(schema: &Schema) -> Result<Self, OperatorError> {
        let mut columns = Vec::with_capacity(schema.fields.len());
        let mut small = Vec::new();
        for field in &schema.fields {
            let form = match &field.column_type {
                ColumnType::Binary => ValueFormat::Bytes,
                ColumnType::Utf8 => ValueFormat::Text,
                ColumnType::Image => ValueFormat::Image,
                ColumnType::Tensor { scalar, shape } => ValueFormat::Tensor {
                    scalar: *scalar,
                    shape: shape.clone(),
                    bytes: field.column_type.fixed_row_bytes().unwrap_or_default(),
                },
                ColumnType::Scalar(_) | ColumnType::List(_) => {
                    let wanted = arrow_type(&field.column_type).ok_or_else(|| {
                        OperatorError::new(format!(
                            "column `{}` has type {}, which cannot be cached",
                            field.name, field.column_type
                        ))
                    })?;
                    small.push(SortField::new(wanted.clone()));
                    ValueFormat::Small(wanted)
                }
            };
            columns.push((field.name.clone(), form));
        }
        let small = (!small.is_empty()).then(|| RowConverter::new(small)).transpose()?;
        Ok(Self { columns, small })
    }

    /// Encodes each row of a chunk. Each encoded row starts with the byte `prefix`, which the caller must remove before
    /// [`Self::decode`].
    ///
    /// # Errors
    /// Returns an error if the chunk does not have the columns of the codec.
    pub fn encode(&self, chunk: &Chunk, prefix: u8) -> Result<Vec<Bytes>, OperatorError> {
        let mut small = Vec::new();
        for (name, form) in &self.columns {
            if let ValueFormat::Small(wanted) = form {
                small.push(cast_to(chunk.arrow(name)?, wanted)?);
            }
        }
        let small = self.small.as_ref().map(|converter| converter.convert_columns(&small)).transpose()?;
        let columns: Vec<(&ValueFormat, &Column)> = self
            .columns
            .iter()
            .map(|(name, form)| Ok((form, &chunk.columns[chunk.column_index(name)?].1)))
            .collect::<Result<_, OperatorError>>()?;
        let encode_row = |row: usize| {
            let mut buffer = BytesMut::with_capacity(
                1 + columns.iter().map(|(form, column)| large_bytes(form, column, row)).sum::<usize>()
                    + small.as_ref().map_or(0, |small| small.row(row).as_ref().len()),
            );
            buffer.put_u8(prefix);
            for (form, column) in &columns {
                write_large(&mut buffer, form, column, row)?;
            }
            if let Some(small) = &small {
                buffer.put_slice(small.row(row).as_ref());
            }
            Ok(buffer.freeze())
        };
        (0..chunk.rows()).map(encode_row).collect()
    }

    /// Decodes rows that [`Self::encode`] has encoded, without their prefix. Returns the columns in the order of the schema.
    ///
    /// # Errors
    /// Returns an error if a row is corrupted.
    pub fn decode(&self, rows: &[Bytes]) -> Result<Vec<(String, Column)>, RowCodecError> {
        let mut rest: Vec<Bytes> = rows.to_vec();
        let mut decoded: Vec<(String, Option<Column>)> = Vec::with_capacity(self.columns.len());
        for (name, form) in &self.columns {
            let column = match form {
                ValueFormat::Bytes => Some(Column::Arrow(take_bytes(&mut rest)?)),
                ValueFormat::Text => Some(Column::Arrow(take_text(&mut rest)?)),
                ValueFormat::Image => Some(Column::Images(take_images(&mut rest)?)),
                ValueFormat::Tensor { scalar, shape, bytes } => {
                    let mut data = BytesMut::with_capacity(bytes * rest.len());
                    for row in &mut rest {
                        data.put_slice(&take(row, *bytes)?);
                    }
                    Some(Column::Tensor(Tensor {
                        scalar: *scalar,
                        shape: shape.clone(),
                        data,
                        rows: rows.len(),
                    }))
                }
                ValueFormat::Small(_) => None,
            };
            decoded.push((name.clone(), column));
        }
        let mut small: std::vec::IntoIter<ArrayRef> = match &self.small {
            Some(converter) => {
                let parser = converter.parser();
                let parsed = rest.iter().map(|row| parser.parse(row));
                let columns = converter.convert_rows(parsed);
                columns.map_err(|error| RowCodecError(error.to_string()))?.into_iter()
            }
            None => Vec::new().into_iter(),
        };
        let columns = decoded.into_iter().map(|(name, column)| {
            let column = column.or_else(|| small.next().map(Column::Arrow));
            column.map(|column| (name, column)).ok_or_else(|| RowCodecError("a column is missing".to_owned()))
        });
        columns.collect()
    }
}

/// Returns the encoded size of a large value, or 0 for a small value.
fn large_bytes(form: &ValueFormat, column: &Column, row: usize) -> usize {
    match (form, column) {
        (ValueFormat::Bytes, Column::Arrow(array)) => {
            4 + bytes_at(array, row).flatten().map_or(0, <[u8]>::len)
        }
        (ValueFormat::Text, Column::Arrow(array)) => 4 + text_at(array, row).flatten().map_or(0, str::len),
        (ValueFormat::Image, Column::Images(images)) => 8 + images[row].data.len(),
        (ValueFormat::Tensor { bytes, .. }, _) => *bytes,
        _ => 0,
    }
}

fn write_large(
    buffer: &mut BytesMut,
    form: &ValueFormat,
    column: &Column,
    row: usize,
) -> Result<(), OperatorError> {
    let unexpected = || OperatorError::new(format!("cannot cache values of type {}", column.describe()));
    match (form, column) {
        (ValueFormat::Bytes, Column::Arrow(array)) => {
            write_value(buffer, bytes_at(array, row).ok_or_else(unexpected)?);
        }
        (ValueFormat::Text, Column::Arrow(array)) => {
            write_value(buffer, text_at(array, row).ok_or_else(unexpected)?.map(str::as_bytes));
        }
        (ValueFormat::Image, Column::Images(images)) => {
            let image = &images[row];
            buffer.put_u32_le(image.width);
            buffer.put_u32_le(image.height);
            buffer.put_slice(&image.data);
        }
        (ValueFormat::Tensor { bytes, .. }, Column::Tensor(tensor)) if tensor.row_bytes() == *bytes => {
            buffer.put_slice(tensor.row(row));
        }
        (ValueFormat::Tensor { bytes, .. }, Column::Arrow(array)) => {
            // A tensor from a source is an array of fixed-size lists.
            let data = array.to_data();
            let values = data.child_data().first().and_then(|child| child.buffers().first());
            let start = (data.offset() + row) * bytes;
            let values = values.and_then(|values| values.as_slice().get(start..start + bytes));
            buffer.put_slice(values.ok_or_else(unexpected)?);
        }
        (ValueFormat::Small(_), _) => {}
        _ => return Err(unexpected()),
    }
    Ok(())
}

fn write_value(buffer: &mut BytesMut, value: Option<&[u8]>) {
    match value {
        None => buffer.put_u32_le(NULL_LENGTH),
        Some(value) => {
            buffer.put_u32_le(value.len() as u32);
            buffer.put_slice(value);
        }
    }
}

/// Removes and returns the first bytes of a row.
fn take(row: &mut Bytes, bytes: usize) -> Result<Bytes, RowCodecError> {
    if row.len() < bytes {
        return Err(RowCodecError(format!("{} bytes are missing at the end", bytes - row.len())));
    }
    Ok(row.split_to(bytes))
}

fn take_u32(row: &mut Bytes) -> Result<u32, RowCodecError> {
    take(row, 4).map(|mut bytes| bytes.get_u32_le())
}

/// Removes and returns a value with a length prefix. `None` for null.
fn take_value(row: &mut Bytes) -> Result<Option<Bytes>, RowCodecError> {
    match take_u32(row)? {
        NULL_LENGTH => Ok(None),
        length => take(row, length as usize).map(Some),
    }
}

fn take_bytes(rows: &mut [Bytes]) -> Result<ArrayRef, RowCodecError> {
    let mut builder = BinaryViewBuilder::with_capacity(rows.len());
    for row in rows {
        match take_value(row)? {
            None => builder.append_null(),
            Some(value) => {
                let length = value.len() as u32;
                let block = builder.append_block(Buffer::from(value));
                builder
                    .try_append_view(block, 0, length)
                    .map_err(|error| RowCodecError(error.to_string()))?;
            }
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn take_text(rows: &mut [Bytes]) -> Result<ArrayRef, RowCodecError> {
    let mut builder = StringViewBuilder::with_capacity(rows.len());
    for row in rows {
        let value = take_value(row)?;
        let text = value.as_deref().map(std::str::from_utf8).transpose();
        builder.append_option(text.map_err(|error| RowCodecError(error.to_string()))?);
    }
    Ok(Arc::new(builder.finish()))
}

fn take_images(rows: &mut [Bytes]) -> Result<Vec<Image>, RowCodecError> {
    let image = |row: &mut Bytes| {
        let (width, height) = (take_u32(row)?, take_u32(row)?);
        let bytes = u64::from(width) * u64::from(height) * 3;
        let bytes = usize::try_from(bytes).map_err(|_| RowCodecError("an image is too large".to_owned()))?;
        Ok(Image { width, height, data: take(row, bytes)? })
    };
    rows.iter_mut().map(image).collect()
}

#[cfg(test)]
mod tests;
