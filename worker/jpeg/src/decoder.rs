//! The decoder: one libjpeg-turbo instance and the buffers it needs, reused from image to image.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use turbojpeg_sys as sys;

use crate::exif::{Markers, read_markers};
use crate::{
    Colorspace, DecodedRegion, Header, JpegError, MAX_PIXELS, Orientation, Region,
    cmyk::convert_inverted_cmyk,
    index::EntropyIndex,
    partial::{Partial, Reduction},
};

/// More scans than any encoder writes: a progressive image beyond this only wants to burn time.
const MAX_SCANS: c_int = 500;

/// Warnings after which the pixels are still the right ones; Pillow and TensorFlow ignore them too.
const HARMLESS_WARNINGS: [&str; 4] = [
    "extraneous bytes before marker",
    "unknown JFIF revision",
    "Unknown Adobe color transform",
    "Inconsistent progression",
];

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
    pub fn header(&mut self, jpeg: &[u8]) -> Result<Header, JpegError> {
        Ok(self.open(jpeg)?.header)
    }

    /// Reads the header of `jpeg`, so that a region can be chosen and decoded without reading it again.
    pub fn open<'a>(&'a mut self, jpeg: &'a [u8]) -> Result<Opened<'a>, JpegError> {
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
        Ok(Opened { decoder: self, jpeg, header, index })
    }

    /// The JPEG with an index of its data, which regions of it are decoded faster by: the same bytes with one segment
    /// more, about 1 % of its size, which other decoders pass over. `None` where it has one already, or where the image
    /// is of a kind that has none: progressive, arithmetically coded, CMYK, or damaged.
    pub fn with_index(&mut self, jpeg: &[u8]) -> Option<Vec<u8>> {
        if !jpeg.starts_with(&[0xFF, 0xD8]) || read_markers(jpeg).index.is_some() {
            return None;
        }
        self.partial.with_index(jpeg)
    }

    /// Decodes what `region` of the upright image needs; see [`Opened::decode_region`].
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
pub struct Opened<'a> {
    decoder: &'a mut Decoder,
    jpeg: &'a [u8],
    header: Header,
    index: Option<EntropyIndex<'a>>,
}

impl Opened<'_> {
    /// What the header says.
    pub fn header(&self) -> &Header {
        &self.header
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
        let Header { width, height, orientation, is_progressive, column_width, .. } = self.header;
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
        let Header { width, height, stored_width, stored_height, orientation, .. } = self.header;
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
            handle.decompress_rgb(self.jpeg, &self.header, cut, inks, pixels)?;
        }
        if is_upright {
            let (x_offset, y_offset) = (wanted.x - cut.x, wanted.y - cut.y);
            return Ok(DecodedRegion { width: cut.width, height: cut.height, x_offset, y_offset });
        }
        let decoded = DecodedRegion { width: region.width, height: region.height, x_offset: 0, y_offset: 0 };
        grow(out, decoded.bytes());
        let place = Region { x: wanted.x - cut.x, y: wanted.y - cut.y, ..wanted };
        orientation.turn(stored, cut.width, place, out);
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

/// Makes `buffer` at least `length` long, without clearing what is there.
fn grow(buffer: &mut Vec<u8>, length: usize) {
    if buffer.capacity() < length {
        // Fresh zeroed memory comes without being touched; growing the old vector would copy it.
        *buffer = vec![0; length];
    } else if buffer.len() < length {
        buffer.resize(length, 0);
    }
}

/// An owned libjpeg-turbo decompressor.
#[derive(Debug)]
pub(crate) struct Handle(NonNull<std::ffi::c_void>);

// SAFETY: the instance is owned by this value alone and holds no thread's identity; only the text of the last error
// is per thread, and it is read right after the call that failed, on the same thread.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from tj3Init, is destroyed only here, and nothing uses it afterwards.
        unsafe { sys::tj3Destroy(self.0.as_ptr()) };
    }
}

impl Handle {
    pub(crate) fn new() -> Result<Self, JpegError> {
        // SAFETY: tj3Init takes a plain number and returns an instance or null.
        let raw = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let Some(handle) = NonNull::new(raw) else {
            return Err(JpegError::Setup { message: last_message(std::ptr::null_mut()) });
        };
        let handle = Self(handle);
        let settings = [(sys::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS), (sys::TJPARAM_TJPARAM_SAVEMARKERS, 0)];
        for (parameter, value) in settings {
            if !handle.set(parameter, value) {
                return Err(JpegError::Setup { message: handle.message() });
            }
        }
        Ok(handle)
    }

    fn set(&self, parameter: sys::TJPARAM, value: c_int) -> bool {
        // SAFETY: the handle is live; tj3Set checks parameter and value and reports what it refuses.
        unsafe { sys::tj3Set(self.0.as_ptr(), parameter as c_int, value) == 0 }
    }

    fn get(&self, parameter: sys::TJPARAM) -> c_int {
        // SAFETY: the handle is live; tj3Get only reads a field of it.
        unsafe { sys::tj3Get(self.0.as_ptr(), parameter as c_int) }
    }

    /// The message of the call on this handle that failed last on this thread.
    fn message(&self) -> String {
        last_message(self.0.as_ptr())
    }

    /// Whether the call that failed last gave its full result, with a warning.
    fn failed_with_warning(&self) -> bool {
        // SAFETY: the handle is live; tj3GetErrorCode only reads a field of it.
        unsafe { sys::tj3GetErrorCode(self.0.as_ptr()) == sys::TJERR_TJERR_WARNING as c_int }
    }

    fn corrupt(&self) -> JpegError {
        JpegError::Corrupt { message: self.message() }
    }

    pub(crate) fn read_header(&self, jpeg: &[u8], markers: Markers<'_>) -> Result<Header, JpegError> {
        self.set(sys::TJPARAM_TJPARAM_STOPONWARNING, 0);
        // SAFETY: pointer and length describe a live slice, which the call only reads and does not keep: the next
        // call on this handle is given its own slice before libjpeg reads anything.
        let status =
            unsafe { sys::tj3DecompressHeader(self.0.as_ptr(), jpeg.as_ptr(), jpeg.len() as sys::size_t) };
        if status != 0 && !(self.failed_with_warning() && is_harmless(&self.message())) {
            return Err(self.corrupt());
        }
        // A stream of tables without an image succeeds and leaves the sizes of the image before it.
        if !markers.has_frame {
            return Err(JpegError::Corrupt { message: "the file has no image, only tables".to_owned() });
        }
        let colorspace = match self.get(sys::TJPARAM_TJPARAM_COLORSPACE) as sys::TJCS {
            sys::TJCS_TJCS_RGB => Colorspace::Rgb,
            sys::TJCS_TJCS_YCbCr => Colorspace::YCbCr,
            sys::TJCS_TJCS_GRAY => Colorspace::Grey,
            sys::TJCS_TJCS_CMYK => Colorspace::Cmyk,
            sys::TJCS_TJCS_YCCK => Colorspace::Ycck,
            other => return Err(JpegError::Corrupt { message: format!("unknown colour space {other}") }),
        };
        let size = |parameter| {
            u32::try_from(self.get(parameter))
                .ok()
                .filter(|&size| size > 0)
                .ok_or_else(|| JpegError::Corrupt { message: "the header gives no size".to_owned() })
        };
        let stored_width = size(sys::TJPARAM_TJPARAM_JPEGWIDTH)?;
        let stored_height = size(sys::TJPARAM_TJPARAM_JPEGHEIGHT)?;
        let Markers { orientation, is_progressive, .. } = markers;
        let (width, height) = Orientation::upright_size(orientation, stored_width, stored_height);
        let is_lossless = self.get(sys::TJPARAM_TJPARAM_LOSSLESS) != 0;
        let column_width = if is_lossless { None } else { self.column_width() };
        Ok(Header {
            width,
            height,
            stored_width,
            stored_height,
            orientation,
            colorspace,
            is_progressive,
            is_lossless,
            column_width,
        })
    }

    /// Width of an iMCU in pixels; `None` for a subsampling that libjpeg-turbo cannot cut.
    fn column_width(&self) -> Option<u32> {
        match self.get(sys::TJPARAM_TJPARAM_SUBSAMP) as sys::TJSAMP {
            sys::TJSAMP_TJSAMP_444 | sys::TJSAMP_TJSAMP_GRAY | sys::TJSAMP_TJSAMP_440 => Some(8),
            sys::TJSAMP_TJSAMP_441 => Some(8),
            sys::TJSAMP_TJSAMP_422 | sys::TJSAMP_TJSAMP_420 => Some(16),
            sys::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        }
    }

    /// Decodes the rectangle `cut` of the stored image whose header was read last into the front of `out`.
    pub(crate) fn decompress_rgb(
        &self,
        jpeg: &[u8],
        header: &Header,
        cut: Region,
        inks: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<(), JpegError> {
        let pixels = cut.width as usize * cut.height as usize;
        if !matches!(header.colorspace, Colorspace::Cmyk | Colorspace::Ycck) {
            return self.decompress(jpeg, header, cut, (sys::TJPF_TJPF_RGB, 3), out);
        }
        grow(inks, pixels * 4);
        self.decompress(jpeg, header, cut, (sys::TJPF_TJPF_CMYK, 4), inks)?;
        convert_inverted_cmyk(&inks[..pixels * 4], out);
        Ok(())
    }

    fn decompress(
        &self,
        jpeg: &[u8],
        header: &Header,
        cut: Region,
        (format, pixel_bytes): (sys::TJPF, usize),
        out: &mut [u8],
    ) -> Result<(), JpegError> {
        let is_whole = cut.width == header.stored_width && cut.height == header.stored_height;
        self.crop(if is_whole { Region { x: 0, y: 0, width: 0, height: 0 } } else { cut })?;
        self.set(sys::TJPARAM_TJPARAM_STOPONWARNING, 1);
        if self.decompress_once(jpeg, cut, (format, pixel_bytes), out) == 0 {
            return Ok(());
        }
        if !(self.failed_with_warning() && is_harmless(&self.message())) {
            return Err(self.corrupt());
        }
        // Once more, past the harmless warning; a harmful one after it is the last and so the one that is reported.
        self.set(sys::TJPARAM_TJPARAM_STOPONWARNING, 0);
        let status = self.decompress_once(jpeg, cut, (format, pixel_bytes), out);
        if status == 0 || (self.failed_with_warning() && is_harmless(&self.message())) {
            return Ok(());
        }
        Err(self.corrupt())
    }

    fn decompress_once(
        &self,
        jpeg: &[u8],
        cut: Region,
        (format, pixel_bytes): (sys::TJPF, usize),
        out: &mut [u8],
    ) -> c_int {
        let pitch = cut.width as usize * pixel_bytes;
        assert!(out.len() >= pitch * cut.height as usize, "the caller sized the buffer for the cut");
        // SAFETY: the jpeg slice is live and only read. libjpeg-turbo writes at most `cut.height` rows of `pitch`
        // bytes: either the cropping region is `cut`, or no region is set and `cut` is the whole image by the header
        // that was read from these very bytes, with scaling left at 1; the assertion above has checked that they
        // fit, and `pitch` holds `cut.width` pixels of `format`. Both pointers are used only during the call.
        unsafe {
            sys::tj3Decompress8(
                self.0.as_ptr(),
                jpeg.as_ptr(),
                jpeg.len() as sys::size_t,
                out.as_mut_ptr(),
                pitch as c_int,
                format as c_int,
            )
        }
    }

    /// Sets the rectangle to decode; all zeros mean the whole image.
    fn crop(&self, cut: Region) -> Result<(), JpegError> {
        let region = sys::tjregion {
            x: cut.x as c_int,
            y: cut.y as c_int,
            w: cut.width as c_int,
            h: cut.height as c_int,
        };
        // SAFETY: the handle is live; the region is passed by value and checked against the header read before.
        if unsafe { sys::tj3SetCroppingRegion(self.0.as_ptr(), region) } != 0 {
            return Err(self.corrupt());
        }
        Ok(())
    }
}

fn is_harmless(message: &str) -> bool {
    HARMLESS_WARNINGS.iter().any(|harmless| message.contains(harmless))
}

/// The message of the last failed call on this thread; a null handle asks for failures without an instance.
fn last_message(handle: *mut std::ffi::c_void) -> String {
    // SAFETY: the handle is live or null, both of which tj3GetErrorStr takes; it returns a terminated string that
    // stays until the next call on this thread, and the text is copied before that.
    let text = unsafe { CStr::from_ptr(sys::tj3GetErrorStr(handle)) };
    text.to_string_lossy().replace('\n', " ")
}
