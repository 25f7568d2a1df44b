//! A libjpeg-turbo instance with the TurboJPEG interface. Reads headers, and decodes images that our entropy decoder does not
//! support.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use turbojpeg_sys as sys;

use crate::buffers::grow_buffer;
use crate::cmyk::convert_inverted_cmyk;
use crate::error::JpegError;
use crate::exif::Markers;
use crate::header::{Colorspace, JpegHeader};
use crate::orient::Orientation;
use crate::region::Region;

/// Maximum number of scans. Encoders write fewer; more scans only waste CPU time.
const MAX_SCANS: u64 = 500;
/// Maximum product of pixels and scans, because each scan processes the whole image, however few bytes it has. The largest
/// image may have 24 scans. Encoders write about ten.
const MAX_SCANNED_PIXELS: u64 = 1 << 32;

/// Warnings that do not affect the pixels. Pillow and TensorFlow ignore them too. `c/partial.c` has the same list.
const HARMLESS_WARNINGS: [&str; 4] = [
    "extraneous bytes before marker",
    "unknown JFIF revision",
    "Unknown Adobe color transform",
    "Inconsistent progression",
];

/// The warning that the file has no end marker. If data of an image with one scan is missing too, another warning follows.
const MISSING_END_WARNING: &str = "Premature end of JPEG file";

/// An owned libjpeg-turbo decompressor.
#[derive(Debug)]
pub(crate) struct TurboJpeg(NonNull<std::ffi::c_void>);

// SAFETY: only this value owns the instance, and the instance does not depend on a thread. Only the text of the last error
// is per thread, and the same thread reads it directly after the failed call.
unsafe impl Send for TurboJpeg {}

impl Drop for TurboJpeg {
    fn drop(&mut self) {
        // SAFETY: the handle comes from tj3Init, is destroyed only here, and is not used afterwards.
        unsafe { sys::tj3Destroy(self.0.as_ptr()) };
    }
}

impl TurboJpeg {
    pub(crate) fn new() -> Result<Self, JpegError> {
        // SAFETY: tj3Init takes a number and returns an instance or null.
        let raw = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let Some(handle) = NonNull::new(raw) else {
            return Err(JpegError::Setup { message: last_error_message(std::ptr::null_mut()) });
        };
        let handle = Self(handle);
        let settings =
            [(sys::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS as c_int), (sys::TJPARAM_TJPARAM_SAVEMARKERS, 0)];
        for (parameter, value) in settings {
            if !handle.set(parameter, value) {
                return Err(JpegError::Setup { message: handle.error_message() });
            }
        }
        Ok(handle)
    }

    fn set(&self, parameter: sys::TJPARAM, value: c_int) -> bool {
        // SAFETY: the handle is valid; tj3Set validates parameter and value.
        unsafe { sys::tj3Set(self.0.as_ptr(), parameter as c_int, value) == 0 }
    }

    fn get(&self, parameter: sys::TJPARAM) -> c_int {
        // SAFETY: the handle is valid; tj3Get only reads a field.
        unsafe { sys::tj3Get(self.0.as_ptr(), parameter as c_int) }
    }

    /// Returns the message of the last failed call on this handle and thread.
    fn error_message(&self) -> String {
        last_error_message(self.0.as_ptr())
    }

    /// Whether the last failed call completed with a warning.
    fn is_last_error_warning(&self) -> bool {
        // SAFETY: the handle is valid; tj3GetErrorCode only reads a field.
        unsafe { sys::tj3GetErrorCode(self.0.as_ptr()) == sys::TJERR_TJERR_WARNING as c_int }
    }

    fn corrupt_error(&self) -> JpegError {
        JpegError::Corrupt { message: self.error_message() }
    }

    pub(crate) fn read_header(&self, jpeg: &[u8], markers: Markers<'_>) -> Result<JpegHeader, JpegError> {
        self.set(sys::TJPARAM_TJPARAM_STOPONWARNING, 0);
        // SAFETY: pointer and length describe a valid slice. The call only reads it and does not retain it: the next call on
        // this handle receives its own slice before libjpeg reads any data.
        let status =
            unsafe { sys::tj3DecompressHeader(self.0.as_ptr(), jpeg.as_ptr(), jpeg.len() as sys::size_t) };
        if status != 0 && !(self.is_last_error_warning() && is_harmless(&self.error_message())) {
            return Err(self.corrupt_error());
        }
        // For a file with only tables, the call succeeds and leaves the sizes of the previous image.
        if !markers.has_frame {
            return Err(JpegError::Corrupt { message: "the file contains tables but no image".to_owned() });
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
                .ok_or_else(|| JpegError::Corrupt { message: "the header contains no valid size".to_owned() })
        };
        let stored_width = size(sys::TJPARAM_TJPARAM_JPEGWIDTH)?;
        let stored_height = size(sys::TJPARAM_TJPARAM_JPEGHEIGHT)?;
        let Markers { orientation, is_progressive, is_sequential, .. } = markers;
        let (width, height) = Orientation::upright_size(orientation, stored_width, stored_height);
        let is_lossless = self.get(sys::TJPARAM_TJPARAM_LOSSLESS) != 0;
        let column_width = if is_lossless { None } else { self.column_width() };
        Ok(JpegHeader {
            width,
            height,
            stored_width,
            stored_height,
            orientation,
            colorspace,
            is_progressive,
            may_lack_end: is_sequential && !is_progressive,
            is_lossless,
            column_width,
        })
    }

    /// Returns the width of an iMCU in pixels, or `None` if libjpeg-turbo cannot crop images with this subsampling.
    fn column_width(&self) -> Option<u32> {
        match self.get(sys::TJPARAM_TJPARAM_SUBSAMP) as sys::TJSAMP {
            sys::TJSAMP_TJSAMP_444 | sys::TJSAMP_TJSAMP_GRAY | sys::TJSAMP_TJSAMP_440 => Some(8),
            sys::TJSAMP_TJSAMP_441 => Some(8),
            sys::TJSAMP_TJSAMP_422 | sys::TJSAMP_TJSAMP_420 => Some(16),
            sys::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        }
    }

    /// Decodes a rectangle of the stored image into the start of `out`. Requires that the last read header belongs to `jpeg`.
    /// `is_complete` checks all data of the image, if a harmless warning was reported.
    pub(crate) fn decompress_rgb(
        &self,
        jpeg: &[u8],
        header: &JpegHeader,
        crop: Region,
        (cmyk, is_complete): (&mut Vec<u8>, &mut dyn FnMut() -> bool),
        out: &mut [u8],
    ) -> Result<(), JpegError> {
        let pixels = crop.width as usize * crop.height as usize;
        if !matches!(header.colorspace, Colorspace::Cmyk | Colorspace::Ycck) {
            return self.decompress(jpeg, header, crop, ((sys::TJPF_TJPF_RGB, 3), is_complete), out);
        }
        grow_buffer(cmyk, pixels * 4);
        self.decompress(jpeg, header, crop, ((sys::TJPF_TJPF_CMYK, 4), is_complete), cmyk)?;
        convert_inverted_cmyk(&cmyk[..pixels * 4], out);
        Ok(())
    }

    fn decompress(
        &self,
        jpeg: &[u8],
        header: &JpegHeader,
        crop: Region,
        ((format, pixel_bytes), is_complete): ((sys::TJPF, usize), &mut dyn FnMut() -> bool),
        out: &mut [u8],
    ) -> Result<(), JpegError> {
        let pixels = u64::from(header.stored_width) * u64::from(header.stored_height);
        self.set(sys::TJPARAM_TJPARAM_SCANLIMIT, max_scans(pixels));
        let is_whole = crop.width == header.stored_width && crop.height == header.stored_height;
        self.set_crop(if is_whole { Region { x: 0, y: 0, width: 0, height: 0 } } else { crop })?;
        self.set(sys::TJPARAM_TJPARAM_STOPONWARNING, 1);
        if self.decompress_once(jpeg, crop, (format, pixel_bytes), out) == 0 {
            return Ok(());
        }
        let message = self.error_message();
        let is_missing_end = header.may_lack_end && message.contains(MISSING_END_WARNING);
        if !(self.is_last_error_warning() && (is_harmless(&message) || is_missing_end)) {
            return Err(self.corrupt_error());
        }
        self.set(sys::TJPARAM_TJPARAM_STOPONWARNING, 0);
        let status = self.decompress_once(jpeg, crop, (format, pixel_bytes), out);
        if status != 0 && !self.is_last_error_warning() {
            return Err(self.corrupt_error());
        }
        // Only the first warning is reported.
        if is_complete() {
            return Ok(());
        }
        Err(JpegError::Corrupt { message: format!("Corrupt JPEG data, after the warning: {message}") })
    }

    fn decompress_once(
        &self,
        jpeg: &[u8],
        crop: Region,
        (format, pixel_bytes): (sys::TJPF, usize),
        out: &mut [u8],
    ) -> c_int {
        let pitch = crop.width as usize * pixel_bytes;
        assert!(out.len() >= pitch * crop.height as usize, "the caller allocates the buffer for the crop");
        // SAFETY: the slice is valid and only read. libjpeg-turbo writes at most `crop.height` rows of `pitch` bytes: either
        // the cropping region is `crop`, or no region is set and `crop` is the whole image according to the header of
        // these bytes, with a scaling factor of 1. The assertion above checks that they fit, and `pitch` is the size of
        // `crop.width` pixels of `format`. Both pointers are used only during the call.
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

    /// Sets the rectangle to decode. All zeros select the whole image.
    fn set_crop(&self, crop: Region) -> Result<(), JpegError> {
        let region = sys::tjregion {
            x: crop.x as c_int,
            y: crop.y as c_int,
            w: crop.width as c_int,
            h: crop.height as c_int,
        };
        // SAFETY: the handle is valid; the region is passed by value and validated against the last read header.
        if unsafe { sys::tj3SetCroppingRegion(self.0.as_ptr(), region) } != 0 {
            return Err(self.corrupt_error());
        }
        Ok(())
    }
}

/// Returns the maximum number of scans of an image by its number of pixels.
pub(crate) fn max_scans(pixels: u64) -> c_int {
    (MAX_SCANNED_PIXELS / pixels.max(1)).clamp(1, MAX_SCANS) as c_int
}

fn is_harmless(message: &str) -> bool {
    HARMLESS_WARNINGS.iter().any(|harmless| message.contains(harmless))
}

/// Returns the message of the last failed call on this thread. With a null handle, the failed call had no instance.
fn last_error_message(handle: *mut std::ffi::c_void) -> String {
    // SAFETY: tj3GetErrorStr accepts valid and null handles. It returns a terminated string that is valid until the next call
    // on this thread, and the text is copied before that.
    let text = unsafe { CStr::from_ptr(sys::tj3GetErrorStr(handle)) };
    text.to_string_lossy().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_images_may_have_fewer_scans() {
        assert_eq!([max_scans(0), max_scans(1 << 20), max_scans(8_000_000)], [500, 500, 500]);
        assert_eq!(max_scans(100_000_000), 42);
        assert_eq!(max_scans(crate::MAX_PIXELS), 24, "twice the number that encoders write");
    }
}
