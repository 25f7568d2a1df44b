//! Copies of rows of features: equal to a slow copy, for all types, and errors for rows that do not exist.

use proptest::prelude::*;

use super::*;

fn feature<T: ArrowNativeType>(numbers: &[T], dtype: ScalarType, row_elements: usize) -> LoadedFeature {
    let file = StoredFile { path: String::new(), bytes: 0, blocks: Vec::new() };
    LoadedFeature { data: Buffer::from_slice_ref(numbers), cold: None, dtype, row_elements, file }
}

fn copied<I: Copy + Into<u64>>(
    feature: &LoadedFeature,
    dtype: ScalarType,
    indexes: &[I],
) -> Result<Vec<u8>, String> {
    let mut out = vec![0xaa; indexes.len() * feature.row_elements * dtype.width_bytes()];
    feature.copy_rows(dtype, indexes, None, &mut out).map(|()| out)
}

proptest! {
    #[test]
    fn rows_of_any_size_are_copied_in_the_order_of_the_indexes(
        row_bytes in prop_oneof![1_usize..140, Just(256), Just(400)],
        indexes in prop::collection::vec(0_u32..50, 0..40),
    ) {
        let bytes: Vec<u8> = (0..50 * row_bytes).map(|place| (place * 31 % 251) as u8).collect();
        let feature = feature(&bytes, ScalarType::UInt8, row_bytes);
        let expected: Vec<u8> = indexes
            .iter()
            .flat_map(|&index| bytes[index as usize * row_bytes..][..row_bytes].to_vec())
            .collect();
        prop_assert_eq!(&copied(&feature, ScalarType::UInt8, &indexes).unwrap(), &expected);
        let positions: Vec<u64> = indexes.iter().map(|&index| u64::from(index)).collect();
        prop_assert_eq!(&copied(&feature, ScalarType::UInt8, &positions).unwrap(), &expected);
    }

    #[test]
    fn converted_numbers_equal_those_that_are_converted_one_by_one(
        numbers in prop::collection::vec(any::<f64>(), 600..=600),
        indexes in prop::collection::vec(0_u32..2, 0..4),
    ) {
        use ScalarType::{Float16, Float32, Float64};
        // A row of 300 numbers is converted in two parts.
        let singles: Vec<f32> = numbers.iter().map(|number| *number as f32).collect();
        let halves: Vec<f16> = singles.iter().map(|number| f16::from_f32(*number)).collect();
        let rows = |all: &[u8], width: usize| -> Vec<u8> {
            indexes.iter().flat_map(|&index| all[index as usize * 300 * width..][..300 * width].to_vec()).collect()
        };
        let doubles_of_singles: Vec<f64> = singles.iter().map(|number| f64::from(*number)).collect();
        let singles_of_halves: Vec<f32> = halves.iter().map(|number| number.to_f32()).collect();
        let doubles_of_halves: Vec<f64> = halves.iter().map(|number| number.to_f64()).collect();
        let (stored_f64, stored_f32, stored_f16) =
            (feature(&numbers, Float64, 300), feature(&singles, Float32, 300), feature(&halves, Float16, 300));
        let cases = [
            (&stored_f64, Float64, rows(numbers.to_byte_slice(), 8)),
            (&stored_f64, Float32, rows(singles.to_byte_slice(), 4)),
            (&stored_f64, Float16, rows(halves.to_byte_slice(), 2)),
            (&stored_f32, Float64, rows(doubles_of_singles.to_byte_slice(), 8)),
            (&stored_f32, Float16, rows(halves.to_byte_slice(), 2)),
            (&stored_f16, Float32, rows(singles_of_halves.to_byte_slice(), 4)),
            (&stored_f16, Float64, rows(doubles_of_halves.to_byte_slice(), 8)),
        ];
        for (feature, dtype, expected) in cases {
            let found = copied(feature, dtype, &indexes).unwrap();
            prop_assert!(found == expected, "{} to {}", feature.dtype.name(), dtype.name());
        }
    }
}

#[test]
fn float64_becomes_float16_through_float32() {
    // float32 rounds the number to a tie of float16, which float16 rounds to the even number 1.
    let number = 1.0 + 2.0_f64.powi(-11) + 2.0_f64.powi(-40);
    let feature = feature(&[number], ScalarType::Float64, 1);
    let bytes = copied(&feature, ScalarType::Float16, &[0_u32]).unwrap();
    assert_eq!(bytes, f16::from_f32(1.0).to_le_bytes());
}

#[test]
fn a_missing_row_is_an_error_for_every_size() {
    for row_elements in [1, 3, 64, 200] {
        let numbers = vec![1.0_f32; 5 * row_elements];
        let feature = feature(&numbers, ScalarType::Float32, row_elements);
        for dtype in [ScalarType::Float32, ScalarType::Float16] {
            for index in [5, u64::from(u32::MAX), u64::MAX / 4, u64::MAX] {
                let error = copied(&feature, dtype, &[4, index]).unwrap_err();
                let expected =
                    format!("the feature has no row {index}; check the graph with `feedline graph check`");
                assert_eq!(error, expected);
            }
        }
    }
}

#[test]
fn a_wrong_call_is_an_error() {
    let integers = feature(&[1_i32, 2], ScalarType::Int32, 2);
    let error = copied(&integers, ScalarType::Float32, &[0_u32]).unwrap_err();
    assert_eq!(error, "int32 cannot be converted to float32; please report this");
    let error = integers.copy_rows(ScalarType::Int32, &[0_u32], None, &mut [0; 9]).unwrap_err();
    assert_eq!(error, "1 rows of 8 bytes do not fit exactly in 9 bytes; please report this");
}
