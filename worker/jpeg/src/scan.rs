//! The parameters of the scan of a baseline JPEG.

/// Maximum number of blocks in an MCU.
pub(crate) const BLOCKS_PER_MCU: usize = 10;
/// Maximum number of components.
pub(crate) const COMPONENTS: usize = 3;

/// The parameters of the scan in the headers.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    pub(crate) mcus_per_row: u32,
    pub(crate) mcu_rows: u32,
    /// Number of blocks in an MCU.
    pub(crate) blocks: usize,
    /// MCUs between restart markers, or 0 if there are no restart markers.
    pub(crate) restart_interval: u32,
    /// Width of an MCU in pixels.
    pub(crate) column_width: u32,
    /// First byte of the entropy-coded data.
    pub(crate) data_offset: usize,
    /// Component of each block of an MCU.
    pub(crate) component: [u8; BLOCKS_PER_MCU],
    pub(crate) dc_table: [u8; BLOCKS_PER_MCU],
    pub(crate) ac_table: [u8; BLOCKS_PER_MCU],
}

impl Scan {
    /// Number of MCUs.
    pub(crate) fn mcus(&self) -> u64 {
        u64::from(self.mcus_per_row) * u64::from(self.mcu_rows)
    }
}
