//! Converts images to the encodings that caches store: JPEGs with an index, or decoded pixels.
//!
//! Decoded pixels have a header, so that a column can contain both JPEGs and pixels. An operator returns the same output for all
//! encodings of an image.

use std::sync::Arc;

use arrow::array::BinaryViewBuilder;
use feedline_data::pipeline::{CacheEncoding, Size};

use crate::arrow_types::encoded_bytes;
use crate::geometry::CropPlan;
use crate::pixels::{Pixels, is_pixels};
use crate::render::{RenderScratch, with_scratch};
use crate::{Chunk, Column, Decoding, OperatorError};

/// Converts the image column of a chunk row by row, while `should_continue` returns true. Returns the column and the number of
/// converted rows. The remaining rows of the column are empty. Images that cannot be converted are copied.
///
/// # Errors
/// Returns an error if the column does not contain encoded images.
pub fn encode_column(
    chunk: &Chunk,
    decoding: &Decoding,
    encoding: CacheEncoding,
    mut should_continue: impl FnMut() -> bool,
) -> Result<(Column, usize), OperatorError> {
    let original = chunk.arrow(&decoding.column)?;
    let mut encoded = BinaryViewBuilder::with_capacity(chunk.rows());
    let mut count = 0;
    for row in 0..chunk.rows() {
        if count < row || !should_continue() {
            encoded.append_value(b"");
            continue;
        }
        match encoded_bytes(original, row, &decoding.column)? {
            None => encoded.append_null(),
            Some(bytes) => match encode(bytes, encoding, decoding.size) {
                Some(converted) => encoded.append_value(converted),
                None => encoded.append_value(bytes),
            },
        }
        count += 1;
    }
    Ok((Column::Arrow(Arc::new(encoded.finish())), count))
}

/// Converts the image of one row, for measurements of an operator. Returns a chunk that contains only this image, and the size of the
/// image. `None` if the row has no image or the image cannot be converted.
pub fn encode_row(
    chunk: &Chunk,
    row: usize,
    decoding: &Decoding,
    encoding: CacheEncoding,
) -> Option<(Chunk, usize)> {
    let original = chunk.arrow(&decoding.column).ok()?;
    let bytes = encoded_bytes(original, row, &decoding.column).ok()??;
    let encoded = match encoding {
        CacheEncoding::AsIs => bytes.to_vec(),
        encoding => encode(bytes, encoding, decoding.size)?,
    };
    let mut column = BinaryViewBuilder::with_capacity(1);
    column.append_value(&encoded);
    let columns = vec![(decoding.column.clone(), Column::Arrow(Arc::new(column.finish())))];
    Some((Chunk::new(columns, vec![chunk.row_ids[row]], vec![chunk.passes[row]]), encoded.len()))
}

/// Converts an image for an operator that resizes the image, or a crop of the image, to `size`. `None` if the image cannot be
/// decoded, or if the output of the operator would change.
fn encode(bytes: &[u8], encoding: CacheEncoding, size: Size) -> Option<Vec<u8>> {
    with_scratch(|scratch| match encoding {
        CacheEncoding::AsIs => None,
        CacheEncoding::Indexed => scratch.with_index(bytes),
        CacheEncoding::Pixels => decode(scratch, bytes, size),
    })
}

fn decode(scratch: &mut RenderScratch, bytes: &[u8], size: Size) -> Option<Vec<u8>> {
    if is_pixels(bytes) {
        return None;
    }
    let image = scratch.decode(bytes).ok()?;
    // The operator decodes a large JPEG at half the size, which is impossible with pixels. Therefore, add an index to the JPEG.
    if CropPlan::whole(image.width, image.height, size).may_be_halved() {
        return scratch.with_index(bytes);
    }
    Some(Pixels { width: image.width, height: image.height, data: &image.data }.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::testdata;

    #[test]
    fn pixels_equal_the_decoded_image() {
        let jpeg = testdata("../../jpeg/testdata/420.jpg");
        let image = with_scratch(|scratch| scratch.decode(&jpeg)).unwrap();
        let kept = encode(&jpeg, CacheEncoding::Pixels, [32, 32]);
        let size = [image.height.div_ceil(2), image.width.div_ceil(2)];
        let found = encode(&jpeg, CacheEncoding::Pixels, size).unwrap();
        let of = Pixels::parse(&found).unwrap();
        assert_eq!((of.width, of.height, of.data), (image.width, image.height, &image.data[..]));
        assert_eq!(with_scratch(|scratch| scratch.decode(&found)).unwrap(), image);
        // An image that may be decoded at half the size stays a JPEG.
        let is_large = CropPlan::whole(image.width, image.height, [32, 32]).may_be_halved();
        assert_eq!(kept.is_some_and(|kept| is_pixels(&kept)), !is_large);
        assert_eq!(encode(b"no image", CacheEncoding::Pixels, size), None);
        assert_eq!(encode(&found, CacheEncoding::Pixels, size), None);
        assert_eq!(encode(&jpeg, CacheEncoding::AsIs, size), None);
    }
}
