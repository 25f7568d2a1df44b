//! A benchmark of the image kernel on one core, without the engine. Its rate is an upper bound on the engine's rate per
//! core.

use std::time::Instant;

use bytes::Bytes;
use feedline_data::pipeline::Size;
use feedline_data::random::RowRandom;

use crate::geometry::{CropPlan, random_crop};
use crate::render::{Picture, RenderScratch};

/// The result of a benchmark run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelResult {
    /// Number of decoded and resized images, without images that could not be decoded.
    pub images: u64,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// The part of an image that the kernel decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelDecode {
    /// The part that the crop needs, as in the operators.
    Crop,
    /// The whole image.
    Whole,
}

/// Decodes a random crop of each JPEG and resizes it to `size` (height, width) on the current thread.
///
/// The crops equal the crops of `random_resized_crop` with default parameters as the first operator of a pipeline with this seed, in
/// pass 0, for rows 0 to `jpegs.len() - 1`.
pub fn crop_resize_loop(jpegs: &[Bytes], decode: KernelDecode, seed: u64, size: Size) -> KernelResult {
    let (scale, ratio) = ([0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0]);
    let mut out = vec![0; size[0] as usize * size[1] as usize * 3];
    let mut scratch = RenderScratch::new();
    let mut images = 0;
    let start = Instant::now();
    for (row, jpeg) in jpegs.iter().enumerate() {
        let plan = |width, height| {
            let mut random = RowRandom::new(seed, 0, 0, row as u64);
            CropPlan::resized(random_crop(&mut random, width, height, scale, ratio), size)
        };
        let done = match decode {
            KernelDecode::Crop => scratch.render(Picture::Encoded(jpeg), plan, size, &mut out),
            KernelDecode::Whole => scratch.decode(jpeg).and_then(|image| {
                let (width, height) = (image.width, image.height);
                scratch.render(Picture::Decoded { width, height, pixels: &image.data }, plan, size, &mut out)
            }),
        };
        images += u64::from(done.is_ok());
    }
    std::hint::black_box(&out);
    KernelResult { images, seconds: start.elapsed().as_secs_f64() }
}

/// Adds the index of `recode_jpeg` to JPEGs. JPEGs that cannot have an index are returned unchanged.
pub fn with_index(jpegs: &[Bytes]) -> Vec<Bytes> {
    let mut scratch = RenderScratch::new();
    let indexed = |jpeg: &Bytes| scratch.with_index(jpeg).map_or_else(|| jpeg.clone(), Bytes::from);
    jpegs.iter().map(indexed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::testdata;

    #[test]
    fn every_way_of_decoding_accepts_the_same_images() {
        let jpegs = [Bytes::from(testdata("../../jpeg/testdata/420.jpg")), Bytes::from_static(b"none")];
        let indexed = with_index(&jpegs);
        assert!(indexed[0].len() > jpegs[0].len());
        assert_eq!(indexed[1], jpegs[1]);
        for (jpegs, decode) in [
            (&jpegs[..], KernelDecode::Crop),
            (&jpegs[..], KernelDecode::Whole),
            (&indexed[..], KernelDecode::Crop),
        ] {
            assert_eq!(crop_resize_loop(jpegs, decode, 3, [32, 24]).images, 1, "{decode:?}");
        }
    }
}
