//! The bare image kernel: what one core can do, with nothing around it. The measure that the engine is held against.

use std::time::Instant;

use bytes::Bytes;
use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use feedline_core::pipeline::Size;
use feedline_core::random::RowRandom;
use feedline_jpeg::Decoder;

use crate::geometry::random_crop;

/// What a run of the kernel did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelResult {
    /// Images decoded and resized; those that are not JPEGs that decode are left out.
    pub images: u64,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// Decodes a random crop of each JPEG and resizes it to `size` (height, width) on this thread, and nothing else.
///
/// The crops are those of `random_resized_crop` with its default parameters as the first operator of a pipeline with
/// this seed, in pass 0, for rows 0 to `jpegs.len() - 1`.
pub fn crop_resize_loop(jpegs: &[Bytes], seed: u64, size: Size) -> KernelResult {
    let (scale, ratio) = ([0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0]);
    let mut out = vec![0; size[0] as usize * size[1] as usize * 3];
    let mut pixels = Vec::new();
    let mut resizer = Resizer::new();
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    let Ok(mut decoder) = Decoder::new() else {
        return KernelResult { images: 0, seconds: 0.0 };
    };
    let mut images = 0;
    let start = Instant::now();
    for (row, jpeg) in jpegs.iter().enumerate() {
        let Ok(opened) = decoder.open(jpeg) else { continue };
        let mut random = RowRandom::new(seed, 0, 0, row as u64);
        let crop = random_crop(&mut random, opened.header().width, opened.header().height, scale, ratio);
        let Ok(decoded) = opened.decode_region(crop, &mut pixels) else { continue };
        let Ok(image) =
            TypedImageRef::<U8x3>::from_buffer(decoded.width, decoded.height, &pixels[..decoded.bytes()])
        else {
            continue;
        };
        let region =
            TypedCroppedImage::new(image, decoded.x_offset, decoded.y_offset, crop.width, crop.height);
        let target = TypedImage::<U8x3>::from_buffer(size[1], size[0], &mut out);
        let (Ok(region), Ok(mut target)) = (region, target) else { continue };
        images += u64::from(resizer.resize_typed(&region, &mut target, &options).is_ok());
    }
    std::hint::black_box(&out);
    KernelResult { images, seconds: start.elapsed().as_secs_f64() }
}
