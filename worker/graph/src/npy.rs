//! Headers of NumPy files, as `numpy.save` writes them. Rows begin at a multiple of 64 bytes.

use feedline_data::schema::ScalarType;

/// The alignment of the first element.
const ALIGNMENT: usize = 64;
/// Length of the magic bytes, the version and the length of the header.
const PREFIX_BYTES: usize = 10;
/// The smallest header, so that most arrays have headers of one size.
const MIN_HEADER_BYTES: usize = 128;

/// Returns the header of an array in C order. Its length depends on the type and the shape of a row, but not on the number of
/// rows, so that a writer can replace the header of an array that has grown.
pub(crate) fn header(dtype: ScalarType, rows: u64, row_shape: &[u32]) -> Vec<u8> {
    let length = PREFIX_BYTES + dictionary(dtype, u64::MAX, row_shape).len() + 1;
    let length = length.next_multiple_of(ALIGNMENT).max(MIN_HEADER_BYTES);
    let text_length = u16::try_from(length - PREFIX_BYTES).expect("a shape has few axes");
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(text_length.to_le_bytes());
    header.extend(dictionary(dtype, rows, row_shape).bytes());
    header.resize(length - 1, b' ');
    header.push(b'\n');
    header
}

/// Returns the Python dict that describes an array.
fn dictionary(dtype: ScalarType, rows: u64, row_shape: &[u32]) -> String {
    let mut shape = format!("{rows},");
    for extent in row_shape {
        shape.push_str(&format!(" {extent},"));
    }
    // A tuple of one element ends in a comma.
    let shape = if row_shape.is_empty() { shape.as_str() } else { shape.trim_end_matches(',') };
    format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({shape}), }}", descr(dtype))
}

fn descr(dtype: ScalarType) -> &'static str {
    match dtype {
        ScalarType::Bool => "|b1",
        ScalarType::Int8 => "|i1",
        ScalarType::Int16 => "<i2",
        ScalarType::Int32 => "<i4",
        ScalarType::Int64 => "<i8",
        ScalarType::UInt8 => "|u1",
        ScalarType::UInt16 => "<u2",
        ScalarType::UInt32 => "<u4",
        ScalarType::UInt64 => "<u8",
        ScalarType::Float16 => "<f2",
        ScalarType::Float32 => "<f4",
        ScalarType::Float64 => "<f8",
    }
}

#[cfg(test)]
mod tests {
    use feedline_sources::NpyArrayHeader;

    use super::*;

    #[test]
    fn a_header_equals_that_of_numpy() {
        let header = header(ScalarType::Float16, 63_666, &[128]);
        let text = "{'descr': '<f2', 'fortran_order': False, 'shape': (63666, 128), }";
        assert_eq!(&header[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert_eq!(std::str::from_utf8(&header[10..]).unwrap(), format!("{text:<117}\n"));
    }

    #[test]
    fn headers_round_trip_and_keep_their_length() {
        let shapes: [&[u32]; 4] = [&[], &[3], &[1433, 2], &[u32::MAX; 12]];
        for shape in shapes {
            let lengths = [0, 7, u64::MAX].map(|rows| {
                let header = header(ScalarType::UInt8, rows, shape);
                let parsed = NpyArrayHeader::parse(&header).unwrap();
                let extents: Vec<u64> =
                    std::iter::once(rows).chain(shape.iter().map(|&extent| u64::from(extent))).collect();
                assert_eq!(parsed.shape, extents);
                assert_eq!((parsed.scalar, parsed.is_fortran), (ScalarType::UInt8, false));
                assert_eq!(parsed.data_start as usize, header.len());
                header.len()
            });
            assert!(lengths[0] % 64 == 0 && lengths.iter().all(|length| *length == lengths[0]));
        }
    }
}
