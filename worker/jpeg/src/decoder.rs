//! The JPEG decoder: a libjpeg-turbo instance, our entropy decoder, and their buffers, which are reused for all images.

use crate::buffers::{grow_buffer, shrink_if_large};
use crate::error::{JpegError, MAX_DECODED_BYTES, MAX_PIXELS};
use crate::exif::read_markers;
use crate::handle::{TurboJpeg, max_scans};
use crate::header::{Colorspace, JpegHeader};
use crate::index::EntropyIndex;
use crate::partial::{PartialDecoder, Reduction};
use crate::region::{DecodedRegion, Region};

/// Decodes one JPEG at a time. Each thread reuses one decoder for all of its images.
#[derive(Debug)]
pub struct Decoder {
    handle: TurboJpeg,
    pub(crate) partial: PartialDecoder,
    /// Pixels in the stored orientation, before they are rotated.
    stored: Vec<u8>,
    /// CMYK pixels.
    cmyk: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder with its own libjpeg-turbo instance.
    pub fn new() -> Result<Self, JpegError> {
        let partial =
            PartialDecoder::new().ok_or_else(|| JpegError::Setup { message: "out of memory".to_owned() })?;
        Ok(Self { handle: TurboJpeg::new()?, partial, stored: Vec::new(), cmyk: Vec::new() })
    }

    /// Returns the header of `jpeg`.
    pub fn header(&mut self, jpeg: &[u8]) -> Result<JpegHeader, JpegError> {
        Ok(self.open(jpeg)?.header)
    }

    /// Parses the header of `jpeg`. The result decodes regions without parsing the header again.
    pub fn open<'a>(&'a mut self, jpeg: &'a [u8]) -> Result<ParsedJpeg<'a>, JpegError> {
        let markers = read_markers(jpeg);
        if !jpeg.starts_with(&[0xFF, 0xD8]) {
            return Err(JpegError::Corrupt {
                message: "not a JPEG file: the data does not start with FF D8".to_owned(),
            });
        }
        let index = markers.index;
        let header = match self.handle.read_header(jpeg, markers) {
            Ok(header) => header,
            Err(error) => {
                // The instance stopped within a header and would continue there with the next image.
                self.handle = TurboJpeg::new()?;
                return Err(error);
            }
        };
        if u64::from(header.width) * u64::from(header.height) > MAX_PIXELS {
            return Err(JpegError::TooLarge { width: header.width, height: header.height });
        }
        let bytes = working_bytes(&header);
        if bytes > MAX_DECODED_BYTES {
            return Err(JpegError::TooMuchMemory { width: header.width, height: header.height, bytes });
        }
        Ok(ParsedJpeg { decoder: self, jpeg, header, index })
    }

    /// Returns the JPEG with an index of its entropy-coded data, which makes decoding of regions faster. The index is one
    /// additional segment, which other decoders ignore. It increases the size by about 1 %. Returns `None` if the JPEG has
    /// an index, or if the image is progressive, arithmetically coded, CMYK, too large, or corrupted.
    pub fn with_index(&mut self, jpeg: &[u8]) -> Option<Vec<u8>> {
        if !jpeg.starts_with(&[0xFF, 0xD8]) || read_markers(jpeg).index.is_some() {
            return None;
        }
        self.header(jpeg).ok()?;
        self.partial.with_index(jpeg)
    }

    /// Decodes a region of the upright image; see [`ParsedJpeg::decode_region`].
    pub fn decode_region(
        &mut self,
        jpeg: &[u8],
        region: Region,
        out: &mut Vec<u8>,
    ) -> Result<DecodedRegion, JpegError> {
        self.open(jpeg)?.decode_region(region, out)
    }
}

/// A JPEG with a parsed header.
#[derive(Debug)]
pub struct ParsedJpeg<'a> {
    decoder: &'a mut Decoder,
    jpeg: &'a [u8],
    header: JpegHeader,
    index: Option<EntropyIndex<'a>>,
}

impl ParsedJpeg<'_> {
    /// Returns the header.
    pub fn header(&self) -> &JpegHeader {
        &self.header
    }

    /// Returns the maximum memory in bytes for decoding a region of the upright image. This function accepts invalid regions;
    /// decoding rejects them.
    pub fn working_bytes(&self, region: Region) -> u64 {
        let whole = working_bytes(&self.header);
        match self.header.column_width {
            Some(columns) if !self.header.is_progressive => {
                // The margin of `crop_around`, for any orientation of the image.
                let margin = u64::from(columns) + 3;
                let pixels = (u64::from(region.width) + margin) * (u64::from(region.height) + margin);
                pixels.saturating_mul(pixel_bytes(&self.header)).min(whole)
            }
            _ => whole,
        }
    }

    /// Decodes the whole image. Afterwards, `out` contains exactly its pixels.
    pub fn decode(self, out: &mut Vec<u8>) -> Result<DecodedRegion, JpegError> {
        let region = Region { x: 0, y: 0, width: self.header.width, height: self.header.height };
        let decoded = self.decode_region(region, out)?;
        out.truncate(decoded.bytes());
        Ok(decoded)
    }

    /// Decodes a region at half size with a smaller inverse DCT: pixel (x, y) of the result is the mean of the stored pixels
    /// (2x, 2y) to (2x + 1, 2y + 1). The offsets and sizes of the result are in these pixels, and cover the region.
    ///
    /// Returns `None` and leaves `out` undefined if only [`decode_region`](Self::decode_region) can decode the region:
    /// for invalid regions, and for images that are rotated, progressive, lossless, CMYK, or corrupted.
    pub fn decode_half(&mut self, region: Region, out: &mut Vec<u8>) -> Option<DecodedRegion> {
        let JpegHeader { width, height, orientation, is_progressive, column_width, .. } = self.header;
        let (right, bottom) = (region.x.checked_add(region.width)?, region.y.checked_add(region.height)?);
        let is_within = region.width > 0 && region.height > 0 && right <= width && bottom <= height;
        if !is_within || is_progressive || !orientation.is_upright() {
            return None;
        }
        let (x, y) = (region.x / 2, region.y / 2);
        let wanted = Region { x, y, width: right.div_ceil(2) - x, height: bottom.div_ceil(2) - y };
        let crop = crop_around(wanted, column_width? / 2, width.div_ceil(2));
        grow_buffer(out, crop.width as usize * crop.height as usize * 3);
        let decoded = self.decoder.partial.decode(self.jpeg, (crop, Reduction::Half), self.index, out);
        let (x_offset, y_offset) = (wanted.x - crop.x, wanted.y - crop.y);
        decoded.then_some(DecodedRegion { width: crop.width, height: crop.height, x_offset, y_offset })
    }

    /// Decodes a region of the upright image as RGB8 in rows of the returned width.
    ///
    /// The pixels are the first [`DecodedRegion::bytes`] bytes of `out`. The buffer grows if needed and never shrinks, so
    /// that a reused buffer is neither reallocated nor cleared. The pixels of the region are equal to those of the
    /// completely decoded image.
    ///
    /// Whether an image is corrupted does not depend on the region, with one exception: flipped bits do not change the structure
    /// of the data, and are found only in the data that a region decodes.
    pub fn decode_region(self, region: Region, out: &mut Vec<u8>) -> Result<DecodedRegion, JpegError> {
        let JpegHeader { width, height, stored_width, stored_height, orientation, .. } = self.header;
        let fits = |start: u32, extent: u32, limit: u32| {
            extent > 0 && start.checked_add(extent).is_some_and(|end| end <= limit)
        };
        if !fits(region.x, region.width, width) || !fits(region.y, region.height, height) {
            return Err(JpegError::Region { region, width, height });
        }
        let wanted = orientation.stored_region(region, stored_width, stored_height);
        let crop = match self.header.column_width {
            Some(column_width) => crop_around(wanted, column_width, stored_width),
            None => Region { x: 0, y: 0, width: stored_width, height: stored_height },
        };
        let Decoder { handle, partial, stored, cmyk } = self.decoder;
        let is_upright = orientation.is_upright();
        let pixels = if is_upright { &mut *out } else { &mut *stored };
        grow_buffer(pixels, crop.width as usize * crop.height as usize * 3);
        if self.header.is_progressive
            || !partial.decode(self.jpeg, (crop, Reduction::None), self.index, pixels)
        {
            let scans = max_scans(u64::from(stored_width) * u64::from(stored_height));
            let mut is_complete = || partial.is_complete(self.jpeg, &self.header, scans);
            // libjpeg-turbo reads an image with one scan only up to the last row of the crop.
            let is_read_whole = self.header.is_progressive || crop.y + crop.height == stored_height;
            if !is_read_whole && !is_complete() {
                return Err(JpegError::Corrupt {
                    message: "Corrupt JPEG data: data is missing or invalid".to_owned(),
                });
            }
            let checked = (&mut *cmyk, &mut is_complete as &mut dyn FnMut() -> bool);
            let decompressed = handle.decompress_rgb(self.jpeg, &self.header, crop, checked, pixels);
            shrink_if_large(cmyk);
            decompressed?;
        }
        if is_upright {
            let (x_offset, y_offset) = (wanted.x - crop.x, wanted.y - crop.y);
            return Ok(DecodedRegion { width: crop.width, height: crop.height, x_offset, y_offset });
        }
        let decoded = DecodedRegion { width: region.width, height: region.height, x_offset: 0, y_offset: 0 };
        grow_buffer(out, decoded.bytes());
        let visible = Region { x: wanted.x - crop.x, y: wanted.y - crop.y, ..wanted };
        orientation.copy_upright(stored, crop.width, visible, out);
        shrink_if_large(stored);
        Ok(decoded)
    }
}

/// Returns the smallest crop for libjpeg-turbo in which the pixels of `wanted` equal the pixels of the whole decoded
/// image. Crops start at a multiple of `column_width`.
fn crop_around(wanted: Region, column_width: u32, image_width: u32) -> Region {
    // Smooth chroma upsampling reads one chroma sample (two pixels at 4:2:0) on either side, so a crop exactly at the
    // region would change its border.
    let x = wanted.x.saturating_sub(1) / column_width * column_width;
    let end = (wanted.x + wanted.width + 2).min(image_width);
    Region { x, y: wanted.y, width: end - x, height: wanted.height }
}

/// Returns the memory in bytes for decoding a whole image: its pixels and, with several scans, the coefficients of all
/// components with two bytes each.
fn working_bytes(header: &JpegHeader) -> u64 {
    let components = match header.colorspace {
        Colorspace::Grey => 1,
        Colorspace::Cmyk | Colorspace::Ycck => 4,
        Colorspace::Rgb | Colorspace::YCbCr => 3,
    };
    let coefficients = if header.is_progressive { 2 * components } else { 0 };
    let pixels = u64::from(header.stored_width) * u64::from(header.stored_height);
    pixels * (pixel_bytes(header) + coefficients)
}

/// Returns the memory in bytes per pixel: 3 for RGB, 3 more if the image is rotated, and 4 more if it is CMYK.
fn pixel_bytes(header: &JpegHeader) -> u64 {
    let is_cmyk = matches!(header.colorspace, Colorspace::Cmyk | Colorspace::Ycck);
    let rotation_bytes = if header.orientation.is_upright() { 0 } else { 3 };
    3 + rotation_bytes + if is_cmyk { 4 } else { 0 }
}
