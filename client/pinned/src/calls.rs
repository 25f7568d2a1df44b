//! The required functions of NVIDIA's driver (libcuda), with the types of `cuda.h`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null;
use std::sync::OnceLock;

use libloading::Library;

/// The driver's library, which is installed with the kernel driver and not with the CUDA toolkit.
const LIBRARY: &str = "libcuda.so.1";
const SUCCESS: c_int = 0;

/// Functions of the driver. Each returns 0 or an error code.
#[derive(Debug)]
pub(crate) struct DriverFunctions {
    /// `cuInit(flags)`.
    pub(crate) init: unsafe extern "C" fn(c_uint) -> c_int,
    /// `cuDeviceGet(device, ordinal)`.
    pub(crate) device_get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    /// `cuDevicePrimaryCtxRetain(context, device)`.
    pub(crate) retain_context: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int,
    /// `cuDevicePrimaryCtxRelease(device)`.
    pub(crate) release_context: unsafe extern "C" fn(c_int) -> c_int,
    /// `cuCtxPushCurrent(context)`.
    pub(crate) push_context: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// `cuCtxPopCurrent(context)`.
    pub(crate) pop_context: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    /// `cuMemHostAlloc(memory, bytes, flags)`.
    pub(crate) alloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    /// `cuMemFreeHost(memory)`.
    pub(crate) free: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// `cuGetErrorString(error, text)`.
    pub(crate) describe: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

impl DriverFunctions {
    /// Converts the status of a call into a result.
    ///
    /// # Errors
    /// Returns the driver's description of the error if the call failed.
    pub(crate) fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut text = null();
        // SAFETY: the call sets `text` to a static string of the driver, or does not change it.
        let is_described = unsafe { (self.describe)(status, &raw mut text) } == SUCCESS && !text.is_null();
        // SAFETY: the strings of the driver are terminated and never change.
        let reason = is_described.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        Err(format!("{call} failed with {status}: {}", reason.as_deref().unwrap_or("unknown")))
    }
}

/// Returns the driver of this machine. The library is loaded once and stays loaded, because an initialized driver cannot be
/// unloaded.
pub(crate) fn load_driver() -> Result<&'static DriverFunctions, String> {
    static DRIVER: OnceLock<Result<DriverFunctions, String>> = OnceLock::new();
    DRIVER.get_or_init(|| load_library().map_err(|error| error.to_string())).as_ref().map_err(Clone::clone)
}

fn load_library() -> Result<DriverFunctions, libloading::Error> {
    // SAFETY: the initializers of the driver's library are safe to run; every program that uses the GPU loads it.
    let library = unsafe { Library::new(LIBRARY) }?;
    // The library and its functions stay loaded until the process exits.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: `cuda.h` declares these names with these types, and adds the version suffixes with macros. The functions have not
    // changed since CUDA 4, and `cuDevicePrimaryCtxRelease_v2` since CUDA 11.
    unsafe {
        Ok(DriverFunctions {
            init: *library.get(c"cuInit")?,
            device_get: *library.get(c"cuDeviceGet")?,
            retain_context: *library.get(c"cuDevicePrimaryCtxRetain")?,
            release_context: *library.get(c"cuDevicePrimaryCtxRelease_v2")?,
            push_context: *library.get(c"cuCtxPushCurrent_v2")?,
            pop_context: *library.get(c"cuCtxPopCurrent_v2")?,
            alloc: *library.get(c"cuMemHostAlloc")?,
            free: *library.get(c"cuMemFreeHost")?,
            describe: *library.get(c"cuGetErrorString")?,
        })
    }
}
