//! Tests of source tensors against a conversion element by element.

use std::sync::Arc;

use arrow::array::{BooleanArray, FixedSizeListArray, Float16Array, Int64Array, UInt8Array, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::Field;
use half::f16;
use proptest::prelude::*;

use super::*;
use crate::testing::{chunk, tensor};
use crate::{Column, arrow_scalar};

/// A row of a random column: null, or elements that may be null.
type Row = Option<Vec<Option<u8>>>;

const ELEMENTS: usize = 3;

fn row() -> impl Strategy<Value = Row> {
    let element = prop_oneof![8 => any::<u8>().prop_map(Some), 1 => Just(None)];
    prop_oneof![8 => prop::collection::vec(element, ELEMENTS).prop_map(Some), 1 => Just(None)]
}

fn scalars() -> impl Strategy<Value = ScalarType> {
    prop::sample::select(vec![ScalarType::Bool, ScalarType::UInt8, ScalarType::Float16, ScalarType::Int64])
}

/// An array of these rows. The elements of a null row are arbitrary values.
fn column_of(rows: &[Row], scalar: ScalarType) -> ArrayRef {
    let elements: Vec<Option<u8>> =
        rows.iter().flat_map(|row| row.clone().unwrap_or_else(|| vec![Some(9); ELEMENTS])).collect();
    let values: ArrayRef = match scalar {
        ScalarType::Bool => {
            Arc::new(elements.iter().map(|value| value.map(|value| value > 99)).collect::<BooleanArray>())
        }
        ScalarType::UInt8 => Arc::new(UInt8Array::from(elements)),
        ScalarType::Float16 => {
            Arc::new(elements.iter().map(|value| value.map(f16::from)).collect::<Float16Array>())
        }
        _ => Arc::new(elements.iter().map(|value| value.map(i64::from)).collect::<Int64Array>()),
    };
    let nulls: NullBuffer = rows.iter().map(Option::is_some).collect();
    let item = Arc::new(Field::new_list_field(arrow_scalar(scalar), true));
    Arc::new(FixedSizeListArray::new(item, ELEMENTS as i32, values, Some(nulls)))
}

/// The bytes of a complete row in a tensor.
fn bytes_of(row: &[Option<u8>], scalar: ScalarType) -> Vec<u8> {
    let element = |value: u8| match scalar {
        ScalarType::Bool => vec![u8::from(value > 99)],
        ScalarType::UInt8 => vec![value],
        ScalarType::Float16 => f16::from(value).to_ne_bytes().to_vec(),
        _ => i64::from(value).to_ne_bytes().to_vec(),
    };
    row.iter().flat_map(|value| element(value.expect("the row is complete"))).collect()
}

proptest! {
    #[test]
    fn complete_rows_keep_their_elements_and_all_others_fail(
        rows in prop::collection::vec(row(), 1..80),
        scalar in scalars(),
        cut in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let start = cut.0.index(rows.len());
        let len = cut.1.index(rows.len() - start + 1);
        let array = column_of(&rows, scalar).slice(start, len);
        let rows = &rows[start..start + len];
        let mut chunk = chunk([("x", Column::Arrow(array))]);
        chunk.convert_source_tensors("x", (scalar, &[ELEMENTS as u32])).unwrap();
        let converted = tensor(&chunk, "x");
        prop_assert_eq!((converted.rows, converted.scalar), (len, scalar));
        let mut failed = Vec::new();
        for (number, row) in rows.iter().enumerate() {
            let reason = match row {
                Some(row) if row.iter().all(Option::is_some) => {
                    prop_assert_eq!(converted.row(number), bytes_of(row, scalar));
                    continue;
                }
                Some(_) => "column `x` contains a null element, which a tensor cannot represent",
                None => "column `x` is null, which a tensor cannot represent",
            };
            prop_assert!(converted.row(number).iter().all(|&byte| byte == 0));
            failed.push((number as u32, reason.to_owned()));
        }
        prop_assert_eq!(&chunk.failures, &failed);
    }
}

#[test]
fn other_values_are_an_error_and_other_columns_are_unchanged() {
    let bytes = (ScalarType::UInt8, [3].as_slice());
    let array = column_of(&[None], ScalarType::Bool);
    let error = SourceTensors::new(&array, bytes, "x").unwrap_err();
    assert!(error.message.contains("instead of uint8 tensors [3]"), "{}", error.message);
    assert!(SourceTensors::new(&array, (ScalarType::Bool, &[2]), "x").is_err());
    assert!(SourceTensors::new(&new_null_array(&arrow_scalar(ScalarType::UInt8), 2), bytes, "x").is_err());
    let mut chunk = chunk([("x", crate::testing::pixels(&[3], &[1, 2, 3]))]);
    chunk.convert_source_tensors("x", bytes).unwrap();
    chunk.convert_source_tensors("absent", bytes).unwrap();
    assert_eq!(tensor(&chunk, "x").row(0), [1, 2, 3]);
}
