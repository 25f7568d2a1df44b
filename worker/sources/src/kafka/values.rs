//! Builds columns from single values.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryViewArray, BooleanArray, Float32Array, Float64Array, Int32Array, Int64Array, ListArray,
    StringViewArray, UInt32Array, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use feedline_data::schema::{ColumnType, ScalarType};

use crate::columns::arrow_field;

/// A value of a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Cell>),
}

/// Builds a column. Values of other types are null.
///
/// # Errors
/// Returns a message if no value has the type of the column.
pub(super) fn build_column(column_type: &ColumnType, cells: Vec<Cell>) -> Result<ArrayRef, String> {
    macro_rules! numbers {
        ($array:ident, $native:ty, $cell:ident) => {
            Arc::new(
                cells
                    .iter()
                    .map(|cell| if let Cell::$cell(value) = cell { Some(*value as $native) } else { None })
                    .collect::<$array>(),
            ) as ArrayRef
        };
    }
    Ok(match column_type {
        ColumnType::Scalar(ScalarType::Bool) => Arc::new(
            cells
                .iter()
                .map(|cell| if let Cell::Bool(value) = cell { Some(*value) } else { None })
                .collect::<BooleanArray>(),
        ),
        ColumnType::Scalar(ScalarType::Int32) => numbers!(Int32Array, i32, Int),
        ColumnType::Scalar(ScalarType::Int64) => numbers!(Int64Array, i64, Int),
        ColumnType::Scalar(ScalarType::UInt32) => numbers!(UInt32Array, u32, UInt),
        ColumnType::Scalar(ScalarType::UInt64) => numbers!(UInt64Array, u64, UInt),
        ColumnType::Scalar(ScalarType::Float32) => numbers!(Float32Array, f32, Float),
        ColumnType::Scalar(ScalarType::Float64) => numbers!(Float64Array, f64, Float),
        ColumnType::Utf8 => {
            let text = |cell: &Cell| if let Cell::Text(value) = cell { Some(value.clone()) } else { None };
            Arc::new(cells.iter().map(text).collect::<StringViewArray>())
        }
        ColumnType::Binary => {
            let bytes = |cell: &Cell| if let Cell::Bytes(value) = cell { Some(value.clone()) } else { None };
            Arc::new(cells.iter().map(bytes).collect::<BinaryViewArray>())
        }
        ColumnType::List(item) => {
            let is_list: Vec<bool> = cells.iter().map(|cell| matches!(cell, Cell::List(_))).collect();
            let lists: Vec<Vec<Cell>> = cells
                .into_iter()
                .map(|cell| if let Cell::List(values) = cell { values } else { Vec::new() })
                .collect();
            let offsets = OffsetBuffer::from_lengths(lists.iter().map(Vec::len));
            let values = build_column(item, lists.into_iter().flatten().collect())?;
            let field = Arc::new(arrow_field("item", item));
            Arc::new(
                ListArray::try_new(field, offsets, values, Some(NullBuffer::from(is_list)))
                    .map_err(|error| error.to_string())?,
            )
        }
        other => return Err(format!("payloads have no values of the type {other}")),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn values_of_other_types_are_null() {
        let numbers = build_column(
            &ColumnType::Scalar(ScalarType::Int64),
            vec![Cell::Int(-5), Cell::Null, Cell::Text("x".to_owned())],
        )
        .unwrap();
        let numbers = numbers.as_primitive::<Int64Type>();
        assert_eq!((numbers.value(0), numbers.is_null(1), numbers.is_null(2)), (-5, true, true));
        let lists = vec![
            Cell::List(vec![Cell::Text("a".to_owned()), Cell::Text("b".to_owned())]),
            Cell::Null,
            Cell::List(Vec::new()),
        ];
        let lists = build_column(&ColumnType::List(Box::new(ColumnType::Utf8)), lists).unwrap();
        let lists = lists.as_list::<i32>();
        assert_eq!((lists.value(0).len(), lists.is_null(1), lists.value(2).len()), (2, true, 0));
        assert!(build_column(&ColumnType::Image, Vec::new()).is_err());
    }
}
