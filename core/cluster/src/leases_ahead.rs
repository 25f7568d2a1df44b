//! How many leases a worker holds ahead of one job.
//!
//! The number does not follow the measured pace: new weights of a mix take effect behind all leases, and a short job with leases
//! for all of its rows could not change them.

/// Rows leased ahead for each core.
const ROWS_PER_CORE: u64 = 16;
/// Most leases ahead of one job on one worker.
const MOST_AHEAD: u32 = 4_096;

/// Leases that a worker holds ahead, at least `least`: every core has rows, however short splits are.
pub(super) fn leases_for_cores(least: u32, cores: u32, split_rows: u64) -> u32 {
    let rows = u64::from(cores) * ROWS_PER_CORE;
    least.max(rows.div_ceil(split_rows.max(1)).min(u64::from(MOST_AHEAD)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_has_rows_from_the_start() {
        assert_eq!(leases_for_cores(3, 64, 1024), 3);
        assert_eq!(leases_for_cores(3, 64, 7), 147);
        assert_eq!(leases_for_cores(3, 1, 7), 3);
    }
}
