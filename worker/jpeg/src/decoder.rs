//! The decoder: a libjpeg-turbo instance, our own entropy decoder, and the buffers they need, reused from image to image.

use crate::exif::read_markers;
use crate::handle::Handle;
use crate::index::EntropyIndex;
use crate::partial::{Partial, Reduction};
use crate::{Colorspace, DecodedRegion, JpegError, JpegHeader, MAX_DECODED_BYTES, MAX_PIXELS, Region};

/// Buffers larger than this are given back after use, so that one huge image does not stay in every thread.
const KEPT_BYTES: usize = 64 << 20;

/// Decodes JPEGs, one at a time; a thread keeps one for all its images.
#[derive(Debug)]
pub struct Decoder {
    handle: Handle,
    pub(crate) partial: Partial,
    /// Pixels as stored, before they are turned or converted.
    stored: Vec<u8>,
    /// CMYK pixels.
    inks: Vec<u8>,
}

impl Decoder {
    /// A decoder with its own libjpeg-turbo instance.
    pub fn new() -> Result<Self, JpegError> {
        let partial =
            Partial::new().ok_or_else(|| JpegError::Setup { message: "memory is short".to_owned() })?;
        Ok(Self { handle: Handle::new()?, partial, stored: Vec::new(), inks: Vec::new() })
    }

    /// What the header of `jpeg` says.
    pub fn header(&mut self, jpeg: &[u8]) -> Result<JpegHeader, JpegError> {
        Ok(self.open(jpeg)?.header)
    }

    /// Reads the header of `jpeg`, so that a region can be chosen and decoded without reading it again.
    pub fn open<'a>(&'a mut self, jpeg: &'a [u8]) -> Result<ParsedJpeg<'a>, JpegError> {
        let markers = read_markers(jpeg);
        if !jpeg.starts_with(&[0xFF, 0xD8]) {
            return Err(JpegError::Corrupt {
                message: "not a JPEG file: it does not start with FF D8".to_owned(),
            });
        }
        let index = markers.index;
        let header = match self.handle.read_header(jpeg, markers) {
            Ok(header) => header,
            Err(error) => {
                // libjpeg is left in the middle of a header and would go on there with the next image.
                self.handle = Handle::new()?;
                return Err(error);
            }
        };
        if u64::from(header.width) * u64::from(header.height) > MAX_PIXELS {
            return Err(JpegError::TooLarge { width: header.width, height: header.height });
        }
        let bytes = working_bytes(&header);
        if bytes > MAX_DECODED_BYTES {
            return Err(JpegError::TooHeavy { width: header.width, height: header.height, bytes });
        }
        Ok(ParsedJpeg { decoder: self, jpeg, header, index })
    }

    /// The JPEG with an index of its data, which regions of it are decoded faster by: the same bytes with one segment
    /// more, about 1 % of its size, which other decoders pass over. `None` where it has one already, or where the image
    /// is of a kind that has none: progressive, arithmetically coded, CMYK, too large, or damaged.
    pub fn with_index(&mut self, jpeg: &[u8]) -> Option<Vec<u8>> {
        if !jpeg.starts_with(&[0xFF, 0xD8]) || read_markers(jpeg).index.is_some() {
            return None;
        }
        self.header(jpeg).ok()?;
        self.partial.with_index(jpeg)
    }

    /// Decodes what `region` of the upright image needs; see [`ParsedJpeg::decode_region`].
    pub fn decode_region(
        &mut self,
        jpeg: &[u8],
        region: Region,
        out: &mut Vec<u8>,
    ) -> Result<DecodedRegion, JpegError> {
        self.open(jpeg)?.decode_region(region, out)
    }
}

/// A JPEG whose header has been read.
#[derive(Debug)]
pub struct ParsedJpeg<'a> {
    decoder: &'a mut Decoder,
    jpeg: &'a [u8],
    header: JpegHeader,
    index: Option<EntropyIndex<'a>>,
}

impl ParsedJpeg<'_> {
    /// What the header says.
    pub fn header(&self) -> &JpegHeader {
        &self.header
    }

    /// Bytes that decoding takes at most of what `region` of the upright image needs; a region that does not lie in the image is
    /// refused when it is decoded.
    pub fn working_bytes(&self, region: Region) -> u64 {
        let whole = working_bytes(&self.header);
        match self.header.column_width {
            Some(columns) if !self.header.is_progressive => {
                // As `cut_around` widens it, whichever way the image is turned.
                let margin = u64::from(columns) + 3;
                let pixels = (u64::from(region.width) + margin) * (u64::from(region.height) + margin);
                pixels.saturating_mul(pixel_bytes(&self.header)).min(whole)
            }
            _ => whole,
        }
    }

    /// Decodes the whole image; `out` has exactly its bytes afterwards.
    pub fn decode(self, out: &mut Vec<u8>) -> Result<DecodedRegion, JpegError> {
        let region = Region { x: 0, y: 0, width: self.header.width, height: self.header.height };
        let decoded = self.decode_region(region, out)?;
        out.truncate(decoded.bytes());
        Ok(decoded)
    }

    /// Decodes what `region` needs at half the size, four pixels as one, by a smaller inverse DCT: pixel (x, y) of the
    /// result stands for the stored pixels (2x, 2y) to (2x + 1, 2y + 1). The result's offsets and sizes are in these
    /// pixels, and hold all that the region touches.
    ///
    /// `None`, and anything in `out`, for what only [`decode_region`](Self::decode_region) can do: regions that do not
    /// lie in the image, and images that are turned, progressive, of another kind than photographs, or not sound.
    pub fn decode_half(&mut self, region: Region, out: &mut Vec<u8>) -> Option<DecodedRegion> {
        let JpegHeader { width, height, orientation, is_progressive, column_width, .. } = self.header;
        let (right, bottom) = (region.x.checked_add(region.width)?, region.y.checked_add(region.height)?);
        let lies_within = region.width > 0 && region.height > 0 && right <= width && bottom <= height;
        if !lies_within || is_progressive || !orientation.is_upright() {
            return None;
        }
        let (x, y) = (region.x / 2, region.y / 2);
        let wanted = Region { x, y, width: right.div_ceil(2) - x, height: bottom.div_ceil(2) - y };
        let cut = cut_around(wanted, column_width? / 2, width.div_ceil(2));
        grow(out, cut.width as usize * cut.height as usize * 3);
        let decoded = self.decoder.partial.decode(self.jpeg, (cut, Reduction::Half), self.index, out);
        let (x_offset, y_offset) = (wanted.x - cut.x, wanted.y - cut.y);
        decoded.then_some(DecodedRegion { width: cut.width, height: cut.height, x_offset, y_offset })
    }

    /// Decodes what `region` of the upright image needs, as RGB8 in rows of the returned width.
    ///
    /// The pixels are the first [`DecodedRegion::bytes`] bytes of `out`, which grows where needed and never shrinks,
    /// so that a buffer reused from image to image is neither reallocated nor cleared. The region's pixels are those
    /// that decoding the whole image gives.
    pub fn decode_region(self, region: Region, out: &mut Vec<u8>) -> Result<DecodedRegion, JpegError> {
        let JpegHeader { width, height, stored_width, stored_height, orientation, .. } = self.header;
        let fits = |start: u32, extent: u32, limit: u32| {
            extent > 0 && start.checked_add(extent).is_some_and(|end| end <= limit)
        };
        if !fits(region.x, region.width, width) || !fits(region.y, region.height, height) {
            return Err(JpegError::Region { region, width, height });
        }
        let wanted = orientation.stored_region(region, stored_width, stored_height);
        let cut = match self.header.column_width {
            Some(column_width) => cut_around(wanted, column_width, stored_width),
            None => Region { x: 0, y: 0, width: stored_width, height: stored_height },
        };
        let Decoder { handle, partial, stored, inks } = self.decoder;
        let is_upright = orientation.is_upright();
        let pixels = if is_upright { &mut *out } else { &mut *stored };
        grow(pixels, cut.width as usize * cut.height as usize * 3);
        if self.header.is_progressive
            || !partial.decode(self.jpeg, (cut, Reduction::None), self.index, pixels)
        {
            let decompressed = handle.decompress_rgb(self.jpeg, &self.header, cut, inks, pixels);
            give_back(inks);
            decompressed?;
        }
        if is_upright {
            let (x_offset, y_offset) = (wanted.x - cut.x, wanted.y - cut.y);
            return Ok(DecodedRegion { width: cut.width, height: cut.height, x_offset, y_offset });
        }
        let decoded = DecodedRegion { width: region.width, height: region.height, x_offset: 0, y_offset: 0 };
        grow(out, decoded.bytes());
        let place = Region { x: wanted.x - cut.x, y: wanted.y - cut.y, ..wanted };
        orientation.turn(stored, cut.width, place, out);
        give_back(stored);
        Ok(decoded)
    }
}

/// The smallest rectangle that libjpeg-turbo can cut out of an image of columns this wide whose pixels in `wanted` equal
/// those of the whole image.
fn cut_around(wanted: Region, column_width: u32, image_width: u32) -> Region {
    // Smooth chroma upsampling looks one chroma sample (two pixels at 4:2:0) to either side, so that a cut exactly at
    // the region would change its border.
    let x = wanted.x.saturating_sub(1) / column_width * column_width;
    let end = (wanted.x + wanted.width + 2).min(image_width);
    Region { x, y: wanted.y, width: end - x, height: wanted.height }
}

/// Bytes that decoding a whole image takes: its pixels, and where it comes in several scans the coefficients of all
/// components, two bytes each, before there is any pixel.
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

/// Bytes that a decoded pixel takes: again as many where the image is turned, and four for each of CMYK.
fn pixel_bytes(header: &JpegHeader) -> u64 {
    let has_inks = matches!(header.colorspace, Colorspace::Cmyk | Colorspace::Ycck);
    let turned = if header.orientation.is_upright() { 0 } else { 3 };
    3 + turned + if has_inks { 4 } else { 0 }
}

/// Lets go of a buffer that few images need.
fn give_back(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES {
        *buffer = Vec::new();
    }
}

/// Makes `buffer` at least `length` long, without clearing what is there.
pub(crate) fn grow(buffer: &mut Vec<u8>, length: usize) {
    if buffer.capacity() < length {
        // Fresh zeroed memory comes without being touched; growing the old vector would copy it.
        *buffer = vec![0; length];
    } else if buffer.len() < length {
        buffer.resize(length, 0);
    }
}
