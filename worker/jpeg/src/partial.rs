//! Decodes a rectangle with our Huffman decoder and libjpeg-turbo's transforms. This is the Rust side of `c/partial.c`.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::entropy::{DctBlock, ScanReader};
use crate::header::JpegHeader;
use crate::huffman::{TableSpec, Tables};
use crate::index::{EntropyIndex, IndexBuilder};
use crate::region::Region;
use crate::scan::{BLOCKS_PER_MCU, Scan};

/// Maximum number of tables of each kind in a JPEG.
const MAX_TABLES: usize = 4;

#[repr(C)]
struct RawPartialDecoder {
    _opaque: [u8; 0],
}

/// `struct feedline_scan`.
#[repr(C)]
struct RawScan {
    mcus_per_row: u32,
    mcu_rows: u32,
    blocks_per_mcu: u32,
    restart_interval: u32,
    column_width: u32,
    data_offset: u32,
    component: [u8; BLOCKS_PER_MCU],
    dc_table: [u8; BLOCKS_PER_MCU],
    ac_table: [u8; BLOCKS_PER_MCU],
    dc_bits: [*const u8; MAX_TABLES],
    dc_values: [*const u8; MAX_TABLES],
    ac_bits: [*const u8; MAX_TABLES],
    ac_values: [*const u8; MAX_TABLES],
}

type ReadToEnd = for<'a, 'b> unsafe fn(&'a mut ScanReader<'b>) -> bool;
type McuCallback = unsafe extern "C" fn(state: *mut c_void, blocks: *const *mut DctBlock) -> c_int;

unsafe extern "C" {
    fn feedline_partial_new() -> *mut RawPartialDecoder;
    fn feedline_partial_free(this: *mut RawPartialDecoder);
    fn feedline_partial_open(
        this: *mut RawPartialDecoder,
        jpeg: *const u8,
        length: usize,
        reduction: u32,
        scan: *mut RawScan,
    ) -> c_int;
    fn feedline_partial_close(this: *mut RawPartialDecoder);
    fn feedline_partial_check(
        this: *mut RawPartialDecoder,
        jpeg: *const u8,
        length: usize,
        may_lack_end: c_int,
        max_scans: c_int,
        column_width: u32,
    ) -> c_int;
    fn feedline_partial_read(
        this: *mut RawPartialDecoder,
        x: u32,
        y: u32,
        width: u32,
        height: u32,
        out: *mut u8,
        pitch: usize,
        mcu: McuCallback,
        state: *mut c_void,
    ) -> c_int;
}

/// The factor by which decoding reduces the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// The stored size.
    None,
    /// Half of the width and height, rounded up. A smaller inverse DCT computes one pixel from four.
    Half,
}

impl Reduction {
    fn divisor(self) -> u32 {
        match self {
            Self::None => 1,
            Self::Half => 2,
        }
    }
}

/// A libjpeg-turbo decompressor with our Huffman decoder. Keeps the tables of previous images.
#[derive(Debug)]
pub(crate) struct PartialDecoder {
    raw: NonNull<RawPartialDecoder>,
    tables: Tables,
    next_mcu: McuCallback,
    read_to_end: ReadToEnd,
}

// SAFETY: only this value owns the decompressor, and the decompressor does not depend on a thread. Every call that can use
// its jmp_buf sets it first, on the same thread.
unsafe impl Send for PartialDecoder {}

impl Drop for PartialDecoder {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from feedline_partial_new, is freed only here, and is not used afterwards.
        unsafe { feedline_partial_free(self.raw.as_ptr()) };
    }
}

impl PartialDecoder {
    /// Creates a decoder. Returns `None` if memory allocation fails.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: the function has no arguments and returns an instance or null.
        let raw = unsafe { feedline_partial_new() };
        let (next_mcu, read_to_end) = fastest_variants();
        Some(Self { raw: NonNull::new(raw)?, tables: Tables::default(), next_mcu, read_to_end })
    }

    /// Decodes the rectangle `crop` of the reduced image into the start of `out`, in rows of `crop.width * 3` bytes. Reads only
    /// the required Huffman codes, starting at the nearest point of `index` if there is one. Reads the other codes too if the
    /// structure of the data is not as expected.
    ///
    /// Returns `false` if the image is corrupted, also outside of the rectangle, or of an unsupported kind. The content of `out` is then undefined, and the
    /// caller must use libjpeg-turbo's decoder. `crop.x` must be a multiple of the reduced column width.
    ///
    /// # Panics
    /// Panics if `out` is too short for the pixels.
    pub(crate) fn decode(
        &mut self,
        jpeg: &[u8],
        (crop, reduction): (Region, Reduction),
        index: Option<EntropyIndex<'_>>,
        out: &mut [u8],
    ) -> bool {
        let pitch = crop.width as usize * 3;
        assert!(out.len() >= pitch * crop.height as usize, "the caller allocates the buffer for the crop");
        let Self { raw, next_mcu, read_to_end, .. } = *self;
        let decode = |scan: &Scan, tables: &Tables| {
            let Some(mut reader) = ScanReader::new(jpeg, scan, tables) else { return false };
            let column_width = scan.column_width / reduction.divisor();
            reader.set_columns(crop.x / column_width, (crop.x + crop.width).div_ceil(column_width));
            reader.use_index(index.filter(|index| index.matches(jpeg, scan)));
            let state = (&raw mut reader).cast();
            // SAFETY: the instance is open for this JPEG, which outlives the open instance. `out` has `crop.height` rows of
            // `pitch` bytes, as asserted above. The C function writes no more rows and columns than `crop` has, and
            // compares them with the output size of libjpeg. `next_mcu` receives the state that it expects, which
            // outlives the call.
            let status = unsafe {
                feedline_partial_read(
                    raw.as_ptr(),
                    crop.x,
                    crop.y,
                    crop.width,
                    crop.height,
                    out.as_mut_ptr(),
                    pitch,
                    next_mcu,
                    state,
                )
            };
            if status != 1 || !reader.is_complete() {
                return false;
            }
            if reader.has_expected_structure() {
                return true;
            }
            // The data before a point of an index has not been read.
            let Some(mut reader) = index.map_or(Some(reader), |_| ScanReader::new(jpeg, scan, tables)) else {
                return false;
            };
            // SAFETY: the processor supports the instructions of the variant.
            unsafe { read_to_end(&mut reader) }
        };
        self.with_scan(jpeg, reduction, decode).unwrap_or(false)
    }

    /// Reads all data of an image of any kind with libjpeg-turbo, and returns whether it is complete. libjpeg-turbo's decoder stops
    /// after the last row of a crop, and reports only the first warning, which may be a harmless one.
    pub(crate) fn is_complete(&mut self, jpeg: &[u8], header: &JpegHeader, max_scans: c_int) -> bool {
        let column_width = header.column_width.unwrap_or(0);
        let may_lack_end = c_int::from(header.may_lack_end);
        // SAFETY: the instance is valid and closed. The slice outlives the call, which closes the instance.
        let status = unsafe {
            let raw = self.raw.as_ptr();
            feedline_partial_check(raw, jpeg.as_ptr(), jpeg.len(), may_lack_end, max_scans, column_width)
        };
        status == 1
    }

    /// Returns the JPEG with an index of its data, or `None` if the image is corrupted or of an unsupported kind.
    pub(crate) fn with_index(&mut self, jpeg: &[u8]) -> Option<Vec<u8>> {
        let index = self.with_scan(jpeg, Reduction::None, |scan, tables| {
            ScanReader::new(jpeg, scan, tables)?.build_index(IndexBuilder::new(jpeg, scan))
        });
        index??.insert(jpeg)
    }

    fn with_scan<T>(
        &mut self,
        jpeg: &[u8],
        reduction: Reduction,
        work: impl FnOnce(&Scan, &Tables) -> T,
    ) -> Option<T> {
        // SAFETY: the struct contains numbers, arrays of numbers and pointers. Zero is a valid value for all of them.
        let mut raw: RawScan = unsafe { std::mem::zeroed() };
        // SAFETY: the instance is valid and closed. The slice and the scan outlive the call. The slice also outlives the call
        // of feedline_partial_close below, after which libjpeg does not read it.
        let status = unsafe {
            let divisor = reduction.divisor();
            feedline_partial_open(self.raw.as_ptr(), jpeg.as_ptr(), jpeg.len(), divisor, &raw mut raw)
        };
        if status != 1 {
            return None;
        }
        let result = self.read_scan(&raw).map(|scan| work(&scan, &self.tables));
        // SAFETY: the instance is valid and open.
        unsafe { feedline_partial_close(self.raw.as_ptr()) };
        result
    }

    /// Converts the scan and prepares its tables. Returns `None` if a table is missing or invalid.
    fn read_scan(&mut self, raw: &RawScan) -> Option<Scan> {
        let spec = |bits: *const u8, values: *const u8| -> Option<TableSpec> {
            if bits.is_null() || values.is_null() {
                return None;
            }
            // SAFETY: the pointers refer to `bits[17]` and `huffval[256]` of a JHUFF_TBL, which is valid while the instance is
            // open.
            unsafe { Some(TableSpec { bits: *bits.cast::<[u8; 17]>(), values: *values.cast::<[u8; 256]>() }) }
        };
        for block in 0..(raw.blocks_per_mcu as usize).min(BLOCKS_PER_MCU) {
            let (dc, ac) = (usize::from(raw.dc_table[block]), usize::from(raw.ac_table[block]));
            if dc >= MAX_TABLES || ac >= MAX_TABLES {
                return None;
            }
            self.tables.set_dc(dc, &spec(raw.dc_bits[dc], raw.dc_values[dc])?)?;
            self.tables.set_ac(ac, &spec(raw.ac_bits[ac], raw.ac_values[ac])?)?;
        }
        Some(Scan {
            mcus_per_row: raw.mcus_per_row,
            mcu_rows: raw.mcu_rows,
            blocks: raw.blocks_per_mcu as usize,
            restart_interval: raw.restart_interval,
            column_width: raw.column_width,
            data_offset: raw.data_offset as usize,
            component: raw.component,
            dc_table: raw.dc_table,
            ac_table: raw.ac_table,
        })
    }
}

/// Returns the fastest variants of [`next_mcu`] and [`ScanReader::read_to_end`] for this processor.
fn fastest_variants() -> (McuCallback, ReadToEnd) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi2") && std::arch::is_x86_feature_detected!("lzcnt") {
        return (next_mcu_bmi2, read_to_end_bmi2);
    }
    (next_mcu, read_to_end)
}

/// Reads the rest of a scan.
fn read_to_end(reader: &mut ScanReader<'_>) -> bool {
    reader.read_to_end()
}

/// The variant of [`read_to_end`] for processors on which a shift by a variable count is one operation.
///
/// # Safety
/// The processor must support BMI2 and LZCNT.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi2,lzcnt")]
unsafe fn read_to_end_bmi2(reader: &mut ScanReader<'_>) -> bool {
    reader.read_to_end()
}

/// The callback that libjpeg-turbo calls to request the next MCU.
///
/// # Safety
/// `state` must be the `ScanReader` that was passed to `feedline_partial_read`. `blocks` must be null, or point to one pointer
/// to a distinct block for each block of an MCU.
unsafe extern "C" fn next_mcu(state: *mut c_void, blocks: *const *mut DctBlock) -> c_int {
    // SAFETY: the caller upholds the contract above.
    catch_panic(|| unsafe { read_next_mcu(state, blocks) })
}

/// The variant of [`next_mcu`] for processors on which a shift by a variable count is one operation.
///
/// # Safety
/// The contract of [`next_mcu`]. The processor must support BMI2 and LZCNT.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn next_mcu_bmi2(state: *mut c_void, blocks: *const *mut DctBlock) -> c_int {
    #[target_feature(enable = "bmi2,lzcnt")]
    unsafe fn read(state: *mut c_void, blocks: *const *mut DctBlock) -> bool {
        // SAFETY: the enclosing function has the same contract.
        unsafe { read_next_mcu(state, blocks) }
    }
    // SAFETY: the caller upholds the contract above.
    catch_panic(|| unsafe { read(state, blocks) })
}

/// Runs `work` and returns 0 if it panics, because a panic must not unwind into C.
fn catch_panic(work: impl FnOnce() -> bool) -> c_int {
    c_int::from(catch_unwind(AssertUnwindSafe(work)).unwrap_or(false))
}

/// Handles the request of [`next_mcu`].
///
/// # Safety
/// The contract of [`next_mcu`].
#[inline(always)]
unsafe fn read_next_mcu(state: *mut c_void, blocks: *const *mut DctBlock) -> bool {
    // SAFETY: the caller upholds the contract above, and no other code uses the reader during the call.
    let reader = unsafe { &mut *state.cast::<ScanReader<'_>>() };
    if blocks.is_null() {
        reader.skip_mcu();
        return true;
    }
    // SAFETY: the caller upholds the contract above. The blocks are distinct, and libjpeg does not use them during the call.
    reader.next_mcu(|block| unsafe { &mut **blocks.add(block) })
}
