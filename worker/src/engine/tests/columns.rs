//! Columns of every type that sources have, with and without nulls, as Arrow files, and the cells of delivered columns.
//! [`super::source_columns`] writes them in other formats.

use arrow::array::{Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, Int64Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type};
use arrow::ipc::writer::FileWriter;
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_operators::arrow_scalar;

use super::*;

pub(super) const ROWS: i64 = 6;
/// A row that is null, in columns with nulls.
pub(super) const NULL_ROW: u64 = 1;
/// A row whose first element is null, in columns with nulls.
pub(super) const INCOMPLETE_ROW: u64 = 2;
pub(super) const JPEG: &[u8] = include_bytes!("../../../jpeg/testdata/420.jpg");

/// The flattened elements of a row: numbers as `f64`, text, or the length of bytes.
pub(super) type Cell = Vec<String>;

/// Every column type that sources have.
pub(super) fn column_types() -> Vec<ColumnType> {
    let list = |inner| ColumnType::List(Box::new(inner));
    let tensor = |scalar, shape: &[u32]| ColumnType::Tensor { scalar, shape: shape.to_vec() };
    let mut types = vec![ColumnType::Utf8, ColumnType::Binary];
    for scalar in ScalarType::ALL {
        types.extend([ColumnType::Scalar(scalar), list(ColumnType::Scalar(scalar)), tensor(scalar, &[3])]);
        types.extend([tensor(scalar, &[2, 3, 3]), list(tensor(scalar, &[2]))]);
    }
    types.extend([
        list(ColumnType::Utf8),
        list(ColumnType::Binary),
        list(list(ColumnType::Scalar(ScalarType::Int32))),
    ]);
    types.extend([tensor(ScalarType::Float32, &[3, 5, 6]), tensor(ScalarType::UInt8, &[2, 2, 5])]);
    types
}

/// The column `x` of this type. Elements are small, so that all number types can represent them.
pub(super) fn column(column_type: &ColumnType, has_nulls: bool) -> ArrayRef {
    let present: NullBuffer = (0..ROWS as u64).map(|row| !has_nulls || row != NULL_ROW).collect();
    let lengths = (0..ROWS as usize).map(|row| row % 4);
    let values = |count: usize| -> Int64Array {
        let null = has_nulls.then_some(INCOMPLETE_ROW as usize * count / ROWS as usize);
        (0..count).map(|at| (Some(at) != null).then_some(at as i64 * 7 % 100)).collect()
    };
    let null_row = |array: ArrayRef| -> ArrayRef {
        let is_null = BooleanArray::new(!present.inner(), None);
        arrow::compute::nullif(&array, &is_null).expect("one entry per row")
    };
    match column_type {
        ColumnType::Scalar(_) | ColumnType::Utf8 => null_row(leaves(&values(ROWS as usize), column_type)),
        ColumnType::Binary => null_row(Arc::new(BinaryArray::from_iter_values([JPEG; ROWS as usize]))),
        ColumnType::Tensor { scalar, shape } => {
            let elements: u32 = shape.iter().product();
            let values = leaves(&values(ROWS as usize * elements as usize), &ColumnType::Scalar(*scalar));
            fixed_size_list(values, elements, Some(present))
        }
        ColumnType::List(inner) => {
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
            let count = offsets.last() as usize;
            // The rows have 0, 1, 2, 3, 0 and 1 elements, so the first element of row 2 is the second of all.
            let mut some: Vec<Option<i64>> = (0..count as i64).map(|at| Some(at * 7 % 100)).collect();
            if has_nulls {
                some[1] = None;
            }
            let values: ArrayRef = match inner.as_ref() {
                ColumnType::Tensor { scalar, .. } => {
                    let is_present = some.iter().map(Option::is_some).collect();
                    let doubled: Int64Array = some.iter().flat_map(|value| [*value, Some(2)]).collect();
                    fixed_size_list(leaves(&doubled, &ColumnType::Scalar(*scalar)), 2, Some(is_present))
                }
                ColumnType::List(numbers) => {
                    let numbers = leaves(&some.into_iter().collect(), numbers);
                    list_array(numbers, OffsetBuffer::from_lengths(vec![1; count]), None)
                }
                ColumnType::Binary => {
                    let bytes = some.iter().map(|value| value.map(|value| vec![1; value as usize]));
                    Arc::new(bytes.collect::<BinaryArray>())
                }
                other => leaves(&some.into_iter().collect(), other),
            };
            list_array(values, offsets, Some(present))
        }
        ColumnType::Image => unreachable!("no source has decoded images"),
    }
}

pub(super) fn leaves(values: &Int64Array, column_type: &ColumnType) -> ArrayRef {
    let target = match column_type {
        ColumnType::Scalar(scalar) => arrow_scalar(*scalar),
        _ => DataType::Utf8,
    };
    let floats = || cast(values, &DataType::Float32).expect("small numbers");
    if target == DataType::Float16 { cast(&floats(), &target) } else { cast(values, &target) }
        .expect("small numbers")
}

pub(super) fn list_array(
    values: ArrayRef,
    offsets: OffsetBuffer<i32>,
    nulls: Option<NullBuffer>,
) -> ArrayRef {
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    Arc::new(ListArray::new(item, offsets, values, nulls))
}

pub(super) fn fixed_size_list(values: ArrayRef, elements: u32, nulls: Option<NullBuffer>) -> ArrayRef {
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    Arc::new(FixedSizeListArray::new(item, elements as i32, values, nulls))
}

/// The rows of a file with the columns `id` and `x`.
pub(super) fn rows(column_type: &ColumnType, x: &ArrayRef) -> RecordBatch {
    let mut field = Field::new("x", x.data_type().clone(), true);
    if let ColumnType::Tensor { shape, .. } = column_type {
        field = field.with_metadata(std::collections::HashMap::from([
            ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
            ("ARROW:extension:metadata".to_owned(), format!("{{\"shape\":{shape:?}}}")),
        ]));
    }
    let fields = vec![Field::new("id", DataType::Int64, false), field];
    let ids = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let schema = Arc::new(arrow::datatypes::Schema::new(fields));
    RecordBatch::try_new(schema, vec![ids, Arc::clone(x)]).expect("two columns")
}

/// An Arrow file with the columns `id` and `x`.
pub(super) fn file(column_type: &ColumnType, x: &ArrayRef) -> Vec<u8> {
    let batch = rows(column_type, x);
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, &batch.schema()).expect("a supported type");
    writer.write(&batch).expect("the batch is written");
    writer.finish().expect("the footer is written");
    drop(writer);
    bytes
}

pub(super) fn as_number(cell: &str) -> String {
    cell.parse::<f64>().map_or_else(|_| cell.to_owned(), |number| number.to_string())
}

/// The elements of a row, each of them flattened.
pub(super) fn elements(array: &ArrayRef, row: usize) -> Vec<Cell> {
    let value = match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().value(row),
        _ => array.as_fixed_size_list().value(row),
    };
    (0..value.len()).map(|element| cell(&value, element)).collect()
}

pub(super) fn cell(array: &ArrayRef, row: usize) -> Cell {
    if array.is_null(row) {
        return vec!["null".to_owned()];
    }
    match array.data_type() {
        DataType::List(_) | DataType::FixedSizeList(..) => elements(array, row).concat(),
        DataType::Utf8 => vec![array.as_string::<i32>().value(row).to_owned()],
        DataType::Binary => vec![format!("{} bytes", array.as_binary::<i32>().value(row).len())],
        _ => {
            let number = cast(&array.slice(row, 1), &DataType::Float64).expect("a number");
            vec![number.as_primitive::<Float64Type>().value(0).to_string()]
        }
    }
}

pub(super) fn cells(array: &ArrayRef) -> Vec<Cell> {
    (0..array.len()).map(|row| cell(array, row)).collect()
}
