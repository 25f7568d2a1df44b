//! An instance of libjpeg-turbo behind its TurboJPEG interface: reads headers, and decodes what our own entropy decoder does
//! not.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use turbojpeg_sys as sys;

use crate::cmyk::convert_inverted_cmyk;
use crate::decoder::grow;
use crate::exif::Markers;
use crate::{Colorspace, JpegError, JpegHeader, Orientation, Region};

/// More scans than any encoder writes: a progressive image beyond this only wants to burn time.
const MAX_SCANS: u64 = 500;
/// Pixels times scans that are decoded at most: each scan goes over all of an image, however few bytes it has. The largest
/// image may have 24 scans, and encoders write about ten.
const MAX_SCANNED_PIXELS: u64 = 1 << 32;

/// Warnings after which the pixels are still the right ones; Pillow and TensorFlow ignore them too.
const HARMLESS_WARNINGS: [&str; 4] = [
    "extraneous bytes before marker",
    "unknown JFIF revision",
    "Unknown Adobe color transform",
    "Inconsistent progression",
];

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
        let settings =
            [(sys::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS as c_int), (sys::TJPARAM_TJPARAM_SAVEMARKERS, 0)];
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

    pub(crate) fn read_header(&self, jpeg: &[u8], markers: Markers<'_>) -> Result<JpegHeader, JpegError> {
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
        Ok(JpegHeader {
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
        header: &JpegHeader,
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
        header: &JpegHeader,
        cut: Region,
        (format, pixel_bytes): (sys::TJPF, usize),
        out: &mut [u8],
    ) -> Result<(), JpegError> {
        let pixels = u64::from(header.stored_width) * u64::from(header.stored_height);
        self.set(sys::TJPARAM_TJPARAM_SCANLIMIT, most_scans(pixels));
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

/// Scans that an image of so many pixels may have.
fn most_scans(pixels: u64) -> c_int {
    (MAX_SCANNED_PIXELS / pixels.max(1)).clamp(1, MAX_SCANS) as c_int
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_an_image_the_fewer_scans_it_may_have() {
        assert_eq!([most_scans(0), most_scans(1 << 20), most_scans(8_000_000)], [500, 500, 500]);
        assert_eq!(most_scans(100_000_000), 42);
        assert_eq!(most_scans(crate::MAX_PIXELS), 24, "twice what encoders write");
    }
}
