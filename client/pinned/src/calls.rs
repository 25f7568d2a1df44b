//! The calls of NVIDIA's driver (libcuda) that are used, by the types that `cuda.h` gives them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null;
use std::sync::OnceLock;

use libloading::Library;

/// The driver's own library. It comes with the kernel's driver, not with CUDA's toolkit.
const LIBRARY: &str = "libcuda.so.1";
const SUCCESS: c_int = 0;

/// Functions of the driver. Each gives 0, or what went wrong.
#[derive(Debug)]
pub(crate) struct Calls {
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

impl Calls {
    /// # Errors
    /// What the driver says of a status that is not success.
    pub(crate) fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut text = null();
        // SAFETY: `text` is set to a text that the driver keeps, or left alone.
        let told = unsafe { (self.describe)(status, &raw mut text) } == SUCCESS && !text.is_null();
        // SAFETY: the driver's texts end with 0 and are never changed.
        let reason = told.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        Err(format!("{call} failed with {status}: {}", reason.as_deref().unwrap_or("unknown")))
    }
}

/// The driver of this machine. It is loaded once and stays, since a driver that has begun cannot be unloaded.
pub(crate) fn loaded() -> Result<&'static Calls, String> {
    static CALLS: OnceLock<Result<Calls, String>> = OnceLock::new();
    CALLS.get_or_init(|| load().map_err(|error| error.to_string())).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Calls, libloading::Error> {
    // SAFETY: what the library does when it is loaded is the driver's business; every program that uses the GPU loads it.
    let library = unsafe { Library::new(LIBRARY) }?;
    // It stays as long as the process, and so do its functions.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the names belong to these types in `cuda.h`, where macros add the versions to some of them. None has changed since CUDA 4,
    // `cuDevicePrimaryCtxRelease_v2` since CUDA 11.
    unsafe {
        Ok(Calls {
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
