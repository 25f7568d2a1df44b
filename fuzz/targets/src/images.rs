//! The targets of images: one for JPEG, and one for the other formats.

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use arrow::array::BinaryViewArray;
use feedline_data::schema::ColumnType;
use feedline_jpeg::{Decoder, Region};
use feedline_operators::BuiltOperator;

use crate::values::{apply, operators};

/// Larger images are skipped. Other tests cover their limits.
const MAX_PIXELS: u64 = 1 << 22;

/// Decodes a JPEG: header, whole image, region, half size, and index.
pub fn image(bytes: &[u8]) {
    let Ok(mut decoder) = Decoder::new() else { return };
    let Ok(header) = decoder.header(bytes) else { return };
    if is_large(header.width, header.height) {
        return;
    }
    let mut out = Vec::new();
    // Errors are expected. Panics, hangs, and different pixels with and without an index are failures.
    if let Ok(opened) = decoder.open(bytes) {
        drop(opened.decode(&mut out));
    }
    let (width, height) = (header.width.div_ceil(2), header.height.div_ceil(2));
    let part = Region { x: header.width / 4, y: header.height / 3, width, height };
    if let Ok(mut opened) = decoder.open(bytes) {
        let _ = opened.decode_half(part, &mut out);
    }
    let plain = decoder.decode_region(bytes, part, &mut out);
    let Some(indexed) = decoder.with_index(bytes) else { return };
    let mut other = Vec::new();
    let again = decoder.decode_region(&indexed, part, &mut other);
    if let (Ok(plain), Ok(again)) = (plain, again) {
        assert_eq!(plain, again);
        assert!(out[..plain.bytes()] == other[..again.bytes()]);
    }
}

static OPERATORS: LazyLock<Vec<BuiltOperator>> = LazyLock::new(|| {
    let pipeline = "name: fuzz
source: {url: photographs/, format: files}
operators:
  - decode_image: {column: image}
  - center_crop: {column: image, size: [8, 8], resize: 9}
  - batch: {size: 1}
";
    operators(pipeline, ("image", ColumnType::Binary), &[]).expect("the pipeline is valid")
});

/// Decodes and resizes images other than JPEG: PNG, WebP, and cached pixels.
pub fn raster(bytes: &[u8]) {
    let guessed = ::image::ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map(|reader| reader.into_dimensions());
    let is_skipped = matches!(guessed, Ok(Ok((width, height))) if is_large(width, height));
    if is_skipped || bytes.starts_with(&[0xFF, 0xD8]) {
        return;
    }
    apply(&OPERATORS, "image", Arc::new(BinaryViewArray::from_iter_values([bytes])));
}

fn is_large(width: u32, height: u32) -> bool {
    u64::from(width) * u64::from(height) > MAX_PIXELS
}
