//! Decodes what a cut needs and resizes it into its place: the inner loop of every image operator.

use std::cell::RefCell;

use fast_image_resize::images::{TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use feedline_data::pipeline::Size;
use feedline_jpeg::{Decoder, JpegHeader, MAX_DECODED_BYTES, Region};

use crate::Image;
use crate::cache_encodings::{Pixels, pixels};
use crate::decode_memory;
use crate::geometry::CropPlan;
use crate::raster::{Encoding, decode, encoding_of};

/// One row's picture, in whatever form it comes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Picture<'a> {
    /// JPEG, PNG or WebP, or pixels that were kept.
    Encoded(&'a [u8]),
    /// RGB8 in rows.
    Decoded { width: u32, height: u32, pixels: &'a [u8] },
}

/// What a thread keeps from image to image, so that none of it is allocated again.
pub(crate) struct RenderScratch {
    decoder: Option<Decoder>,
    resizer: Resizer,
    pixels: Vec<u8>,
}

/// Decoded pixels larger than this are given back after use, so that one huge image does not stay in every thread.
const KEPT_BYTES: usize = 64 << 20;

thread_local! {
    static SCRATCH: RefCell<RenderScratch> = RefCell::new(RenderScratch::new());
}

/// Runs `work` with this thread's scratch.
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
        Ok(decoder.as_mut().expect("it was set above"))
    }

    /// Decodes a whole image.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> Result<Image, String> {
        match encoding_of(bytes)? {
            Encoding::Jpeg => {
                let mut data = Vec::new();
                let opened =
                    Self::decoder(&mut self.decoder)?.open(bytes).map_err(|error| error.to_string())?;
                let JpegHeader { width, height, .. } = *opened.header();
                let whole = Region { x: 0, y: 0, width, height };
                let _place = decode_memory::take(opened.working_bytes(whole));
                let decoded = opened.decode(&mut data).map_err(|error| error.to_string())?;
                Ok(Image { width: decoded.width, height: decoded.height, data: data.into() })
            }
            other => decode(bytes, other).map(|(image, _place)| image),
        }
    }

    /// A JPEG with an index of its data; `None` for what has none.
    pub(crate) fn with_index(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        Self::decoder(&mut self.decoder).ok()?.with_index(bytes)
    }

    /// Cuts, from the picture's width and height, and resizes into `out`, an image of `size`.
    pub(crate) fn render(
        &mut self,
        picture: Picture<'_>,
        cut: impl FnOnce(u32, u32) -> CropPlan,
        size: Size,
        out: &mut [u8],
    ) -> Result<(), String> {
        match picture {
            Picture::Encoded(bytes) => match encoding_of(bytes)? {
                Encoding::Jpeg => self.render_jpeg(bytes, cut, size, out),
                Encoding::Pixels => {
                    let Pixels { width, height, data } = pixels(bytes)?;
                    self.render_pixels(data, [width, height], cut, size, out)
                }
                other => {
                    let (image, _place) = decode(bytes, other)?;
                    self.render_pixels(&image.data, [image.width, image.height], cut, size, out)
                }
            },
            Picture::Decoded { width, height, pixels } => {
                self.render_pixels(pixels, [width, height], cut, size, out)
            }
        }
    }

    fn render_jpeg(
        &mut self,
        jpeg: &[u8],
        cut: impl FnOnce(u32, u32) -> CropPlan,
        size: Size,
        out: &mut [u8],
    ) -> Result<(), String> {
        let mut opened = Self::decoder(&mut self.decoder)?.open(jpeg).map_err(|error| error.to_string())?;
        let mut cut = cut(opened.header().width, opened.header().height);
        let _place = decode_memory::take(opened.working_bytes(cut.region));
        let half = if cut.may_be_halved() { opened.decode_half(cut.region, &mut self.pixels) } else { None };
        let decoded = match half {
            Some(decoded) => {
                cut = cut.halved();
                decoded
            }
            None => opened.decode_region(cut.region, &mut self.pixels).map_err(|error| error.to_string())?,
        };
        let place = Region { x: decoded.x_offset, y: decoded.y_offset, ..cut.region };
        let pixels = &self.pixels[..decoded.bytes()];
        let done =
            resample(&mut self.resizer, pixels, [decoded.width, decoded.height], place, &cut, size, out);
        if self.pixels.capacity() > KEPT_BYTES {
            self.pixels = Vec::new();
        }
        done
    }

    fn render_pixels(
        &mut self,
        pixels: &[u8],
        [width, height]: [u32; 2],
        cut: impl FnOnce(u32, u32) -> CropPlan,
        size: Size,
        out: &mut [u8],
    ) -> Result<(), String> {
        let cut = cut(width, height);
        resample(&mut self.resizer, pixels, [width, height], cut.region, &cut, size, out)
    }
}

/// Resizes the cut's box within `place` of the pixels into the cut's target within `out`.
fn resample(
    resizer: &mut Resizer,
    pixels: &[u8],
    [width, height]: [u32; 2],
    place: Region,
    cut: &CropPlan,
    [out_height, out_width]: Size,
    out: &mut [u8],
) -> Result<(), String> {
    let cannot = |error: &dyn std::fmt::Display| format!("cannot be resized: {error}");
    // Rows are resized before columns.
    let between_bytes = u64::from(cut.target.width) * u64::from(place.height) * 3;
    if between_bytes > MAX_DECODED_BYTES {
        return Err(cannot(&format!(
            "{height} rows of {} pixels each take {between_bytes} bytes on the way, more than {MAX_DECODED_BYTES}",
            cut.target.width,
            height = place.height
        )));
    }
    let _place = decode_memory::take(between_bytes);
    let image = TypedImageRef::<U8x3>::from_buffer(width, height, pixels).map_err(|error| cannot(&error))?;
    let region = TypedCroppedImage::new(image, place.x, place.y, place.width, place.height)
        .map_err(|error| cannot(&error))?;
    let source = cut.source;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
        source.left,
        source.top,
        source.width,
        source.height,
    );
    let target = cut.target;
    let is_padded = (target.width, target.height) != (out_width, out_height);
    if is_padded {
        out.fill(0);
    }
    let mut out =
        TypedImage::<U8x3>::from_buffer(out_width, out_height, out).map_err(|error| cannot(&error))?;
    if !is_padded {
        return resizer.resize_typed(&region, &mut out, &options).map_err(|error| cannot(&error));
    }
    let mut out = TypedCroppedImageMut::new(out, target.x, target.y, target.width, target.height)
        .map_err(|error| cannot(&error))?;
    resizer.resize_typed(&region, &mut out, &options).map_err(|error| cannot(&error))
}

#[cfg(test)]
mod tests;
