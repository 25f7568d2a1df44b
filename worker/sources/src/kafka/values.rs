//! Builds columns from single values.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryViewArray, BooleanArray, Float32Array, Float64Array, Int32Array, Int64Array, ListArray,
    StringViewArray, UInt32Array, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use feedline_data::schema::{ColumnType, ScalarType};

use crate::columns::arrow_field;
use crate::exact_cast::InexactRow;

/// Maximum length of a text in an error message. Longer texts are truncated.
const MAX_TEXT_CHARS: usize = 40;

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
    /// A message or a map, which no column type represents.
    Message,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::UInt(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) => {
                write!(f, "the text `{}`", text.chars().take(MAX_TEXT_CHARS).collect::<String>())
            }
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::List(values) => write!(f, "a list of {} values", values.len()),
            Self::Message => f.write_str("a message"),
        }
    }
}

/// Builds a column. Rows with values of other types are null in the result, and listed.
///
/// # Errors
/// Returns a message if no value has the type of the column.
pub(super) fn build_column(
    column_type: &ColumnType,
    mut cells: Vec<Cell>,
) -> Result<(ArrayRef, Vec<InexactRow>), String> {
    let mut mismatched = Vec::new();
    for (row, cell) in cells.iter_mut().enumerate() {
        if let Err(reason) = check_cell(column_type, cell) {
            mismatched.push(InexactRow { row, reason });
            *cell = Cell::Null;
        }
    }
    Ok((build_array(column_type, cells)?, mismatched))
}

/// Checks that a column type represents a value, or the values of a list.
fn check_cell(column_type: &ColumnType, cell: &Cell) -> Result<(), String> {
    use ScalarType::{Bool, Float32, Float64, Int32, Int64, UInt32, UInt64};
    let is_represented = match (column_type, cell) {
        (_, Cell::Null)
        | (ColumnType::Scalar(Bool), Cell::Bool(_))
        | (ColumnType::Scalar(Int64), Cell::Int(_))
        | (ColumnType::Scalar(UInt64), Cell::UInt(_))
        | (ColumnType::Scalar(Float64), Cell::Float(_))
        | (ColumnType::Utf8, Cell::Text(_))
        | (ColumnType::Binary, Cell::Bytes(_)) => true,
        (ColumnType::Scalar(Int32), Cell::Int(value)) => i32::try_from(*value).is_ok(),
        (ColumnType::Scalar(UInt32), Cell::UInt(value)) => u32::try_from(*value).is_ok(),
        (ColumnType::Scalar(Float32), Cell::Float(value)) => {
            value.is_nan() || f64::from(*value as f32) == *value
        }
        (ColumnType::List(item), Cell::List(values)) => {
            return values.iter().try_for_each(|value| check_cell(item, value));
        }
        _ => false,
    };
    if is_represented { Ok(()) } else { Err(format!("{column_type} does not represent {cell}")) }
}

/// Builds a column from nulls and values of its type.
fn build_array(column_type: &ColumnType, cells: Vec<Cell>) -> Result<ArrayRef, String> {
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
            let values = build_array(item, lists.into_iter().flatten().collect())?;
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

    fn mismatch(row: usize, reason: &str) -> InexactRow {
        InexactRow { row, reason: reason.to_owned() }
    }

    #[test]
    fn values_of_other_types_are_listed() {
        let cells = vec![Cell::Int(-5), Cell::Null, Cell::Text("x".to_owned()), Cell::UInt(7), Cell::Message];
        let (numbers, mismatched) = build_column(&ColumnType::Scalar(ScalarType::Int64), cells).unwrap();
        let numbers = numbers.as_primitive::<Int64Type>();
        assert_eq!((numbers.value(0), numbers.null_count()), (-5, 4));
        assert_eq!(
            mismatched,
            [
                mismatch(2, "int64 does not represent the text `x`"),
                mismatch(3, "int64 does not represent 7"),
                mismatch(4, "int64 does not represent a message"),
            ]
        );
        assert!(build_column(&ColumnType::Image, Vec::new()).is_err());
    }

    #[test]
    fn numbers_are_not_truncated() {
        let int32 = ColumnType::Scalar(ScalarType::Int32);
        let (numbers, mismatched) = build_column(&int32, vec![Cell::Int(1 << 40), Cell::Int(3)]).unwrap();
        assert!(numbers.is_null(0) && numbers.is_valid(1));
        assert_eq!(mismatched, [mismatch(0, "int32 does not represent 1099511627776")]);
        let float32 = ColumnType::Scalar(ScalarType::Float32);
        let cells =
            vec![Cell::Float(0.5), Cell::Float(0.1), Cell::Float(f64::NAN), Cell::Float(f64::INFINITY)];
        let (_, mismatched) = build_column(&float32, cells).unwrap();
        assert_eq!(mismatched, [mismatch(1, "float32 does not represent 0.1")]);
    }

    #[test]
    fn a_list_with_a_value_of_another_type_is_listed() {
        let text = |text: &str| Cell::Text(text.to_owned());
        let cells = vec![
            Cell::List(vec![text("a"), text("b")]),
            Cell::Null,
            Cell::List(Vec::new()),
            Cell::List(vec![text("c"), Cell::Int(3)]),
            text("d"),
        ];
        let (lists, mismatched) = build_column(&ColumnType::List(Box::new(ColumnType::Utf8)), cells).unwrap();
        let lists = lists.as_list::<i32>();
        assert_eq!((lists.value(0).len(), lists.is_null(1), lists.value(2).len()), (2, true, 0));
        assert!(lists.is_null(3) && lists.is_null(4));
        assert_eq!(
            mismatched,
            [
                mismatch(3, "text does not represent 3"),
                mismatch(4, "list of text does not represent the text `d`"),
            ]
        );
    }
}
