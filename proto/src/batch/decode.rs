//! Decodes the columns of a batch without copying them. The layout is validated, because it may be malformed.

use arrow::array::{ArrayData, ArrayDataBuilder, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef};
use bytes::Bytes;

use super::BatchLayout;
use super::encode::fixed_width_bytes;

/// Maximum number of elements of an array, so that size computations do not overflow.
const MAX_ELEMENTS: u64 = 1 << 40;

/// Decodes a batch. Its columns are views of `data`; a column at an address with the wrong alignment is copied. `schema` is a
/// plain schema without views, dictionaries and maps.
///
/// # Errors
/// Returns a message that names the column with the malformed layout or values.
pub fn decode_batch(schema: &SchemaRef, layout: &BatchLayout, data: &Bytes) -> Result<RecordBatch, String> {
    if layout.total_bytes != data.len() as u64 {
        return Err(format!(
            "the batch is corrupt: the buffer is {} bytes long, but the layout requires {} bytes",
            data.len(),
            layout.total_bytes
        ));
    }
    let mut cursor = Cursor {
        data: Buffer::from(data.clone()),
        nodes: layout.nodes.iter(),
        buffers: layout.buffers.iter(),
    };
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let column = cursor
            .array(field, Some(u64::from(layout.rows)))
            .map_err(|message| format!("the batch is corrupt: column `{}`: {message}", field.name()))?;
        columns.push(make_array(column));
    }
    if cursor.nodes.len() > 0 || cursor.buffers.len() > 0 {
        return Err(
            "the batch is corrupt: the layout has more entries than the schema has columns".to_owned()
        );
    }
    let options = RecordBatchOptions::new().with_row_count(Some(layout.rows as usize));
    RecordBatch::try_new_with_options(SchemaRef::clone(schema), columns, &options)
        .map_err(|error| format!("the batch is corrupt: {error}"))
}

/// Takes a layout's nodes and buffers in order.
struct Cursor<'a> {
    data: Buffer,
    nodes: std::slice::Iter<'a, (u64, u64)>,
    buffers: std::slice::Iter<'a, (u64, u64)>,
}

impl Cursor<'_> {
    /// Decodes the next array. `expected` is its length, if its parent determines it.
    fn array(&mut self, field: &Field, expected: Option<u64>) -> Result<ArrayData, String> {
        let &(len, nulls) = self.nodes.next().ok_or("the length is missing")?;
        if expected.is_some_and(|expected| expected != len) || len > MAX_ELEMENTS {
            return Err(format!("invalid number of elements: {len}"));
        }
        let builder = ArrayDataBuilder::new(field.data_type().clone()).len(len as usize).align_buffers(true);
        if field.data_type() == &DataType::Null {
            return build(builder);
        }
        let builder = builder.nulls(self.validity(len as usize, nulls)?);
        let builder = match field.data_type() {
            DataType::Binary | DataType::Utf8 | DataType::LargeBinary | DataType::LargeUtf8 => {
                builder.add_buffer(self.offsets(field, len)?).add_buffer(self.buffer()?)
            }
            DataType::List(item) | DataType::LargeList(item) => {
                builder.add_buffer(self.offsets(field, len)?).add_child_data(self.array(item, None)?)
            }
            DataType::FixedSizeList(item, size) => {
                let size = u64::try_from(*size)
                    .map_err(|_| format!("invalid number of elements per row: {size}"))?;
                let elements = len.checked_mul(size).ok_or("the column is too long")?;
                builder.add_child_data(self.array(item, Some(elements))?)
            }
            DataType::Struct(fields) => {
                let children: Result<_, _> =
                    fields.iter().map(|child| self.array(child, Some(len))).collect();
                builder.child_data(children?)
            }
            DataType::Boolean => builder.add_buffer(self.buffer()?),
            other => match fixed_width_bytes(other) {
                Some(width) => builder.add_buffer(self.sized_buffer(len, width as u64)?),
                None => return Err(format!("unsupported type {other}")),
            },
        };
        build(builder)
    }

    fn validity(&mut self, len: usize, null_count: u64) -> Result<Option<NullBuffer>, String> {
        let bits = self.buffer()?;
        if null_count == 0 {
            return Ok(None);
        }
        if bits.len() < len.div_ceil(8) {
            return Err("the validity buffer is truncated".to_owned());
        }
        let nulls = NullBuffer::new(BooleanBuffer::new(bits, 0, len));
        if nulls.null_count() as u64 != null_count {
            return Err(format!("found {} nulls, but the layout declares {null_count}", nulls.null_count()));
        }
        Ok(Some(nulls))
    }

    /// Decodes the offsets of `len` values. An empty array may have no offsets.
    fn offsets(&mut self, field: &Field, len: u64) -> Result<Buffer, String> {
        let large =
            matches!(field.data_type(), DataType::LargeBinary | DataType::LargeUtf8 | DataType::LargeList(_));
        if len == 0 && self.buffers.as_slice().first().is_some_and(|&(_, bytes)| bytes == 0) {
            return self.buffer();
        }
        self.sized_buffer(len + 1, if large { 8 } else { 4 })
    }

    /// Returns the next buffer without trailing bytes, because Arrow panics on a partial element.
    fn sized_buffer(&mut self, elements: u64, width: u64) -> Result<Buffer, String> {
        let buffer = self.buffer()?;
        match elements.checked_mul(width) {
            Some(bytes) if bytes <= buffer.len() as u64 => Ok(buffer.slice_with_length(0, bytes as usize)),
            _ => Err(format!("a buffer of {} bytes is too small for {elements} elements", buffer.len())),
        }
    }

    fn buffer(&mut self) -> Result<Buffer, String> {
        let &(offset, len) = self.buffers.next().ok_or("a buffer is missing")?;
        match offset.checked_add(len) {
            Some(end) if end <= self.data.len() as u64 => {
                Ok(self.data.slice_with_length(offset as usize, len as usize))
            }
            _ => Err(format!("a buffer of {len} bytes at {offset} lies outside the batch")),
        }
    }
}

fn build(builder: ArrayDataBuilder) -> Result<ArrayData, String> {
    builder.build().map_err(|error| error.to_string())
}
