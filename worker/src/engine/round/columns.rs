//! Columns of a round: joined from its chunks, filled up to a length, packed.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, FixedSizeListArray, Int32Array, Int64Array, ListArray, UInt32Array,
    make_array,
};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Field, SchemaRef};
use feedline_operators::{Column, Tensor};

use super::super::chunk::WorkChunk;

/// A column of all chunks.
pub(super) fn join(chunks: &[WorkChunk], field: &Field) -> Result<ArrayRef, String> {
    let name = field.name();
    let mut arrays = Vec::with_capacity(chunks.len());
    for work in chunks {
        arrays.push(match work.chunk.column(name) {
            Some(Column::Arrow(array)) if matches!(field.data_type(), DataType::List(_)) => {
                cast(array, field.data_type()).map_err(|error| format!("column `{name}`: {error}"))?
            }
            Some(Column::Arrow(array)) => Arc::clone(array),
            Some(Column::Tensor(tensor)) => tensor_array(tensor, field)?,
            _ => return Err(format!("column `{name}` is not what the pipeline says; please report this")),
        });
    }
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    concat(&arrays).map_err(|error| format!("column `{name}` cannot be joined: {error}"))
}

fn tensor_array(tensor: &Tensor, field: &Field) -> Result<ArrayRef, String> {
    let DataType::FixedSizeList(item, size) = field.data_type() else {
        return Err(format!("column `{}` holds tensors where the pipeline says otherwise", field.name()));
    };
    let elements = tensor.rows * usize::try_from(*size).unwrap_or_default();
    let bytes = &tensor.data[..tensor.rows * tensor.row_bytes()];
    let values = ArrayData::builder(item.data_type().clone()).len(elements).add_buffer(Buffer::from(bytes));
    let values = make_array(values.build().map_err(|error| error.to_string())?);
    let tensors = FixedSizeListArray::try_new(Arc::clone(item), *size, values, None);
    Ok(Arc::new(tensors.map_err(|error| error.to_string())?))
}

/// The named column of lists.
pub(super) fn list<'a>(columns: &'a [(String, ArrayRef)], name: &str) -> Result<&'a ListArray, String> {
    let found = columns.iter().find(|(column, _)| column == name);
    let list = found.and_then(|(_, column)| column.as_list_opt::<i32>());
    list.ok_or_else(|| format!("column `{name}` does not hold lists; please report this"))
}

/// The type of a column's elements, in lists or in tensors.
pub(super) fn element_type(schema: &SchemaRef, name: &str) -> Result<Arc<Field>, String> {
    let field = schema.field_with_name(name).map_err(|error| error.to_string())?;
    match field.data_type() {
        DataType::List(item) | DataType::FixedSizeList(item, _) => Ok(Arc::clone(item)),
        other => Err(format!("column `{name}` holds {other} and no lists; please report this")),
    }
}

/// Elements of each row in these columns, row by row.
pub(super) fn lengths(columns: &[(String, ArrayRef)], names: &[String]) -> Result<Vec<u32>, String> {
    let lists: Vec<&ListArray> = names.iter().map(|name| list(columns, name)).collect::<Result<_, _>>()?;
    let rows = lists.first().map_or(0, |list| list.len());
    let length = |list: &ListArray, row| if list.is_null(row) { 0 } else { list.value_length(row) as u32 };
    Ok((0..rows).flat_map(|row| lists.iter().map(move |list| length(list, row))).collect())
}

/// Fills the lists of one column.
pub(super) struct Filler<'a> {
    list: &'a ListArray,
    /// Elements of all rows and, behind them, what fills them up.
    values: ArrayRef,
    item: Arc<Field>,
    /// Elements of each row in all columns, this one's place among them, and their number.
    lengths: &'a [u32],
    place: (usize, usize),
}

impl<'a> Filler<'a> {
    pub(super) fn new(
        list: &'a ListArray,
        lengths: &'a [u32],
        place: (usize, usize),
        (value, item): (i64, &Arc<Field>),
    ) -> Result<Self, String> {
        let element = item.data_type();
        let all = || {
            let values = cast(list.values(), element)?;
            let filling = cast(&Int64Array::from(vec![value]), element)?;
            concat(&[values.as_ref(), filling.as_ref()])
        };
        let values = all().map_err(|error| error.to_string())?;
        Ok(Self { list, values, item: Arc::clone(item), lengths, place })
    }

    /// Elements of a row.
    pub(super) fn length(&self, row: u32) -> u32 {
        let (place, width) = self.place;
        self.lengths[row as usize * width + place]
    }

    /// The place of what fills.
    fn filling(&self) -> u32 {
        (self.values.len() - 1) as u32
    }

    /// Adds the places of a row's elements. A null element counts as filled.
    fn add(&self, row: u32, places: &mut Vec<u32>) {
        let start = self.list.value_offsets()[row as usize] as u32;
        let element = |place| if self.values.is_null(place as usize) { self.filling() } else { place };
        places.extend((start..start + self.length(row)).map(element));
    }

    fn elements(&self, places: Vec<u32>) -> Result<ArrayRef, String> {
        take(&self.values, &UInt32Array::from(places), None).map_err(|error| error.to_string())
    }

    /// Rows as lists, filled up to `length` or as they are.
    pub(super) fn lists(&self, rows: &[u32], length: Option<u32>) -> Result<ListArray, String> {
        let mut places = Vec::new();
        let mut lengths = Vec::with_capacity(rows.len());
        for &row in rows {
            let before = places.len();
            self.add(row, &mut places);
            let length = length.map_or(places.len() - before, |length| length as usize);
            places.resize(before + length, self.filling());
            lengths.push(length);
        }
        let offsets = OffsetBuffer::from_lengths(lengths);
        let list = ListArray::try_new(Arc::clone(&self.item), offsets, self.elements(places)?, None);
        list.map_err(|error| error.to_string())
    }
}

/// Packed rows: for each column its elements, which row each belongs to, and its place there.
pub(super) fn packed_columns(
    fillers: &[Filler<'_>],
    packed: &[Vec<u32>],
    length: u32,
) -> Result<Vec<ArrayRef>, String> {
    let mut arrays = Vec::with_capacity(3 * fillers.len());
    for filler in fillers {
        let elements = packed.len() * length as usize;
        let (mut places, mut segments, mut positions) =
            (Vec::with_capacity(elements), Vec::with_capacity(elements), Vec::with_capacity(elements));
        for (number, rows) in packed.iter().enumerate() {
            for (segment, &row) in (1..).zip(rows) {
                filler.add(row, &mut places);
                segments.resize(places.len(), segment);
                positions.extend(0..filler.length(row) as i32);
            }
            let end = (number + 1) * length as usize;
            places.resize(end, filler.filling());
            segments.resize(end, 0);
            positions.resize(end, 0);
        }
        let numbers = Arc::new(Field::new("item", DataType::Int32, false));
        arrays.push(tensors(Arc::clone(&filler.item), length, filler.elements(places)?)?);
        arrays.push(tensors(Arc::clone(&numbers), length, Arc::new(Int32Array::from(segments)))?);
        arrays.push(tensors(numbers, length, Arc::new(Int32Array::from(positions)))?);
    }
    Ok(arrays)
}

fn tensors(item: Arc<Field>, length: u32, values: ArrayRef) -> Result<ArrayRef, String> {
    let size =
        i32::try_from(length).map_err(|_| format!("{length} elements are too many for a packed row"))?;
    let tensors = FixedSizeListArray::try_new(item, size, values, None);
    Ok(Arc::new(tensors.map_err(|error| error.to_string())?))
}
