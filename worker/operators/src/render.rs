//! The inner loop of the image operators, which decodes the part of an image that a crop needs, and resizes the crop into the output.

use std::cell::RefCell;

use fast_image_resize::images::{TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use feedline_data::pipeline::Size;
use feedline_jpeg::{Decoder, JpegHeader, MAX_DECODED_BYTES, Region};

use crate::Image;
use crate::decode_memory;
use crate::geometry::CropPlan;
use crate::pixels::Pixels;
use crate::raster::{Encoding, decode, detect_encoding};

/// The encoded or decoded image of one row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Picture<'a> {
    /// JPEG, PNG, WebP, or decoded pixels from a cache.
    Encoded(&'a [u8]),
    /// RGB8 pixels, row by row.
    Decoded { width: u32, height: u32, pixels: &'a [u8] },
}

/// The decoder, the resizer and the pixel buffer of a thread, which are reused for all images.
pub(crate) struct RenderScratch {
    decoder: Option<Decoder>,
    resizer: Resizer,
    pixels: Vec<u8>,
}

/// Maximum capacity of the reused pixel buffer. A larger buffer is freed after use.
const MAX_REUSED_BYTES: usize = 64 << 20;

thread_local! {
    static SCRATCH: RefCell<RenderScratch> = RefCell::new(RenderScratch::new());
}

/// Calls `work` with the scratch of the current thread.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut RenderScratch) -> T) -> T {
    SCRATCH.with_borrow_mut(work)
}

impl RenderScratch {
    pub(crate) fn new() -> Self {
        Self { decoder: None, resizer: Resizer::new(), pixels: Vec::new() }
    }

    fn decoder(decoder: &mut Option<Decoder>) -> Result<&mut Decoder, String> {
        if decoder.is_none() {
            *decoder = Some(Decoder::new().map_err(|error| error.to_string())?);
        }
        Ok(decoder.as_mut().expect("the branch above sets the decoder"))
    }

    /// Decodes a whole image.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> Result<Image, String> {
        match detect_encoding(bytes)? {
            Encoding::Jpeg => {
                let mut data = Vec::new();
                let opened =
                    Self::decoder(&mut self.decoder)?.open(bytes).map_err(|error| error.to_string())?;
                let JpegHeader { width, height, .. } = *opened.header();
                let whole = Region { x: 0, y: 0, width, height };
                let _reservation = decode_memory::reserve(opened.working_bytes(whole));
                let decoded = opened.decode(&mut data).map_err(|error| error.to_string())?;
                Ok(Image { width: decoded.width, height: decoded.height, data: data.into() })
            }
            other => decode(bytes, other).map(|(image, _reservation)| image),
        }
    }

    /// Adds an index to a JPEG. `None` for other formats, and for JPEGs that cannot have an index.
    pub(crate) fn with_index(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        Self::decoder(&mut self.decoder).ok()?.with_index(bytes)
    }

    /// Crops a picture and resizes the crop into `out`, which is an image of `size`. `plan` computes the crop from the width and the
    /// height of the picture.
    pub(crate) fn render(
        &mut self,
        picture: Picture<'_>,
        plan: impl FnOnce(u32, u32) -> CropPlan,
        size: Size,
        out: &mut [u8],
    ) -> Result<(), String> {
        match picture {
            Picture::Encoded(bytes) => match detect_encoding(bytes)? {
                Encoding::Jpeg => self.render_jpeg(bytes, plan, size, out),
                Encoding::Pixels => {
                    let Pixels { width, height, data } = Pixels::parse(bytes)?;
                    self.render_pixels(data, [width, height], plan, size, out)
                }
                other => {
                    let (image, _reservation) = decode(bytes, other)?;
                    self.render_pixels(&image.data, [image.width, image.height], plan, size, out)
                }
            },
            Picture::Decoded { width, height, pixels } => {
                self.render_pixels(pixels, [width, height], plan, size, out)
            }
        }
    }

    fn render_jpeg(
        &mut self,
        jpeg: &[u8],
        plan: impl FnOnce(u32, u32) -> CropPlan,
        size: Size,
        out: &mut [u8],
    ) -> Result<(), String> {
        let mut opened = Self::decoder(&mut self.decoder)?.open(jpeg).map_err(|error| error.to_string())?;
        let mut plan = plan(opened.header().width, opened.header().height);
        let _reservation = decode_memory::reserve(opened.working_bytes(plan.region));
        let half =
            if plan.may_be_halved() { opened.decode_half(plan.region, &mut self.pixels) } else { None };
        let decoded = match half {
            Some(decoded) => {
                plan = plan.halved();
                decoded
            }
            None => opened.decode_region(plan.region, &mut self.pixels).map_err(|error| error.to_string())?,
        };
        let region = Region { x: decoded.x_offset, y: decoded.y_offset, ..plan.region };
        let pixels = &self.pixels[..decoded.bytes()];
        let result =
            resample(&mut self.resizer, pixels, [decoded.width, decoded.height], region, &plan, size, out);
        if self.pixels.capacity() > MAX_REUSED_BYTES {
            self.pixels = Vec::new();
        }
        result
    }

    fn render_pixels(
        &mut self,
        pixels: &[u8],
        [width, height]: [u32; 2],
        plan: impl FnOnce(u32, u32) -> CropPlan,
        size: Size,
        out: &mut [u8],
    ) -> Result<(), String> {
        let plan = plan(width, height);
        resample(&mut self.resizer, pixels, [width, height], plan.region, &plan, size, out)
    }
}

/// Resizes the source box of the plan into its target in `out`. `region` is the position of the plan's region in `pixels`.
fn resample(
    resizer: &mut Resizer,
    pixels: &[u8],
    [width, height]: [u32; 2],
    region: Region,
    plan: &CropPlan,
    [out_height, out_width]: Size,
    out: &mut [u8],
) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot resize the image: {error}");
    // The resizer resizes rows before columns, so the intermediate image has the target width.
    let intermediate_bytes = u64::from(plan.target.width) * u64::from(region.height) * 3;
    if intermediate_bytes > MAX_DECODED_BYTES {
        return Err(failed(&format!(
            "an intermediate image of {} x {} pixels needs {intermediate_bytes} bytes, more than the limit of {MAX_DECODED_BYTES}",
            plan.target.width, region.height
        )));
    }
    let _reservation = decode_memory::reserve(intermediate_bytes);
    let image = TypedImageRef::<U8x3>::from_buffer(width, height, pixels).map_err(|error| failed(&error))?;
    let cropped = TypedCroppedImage::new(image, region.x, region.y, region.width, region.height)
        .map_err(|error| failed(&error))?;
    let source = plan.source;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
        source.left,
        source.top,
        source.width,
        source.height,
    );
    let target = plan.target;
    let is_padded = (target.width, target.height) != (out_width, out_height);
    if is_padded {
        out.fill(0);
    }
    let mut out =
        TypedImage::<U8x3>::from_buffer(out_width, out_height, out).map_err(|error| failed(&error))?;
    if !is_padded {
        return resizer.resize_typed(&cropped, &mut out, &options).map_err(|error| failed(&error));
    }
    let mut out = TypedCroppedImageMut::new(out, target.x, target.y, target.width, target.height)
        .map_err(|error| failed(&error))?;
    resizer.resize_typed(&cropped, &mut out, &options).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests;
