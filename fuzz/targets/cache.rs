//! Fuzzes the readers of cached rows, on disk and in the object store.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feedline_fuzz::with_folder(|folder| feedline_worker::read_cached_rows(
    folder, bytes
)));
