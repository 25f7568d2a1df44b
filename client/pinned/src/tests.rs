//! Tests with a fake driver that checks that memory and contexts are released.

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint};

use super::*;

const OUT_OF_MEMORY: c_int = 2;
const NO_SUCH_DEVICE: c_int = 101;
/// The handle of the only device.
const DEVICE: c_int = 7;
const CONTEXT: *mut c_void = 0x7000 as *mut c_void;
const PAGE: usize = 4096;
const MAX_BYTES: usize = 1 << 20;

// Each test runs on its own thread, and so with its own fake driver.
thread_local! {
    static RETAINED: Cell<i32> = const { Cell::new(0) };
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static ALLOCATED: RefCell<BTreeMap<usize, usize>> = const { RefCell::new(BTreeMap::new()) };
}

unsafe extern "C" fn init(flags: c_uint) -> c_int {
    c_int::from(flags != 0)
}

unsafe extern "C" fn device_get(device: *mut c_int, ordinal: c_int) -> c_int {
    if ordinal != 0 {
        return NO_SUCH_DEVICE;
    }
    // SAFETY: the caller passes a valid pointer.
    unsafe { *device = DEVICE };
    0
}

unsafe extern "C" fn retain_context(context: *mut *mut c_void, device: c_int) -> c_int {
    assert_eq!(device, DEVICE);
    RETAINED.set(RETAINED.get() + 1);
    // SAFETY: as above.
    unsafe { *context = CONTEXT };
    0
}

unsafe extern "C" fn release_context(device: c_int) -> c_int {
    assert_eq!(device, DEVICE);
    RETAINED.set(RETAINED.get() - 1);
    0
}

unsafe extern "C" fn push_context(context: *mut c_void) -> c_int {
    STACK.with_borrow_mut(|stack| stack.push(context as usize));
    0
}

unsafe extern "C" fn pop_context(context: *mut *mut c_void) -> c_int {
    let top = STACK.with_borrow_mut(Vec::pop).expect("a context was pushed");
    // SAFETY: as above.
    unsafe { *context = top as *mut c_void };
    0
}

unsafe extern "C" fn alloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    assert_eq!(
        STACK.with_borrow(|stack| stack.last().copied()),
        Some(CONTEXT as usize),
        "the context is current"
    );
    assert_eq!(flags, PORTABLE);
    if bytes > MAX_BYTES {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the layout has a size above 0; `memory` is as above.
    unsafe { *memory = std::alloc::alloc(Layout::from_size_align(bytes, PAGE).unwrap()).cast() };
    // SAFETY: the pointer was written above.
    ALLOCATED.with_borrow_mut(|allocated| allocated.insert(unsafe { *memory } as usize, bytes));
    0
}

unsafe extern "C" fn free(memory: *mut c_void) -> c_int {
    let bytes = ALLOCATED
        .with_borrow_mut(|allocated| allocated.remove(&(memory as usize)))
        .expect("the memory was allocated");
    // SAFETY: the memory was allocated with this layout.
    unsafe { std::alloc::dealloc(memory.cast(), Layout::from_size_align(bytes, PAGE).unwrap()) };
    0
}

unsafe extern "C" fn describe(error: c_int, text: *mut *const c_char) -> c_int {
    if error != OUT_OF_MEMORY {
        return 1;
    }
    // SAFETY: as above.
    unsafe { *text = c"out of memory".as_ptr() };
    0
}

static DRIVER: DriverFunctions = DriverFunctions {
    init,
    device_get,
    retain_context,
    release_context,
    push_context,
    pop_context,
    alloc,
    free,
    describe,
};

#[test]
fn written_bytes_are_read_back_and_the_memory_is_freed() {
    let gpu = Gpu::open_with(&DRIVER, 0).unwrap();
    let mut buffer = PinnedBuffer::new(&gpu, 10).unwrap();
    drop(gpu);
    assert!(buffer.append(b"batch") && buffer.append(b"es"));
    assert!(!buffer.append(b"more"), "a write beyond the capacity fails");
    assert_eq!((buffer.as_slice(), buffer.capacity()), (&b"batches"[..], 10));
    buffer.clear();
    assert!(buffer.append(b"0123456789"));
    assert_eq!(buffer.as_slice(), b"0123456789");
    assert_eq!(RETAINED.get(), 1, "a buffer retains the context of its GPU");
    drop(buffer);
    assert_eq!(RETAINED.get(), 0);
    assert!(ALLOCATED.with_borrow(BTreeMap::is_empty) && STACK.with_borrow(Vec::is_empty));
}

#[test]
fn errors_of_the_driver_are_returned() {
    let message = Gpu::open_with(&DRIVER, 3).unwrap_err();
    assert_eq!(message, "cuDeviceGet failed with 101: unknown");
    let gpu = Gpu::open_with(&DRIVER, 0).unwrap();
    let message = PinnedBuffer::new(&gpu, MAX_BYTES + 1).unwrap_err();
    assert_eq!(message, "cuMemHostAlloc failed with 2: out of memory");
    assert!(STACK.with_borrow(Vec::is_empty), "the previous context is restored after an error");
}

#[test]
fn an_empty_buffer_is_valid() {
    let gpu = Gpu::open_with(&DRIVER, 0).unwrap();
    let mut buffer = PinnedBuffer::new(&gpu, 0).unwrap();
    assert!(buffer.append(b"") && !buffer.append(b"x"));
    assert_eq!(buffer.as_slice(), b"");
}
