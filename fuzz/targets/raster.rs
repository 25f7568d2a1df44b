//! Fuzzes decoding and resizing of images other than JPEG: PNG, WebP, and cached pixels.

#![no_main]

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use arrow::array::BinaryViewArray;
use feedline_data::schema::ColumnType;
use feedline_operators::BuiltOperator;
use libfuzzer_sys::fuzz_target;

static OPERATORS: LazyLock<Vec<BuiltOperator>> = LazyLock::new(|| {
    let pipeline = "name: fuzz
source: {url: photographs/, format: files}
operators:
  - decode_image: {column: image}
  - center_crop: {column: image, size: [8, 8], resize: 9}
  - batch: {size: 1}
";
    feedline_fuzz::operators(pipeline, ("image", ColumnType::Binary), &[]).expect("the pipeline is valid")
});

fuzz_target!(|bytes: &[u8]| {
    // Skip JPEGs, which another target covers, and large images, whose limits other tests cover.
    let guessed = image::ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map(|reader| reader.into_dimensions());
    let is_large =
        matches!(guessed, Ok(Ok((width, height))) if u64::from(width) * u64::from(height) > 1 << 22);
    if is_large || bytes.starts_with(&[0xFF, 0xD8]) {
        return;
    }
    feedline_fuzz::run(&OPERATORS, "image", Arc::new(BinaryViewArray::from_iter_values([bytes])));
});
