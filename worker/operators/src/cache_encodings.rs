//! Encoded images in the forms in which caches keep them: with an index of their data, or decoded.
//!
//! Decoded pixels lie behind a head of their own, so that a column of encoded images may hold both: whoever decodes an image
//! finds pixels as it finds a JPEG. Whatever the form, an operator makes the same of it.

use std::sync::Arc;

use arrow::array::BinaryViewBuilder;
use feedline_data::pipeline::{CacheEncoding, Size};
use feedline_jpeg::MAX_PIXELS;

use crate::geometry::CropPlan;
use crate::kernels::pictures::encoded_bytes;
use crate::render::{RenderScratch, with_scratch};
use crate::{Chunk, Column, Decoding, OperatorError};

/// First bytes of decoded pixels. A JPEG, PNG or WebP begins otherwise.
const MAGIC: [u8; 8] = *b"\x89FLPIX\r\n";
/// The magic, the width and the height.
const HEAD_BYTES: usize = 16;

/// Decoded pixels as they are kept: RGB8 in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pixels<'a> {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) data: &'a [u8],
}

/// Whether these bytes say that they are decoded pixels.
pub(crate) fn are_pixels(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Takes decoded pixels apart.
pub(crate) fn pixels(bytes: &[u8]) -> Result<Pixels<'_>, String> {
    let head = bytes.first_chunk::<HEAD_BYTES>().ok_or("damaged pixels: their head is cut off")?;
    let [.., w0, w1, w2, w3, h0, h1, h2, h3] = *head;
    let (width, height) = (u32::from_le_bytes([w0, w1, w2, w3]), u32::from_le_bytes([h0, h1, h2, h3]));
    let data = &bytes[HEAD_BYTES..];
    let count = u64::from(width) * u64::from(height);
    if count == 0 || count > MAX_PIXELS || data.len() as u64 != 3 * count {
        return Err(format!("damaged pixels: {} bytes for {width} x {height}", data.len()));
    }
    Ok(Pixels { width, height, data })
}

/// A chunk's column of encoded images in another form, row after row while `goes_on` says so; and how many rows that were.
/// The rows behind them have no bytes. What cannot be had in the form stays as it is.
///
/// # Errors
/// When the column is none of encoded images.
pub fn column_in_form(
    chunk: &Chunk,
    decoding: &Decoding,
    form: CacheEncoding,
    mut goes_on: impl FnMut() -> bool,
) -> Result<(Column, usize), OperatorError> {
    let encoded = chunk.arrow(&decoding.column)?;
    let mut made = BinaryViewBuilder::with_capacity(chunk.rows());
    let mut count = 0;
    for row in 0..chunk.rows() {
        if count < row || !goes_on() {
            made.append_value(b"");
            continue;
        }
        match encoded_bytes(encoded, row, &decoding.column)? {
            None => made.append_null(),
            Some(bytes) => match in_form(bytes, form, decoding.size) {
                Some(other) => made.append_value(other),
                None => made.append_value(bytes),
            },
        }
        count += 1;
    }
    Ok((Column::Arrow(Arc::new(made.finish())), count))
}

/// One row of a chunk with nothing but its encoded image, in a form, and the image's bytes: something to try an operator on.
/// `None` where the row has no image, or none in this form.
pub fn row_in_form(
    chunk: &Chunk,
    row: usize,
    decoding: &Decoding,
    form: CacheEncoding,
) -> Option<(Chunk, usize)> {
    let encoded = chunk.arrow(&decoding.column).ok()?;
    let bytes = encoded_bytes(encoded, row, &decoding.column).ok()??;
    let made = match form {
        CacheEncoding::AsIs => bytes.to_vec(),
        form => in_form(bytes, form, decoding.size)?,
    };
    let mut column = BinaryViewBuilder::with_capacity(1);
    column.append_value(&made);
    let columns = vec![(decoding.column.clone(), Column::Arrow(Arc::new(column.finish())))];
    Some((Chunk::new(columns, vec![chunk.row_ids[row]], vec![chunk.passes[row]]), made.len()))
}

/// An encoded image in another form, for an operator that brings it, or a part of it, to `size`. `None` for what stays as it
/// is: it cannot be decoded, or the operator would not make the same of it.
fn in_form(bytes: &[u8], form: CacheEncoding, size: Size) -> Option<Vec<u8>> {
    with_scratch(|scratch| match form {
        CacheEncoding::AsIs => None,
        CacheEncoding::Indexed => scratch.with_index(bytes),
        CacheEncoding::Pixels => decoded(scratch, bytes, size),
    })
}

fn decoded(scratch: &mut RenderScratch, bytes: &[u8], size: Size) -> Option<Vec<u8>> {
    if are_pixels(bytes) {
        return None;
    }
    let image = scratch.decode(bytes).ok()?;
    // Of a large image a cut may be decoded at half the size, which pixels cannot be: the file stays, with an index.
    if CropPlan::whole(image.width, image.height, size).may_be_halved() {
        return scratch.with_index(bytes);
    }
    let mut kept = Vec::with_capacity(HEAD_BYTES + image.data.len());
    kept.extend(MAGIC);
    kept.extend(image.width.to_le_bytes());
    kept.extend(image.height.to_le_bytes());
    kept.extend_from_slice(&image.data);
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::testdata;

    #[test]
    fn pixels_are_found_as_they_were_decoded() {
        let jpeg = testdata("../../jpeg/testdata/420.jpg");
        let image = with_scratch(|scratch| scratch.decode(&jpeg)).unwrap();
        let kept = in_form(&jpeg, CacheEncoding::Pixels, [32, 32]);
        let size = [image.height.div_ceil(2), image.width.div_ceil(2)];
        let found = in_form(&jpeg, CacheEncoding::Pixels, size).unwrap();
        let of = pixels(&found).unwrap();
        assert_eq!((of.width, of.height, of.data), (image.width, image.height, &image.data[..]));
        assert_eq!(with_scratch(|scratch| scratch.decode(&found)).unwrap(), image);
        // Where it may be halved, it stays a JPEG.
        let is_large = CropPlan::whole(image.width, image.height, [32, 32]).may_be_halved();
        assert_eq!(kept.is_some_and(|kept| are_pixels(&kept)), !is_large);
        assert_eq!(in_form(b"no image", CacheEncoding::Pixels, size), None);
        assert_eq!(in_form(&found, CacheEncoding::Pixels, size), None);
        assert_eq!(in_form(&jpeg, CacheEncoding::AsIs, size), None);
    }

    #[test]
    fn damaged_pixels_are_refused() {
        let mut kept = MAGIC.to_vec();
        assert!(pixels(&kept).is_err());
        kept.extend(u32::MAX.to_le_bytes());
        kept.extend(u32::MAX.to_le_bytes());
        assert!(pixels(&kept).is_err());
        let sizes = [2u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
        let with = |data: &[u8]| [&MAGIC, sizes.as_slice(), data].concat();
        assert!(pixels(&with(&[0; 5])).is_err() && pixels(&with(&[0; 7])).is_err());
        assert_eq!(pixels(&with(&[7; 6])).unwrap(), Pixels { width: 2, height: 1, data: &[7; 6] });
    }
}
