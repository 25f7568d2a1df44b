//! Page-locked ("pinned") memory: a GPU copies from it by itself, while the processor does something else.
//!
//! NVIDIA's driver locks it. The driver is loaded when it is first asked for, so that nothing needs it where there is no GPU.

mod calls;

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::calls::Calls;

/// Memory counts as pinned in all contexts, whichever GPU it was locked for (`CU_MEMHOSTALLOC_PORTABLE`).
const PORTABLE: u32 = 1;

/// A GPU whose driver locks memory. Shares the context that CUDA's runtime, and so PyTorch, uses for the device.
#[derive(Debug)]
pub struct Gpu {
    calls: &'static Calls,
    device: i32,
    context: *mut c_void,
}

// SAFETY: the context is a name that the driver gave; its calls may be made from any thread with any context.
unsafe impl Send for Gpu {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// The GPU with this number, as CUDA counts those that the process may see.
    ///
    /// # Errors
    /// One clause, where there is no driver or no such GPU.
    pub fn open(device: u32) -> Result<Arc<Self>, String> {
        Self::open_with(calls::loaded()?, device)
    }

    fn open_with(calls: &'static Calls, number: u32) -> Result<Arc<Self>, String> {
        let ordinal = i32::try_from(number).map_err(|_| format!("there is no GPU {number}"))?;
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: `cuInit` takes no flags but 0, and may be called again and again.
        calls.check("cuInit", unsafe { (calls.init)(0) })?;
        // SAFETY: `device` is written before the call returns.
        calls.check("cuDeviceGet", unsafe { (calls.device_get)(&raw mut device, ordinal) })?;
        // SAFETY: `device` is one that the driver named, and `context` is written before the call returns.
        let retained = unsafe { (calls.retain_context)(&raw mut context, device) };
        calls.check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(Arc::new(Self { calls, device, context }))
    }

    /// Runs `call` with the GPU's context as the thread's present one, and puts back the one before.
    fn inside(&self, name: &str, call: impl FnOnce(&Calls) -> i32) -> Result<(), String> {
        // SAFETY: the context is retained until `self` is dropped.
        self.calls.check("cuCtxPushCurrent", unsafe { (self.calls.push_context)(self.context) })?;
        let status = call(self.calls);
        let mut before = null_mut();
        // SAFETY: it takes off what was pushed above; `before` is written before the call returns.
        let popped = unsafe { (self.calls.pop_context)(&raw mut before) };
        self.calls.check(name, status)?;
        self.calls.check("cuCtxPopCurrent", popped)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and no buffer is left that was locked in it: each holds the GPU. A driver that has ended already,
        // as at the end of a process, says so, and there is nothing left to give back.
        let _ = unsafe { (self.calls.release_context)(self.device) };
    }
}

/// A buffer of fixed capacity in pinned memory that is written from its start.
#[derive(Debug)]
pub struct PinnedBuffer {
    data: NonNull<u8>,
    capacity: usize,
    /// Bytes written.
    len: usize,
    gpu: Arc<Gpu>,
}

// SAFETY: the memory is the buffer's own, and belongs to no thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Locks `capacity` bytes, at least 1. They begin at the start of a page.
    ///
    /// # Errors
    /// One clause, when the system cannot lock so much memory.
    pub fn new(gpu: &Arc<Gpu>, capacity: usize) -> Result<Self, String> {
        let mut data = null_mut();
        gpu.inside("cuMemHostAlloc", |calls| {
            // SAFETY: `data` is written before the call returns.
            unsafe { (calls.alloc)(&raw mut data, capacity.max(1), PORTABLE) }
        })?;
        let data = NonNull::new(data.cast::<u8>()).ok_or("the driver gave no memory")?;
        Ok(Self { data, capacity, len: 0, gpu: Arc::clone(gpu) })
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends bytes; `false`, and nothing is written, when they do not fit.
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.capacity - self.len {
            return false;
        }
        // SAFETY: `len` bytes are written and `bytes.len()` more lie within the capacity, as was checked. `bytes` cannot overlap with
        // them: `&mut self` is the only way to reach this memory.
        unsafe {
            let end = self.data.as_ptr().add(self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
        }
        self.len += bytes.len();
        true
    }

    /// Forgets what was written.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// What was written.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the first `len` bytes were written, and stay as they are while the slice is borrowed.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let data = self.data.as_ptr().cast::<c_void>();
        // At the end of a process the driver may have ended before, and has unlocked everything then.
        let _ = self.gpu.inside("cuMemFreeHost", |calls| {
            // SAFETY: the driver gave this memory, and nobody uses it any more.
            unsafe { (calls.free)(data) }
        });
    }
}

#[cfg(test)]
mod tests;
