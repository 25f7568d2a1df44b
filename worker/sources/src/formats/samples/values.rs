//! Builders of columns from encoded values.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayData, ArrayRef, BinaryViewBuilder, BooleanArray, FixedSizeListArray, ListArray,
    ListBuilder, StringViewBuilder, make_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::concat;
use bytes::Bytes;
use feedline_data::manifest::common_scalar;
use feedline_data::schema::{ColumnType, ScalarType};

use super::arrays::{Array, list_ranges};
use super::encoding::ValueEncoding;
use super::nested::nested_json;
use super::pixels::png_of_pil;
use crate::columns::{arrow_field, arrow_type, null_column};
use crate::exact_cast::{InexactRow, cast_exact};
use crate::formats::parquet::fields::cast_column;
use crate::object::BufferSpan;
use crate::views::{Views, binary_builder};

/// A column under construction.
pub(super) enum ValueColumn {
    Views(Views),
    /// Text that is not in the read buffers.
    Text(StringViewBuilder),
    /// Bytes that are not in the read buffers.
    Bytes(BinaryViewBuilder),
    Images(ListBuilder<BinaryViewBuilder>),
    Array(ArrayColumn),
}

/// A column with the type that it has in the dataset.
pub(super) struct FinishedColumn {
    pub(super) array: ArrayRef,
    /// The rows with values that the type does not represent. They are null.
    pub(super) inexact: Vec<InexactRow>,
    /// The memory that the column uses in addition to the read buffers, in bytes.
    pub(super) bytes: usize,
}

impl ValueColumn {
    /// `column_type` is the type of the column in the dataset, which determines the axes and the dtype of arrays.
    pub(super) fn new(
        encoding: &ValueEncoding,
        column_type: &ColumnType,
        buffers: &[Bytes],
        rows: usize,
    ) -> Self {
        match encoding {
            ValueEncoding::Bytes => Self::Views(Views::binary(buffers, rows)),
            ValueEncoding::Text => Self::Views(Views::text(buffers, rows)),
            ValueEncoding::Nested => Self::Text(StringViewBuilder::with_capacity(rows)),
            ValueEncoding::Pil => Self::Bytes(BinaryViewBuilder::with_capacity(rows)),
            ValueEncoding::Images { is_raw: true, .. } => {
                Self::Images(ListBuilder::new(BinaryViewBuilder::new()))
            }
            ValueEncoding::Images { .. } => Self::Images(ListBuilder::new(binary_builder(buffers, rows))),
            ValueEncoding::Number(_)
            | ValueEncoding::IntText
            | ValueEncoding::FloatText
            | ValueEncoding::Array(_) => Self::Array(ArrayColumn::new(column_type)),
        }
    }

    /// Appends a value. Appends nothing on an error.
    pub(super) fn append(
        &mut self,
        encoding: &ValueEncoding,
        value: &[u8],
        span: BufferSpan,
    ) -> Result<(), String> {
        match (self, encoding) {
            (Self::Views(views), _) => views.append(span),
            (Self::Text(builder), _) => {
                builder.append_value(nested_json(value)?);
                Ok(())
            }
            (Self::Bytes(builder), _) => {
                builder.append_value(png_of_pil(value)?);
                Ok(())
            }
            (Self::Images(builder), ValueEncoding::Images { header, is_raw }) => {
                append_images(builder, value, span, *header, *is_raw)
            }
            (Self::Array(column), encoding) => append_array(column, encoding, value),
            (Self::Images(_), _) => Err("the value is not a list of images".to_owned()),
        }
    }

    pub(super) fn append_null(&mut self) {
        match self {
            Self::Views(views) => views.append_null(),
            Self::Text(builder) => builder.append_null(),
            Self::Bytes(builder) => builder.append_null(),
            Self::Images(builder) => builder.append(false),
            Self::Array(column) => column.append_null(),
        }
    }

    /// Returns the column. `column_type` is its type in the dataset, in which single values may be lists.
    pub(super) fn finish(self, column_type: &ColumnType) -> Result<FinishedColumn, String> {
        let (array, bytes): (ArrayRef, usize) = match self {
            Self::Views(views) => {
                let array = views.finish();
                let bytes = array.len() * 17;
                (array, bytes)
            }
            Self::Images(mut builder) => {
                let array = builder.finish();
                let bytes = (array.len() + array.values().len()) * 17;
                (Arc::new(array) as ArrayRef, bytes)
            }
            Self::Text(mut builder) => with_memory_size(Arc::new(builder.finish())),
            Self::Bytes(mut builder) => with_memory_size(Arc::new(builder.finish())),
            Self::Array(column) => {
                let (array, inexact) = column.finish()?;
                let (array, bytes) = with_memory_size(array);
                return Ok(FinishedColumn { array, inexact, bytes });
            }
        };
        let (array, inexact) = cast_column(&array, column_type, &arrow_type(column_type))?;
        Ok(FinishedColumn { array, inexact, bytes })
    }

    /// Whether the column refers to the read buffers.
    pub(super) fn has_views(&self) -> bool {
        matches!(self, Self::Views(_) | Self::Images(_))
    }
}

fn with_memory_size(array: ArrayRef) -> (ArrayRef, usize) {
    let bytes = array.get_array_memory_size();
    (array, bytes)
}

fn append_images(
    builder: &mut ListBuilder<BinaryViewBuilder>,
    value: &[u8],
    span: BufferSpan,
    header: usize,
    is_raw: bool,
) -> Result<(), String> {
    let ranges = list_ranges(value, header)?;
    if is_raw {
        let images: Vec<Vec<u8>> =
            ranges.into_iter().map(|range| png_of_pil(&value[range])).collect::<Result<_, _>>()?;
        images.iter().for_each(|image| builder.values().append_value(image));
    } else {
        for range in ranges {
            let (start, len) = ((span.start + range.start) as u32, range.len() as u32);
            let appended = builder.values().try_append_view(span.buffer as u32, start, len);
            appended.expect("the ranges are within the value");
        }
    }
    builder.append(true);
    Ok(())
}

fn append_array(column: &mut ArrayColumn, encoding: &ValueEncoding, value: &[u8]) -> Result<(), String> {
    let text = || std::str::from_utf8(value).unwrap_or_default().trim();
    let number = |scalar, elements| Array { scalar, shape: Vec::new(), elements };
    match encoding {
        ValueEncoding::Array(array) => column.append(&array.parse(value)?),
        ValueEncoding::Number(scalar) => column.append(&number(*scalar, value)),
        ValueEncoding::IntText => {
            let parsed: i64 = text().parse().map_err(|_| "the text is not an integer of 64 bits")?;
            column.append(&number(ScalarType::Int64, &parsed.to_le_bytes()))
        }
        _ => {
            let parsed: f64 = text().parse().map_err(|_| "the text is not a number")?;
            column.append(&number(ScalarType::Float64, &parsed.to_le_bytes()))
        }
    }
}

/// A column of numbers, tensors, or nested lists of numbers. The dtypes of its values may differ from the dtype of the column,
/// if that represents their numbers.
pub(super) struct ArrayColumn {
    column_type: ColumnType,
    /// The dtype of the column; `None` if its type in the dataset is not numeric.
    scalar: Option<ScalarType>,
    /// Values of one dtype are converted together.
    runs: Vec<ArrayRun>,
}

impl ArrayColumn {
    fn new(column_type: &ColumnType) -> Self {
        Self { column_type: column_type.clone(), scalar: element_type(column_type), runs: Vec::new() }
    }

    /// Appends a value. Appends nothing on an error.
    fn append(&mut self, array: &Array<'_>) -> Result<(), String> {
        let widens_to = |scalar: ScalarType| common_scalar(array.scalar, scalar) == Some(scalar);
        if !self.scalar.is_some_and(widens_to) {
            return Err(format!(
                "the value has the dtype {}, but the column is {}",
                array.scalar.name(),
                self.column_type
            ));
        }
        let is_of_run = |run: &ArrayRun| run.scalar.is_none_or(|scalar| scalar == array.scalar);
        if !self.runs.last().is_some_and(is_of_run) {
            self.runs.push(ArrayRun::new(&self.column_type));
        }
        let run = self.runs.last_mut().expect("a run has just been pushed");
        run.append(array, &self.column_type)
    }

    fn append_null(&mut self) {
        if self.runs.is_empty() {
            self.runs.push(ArrayRun::new(&self.column_type));
        }
        self.runs.last_mut().expect("a run has just been pushed").append_null();
    }

    /// Returns the column, and its rows with values that its dtype does not represent.
    fn finish(self) -> Result<(ArrayRef, Vec<InexactRow>), String> {
        let wanted = arrow_type(&self.column_type);
        let (mut columns, mut inexact, mut rows) = (Vec::with_capacity(self.runs.len()), Vec::new(), 0);
        for run in self.runs {
            let (column, of_run) = cast_exact(&run.finish(&self.column_type)?, &wanted)?;
            inexact.extend(of_run.into_iter().map(|found| InexactRow { row: rows + found.row, ..found }));
            rows += column.len();
            columns.push(column);
        }
        let column = match columns.as_slice() {
            [] => null_column(&self.column_type, 0),
            [column] => column.clone(),
            _ => {
                let parts: Vec<&dyn arrow::array::Array> =
                    columns.iter().map(|column| column.as_ref()).collect();
                concat(&parts).map_err(|error| error.to_string())?
            }
        };
        Ok((column, inexact))
    }
}

/// The dtype of the numbers in a column; `None` for other columns.
fn element_type(column_type: &ColumnType) -> Option<ScalarType> {
    match column_type {
        ColumnType::Scalar(scalar) | ColumnType::Tensor { scalar, .. } => Some(*scalar),
        ColumnType::List(item) => element_type(item),
        ColumnType::Utf8 | ColumnType::Binary | ColumnType::Image => None,
    }
}

/// Consecutive values of one dtype.
struct ArrayRun {
    /// Known after the first value that is not null.
    scalar: Option<ScalarType>,
    /// The ends of the lists of each level, beginning with the outermost lists.
    ends: Vec<Vec<i32>>,
    /// The number of elements of a row; `None` for lists.
    row_elements: Option<usize>,
    /// The elements of all rows that are not null.
    elements: Vec<u8>,
    valid: Vec<bool>,
}

impl ArrayRun {
    fn new(column_type: &ColumnType) -> Self {
        let mut levels = 0;
        let mut item = column_type;
        while let ColumnType::List(inner) = item {
            levels += 1;
            item = inner;
        }
        let row_elements = match column_type {
            ColumnType::Tensor { shape, .. } => {
                Some(shape.iter().map(|&extent| extent as usize).product::<usize>())
            }
            ColumnType::List(_) => None,
            _ => Some(1),
        };
        Self {
            scalar: None,
            ends: vec![vec![0]; levels],
            row_elements,
            elements: Vec::new(),
            valid: Vec::new(),
        }
    }

    /// Appends a value with the dtype of the other values. Appends nothing on an error.
    fn append(&mut self, array: &Array<'_>, column_type: &ColumnType) -> Result<(), String> {
        // The elements of an array match its shape, but a single number may have any size.
        let expected = self.row_elements.or_else(|| array.shape.is_empty().then_some(1));
        if expected.is_some_and(|count| array.elements.len() != count * array.scalar.width_bytes()) {
            return Err(format!(
                "the value has {} bytes of {}, but its type is {column_type}",
                array.elements.len(),
                array.scalar.name()
            ));
        }
        if self.row_elements.is_none() {
            self.append_lists(&array.shape)?;
        }
        self.scalar = Some(array.scalar);
        self.elements.extend_from_slice(array.elements);
        self.valid.push(true);
        Ok(())
    }

    fn append_lists(&mut self, shape: &[u64]) -> Result<(), String> {
        // A single value is a list of one value, as in other formats.
        let shape: Cow<'_, [u64]> =
            if shape.is_empty() { Cow::Owned(vec![1; self.ends.len()]) } else { Cow::Borrowed(shape) };
        if shape.len() != self.ends.len() {
            return Err(format!(
                "the value has the shape {shape:?}, but the column has {} axes",
                self.ends.len()
            ));
        }
        let overflow = || "the arrays of a block have too many elements for one column".to_owned();
        let counts = shape.iter().scan(1_u64, |count, extent| {
            *count = count.saturating_mul(*extent);
            Some(*count)
        });
        for (ends, count) in self.ends.iter().zip(counts) {
            let last = ends.last().copied().unwrap_or_default();
            i32::try_from(count).ok().and_then(|count| last.checked_add(count)).ok_or_else(overflow)?;
        }
        let mut lists = 1;
        for (ends, extent) in self.ends.iter_mut().zip(shape.iter()) {
            let mut end = ends.last().copied().unwrap_or_default();
            for _ in 0..lists {
                end += *extent as i32;
                ends.push(end);
            }
            lists *= *extent;
        }
        Ok(())
    }

    fn append_null(&mut self) {
        if let Some(ends) = self.ends.first_mut() {
            ends.push(ends.last().copied().unwrap_or_default());
        }
        self.valid.push(false);
    }

    /// Returns the values as a column of their dtype.
    fn finish(self, column_type: &ColumnType) -> Result<ArrayRef, String> {
        let Some(scalar) = self.scalar else { return Ok(null_column(column_type, self.valid.len())) };
        let nulls = self.valid.contains(&false).then(|| NullBuffer::from(self.valid.as_slice()));
        let Some(count) = self.row_elements else {
            let elements = primitive(scalar, self.elements, None)?;
            return lists(scalar, elements, self.ends, nulls);
        };
        let row_bytes = count * scalar.width_bytes();
        let elements = if nulls.is_some() {
            with_null_rows(&self.elements, &self.valid, row_bytes)
        } else {
            self.elements
        };
        match column_type {
            ColumnType::Tensor { .. } => {
                let item = Arc::new(arrow_field("item", &ColumnType::Scalar(scalar)));
                let elements = primitive(scalar, elements, None)?;
                let list = FixedSizeListArray::try_new(item, count as i32, elements, nulls);
                list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| error.to_string())
            }
            _ => primitive(scalar, elements, nulls),
        }
    }
}

/// Inserts zeros for the rows that are null.
fn with_null_rows(elements: &[u8], valid: &[bool], row_bytes: usize) -> Vec<u8> {
    let mut whole = Vec::with_capacity(valid.len() * row_bytes);
    let mut rows = elements.chunks_exact(row_bytes.max(1));
    for &is_valid in valid {
        match is_valid.then(|| rows.next()).flatten() {
            Some(row) => whole.extend_from_slice(row),
            None => whole.resize(whole.len() + row_bytes, 0),
        }
    }
    whole
}

/// Converts little-endian elements to an array.
pub(crate) fn primitive(
    scalar: ScalarType,
    elements: Vec<u8>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, String> {
    if scalar == ScalarType::Bool {
        let values = elements.iter().map(|&byte| byte != 0).collect();
        return Ok(Arc::new(BooleanArray::new(values, nulls)));
    }
    let count = elements.len() / scalar.width_bytes();
    let data = ArrayData::builder(arrow_type(&ColumnType::Scalar(scalar)))
        .len(count)
        .nulls(nulls)
        .add_buffer(Buffer::from_vec(elements))
        .align_buffers(true);
    data.build().map(make_array).map_err(|error| error.to_string())
}

fn lists(
    scalar: ScalarType,
    elements: ArrayRef,
    ends: Vec<Vec<i32>>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, String> {
    let mut item_type = ColumnType::Scalar(scalar);
    let mut items = elements;
    let levels = ends.len();
    for (level, ends) in ends.into_iter().enumerate().rev() {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
        let field = Arc::new(arrow_field("item", &item_type));
        let nulls = if level == 0 { nulls.clone() } else { None };
        items =
            Arc::new(ListArray::try_new(field, offsets, items, nulls).map_err(|error| error.to_string())?);
        item_type = ColumnType::List(Box::new(item_type));
    }
    debug_assert!(levels > 0);
    Ok(items)
}

#[cfg(test)]
mod tests;
