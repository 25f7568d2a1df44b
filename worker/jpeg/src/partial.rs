//! Decoding a rectangle with our own Huffman decoder under libjpeg-turbo's transforms: `c/partial.c` from Rust.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::Region;
use crate::entropy::{BLOCKS_PER_MCU, DctBlock, Scan, ScanReader};
use crate::huffman::{TableSpec, Tables};
use crate::index::{EntropyIndex, IndexBuilder};

/// Tables of a kind that a JPEG may have.
const TABLES: usize = 4;

#[repr(C)]
struct RawPartial {
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
    dc_bits: [*const u8; TABLES],
    dc_values: [*const u8; TABLES],
    ac_bits: [*const u8; TABLES],
    ac_values: [*const u8; TABLES],
}

type McuCallback = unsafe extern "C" fn(state: *mut c_void, blocks: *const *mut DctBlock) -> c_int;

unsafe extern "C" {
    fn feedline_partial_new() -> *mut RawPartial;
    fn feedline_partial_free(this: *mut RawPartial);
    fn feedline_partial_open(
        this: *mut RawPartial,
        jpeg: *const u8,
        length: usize,
        reduction: u32,
        scan: *mut RawScan,
    ) -> c_int;
    fn feedline_partial_close(this: *mut RawPartial);
    fn feedline_partial_read(
        this: *mut RawPartial,
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

/// How much smaller than stored an image is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// As large as stored.
    None,
    /// Half as wide and high, rounded up: four pixels become one by a smaller inverse DCT.
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

/// A libjpeg-turbo decompressor whose Huffman decoding is ours, with the tables of the image before.
#[derive(Debug)]
pub(crate) struct Partial {
    raw: NonNull<RawPartial>,
    tables: Tables,
    next_mcu: McuCallback,
}

// SAFETY: the decompressor is owned by this value alone and holds no thread's identity; its jmp_buf is set anew by
// every call that can use it, on the thread of that call.
unsafe impl Send for Partial {}

impl Drop for Partial {
    fn drop(&mut self) {
        // SAFETY: the pointer came from feedline_partial_new, is freed only here, and nothing uses it afterwards.
        unsafe { feedline_partial_free(self.raw.as_ptr()) };
    }
}

impl Partial {
    /// `None` where memory is short.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: takes nothing; gives an instance or null.
        let raw = unsafe { feedline_partial_new() };
        Some(Self { raw: NonNull::new(raw)?, tables: Tables::default(), next_mcu: fastest_next_mcu() })
    }

    /// Decodes `cut` of the stored image, reduced, into the front of `out`, rows of `cut.width * 3` bytes, reading no
    /// more of the Huffman codes than it needs: from the nearest point of `index` on where there is one.
    ///
    /// `false` where the image is not of the suited kind or is not sound: then the ordinary decoder must look at it,
    /// and `out` may hold anything. `cut` is in pixels of the reduced image, and `cut.x` must be a multiple of the
    /// reduced column width.
    ///
    /// # Panics
    /// Where `out` is shorter than the pixels.
    pub(crate) fn decode(
        &mut self,
        jpeg: &[u8],
        (cut, reduction): (Region, Reduction),
        index: Option<EntropyIndex<'_>>,
        out: &mut [u8],
    ) -> bool {
        let pitch = cut.width as usize * 3;
        assert!(out.len() >= pitch * cut.height as usize, "the caller sized the buffer for the cut");
        let Self { raw, next_mcu, .. } = *self;
        let decode = |scan: &Scan, tables: &Tables| {
            let Some(mut reader) = ScanReader::new(jpeg, scan, tables) else { return false };
            let column_width = scan.column_width / reduction.divisor();
            reader.want(cut.x / column_width, (cut.x + cut.width).div_ceil(column_width));
            reader.use_index(index.filter(|index| index.fits(jpeg, scan)));
            let state = (&raw mut reader).cast();
            // SAFETY: the instance is open on this jpeg, which lives until it is closed. `out` holds `cut.height` rows
            // of `pitch` bytes, as asserted above, and C writes no more rows and columns than the cut has, which it
            // compares with what libjpeg will give. `next_mcu` gets the state it expects, which lives through the call.
            let status = unsafe {
                feedline_partial_read(
                    raw.as_ptr(),
                    cut.x,
                    cut.y,
                    cut.width,
                    cut.height,
                    out.as_mut_ptr(),
                    pitch,
                    next_mcu,
                    state,
                )
            };
            status == 1 && reader.is_sound()
        };
        self.with_scan(jpeg, reduction, decode).unwrap_or(false)
    }

    /// The JPEG with an index of its data in it. `None` where the image is not of the suited kind or is not sound.
    pub(crate) fn with_index(&mut self, jpeg: &[u8]) -> Option<Vec<u8>> {
        let index = self.with_scan(jpeg, Reduction::None, |scan, tables| {
            ScanReader::new(jpeg, scan, tables)?.index(IndexBuilder::new(jpeg, scan))
        });
        index??.insert(jpeg)
    }

    fn with_scan<T>(
        &mut self,
        jpeg: &[u8],
        reduction: Reduction,
        work: impl FnOnce(&Scan, &Tables) -> T,
    ) -> Option<T> {
        // SAFETY: numbers, arrays of numbers and pointers, for all of which zeros are a value.
        let mut raw: RawScan = unsafe { std::mem::zeroed() };
        // SAFETY: the instance is live and closed; the slice and the scan live through the call, and the slice until
        // the close below, after which libjpeg does not look at it.
        let status = unsafe {
            let divisor = reduction.divisor();
            feedline_partial_open(self.raw.as_ptr(), jpeg.as_ptr(), jpeg.len(), divisor, &raw mut raw)
        };
        if status != 1 {
            return None;
        }
        let result = self.read_scan(&raw).map(|scan| work(&scan, &self.tables));
        // SAFETY: the instance is live and open.
        unsafe { feedline_partial_close(self.raw.as_ptr()) };
        result
    }

    /// The scan in Rust's terms; makes the tables ready. `None` where a table is missing or no Huffman code.
    fn read_scan(&mut self, raw: &RawScan) -> Option<Scan> {
        let spec = |bits: *const u8, values: *const u8| -> Option<TableSpec> {
            if bits.is_null() || values.is_null() {
                return None;
            }
            // SAFETY: they point to the `bits[17]` and `huffval[256]` of a JHUFF_TBL, which libjpeg keeps while the
            // instance is open.
            unsafe { Some(TableSpec { bits: *bits.cast::<[u8; 17]>(), values: *values.cast::<[u8; 256]>() }) }
        };
        for block in 0..(raw.blocks_per_mcu as usize).min(BLOCKS_PER_MCU) {
            let (dc, ac) = (usize::from(raw.dc_table[block]), usize::from(raw.ac_table[block]));
            if dc >= TABLES || ac >= TABLES {
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

/// The form of [`next_mcu`] for this processor.
fn fastest_next_mcu() -> McuCallback {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi2") && std::arch::is_x86_feature_detected!("lzcnt") {
        return next_mcu_bmi2;
    }
    next_mcu
}

/// libjpeg-turbo asks for the next MCU.
///
/// # Safety
/// `state` is the `ScanReader` that was handed to `feedline_partial_read`; `blocks` is null or points to as many
/// pointers to distinct blocks as an MCU of the scan has.
unsafe extern "C" fn next_mcu(state: *mut c_void, blocks: *const *mut DctBlock) -> c_int {
    // SAFETY: by the contract above.
    guard(|| unsafe { read_next_mcu(state, blocks) })
}

/// As [`next_mcu`], where a shift by a variable count is one operation.
///
/// # Safety
/// As [`next_mcu`], on a processor with BMI2 and LZCNT.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn next_mcu_bmi2(state: *mut c_void, blocks: *const *mut DctBlock) -> c_int {
    #[target_feature(enable = "bmi2,lzcnt")]
    unsafe fn read(state: *mut c_void, blocks: *const *mut DctBlock) -> bool {
        // SAFETY: by the contract of the function around.
        unsafe { read_next_mcu(state, blocks) }
    }
    // SAFETY: by the contract above.
    guard(|| unsafe { read(state, blocks) })
}

/// Keeps a panic from unwinding into C.
fn guard(work: impl FnOnce() -> bool) -> c_int {
    c_int::from(catch_unwind(AssertUnwindSafe(work)).unwrap_or(false))
}

/// # Safety
/// As [`next_mcu`].
#[inline(always)]
unsafe fn read_next_mcu(state: *mut c_void, blocks: *const *mut DctBlock) -> bool {
    // SAFETY: by the contract above, and nothing else uses the reader during the call.
    let reader = unsafe { &mut *state.cast::<ScanReader<'_>>() };
    if blocks.is_null() {
        reader.pass_mcu();
        return true;
    }
    // SAFETY: by the contract above; the blocks are distinct, and libjpeg does not touch them during the call.
    reader.next_mcu(|block| unsafe { &mut **blocks.add(block) })
}
