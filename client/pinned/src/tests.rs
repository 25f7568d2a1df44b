//! Against a driver that counts: what it gave is given back, and no thread keeps a context.

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint};

use super::*;

const OUT_OF_MEMORY: c_int = 2;
const NO_SUCH_DEVICE: c_int = 101;
/// The driver has one device, which it calls this.
const DEVICE: c_int = 7;
const CONTEXT: *mut c_void = 0x7000 as *mut c_void;
const PAGE: usize = 4096;
const MOST_BYTES: usize = 1 << 20;

// Each test is a thread, and so a driver of its own.
thread_local! {
    static RETAINED: Cell<i32> = const { Cell::new(0) };
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static GIVEN: RefCell<BTreeMap<usize, usize>> = const { RefCell::new(BTreeMap::new()) };
}

unsafe extern "C" fn init(flags: c_uint) -> c_int {
    c_int::from(flags != 0)
}

unsafe extern "C" fn device_get(device: *mut c_int, ordinal: c_int) -> c_int {
    if ordinal != 0 {
        return NO_SUCH_DEVICE;
    }
    // SAFETY: the caller gives a place to write to.
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
    let top = STACK.with_borrow_mut(Vec::pop).expect("something was pushed");
    // SAFETY: as above.
    unsafe { *context = top as *mut c_void };
    0
}

unsafe extern "C" fn alloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    assert_eq!(STACK.with_borrow(|stack| stack.last().copied()), Some(CONTEXT as usize), "in the context");
    assert_eq!(flags, PORTABLE);
    if bytes > MOST_BYTES {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the layout has a size; `memory` is as above.
    unsafe { *memory = std::alloc::alloc(Layout::from_size_align(bytes, PAGE).unwrap()).cast() };
    // SAFETY: it was written just now.
    GIVEN.with_borrow_mut(|given| given.insert(unsafe { *memory } as usize, bytes));
    0
}

unsafe extern "C" fn free(memory: *mut c_void) -> c_int {
    let bytes = GIVEN.with_borrow_mut(|given| given.remove(&(memory as usize))).expect("it was given");
    // SAFETY: it was allocated with this layout.
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

static DRIVER: Calls = Calls {
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
fn what_is_written_is_read_and_the_memory_goes_back() {
    let gpu = Gpu::open_with(&DRIVER, 0).unwrap();
    let mut buffer = PinnedBuffer::new(&gpu, 10).unwrap();
    drop(gpu);
    assert!(buffer.append(b"batch") && buffer.append(b"es"));
    assert!(!buffer.append(b"more"), "no byte more than its capacity");
    assert_eq!((buffer.as_slice(), buffer.capacity()), (&b"batches"[..], 10));
    buffer.clear();
    assert!(buffer.append(b"0123456789"));
    assert_eq!(buffer.as_slice(), b"0123456789");
    assert_eq!(RETAINED.get(), 1, "a buffer keeps its GPU's context");
    drop(buffer);
    assert_eq!(RETAINED.get(), 0);
    assert!(GIVEN.with_borrow(BTreeMap::is_empty) && STACK.with_borrow(Vec::is_empty));
}

#[test]
fn what_the_driver_refuses_is_told() {
    let message = Gpu::open_with(&DRIVER, 3).unwrap_err();
    assert_eq!(message, "cuDeviceGet failed with 101: unknown");
    let gpu = Gpu::open_with(&DRIVER, 0).unwrap();
    let message = PinnedBuffer::new(&gpu, MOST_BYTES + 1).unwrap_err();
    assert_eq!(message, "cuMemHostAlloc failed with 2: out of memory");
    assert!(STACK.with_borrow(Vec::is_empty), "also then the thread has its own context back");
}

#[test]
fn a_buffer_of_nothing_is_one() {
    let gpu = Gpu::open_with(&DRIVER, 0).unwrap();
    let mut buffer = PinnedBuffer::new(&gpu, 0).unwrap();
    assert!(buffer.append(b"") && !buffer.append(b"x"));
    assert_eq!(buffer.as_slice(), b"");
}
