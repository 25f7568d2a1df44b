//! Builds the columns of a round: joins the chunks, and pads or packs lists.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, FixedSizeListArray, Int32Array, Int64Array, ListArray, UInt32Array,
    make_array,
};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Field, SchemaRef};
use feedline_operators::{Column, Tensor};

use crate::engine::chunk::WorkChunk;

/// Concatenates one column of all chunks.
pub(in crate::engine) fn join_column(chunks: &[WorkChunk], field: &Field) -> Result<ArrayRef, String> {
    let name = field.name();
    let mut arrays = Vec::with_capacity(chunks.len());
    for work in chunks {
        arrays.push(match work.chunk.column(name) {
            Some(Column::Arrow(array)) if matches!(field.data_type(), DataType::List(_)) => {
                cast(array, field.data_type()).map_err(|error| format!("column `{name}`: {error}"))?
            }
            Some(Column::Arrow(array)) => Arc::clone(array),
            Some(Column::Tensor(tensor)) => tensor_array(tensor, field)?,
            _ => {
                return Err(format!("column `{name}` does not match its schema type; please report this"));
            }
        });
    }
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    concat(&arrays).map_err(|error| format!("cannot join column `{name}`: {error}"))
}

fn tensor_array(tensor: &Tensor, field: &Field) -> Result<ArrayRef, String> {
    let DataType::FixedSizeList(item, size) = field.data_type() else {
        return Err(format!(
            "column `{}` contains tensors, which its schema does not declare; please report this",
            field.name()
        ));
    };
    let elements = tensor.rows * usize::try_from(*size).unwrap_or_default();
    let bytes = &tensor.data[..tensor.rows * tensor.row_bytes()];
    let values = ArrayData::builder(item.data_type().clone()).len(elements).add_buffer(Buffer::from(bytes));
    let values = make_array(values.build().map_err(|error| error.to_string())?);
    let tensors = FixedSizeListArray::try_new(Arc::clone(item), *size, values, None);
    Ok(Arc::new(tensors.map_err(|error| error.to_string())?))
}

/// Returns the list column with this name.
pub(super) fn list_column<'a>(
    columns: &'a [(String, ArrayRef)],
    name: &str,
) -> Result<&'a ListArray, String> {
    let found = columns.iter().find(|(column, _)| column == name);
    let list = found.and_then(|(_, column)| column.as_list_opt::<i32>());
    list.ok_or_else(|| format!("column `{name}` does not contain lists; please report this"))
}

/// Returns the element type of a column of lists or tensors.
pub(super) fn element_type(schema: &SchemaRef, name: &str) -> Result<Arc<Field>, String> {
    let field = schema.field_with_name(name).map_err(|error| error.to_string())?;
    match field.data_type() {
        DataType::List(item) | DataType::FixedSizeList(item, _) => Ok(Arc::clone(item)),
        other => Err(format!("column `{name}` contains {other} instead of lists; please report this")),
    }
}

/// Returns the list length of each row in each of these columns, row by row.
pub(super) fn list_lengths(columns: &[(String, ArrayRef)], names: &[String]) -> Result<Vec<u32>, String> {
    let lists: Vec<&ListArray> =
        names.iter().map(|name| list_column(columns, name)).collect::<Result<_, _>>()?;
    let rows = lists.first().map_or(0, |list| list.len());
    let length = |list: &ListArray, row| if list.is_null(row) { 0 } else { list.value_length(row) as u32 };
    Ok((0..rows).flat_map(|row| lists.iter().map(move |list| length(list, row))).collect())
}

/// Returns the rows with nulls in one of these columns of lists, with the reason why they fail.
pub(super) fn rows_with_nulls(
    columns: &[(String, ArrayRef)],
    names: &[String],
) -> Result<Vec<(usize, String)>, String> {
    let mut found = Vec::new();
    for name in names {
        let list = list_column(columns, name)?;
        if list.null_count() == 0 && list.values().null_count() == 0 {
            continue;
        }
        for row in 0..list.len() {
            if list.is_null(row) {
                found.push((row, format!("column `{name}` is null")));
            } else if list.value(row).null_count() > 0 {
                found.push((row, format!("column `{name}` contains a null element")));
            }
        }
    }
    Ok(found)
}

/// How the lists of one column are padded.
pub(super) struct ColumnPadding {
    /// Type of the elements.
    pub(super) element: Arc<Field>,
    /// The value that fills shorter lists.
    pub(super) value: i64,
    /// Index of the column among all padded columns.
    pub(super) column: usize,
    /// Number of padded columns.
    pub(super) columns: usize,
}

/// Pads or packs the lists of one column.
pub(super) struct ListFiller<'a> {
    list: &'a ListArray,
    /// The elements of all rows, followed by the padding element.
    values: ArrayRef,
    padding: ColumnPadding,
    /// List lengths of each row in all padded columns, row by row.
    lengths: &'a [u32],
}

impl<'a> ListFiller<'a> {
    pub(super) fn new(
        list: &'a ListArray,
        lengths: &'a [u32],
        padding: ColumnPadding,
    ) -> Result<Self, String> {
        let element = padding.element.data_type();
        let padded = || {
            let values = cast(list.values(), element)?;
            let filling = cast(&Int64Array::from(vec![padding.value]), element)?;
            concat(&[values.as_ref(), filling.as_ref()])
        };
        let values = padded().map_err(|error| error.to_string())?;
        Ok(Self { list, values, padding, lengths })
    }

    /// The number of elements in a row.
    pub(super) fn length(&self, row: u32) -> u32 {
        self.lengths[row as usize * self.padding.columns + self.padding.column]
    }

    /// Index of the padding element among the values.
    fn padding_index(&self) -> u32 {
        (self.values.len() - 1) as u32
    }

    /// Appends the indexes of a row's elements to `indexes`.
    fn push_row(&self, row: u32, indexes: &mut Vec<u32>) {
        let start = self.list.value_offsets()[row as usize] as u32;
        indexes.extend(start..start + self.length(row));
    }

    fn elements(&self, indexes: Vec<u32>) -> Result<ArrayRef, String> {
        take(&self.values, &UInt32Array::from(indexes), None).map_err(|error| error.to_string())
    }

    /// Returns the lists of these rows, padded to `length` if it is set.
    pub(super) fn lists(&self, rows: &[u32], length: Option<u32>) -> Result<ListArray, String> {
        let mut indexes = Vec::new();
        let mut lengths = Vec::with_capacity(rows.len());
        for &row in rows {
            let before = indexes.len();
            self.push_row(row, &mut indexes);
            let length = length.map_or(indexes.len() - before, |length| length as usize);
            indexes.resize(before + length, self.padding_index());
            lengths.push(length);
        }
        let offsets = OffsetBuffer::from_lengths(lengths);
        let list =
            ListArray::try_new(Arc::clone(&self.padding.element), offsets, self.elements(indexes)?, None);
        list.map_err(|error| error.to_string())
    }
}

/// Builds the columns of packed rows. Each list column yields three columns: the elements, the segment number of each
/// element's input row, and the index of each element in its input row.
pub(super) fn packed_columns(
    fillers: &[ListFiller<'_>],
    packed: &[Vec<u32>],
    length: u32,
) -> Result<Vec<ArrayRef>, String> {
    let mut arrays = Vec::with_capacity(3 * fillers.len());
    for filler in fillers {
        let elements = packed.len() * length as usize;
        let (mut indexes, mut segments, mut positions) =
            (Vec::with_capacity(elements), Vec::with_capacity(elements), Vec::with_capacity(elements));
        for (number, rows) in packed.iter().enumerate() {
            for (segment, &row) in (1..).zip(rows) {
                filler.push_row(row, &mut indexes);
                segments.resize(indexes.len(), segment);
                positions.extend(0..filler.length(row) as i32);
            }
            let end = (number + 1) * length as usize;
            indexes.resize(end, filler.padding_index());
            segments.resize(end, 0);
            positions.resize(end, 0);
        }
        let numbers = Arc::new(Field::new("item", DataType::Int32, false));
        arrays.push(tensors(Arc::clone(&filler.padding.element), length, filler.elements(indexes)?)?);
        arrays.push(tensors(Arc::clone(&numbers), length, Arc::new(Int32Array::from(segments)))?);
        arrays.push(tensors(numbers, length, Arc::new(Int32Array::from(positions)))?);
    }
    Ok(arrays)
}

fn tensors(item: Arc<Field>, length: u32, values: ArrayRef) -> Result<ArrayRef, String> {
    let size = i32::try_from(length)
        .map_err(|_| format!("invalid length {length} for packed rows: the maximum is {}", i32::MAX))?;
    let tensors = FixedSizeListArray::try_new(item, size, values, None);
    Ok(Arc::new(tensors.map_err(|error| error.to_string())?))
}
