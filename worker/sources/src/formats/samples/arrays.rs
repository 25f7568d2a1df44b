//! Arrays in samples: a header with dtype and shape, and the elements in C order.

use feedline_data::pipeline::MAX_NESTING;
use feedline_data::schema::{ColumnType, ScalarType};

use super::u32_at;

/// Maximum number of lists that an array without elements may have.
const MAX_EMPTY_LISTS: u64 = 4_096;

/// The header of arrays.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ArrayEncoding {
    /// Every array has this dtype and shape, and values have no header.
    Fixed { scalar: ScalarType, shape: Vec<u32> },
    /// Arrays with one axis, and values without a header.
    Flat(ScalarType),
    /// MDS: the code of the dtype if `scalar` is `None`, and the shape if `shape` is `None`.
    Mds { scalar: Option<ScalarType>, shape: Option<Vec<u32>> },
    /// LitData: code of the NumPy dtype, number of axes, and extents, as little-endian `u32`.
    Numpy,
    /// LitData: code of the torch dtype, number of axes, and extents, as big-endian `u32`.
    Tensor,
}

/// A parsed array.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array<'a> {
    pub(crate) scalar: ScalarType,
    pub(crate) shape: Vec<u64>,
    pub(crate) elements: &'a [u8],
}

impl ArrayEncoding {
    /// Parses a value. The size of the elements matches dtype and shape.
    pub(crate) fn parse<'a>(&self, bytes: &'a [u8]) -> Result<Array<'a>, String> {
        let (scalar, shape, elements) = match self {
            Self::Fixed { scalar, shape } => (*scalar, widened(shape), bytes),
            Self::Flat(scalar) => (*scalar, vec![(bytes.len() / scalar.width_bytes()) as u64], bytes),
            Self::Mds { scalar, shape } => parse_mds(*scalar, shape.as_deref(), bytes)?,
            Self::Numpy => parse_header(bytes, u32::from_le_bytes, numpy_scalar)?,
            Self::Tensor => parse_header(bytes, u32::from_be_bytes, torch_scalar)?,
        };
        let count = shape.iter().try_fold(1_u64, |count, extent| count.checked_mul(*extent));
        let size = count.and_then(|count| count.checked_mul(scalar.width_bytes() as u64));
        if size != Some(elements.len() as u64) {
            return Err(format!(
                "an array of {} with the shape {shape:?} has {} bytes: the file is corrupted",
                scalar.name(),
                elements.len()
            ));
        }
        let lists = shape.iter().rev().skip(1).try_fold(1_u64, |count, extent| count.checked_mul(*extent));
        if elements.is_empty() && lists.is_none_or(|lists| lists > MAX_EMPTY_LISTS) {
            return Err(format!("an array without elements has the unsupported shape {shape:?}"));
        }
        Ok(Array { scalar, shape, elements })
    }

    /// Returns the column type. `sample` is the value of the first sample.
    pub(crate) fn column_type(&self, sample: &[u8]) -> Result<ColumnType, String> {
        if let Self::Fixed { scalar, shape } | Self::Mds { scalar: Some(scalar), shape: Some(shape) } = self {
            return Ok(ColumnType::Tensor { scalar: *scalar, shape: shape.clone() });
        }
        let array = self.parse(sample)?;
        if array.shape.len() > MAX_NESTING {
            return Err(format!(
                "its arrays have {} axes; the limit is {MAX_NESTING} axes",
                array.shape.len()
            ));
        }
        Ok(nested(array.scalar, array.shape.len()))
    }
}

/// A list of lists with this number of levels.
fn nested(scalar: ScalarType, levels: usize) -> ColumnType {
    (0..levels).fold(ColumnType::Scalar(scalar), |item, _| ColumnType::List(Box::new(item)))
}

fn widened(shape: &[u32]) -> Vec<u64> {
    shape.iter().map(|&extent| u64::from(extent)).collect()
}

type Header<'a> = (ScalarType, Vec<u64>, &'a [u8]);

fn parse_mds<'a>(
    scalar: Option<ScalarType>,
    shape: Option<&[u32]>,
    mut bytes: &'a [u8],
) -> Result<Header<'a>, String> {
    let truncated = || "the header of an array is truncated: the file is corrupted".to_owned();
    let scalar = match scalar {
        Some(scalar) => scalar,
        None => {
            let (code, rest) = bytes.split_first().ok_or_else(truncated)?;
            bytes = rest;
            mds_scalar(*code).ok_or_else(|| format!("unknown dtype {code} of an array"))?
        }
    };
    if let Some(shape) = shape {
        return Ok((scalar, widened(shape), bytes));
    }
    let (axes, rest) = bytes.split_first().ok_or_else(truncated)?;
    let (axes, width) = (usize::from(axes >> 2), 1_usize << (axes & 3));
    let (extents, elements) = rest.split_at_checked(axes * width).ok_or_else(truncated)?;
    let extent = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Ok((scalar, extents.chunks_exact(width).map(extent).collect(), elements))
}

/// The dtypes of `streaming.base.format.mds.encodings.NDArray`.
fn mds_scalar(code: u8) -> Option<ScalarType> {
    Some(match code {
        8 => ScalarType::UInt8,
        9 => ScalarType::Int8,
        16 => ScalarType::UInt16,
        17 => ScalarType::Int16,
        18 => ScalarType::Float16,
        32 => ScalarType::UInt32,
        33 => ScalarType::Int32,
        34 => ScalarType::Float32,
        64 => ScalarType::UInt64,
        65 => ScalarType::Int64,
        66 => ScalarType::Float64,
        _ => return None,
    })
}

fn parse_header(
    bytes: &[u8],
    number: fn([u8; 4]) -> u32,
    scalar: fn(u32) -> Result<ScalarType, String>,
) -> Result<Header<'_>, String> {
    let truncated = || "the header of an array is truncated: the file is corrupted".to_owned();
    let next = |bytes: &[u8]| number([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let (header, rest) = bytes.split_at_checked(8).ok_or_else(truncated)?;
    let axes = next(&header[4..]) as usize;
    let extents = axes.checked_mul(4).and_then(|size| rest.split_at_checked(size));
    let (extents, elements) = extents.ok_or_else(truncated)?;
    let shape = extents.chunks_exact(4).map(|extent| u64::from(next(extent))).collect();
    Ok((scalar(next(header))?, shape, elements))
}

/// The dtypes of `litdata.constants._NUMPY_DTYPES_MAPPING`.
pub(crate) fn numpy_scalar(code: u32) -> Result<ScalarType, String> {
    Ok(match code {
        0 => ScalarType::Int8,
        1 => ScalarType::Int16,
        2 => ScalarType::Int32,
        3 => ScalarType::Int64,
        4 => ScalarType::UInt8,
        5 => ScalarType::UInt16,
        6 => ScalarType::UInt32,
        7 => ScalarType::UInt64,
        8 => ScalarType::Float16,
        9 => ScalarType::Float32,
        10 => ScalarType::Float64,
        13 => ScalarType::Bool,
        14 => return Err("its arrays contain Python objects, which are never unpickled".to_owned()),
        other => {
            return Err(format!("the NumPy dtype {other} of LitData is not a boolean, integer or float"));
        }
    })
}

/// The dtypes of `litdata.constants._TORCH_DTYPES_MAPPING`.
pub(crate) fn torch_scalar(code: u32) -> Result<ScalarType, String> {
    Ok(match code {
        0 | 1 => ScalarType::Float32,
        2 | 3 => ScalarType::Float64,
        8 | 9 => ScalarType::Float16,
        11 => ScalarType::UInt8,
        12 => ScalarType::Int8,
        13 | 14 => ScalarType::Int16,
        15 | 16 => ScalarType::Int32,
        17 | 18 => ScalarType::Int64,
        19 => ScalarType::Bool,
        20 => ScalarType::UInt16,
        other => {
            return Err(format!("the torch dtype {other} of LitData is not a boolean, integer or float"));
        }
    })
}

/// Reads the number of values and their sizes from a list of images. `header` is the number of bytes before the count.
pub(crate) fn list_ranges(bytes: &[u8], header: usize) -> Result<Vec<std::ops::Range<usize>>, String> {
    let wrong = || "the sizes of a list exceed its value: the file is corrupted".to_owned();
    let rest = bytes.get(header..).filter(|rest| rest.len() >= 4).ok_or_else(wrong)?;
    let count = u32_at(rest) as usize;
    let sizes = count.checked_mul(4).and_then(|size| rest[4..].get(..size)).ok_or_else(wrong)?;
    let mut end = header + 4 + sizes.len();
    let mut ranges = Vec::with_capacity(count);
    for size in sizes.chunks_exact(4) {
        let start = end;
        end += u32_at(size) as usize;
        if end > bytes.len() {
            return Err(wrong());
        }
        ranges.push(start..end);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_of_every_kind_are_parsed() {
        let both = ArrayEncoding::Mds { scalar: None, shape: None };
        let array = both.parse(&[17, 2 << 2 | 1, 2, 0, 1, 0, 5, 0, 6, 0]).unwrap();
        assert_eq!(array, Array { scalar: ScalarType::Int16, shape: vec![2, 1], elements: &[5, 0, 6, 0] });
        let text = both.column_type(&[17, 2 << 2 | 1, 2, 0, 1, 0, 5, 0, 6, 0]).unwrap().to_string();
        assert_eq!(text, "list of list of int16");
        let numpy = [4, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 7, 8];
        assert_eq!(ArrayEncoding::Numpy.parse(&numpy).unwrap().shape, [2]);
        let tensor = [0, 0, 0, 12, 0, 0, 0, 0, 255];
        assert_eq!(ArrayEncoding::Tensor.column_type(&tensor).unwrap().to_string(), "int8");
        let many = [vec![8, 5 << 2], vec![1; 5], vec![9]].concat();
        assert!(both.parse(&many).is_ok());
        // 2^32 lists without elements would need gigabytes.
        let empty = [8, 2 << 2 | 3, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(both.parse(&empty).unwrap_err().contains("unsupported shape"));
    }

    proptest! {
        #[test]
        fn damaged_headers_are_errors_and_sizes_always_match(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let encodings = [
                ArrayEncoding::Mds { scalar: None, shape: None },
                ArrayEncoding::Mds { scalar: Some(ScalarType::Int32), shape: None },
                ArrayEncoding::Numpy,
                ArrayEncoding::Tensor,
            ];
            for encoding in encodings {
                if let Ok(array) = encoding.parse(&bytes) {
                    let count: u64 = array.shape.iter().product();
                    prop_assert_eq!(count * array.scalar.width_bytes() as u64, array.elements.len() as u64);
                }
            }
            for header in [4, 8] {
                if let Ok(ranges) = list_ranges(&bytes, header) {
                    prop_assert!(ranges.last().is_none_or(|last| last.end <= bytes.len()));
                }
            }
        }
    }
}
