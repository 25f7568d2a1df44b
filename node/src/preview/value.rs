//! The value of one column of a row, in a form that can be shown.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;
use feedline_data::pipeline::Normalize;
use feedline_data::schema::ScalarType;
use feedline_worker::sample::{Column, Tensor};

use super::picture::{self, EncodedPicture};

/// Maximum number of elements of a list or tensor that are kept.
const MAX_ELEMENTS: usize = 512;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PreviewValue {
    Null,
    /// A number or a boolean.
    Scalar(String),
    Text(String),
    Bytes {
        length: usize,
        start: Vec<u8>,
    },
    /// A list, with its first elements and its length.
    List {
        elements: Vec<String>,
        length: usize,
    },
    /// Token ids with their tokens, and the number of ids.
    Tokens {
        tokens: Vec<(String, String)>,
        length: usize,
    },
    /// A tensor, with its first elements.
    Tensor {
        description: String,
        elements: Vec<String>,
        range: Option<(f64, f64)>,
    },
    /// An image, with a description of its encoding and size.
    Image {
        description: String,
        picture: EncodedPicture,
        range: Option<(f64, f64)>,
    },
}

impl PreviewValue {
    /// Returns the value of a column in a row. `normalize` is the operator that computed the column.
    pub(crate) fn of_column(column: &Column, row: usize, normalize: Option<&Normalize>) -> Self {
        match column {
            Column::Arrow(array) => Self::of_array(array, row),
            Column::Images(images) => {
                let image = &images[row];
                let description = format!("image {} x {}", image.width, image.height);
                match picture::of_pixels(image.width, image.height, &image.data) {
                    Some(picture) => Self::Image { description, picture, range: None },
                    None => Self::Null,
                }
            }
            Column::Tensor(tensor) => Self::of_tensor(tensor, row, normalize),
        }
    }

    fn of_array(array: &ArrayRef, row: usize) -> Self {
        if array.is_null(row) {
            return Self::Null;
        }
        match array.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                Self::Text(array_value_to_string(array, row).unwrap_or_default())
            }
            DataType::BinaryView => Self::of_bytes(array.as_binary_view().value(row)),
            DataType::Binary => Self::of_bytes(array.as_binary::<i32>().value(row)),
            DataType::LargeBinary => Self::of_bytes(array.as_binary::<i64>().value(row)),
            DataType::List(_) => Self::of_list(&array.as_list::<i32>().value(row)),
            DataType::LargeList(_) => Self::of_list(&array.as_list::<i64>().value(row)),
            DataType::FixedSizeList(..) => Self::of_list(&array.as_fixed_size_list().value(row)),
            _ => Self::Scalar(array_value_to_string(array, row).unwrap_or_default()),
        }
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        if let Some(picture) = picture::of_encoded(bytes) {
            let description = format!("{}, {} bytes", picture.encoding, bytes.len());
            return Self::Image { description, picture, range: None };
        }
        Self::Bytes { length: bytes.len(), start: bytes[..bytes.len().min(32)].to_vec() }
    }

    fn of_list(items: &ArrayRef) -> Self {
        let element = |row| match items.is_null(row) {
            true => "null".to_owned(),
            false => array_value_to_string(items, row).unwrap_or_default(),
        };
        Self::List {
            elements: (0..items.len().min(MAX_ELEMENTS)).map(element).collect(),
            length: items.len(),
        }
    }

    fn of_tensor(tensor: &Tensor, row: usize, normalize: Option<&Normalize>) -> Self {
        let description = format!("{} {:?}", tensor.scalar.name(), tensor.shape);
        let bytes = tensor.row(row);
        let numbers = numbers(tensor.scalar, bytes);
        let range = numbers.iter().copied().fold(None, |range: Option<(f64, f64)>, number| {
            Some(range.map_or((number, number), |(low, high)| (low.min(number), high.max(number))))
        });
        if let Some(picture) = picture::of_tensor(tensor.scalar, &tensor.shape, &numbers, normalize) {
            return Self::Image { description, picture, range };
        }
        let elements = numbers.iter().take(MAX_ELEMENTS).map(|number| format_number(*number)).collect();
        Self::Tensor { description, elements, range }
    }

    /// The number of elements, characters or bytes of a value of varying length.
    pub(crate) fn length(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.chars().count()),
            Self::List { length, .. } | Self::Tokens { length, .. } => Some(*length),
            _ => None,
        }
    }
}

/// Formats a number with at most four decimals.
pub(crate) fn format_number(number: f64) -> String {
    let rounded = (number * 1e4).round() / 1e4;
    format!("{rounded}")
}

/// Converts the elements of a tensor.
fn numbers(scalar: ScalarType, bytes: &[u8]) -> Vec<f64> {
    macro_rules! convert {
        ($number:ty) => {{
            let chunks = bytes.chunks_exact(size_of::<$number>());
            let parse = |chunk: &[u8]| {
                <$number>::from_ne_bytes(chunk.try_into().expect("chunks have the size of a number"))
            };
            chunks.map(|chunk| parse(chunk) as f64).collect()
        }};
    }
    match scalar {
        ScalarType::Bool | ScalarType::UInt8 => bytes.iter().map(|byte| f64::from(*byte)).collect(),
        ScalarType::Int8 => convert!(i8),
        ScalarType::Int16 => convert!(i16),
        ScalarType::Int32 => convert!(i32),
        ScalarType::Int64 => convert!(i64),
        ScalarType::UInt16 => convert!(u16),
        ScalarType::UInt32 => convert!(u32),
        ScalarType::UInt64 => convert!(u64),
        ScalarType::Float32 => convert!(f32),
        ScalarType::Float64 => convert!(f64),
        ScalarType::Float16 => {
            let half = |chunk: &[u8]| half_to_f64(u16::from_ne_bytes([chunk[0], chunk[1]]));
            bytes.chunks_exact(2).map(half).collect()
        }
    }
}

/// Converts an IEEE 754 number of 16 bits.
fn half_to_f64(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from((bits >> 10) & 0x1f), f64::from(bits & 0x3ff) / 1024.0);
    match exponent {
        0 => sign * fraction * 2_f64.powi(-14),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1.0 + fraction) * 2_f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BinaryViewArray, Int64Array, ListArray, StringViewArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn cell(array: impl Array + 'static, row: usize) -> PreviewValue {
        PreviewValue::of_column(&Column::Arrow(Arc::new(array)), row, None)
    }

    #[test]
    fn arrow_values_are_converted() {
        assert_eq!(cell(Int64Array::from(vec![Some(7), None]), 0), PreviewValue::Scalar("7".to_owned()));
        assert_eq!(cell(Int64Array::from(vec![Some(7), None]), 1), PreviewValue::Null);
        let text = cell(StringViewArray::from(vec!["<é>"]), 0);
        assert_eq!((text.length(), text), (Some(3), PreviewValue::Text("<é>".to_owned())));
        let bytes = cell(BinaryViewArray::from_iter_values([b"abc"]), 0);
        assert_eq!(bytes, PreviewValue::Bytes { length: 3, start: b"abc".to_vec() });
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some((0..600).map(Some))]);
        let PreviewValue::List { elements, length } = cell(list, 0) else { panic!("a list") };
        assert_eq!((elements.len(), length, elements[1].as_str()), (512, 600, "1"));
    }

    #[test]
    fn half_precision_is_converted() {
        for (bits, number) in
            [(0, 0.0), (0x3c00, 1.0), (0xc000, -2.0), (0x3555, 0.333251953125), (1, 5.960464477539063e-8)]
        {
            assert_eq!(half_to_f64(bits), number);
        }
        assert!(half_to_f64(0x7c00).is_infinite() && half_to_f64(0x7e00).is_nan());
    }

    #[test]
    fn tensors_are_numbers_or_pictures() {
        let data: Vec<u8> = [1.5_f32, -2.0].iter().flat_map(|number| number.to_ne_bytes()).collect();
        let tensor =
            Tensor { scalar: ScalarType::Float32, shape: vec![2], data: data.as_slice().into(), rows: 1 };
        let PreviewValue::Tensor { elements, range, .. } =
            PreviewValue::of_column(&Column::Tensor(tensor), 0, None)
        else {
            panic!("a tensor")
        };
        assert_eq!((elements, range), (vec!["1.5".to_owned(), "-2".to_owned()], Some((-2.0, 1.5))));
        let pixels = vec![9_u8; 8 * 8 * 3];
        let tensor = Tensor {
            scalar: ScalarType::UInt8,
            shape: vec![8, 8, 3],
            data: pixels.as_slice().into(),
            rows: 1,
        };
        let cell = PreviewValue::of_column(&Column::Tensor(tensor), 0, None);
        assert!(matches!(cell, PreviewValue::Image { range: Some((9.0, 9.0)), .. }), "{cell:?}");
    }
}
