//! Rows of a chunk as bytes, one buffer each, and back: the form in which caches keep them.
//!
//! Large values (bytes, text, images, tensors) stand in the buffer as they are, so that coming back they are views of it,
//! not copies. The others are in Arrow's row format.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryViewBuilder, StringViewBuilder};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::arrow_types::{arrow_type, as_type, bytes_at, text_at};
use crate::{Chunk, Column, Image, OperatorError, Tensor};

/// Length that stands for a null.
const NULL: u32 = u32::MAX;

/// Turns rows of chunks with certain columns into bytes, and back.
#[derive(Debug)]
pub struct RowCodec {
    columns: Vec<(String, Form)>,
    /// Of the columns of form [`Form::Small`], in their order.
    small: Option<RowConverter>,
}

/// How the values of a column stand in a row's buffer.
#[derive(Debug)]
enum Form {
    Bytes,
    Text,
    Image,
    Tensor {
        scalar: ScalarType,
        shape: Vec<u32>,
        bytes: usize,
    },
    /// Together with the others of the kind, behind all columns.
    Small(DataType),
}

/// Why bytes are not those of a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a kept row is damaged: {0}")]
pub struct RowCodecError(String);

impl RowCodec {
    /// For chunks with these columns.
    ///
    /// # Errors
    /// A sentence for a type that cannot be kept.
    pub fn new(schema: &Schema) -> Result<Self, OperatorError> {
        let mut columns = Vec::with_capacity(schema.fields.len());
        let mut small = Vec::new();
        for field in &schema.fields {
            let form = match &field.column_type {
                ColumnType::Binary => Form::Bytes,
                ColumnType::Utf8 => Form::Text,
                ColumnType::Image => Form::Image,
                ColumnType::Tensor { scalar, shape } => Form::Tensor {
                    scalar: *scalar,
                    shape: shape.clone(),
                    bytes: field.column_type.fixed_row_bytes().unwrap_or_default(),
                },
                ColumnType::Scalar(_) | ColumnType::List(_) => {
                    let wanted = arrow_type(&field.column_type).ok_or_else(|| {
                        OperatorError::new(format!("column `{}` cannot be kept in a cache", field.name))
                    })?;
                    small.push(SortField::new(wanted.clone()));
                    Form::Small(wanted)
                }
            };
            columns.push((field.name.clone(), form));
        }
        let small = (!small.is_empty()).then(|| RowConverter::new(small)).transpose();
        let small =
            small.map_err(|error| OperatorError::new(format!("rows cannot be kept in a cache: {error}")))?;
        Ok(Self { columns, small })
    }

    /// Each row of the chunk as bytes, with `first` in front, which [`Self::decode`] does not want.
    ///
    /// # Errors
    /// Where the chunk does not have the columns.
    pub fn encode(&self, chunk: &Chunk, first: u8) -> Result<Vec<Bytes>, OperatorError> {
        let mut small = Vec::new();
        for (name, form) in &self.columns {
            if let Form::Small(wanted) = form {
                small.push(as_type(chunk.arrow(name)?, wanted)?);
            }
        }
        let small = self.small.as_ref().map(|converter| converter.convert_columns(&small)).transpose();
        let small =
            small.map_err(|error| OperatorError::new(format!("rows cannot be kept in a cache: {error}")))?;
        let columns: Vec<(&Form, &Column)> = self
            .columns
            .iter()
            .map(|(name, form)| Ok((form, &chunk.columns[chunk.place_of(name)?].1)))
            .collect::<Result<_, OperatorError>>()?;
        let encode_row = |row: usize| {
            let mut buffer = BytesMut::with_capacity(
                1 + columns.iter().map(|(form, column)| large_bytes(form, column, row)).sum::<usize>()
                    + small.as_ref().map_or(0, |small| small.row(row).as_ref().len()),
            );
            buffer.put_u8(first);
            for (form, column) in &columns {
                put_large(&mut buffer, form, column, row)?;
            }
            if let Some(small) = &small {
                buffer.put_slice(small.row(row).as_ref());
            }
            Ok(buffer.freeze())
        };
        (0..chunk.rows()).map(encode_row).collect()
    }

    /// The columns of rows that [`Self::encode`] made, without their first byte, in the order of the schema. Large values are views of `rows`.
    ///
    /// # Errors
    /// For bytes that are no row of these columns.
    pub fn decode(&self, rows: &[Bytes]) -> Result<Vec<(String, Column)>, RowCodecError> {
        let mut rest: Vec<Bytes> = rows.to_vec();
        let mut decoded: Vec<(String, Option<Column>)> = Vec::with_capacity(self.columns.len());
        for (name, form) in &self.columns {
            let column = match form {
                Form::Bytes => Some(Column::Arrow(take_bytes(&mut rest)?)),
                Form::Text => Some(Column::Arrow(take_text(&mut rest)?)),
                Form::Image => Some(Column::Images(take_images(&mut rest)?)),
                Form::Tensor { scalar, shape, bytes } => {
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
                Form::Small(_) => None,
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

/// Bytes that a value takes; 0 for small ones.
fn large_bytes(form: &Form, column: &Column, row: usize) -> usize {
    match (form, column) {
        (Form::Bytes, Column::Arrow(array)) => 4 + bytes_at(array, row).flatten().map_or(0, <[u8]>::len),
        (Form::Text, Column::Arrow(array)) => 4 + text_at(array, row).flatten().map_or(0, str::len),
        (Form::Image, Column::Images(images)) => 8 + images[row].data.len(),
        (Form::Tensor { bytes, .. }, _) => *bytes,
        _ => 0,
    }
}

fn put_large(buffer: &mut BytesMut, form: &Form, column: &Column, row: usize) -> Result<(), OperatorError> {
    let unexpected = || OperatorError::new(format!("a column to keep holds {}", column.kind()));
    match (form, column) {
        (Form::Bytes, Column::Arrow(array)) => {
            put_value(buffer, bytes_at(array, row).ok_or_else(unexpected)?);
        }
        (Form::Text, Column::Arrow(array)) => {
            put_value(buffer, text_at(array, row).ok_or_else(unexpected)?.map(str::as_bytes));
        }
        (Form::Image, Column::Images(images)) => {
            let image = &images[row];
            buffer.put_u32_le(image.width);
            buffer.put_u32_le(image.height);
            buffer.put_slice(&image.data);
        }
        (Form::Tensor { bytes, .. }, Column::Tensor(tensor)) if tensor.row_bytes() == *bytes => {
            buffer.put_slice(tensor.row(row));
        }
        (Form::Tensor { bytes, .. }, Column::Arrow(array)) => {
            // One row of fixed-size lists, which come from the source as they are.
            let data = array.to_data();
            let values = data.child_data().first().and_then(|child| child.buffers().first());
            let start = (data.offset() + row) * bytes;
            let values = values.and_then(|values| values.as_slice().get(start..start + bytes));
            buffer.put_slice(values.ok_or_else(unexpected)?);
        }
        (Form::Small(_), _) => {}
        _ => return Err(unexpected()),
    }
    Ok(())
}

fn put_value(buffer: &mut BytesMut, value: Option<&[u8]>) {
    match value {
        None => buffer.put_u32_le(NULL),
        Some(value) => {
            buffer.put_u32_le(value.len() as u32);
            buffer.put_slice(value);
        }
    }
}

/// Cuts bytes off the front.
fn take(row: &mut Bytes, bytes: usize) -> Result<Bytes, RowCodecError> {
    if row.len() < bytes {
        return Err(RowCodecError(format!("it ends {} bytes early", bytes - row.len())));
    }
    Ok(row.split_to(bytes))
}

fn take_u32(row: &mut Bytes) -> Result<u32, RowCodecError> {
    take(row, 4).map(|mut bytes| bytes.get_u32_le())
}

/// A value with its length in front; `None` for a null.
fn take_value(row: &mut Bytes) -> Result<Option<Bytes>, RowCodecError> {
    match take_u32(row)? {
        NULL => Ok(None),
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
