//! Encodes each row of a chunk to one buffer, and decodes buffers to columns. Caches store rows in this format.
//!
//! Large values (bytes, text, images, tensors) are stored unchanged, so that most decoded values reference the buffer without a copy.
//! Other values are stored in Arrow's row format.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, BinaryViewBuilder, BooleanArray, FixedSizeListArray, NullBufferBuilder,
    StringViewBuilder, make_array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field};
use arrow::row::{RowConverter, SortField};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::arrow_types::{arrow_scalar, arrow_type, bytes_at, cast_to, text_at};
use crate::source_tensors::{MissingPart, SourceTensors};
use crate::{Chunk, Column, Image, OperatorError, Tensor};

/// The length prefix of a null value.
const NULL_LENGTH: u32 = u32::MAX;
/// The first byte of a tensor without nulls. The elements follow.
const COMPLETE_TENSOR: u8 = 0;
/// The first byte of a null instead of a tensor. Nothing follows.
const NULL_TENSOR: u8 = 1;
/// The first byte of a tensor with nulls. One byte per element follows, which is 0 for null, and then the elements.
const INCOMPLETE_TENSOR: u8 = 2;

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
        let columns: Vec<(&ValueFormat, LargeValues)> = self
            .columns
            .iter()
            .map(|(name, form)| {
                let column = &chunk.columns[chunk.column_index(name)?].1;
                Ok((form, LargeValues::new(form, column, name)?))
            })
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
                    Some(take_tensors(&mut rest, (*scalar, shape), *bytes)?)
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

/// The values of a column during encoding.
enum LargeValues<'a> {
    Column(&'a Column),
    /// The tensors of a source, which may contain nulls, and their elements.
    SourceTensors(SourceTensors<'a>, Buffer),
}

impl<'a> LargeValues<'a> {
    fn new(form: &ValueFormat, column: &'a Column, name: &'a str) -> Result<Self, OperatorError> {
        Ok(match (form, column) {
            (ValueFormat::Tensor { scalar, shape, .. }, Column::Arrow(array)) => {
                let tensors = SourceTensors::new(array, (*scalar, shape), name)?;
                Self::SourceTensors(tensors, tensors.bytes())
            }
            _ => Self::Column(column),
        })
    }
}

/// Returns the encoded size of a large value without nulls, or 0 for a small value.
fn large_bytes(form: &ValueFormat, values: &LargeValues<'_>, row: usize) -> usize {
    match (form, values) {
        (ValueFormat::Bytes, LargeValues::Column(Column::Arrow(array))) => {
            4 + bytes_at(array, row).flatten().map_or(0, <[u8]>::len)
        }
        (ValueFormat::Text, LargeValues::Column(Column::Arrow(array))) => {
            4 + text_at(array, row).flatten().map_or(0, str::len)
        }
        (ValueFormat::Image, LargeValues::Column(Column::Images(images))) => 8 + images[row].data.len(),
        (ValueFormat::Tensor { bytes, .. }, _) => 1 + *bytes,
        _ => 0,
    }
}

fn write_large(
    buffer: &mut BytesMut,
    form: &ValueFormat,
    values: &LargeValues<'_>,
    row: usize,
) -> Result<(), OperatorError> {
    let column = match values {
        LargeValues::Column(column) => *column,
        LargeValues::SourceTensors(tensors, elements) => {
            write_source_tensor(buffer, tensors, elements, row);
            return Ok(());
        }
    };
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
            buffer.put_u8(COMPLETE_TENSOR);
            buffer.put_slice(tensor.row(row));
        }
        (ValueFormat::Small(_), _) => {}
        _ => return Err(unexpected()),
    }
    Ok(())
}

/// Writes a tensor of the source, with its nulls. `elements` are the elements of all rows.
fn write_source_tensor(buffer: &mut BytesMut, tensors: &SourceTensors<'_>, elements: &[u8], row: usize) {
    let row_bytes = tensors.row_bytes();
    let elements = &elements[row * row_bytes..(row + 1) * row_bytes];
    match tensors.missing_part(row) {
        None => {
            buffer.put_u8(COMPLETE_TENSOR);
            buffer.put_slice(elements);
        }
        Some(MissingPart::Row) => buffer.put_u8(NULL_TENSOR),
        Some(MissingPart::Elements) => {
            buffer.put_u8(INCOMPLETE_TENSOR);
            let count = 0..tensors.elements_per_row();
            buffer.extend(count.map(|element| u8::from(!tensors.is_null_element(row, element))));
            buffer.put_slice(elements);
        }
    }
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

/// Removes and returns the tensors of all rows. If one of them is not complete, the column is an array as a source returns it.
fn take_tensors(
    rows: &mut [Bytes],
    (scalar, shape): (ScalarType, &[u32]),
    row_bytes: usize,
) -> Result<Column, RowCodecError> {
    let elements = row_bytes / scalar.width_bytes();
    let mut data = BytesMut::with_capacity(row_bytes * rows.len());
    let (mut is_present, mut is_valid) =
        (NullBufferBuilder::new(rows.len()), NullBufferBuilder::new(rows.len()));
    for row in rows.iter_mut() {
        let first = take(row, 1)?[0];
        match first {
            COMPLETE_TENSOR => is_valid.append_n_non_nulls(elements),
            NULL_TENSOR => is_valid.append_n_nulls(elements),
            INCOMPLETE_TENSOR => take(row, elements)?.iter().for_each(|&valid| is_valid.append(valid != 0)),
            other => return Err(RowCodecError(format!("a tensor starts with {other}"))),
        }
        is_present.append(first != NULL_TENSOR);
        match first {
            NULL_TENSOR => data.put_bytes(0, row_bytes),
            _ => data.put_slice(&take(row, row_bytes)?),
        }
    }
    let (is_present, is_valid) = (is_present.finish(), is_valid.finish());
    if is_present.is_none() && is_valid.is_none() {
        return Ok(Column::Tensor(Tensor { scalar, shape: shape.to_vec(), data, rows: rows.len() }));
    }
    source_array(scalar, elements, &data, is_valid, is_present).map(Column::Arrow)
}

/// Builds an array of tensors as a source returns it, with nulls.
fn source_array(
    scalar: ScalarType,
    elements: usize,
    data: &[u8],
    is_valid: Option<NullBuffer>,
    is_present: Option<NullBuffer>,
) -> Result<ArrayRef, RowCodecError> {
    let values: ArrayRef = match scalar {
        ScalarType::Bool => {
            Arc::new(BooleanArray::new(data.iter().map(|&byte| byte != 0).collect(), is_valid))
        }
        _ => {
            let values = ArrayData::builder(arrow_scalar(scalar))
                .len(data.len() / scalar.width_bytes())
                .add_buffer(Buffer::from(data))
                .nulls(is_valid);
            make_array(values.build().map_err(|error| RowCodecError(error.to_string()))?)
        }
    };
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let tensors = FixedSizeListArray::try_new(item, elements as i32, values, is_present);
    tensors.map(|tensors| Arc::new(tensors) as ArrayRef).map_err(|error| RowCodecError(error.to_string()))
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
