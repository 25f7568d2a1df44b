//! Page-locked (pinned) memory, which a GPU can read asynchronously.
//!
//! NVIDIA's driver pins the memory. The driver is loaded on first use, so machines without a GPU do not need it.

mod calls;

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::calls::DriverFunctions;

/// The flag `CU_MEMHOSTALLOC_PORTABLE`: the memory is pinned for all contexts.
const PORTABLE: u32 = 1;

/// A GPU whose driver pins memory. Uses the primary context of the device, as the CUDA runtime and PyTorch do.
#[derive(Debug)]
pub struct Gpu {
    calls: &'static DriverFunctions,
    device: i32,
    context: *mut c_void,
}

// SAFETY: the context is a handle of the driver, which may be used on any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above, and the fields do not change.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a GPU by its index among the devices that are visible to the process.
    ///
    /// # Errors
    /// Returns a message if the driver is not available or the GPU does not exist.
    pub fn open(device: u32) -> Result<Arc<Self>, String> {
        Self::open_with(calls::load_driver()?, device)
    }

    fn open_with(calls: &'static DriverFunctions, number: u32) -> Result<Arc<Self>, String> {
        let ordinal = i32::try_from(number).map_err(|_| format!("GPU {number} does not exist"))?;
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: the flags of `cuInit` must be 0, and repeated calls are allowed.
        calls.check("cuInit", unsafe { (calls.init)(0) })?;
        // SAFETY: the call writes `device`.
        calls.check("cuDeviceGet", unsafe { (calls.device_get)(&raw mut device, ordinal) })?;
        // SAFETY: `device` comes from the driver, and the call writes `context`.
        let retained = unsafe { (calls.retain_context)(&raw mut context, device) };
        calls.check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(Arc::new(Self { calls, device, context }))
    }

    /// Runs `call` with the GPU's context as the current context of the thread, and restores the previous context.
    fn with_context(&self, name: &str, call: impl FnOnce(&DriverFunctions) -> i32) -> Result<(), String> {
        // SAFETY: the context is retained until `self` is dropped.
        self.calls.check("cuCtxPushCurrent", unsafe { (self.calls.push_context)(self.context) })?;
        let status = call(self.calls);
        let mut popped_context = null_mut();
        // SAFETY: this removes the context that was pushed above, and the call writes `popped_context`.
        let popped = unsafe { (self.calls.pop_context)(&raw mut popped_context) };
        self.calls.check(name, status)?;
        self.calls.check("cuCtxPopCurrent", popped)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the context was retained once. No buffer of this context remains, because each buffer holds a reference to
        // the GPU. When the process exits, the driver may already be shut down and return an error, which is harmless.
        let _ = unsafe { (self.calls.release_context)(self.device) };
    }
}

/// A buffer of fixed capacity in pinned memory. Bytes are appended to it.
#[derive(Debug)]
pub struct PinnedBuffer {
    data: NonNull<u8>,
    capacity: usize,
    /// Number of bytes written.
    len: usize,
    gpu: Arc<Gpu>,
}

// SAFETY: the buffer owns the memory, which is not bound to a thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared references only permit reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates page-aligned pinned memory of `capacity` bytes, or 1 byte if `capacity` is 0.
    ///
    /// # Errors
    /// Returns a message if the system cannot pin this much memory.
    pub fn new(gpu: &Arc<Gpu>, capacity: usize) -> Result<Self, String> {
        let mut data = null_mut();
        gpu.with_context("cuMemHostAlloc", |calls| {
            // SAFETY: the call writes `data`.
            unsafe { (calls.alloc)(&raw mut data, capacity.max(1), PORTABLE) }
        })?;
        let data = NonNull::new(data.cast::<u8>()).ok_or("the driver returned a null pointer")?;
        Ok(Self { data, capacity, len: 0, gpu: Arc::clone(gpu) })
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends bytes. Returns `false` without writing if they do not fit.
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.capacity - self.len {
            return false;
        }
        // SAFETY: `len + bytes.len()` bytes are within the capacity, as checked above. `bytes` does not overlap with the buffer,
        // because this memory is only accessible through `&mut self`.
        unsafe {
            let end = self.data.as_ptr().add(self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
        }
        self.len += bytes.len();
        true
    }

    /// Discards the written bytes.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the written bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are initialized, and do not change while the slice is borrowed.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let data = self.data.as_ptr().cast::<c_void>();
        // When the process exits, the driver may already be shut down and have freed the memory.
        let _ = self.gpu.with_context("cuMemFreeHost", |calls| {
            // SAFETY: the memory comes from the driver and is no longer used.
            unsafe { (calls.free)(data) }
        });
    }
}

#[cfg(test)]
mod tests;
