//! Encodes columns into the buffer of a batch.

use arrow::array::{Array, ArrayRef, AsArray, GenericByteViewArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer};
use arrow::datatypes::{ByteViewType, DataType};
use bytes::{Bytes, BytesMut};

use super::{ALIGNMENT_BYTES, BatchLayout};

/// A growing buffer for columns. Its length includes columns that were written in place at its start.
pub trait BatchBuffer {
    /// Current length in bytes.
    fn len_bytes(&self) -> usize;

    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]);

    /// Appends zeros up to this length.
    fn pad_to(&mut self, len_bytes: usize);
}

impl BatchBuffer for BytesMut {
    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn pad_to(&mut self, len_bytes: usize) {
        self.resize(len_bytes, 0);
    }
}

impl BatchBuffer for Vec<u8> {
    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn pad_to(&mut self, len_bytes: usize) {
        self.resize(len_bytes, 0);
    }
}

/// Arrow's buffer type, whose memory is also aligned.
impl BatchBuffer for MutableBuffer {
    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn pad_to(&mut self, len_bytes: usize) {
        self.resize(len_bytes, 0);
    }
}

/// A list column of a batch with one row, which is already in the buffer of the batch. The list has all values, and no value is null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListInPlace {
    /// Offset of the two `i32` list offsets: 0, and the number of values. Should be a multiple of [`ALIGNMENT_BYTES`].
    pub offsets_at: u64,
    /// Offset of the values. Should be a multiple of [`ALIGNMENT_BYTES`].
    pub values_at: u64,
    /// Size of the values in bytes.
    pub values_bytes: u64,
    /// Number of values.
    pub values: u64,
    /// Number of elements of each value if the values are tensors; `None` if they are fixed-width scalars.
    pub elements_per_value: Option<u64>,
}

/// Builds a [`BatchLayout`] column by column, in the order of the schema. A column is already in the buffer, or is appended to
/// it. After an error, the encoder and the end of the buffer are invalid.
#[derive(Debug)]
pub struct BatchEncoder {
    layout: BatchLayout,
}

impl BatchEncoder {
    /// Creates an encoder for a batch with this number of rows.
    pub fn new(rows: u32) -> Self {
        Self { layout: BatchLayout { rows, ..BatchLayout::default() } }
    }

    /// Adds a tensor column that is already in the buffer: `len` bytes from `offset`, `elements_per_row` elements per row, without
    /// gaps and nulls. `offset` should be a multiple of [`ALIGNMENT_BYTES`].
    pub fn push_in_place(&mut self, offset: u64, len: u64, elements_per_row: u64) {
        let rows = u64::from(self.layout.rows);
        self.layout.nodes.extend([(rows, 0), (rows.saturating_mul(elements_per_row), 0)]);
        self.layout.buffers.extend([(0, 0), (0, 0), (offset, len)]);
    }

    /// Adds a scalar column of a fixed-width type, except packed booleans, that is already in the buffer: `len` bytes from
    /// `offset`, without nulls.
    pub fn push_scalar_in_place(&mut self, offset: u64, len: u64) {
        self.layout.nodes.push((u64::from(self.layout.rows), 0));
        self.layout.buffers.extend([(0, 0), (offset, len)]);
    }

    /// Adds a list column of a batch with one row that is already in the buffer.
    pub fn push_list_in_place(&mut self, list: ListInPlace) {
        let ListInPlace { offsets_at, values_at, values_bytes, values, elements_per_value } = list;
        self.layout.nodes.extend([(1, 0), (values, 0)]);
        self.layout.buffers.extend([(0, 0), (offsets_at, 8), (0, 0)]);
        if let Some(elements) = elements_per_value {
            self.layout.nodes.push((values.saturating_mul(elements), 0));
            self.layout.buffers.push((0, 0));
        }
        self.layout.buffers.push((values_at, values_bytes));
    }

    /// Appends a column to `out`, the buffer of the batch, and aligns each Arrow buffer. Only the sliced part of an array is
    /// copied, and views become plain text or bytes.
    ///
    /// # Errors
    /// Returns a message for a column with a different length, with an unsupported type, or with more than 2 GiB of text or
    /// bytes.
    pub fn push_array(&mut self, array: &ArrayRef, out: &mut impl BatchBuffer) -> Result<(), String> {
        if array.len() as u64 != u64::from(self.layout.rows) {
            return Err(format!("a column has {} rows, but the batch has {}", array.len(), self.layout.rows));
        }
        self.push(array.as_ref(), out)
    }

    /// Pads the buffer to [`ALIGNMENT_BYTES`] and returns the layout of the batch.
    pub fn finish(mut self, out: &mut impl BatchBuffer) -> BatchLayout {
        out.pad_to(out.len_bytes().next_multiple_of(ALIGNMENT_BYTES));
        self.layout.total_bytes = out.len_bytes() as u64;
        self.layout
    }

    fn push(&mut self, array: &dyn Array, out: &mut impl BatchBuffer) -> Result<(), String> {
        if array.data_type() == &DataType::Null {
            self.layout.nodes.push((array.len() as u64, array.len() as u64));
            return Ok(());
        }
        self.push_node(array, out);
        match array.data_type() {
            DataType::Boolean => self.push_bits(array.as_boolean().values(), out),
            DataType::Binary => self.push_values(array.as_binary::<i32>(), out),
            DataType::Utf8 => self.push_values(array.as_string::<i32>(), out),
            DataType::LargeBinary => self.push_values(array.as_binary::<i64>(), out),
            DataType::LargeUtf8 => self.push_values(array.as_string::<i64>(), out),
            DataType::BinaryView => self.push_views(array.as_binary_view(), out)?,
            DataType::Utf8View => self.push_views(array.as_string_view(), out)?,
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                let range = self.push_offsets(list.value_offsets(), out);
                self.push(&list.values().slice(range.start, range.len()), out)?;
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                let range = self.push_offsets(list.value_offsets(), out);
                self.push(&list.values().slice(range.start, range.len()), out)?;
            }
            DataType::FixedSizeList(_, size) => {
                let elements = array.len() * usize::try_from(*size).unwrap_or_default();
                self.push(&array.as_fixed_size_list().values().slice(0, elements), out)?;
            }
            DataType::Struct(_) => {
                for column in array.as_struct().columns() {
                    self.push(column, out)?;
                }
            }
            other => self.push_fixed_width(array, other, out)?,
        }
        Ok(())
    }

    /// Appends the node and the validity buffer of an array.
    fn push_node(&mut self, array: &dyn Array, out: &mut impl BatchBuffer) {
        self.layout.nodes.push((array.len() as u64, array.null_count() as u64));
        match array.nulls().filter(|nulls| nulls.null_count() > 0) {
            Some(nulls) => self.push_bits(nulls.inner(), out),
            None => self.layout.buffers.push((0, 0)),
        }
    }

    fn push_bits(&mut self, bits: &BooleanBuffer, out: &mut impl BatchBuffer) {
        self.push_buffer(&bits.sliced()[..bits.len().div_ceil(8)], out);
    }

    fn push_fixed_width(
        &mut self,
        array: &dyn Array,
        data_type: &DataType,
        out: &mut impl BatchBuffer,
    ) -> Result<(), String> {
        let Some(width) = fixed_width_bytes(data_type) else {
            return Err(format!("unsupported type {data_type}; cast the column in the pipeline"));
        };
        let data = array.to_data();
        let start = data.offset() * width;
        self.push_buffer(&data.buffers()[0][start..start + data.len() * width], out);
        Ok(())
    }

    fn push_values<T: arrow::datatypes::ByteArrayType>(
        &mut self,
        array: &arrow::array::GenericByteArray<T>,
        out: &mut impl BatchBuffer,
    ) {
        let range = self.push_offsets(array.value_offsets(), out);
        self.push_buffer(&array.value_data()[range], out);
    }

    /// Appends offsets that start at 0 and returns the range of their values.
    fn push_offsets<O: arrow::array::OffsetSizeTrait>(
        &mut self,
        offsets: &[O],
        out: &mut impl BatchBuffer,
    ) -> std::ops::Range<usize> {
        let first = offsets.first().copied().unwrap_or_default();
        let last = offsets.last().copied().unwrap_or_default();
        if first == O::default() {
            self.push_buffer(&Buffer::from_slice_ref(offsets), out);
        } else {
            let moved: Vec<O> = offsets.iter().map(|&offset| offset - first).collect();
            self.push_buffer(&Buffer::from_vec(moved), out);
        }
        first.as_usize()..last.as_usize()
    }

    fn push_views<T: ByteViewType>(
        &mut self,
        array: &GenericByteViewArray<T>,
        out: &mut impl BatchBuffer,
    ) -> Result<(), String> {
        let mut offsets = Vec::with_capacity(array.len() + 1);
        let mut end = 0_i32;
        offsets.push(end);
        for value in array.iter() {
            let len = value.map_or(0, |value| AsRef::<[u8]>::as_ref(value).len());
            end = i32::try_from(len).ok().and_then(|len| end.checked_add(len)).ok_or_else(|| {
                "a column of one batch is larger than 2 GiB; use a smaller batch".to_owned()
            })?;
            offsets.push(end);
        }
        self.push_buffer(&Buffer::from_vec(offsets), out);
        let offset = start_buffer(out);
        for value in array.iter().flatten() {
            out.append(value.as_ref());
        }
        self.layout.buffers.push((offset, end as u64));
        Ok(())
    }

    fn push_buffer(&mut self, bytes: &[u8], out: &mut impl BatchBuffer) {
        let offset = start_buffer(out);
        out.append(bytes);
        self.layout.buffers.push((offset, bytes.len() as u64));
    }
}

fn start_buffer(out: &mut impl BatchBuffer) -> u64 {
    let offset = out.len_bytes().next_multiple_of(ALIGNMENT_BYTES);
    out.pad_to(offset);
    offset as u64
}

/// Bytes of one element of a fixed-width type; `None` for other types.
pub(super) fn fixed_width_bytes(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::FixedSizeBinary(size) => usize::try_from(*size).ok(),
        DataType::Dictionary(..) => None,
        other => other.primitive_width(),
    }
}

/// Encodes a batch into a new buffer, whose memory is aligned to [`ALIGNMENT_BYTES`]. The schema of the result is what
/// [`super::plain_schema`] returns for the schema of the batch.
///
/// # Errors
/// Returns a message that names the column with an unsupported type.
pub fn encode_batch(batch: &RecordBatch) -> Result<(BatchLayout, Bytes), String> {
    let rows = u32::try_from(batch.num_rows())
        .map_err(|_| format!("a batch of {} rows is too large; use a smaller batch", batch.num_rows()))?;
    let mut encoder = BatchEncoder::new(rows);
    let mut out = MutableBuffer::new(estimated_bytes(batch));
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        encoder
            .push_array(column, &mut out)
            .map_err(|message| format!("column `{}`: {message}", field.name()))?;
    }
    let layout = encoder.finish(&mut out);
    Ok((layout, Bytes::from_owner(Owned(out.into()))))
}

/// Estimates the length of the buffer of a batch. Only the sliced part of an array counts.
fn estimated_bytes(batch: &RecordBatch) -> usize {
    let bytes = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or_default();
    batch.columns().iter().map(|column| bytes(column).next_multiple_of(ALIGNMENT_BYTES)).sum()
}

/// Lets `Bytes` own an Arrow buffer.
struct Owned(Buffer);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
