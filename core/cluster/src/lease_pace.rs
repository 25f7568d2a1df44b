//! How many leases a worker gets ahead: as many as it computes while further ones are on their way to it.

use feedline_data::ids::Millis;

/// Time over which computed splits are counted.
const WINDOW_MS: u64 = 100;
/// Leases ahead last this long at the measured pace: longer than a report, its decision and the plan take together. A worker
/// that computes all its leases in less time gets more of them in each window, until its cores are the limit.
const AHEAD_MS: f64 = 250.0;
/// Rows leased ahead for each core before anything is measured.
const ROWS_PER_CORE: u64 = 16;
/// Most leases ahead of one job on one worker.
const MOST_AHEAD: u32 = 4_096;

/// Splits of one job that one worker computes per second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeasePace {
    window_from: Millis,
    in_window: u32,
    per_second: f64,
}

impl LeasePace {
    /// Counts computed splits.
    pub(super) fn add(&mut self, computed: u32, now: Millis) {
        self.in_window += computed;
        let passed = now.saturating_sub(self.window_from);
        if passed < WINDOW_MS {
            return;
        }
        let measured = f64::from(self.in_window) * 1_000.0 / passed as f64;
        // One slow window does not leave cores without work.
        self.per_second = measured.max((self.per_second + measured) / 2.0);
        (self.window_from, self.in_window) = (now, 0);
    }

    /// Leases ahead at this pace, at least `least`.
    pub(super) fn leases_ahead(&self, least: u32) -> u32 {
        let ahead = (self.per_second * AHEAD_MS / 1_000.0).ceil().min(f64::from(MOST_AHEAD));
        least.max(ahead as u32)
    }
}

/// Leases ahead before anything is measured: every core has rows, however short splits are.
pub(super) fn leases_for_cores(least: u32, cores: u32, split_rows: u64) -> u32 {
    let rows = u64::from(cores) * ROWS_PER_CORE;
    least.max(rows.div_ceil(split_rows.max(1)).min(u64::from(MOST_AHEAD)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_follow_what_a_worker_computes() {
        let mut pace = LeasePace::default();
        assert_eq!(pace.leases_ahead(3), 3);
        // 3 leases in each 20 ms: the round trip is the limit, so there are more.
        (1..=5).for_each(|turn| pace.add(3, 20 * turn));
        assert_eq!(pace.leases_ahead(3), 38);
        (6..=10).for_each(|turn| pace.add(38, 20 * turn));
        assert_eq!(pace.leases_ahead(3), 475);
        // A window without work halves it, and a long pause ends it.
        pace.add(0, 300);
        assert_eq!(pace.leases_ahead(3), 238);
        (4..20).for_each(|turn| pace.add(0, 100 * turn));
        assert_eq!(pace.leases_ahead(3), 3);
        pace.add(1_000_000, 2_000);
        assert_eq!(pace.leases_ahead(3), MOST_AHEAD);
    }

    #[test]
    fn every_core_has_rows_from_the_start() {
        assert_eq!(leases_for_cores(3, 64, 1024), 3);
        assert_eq!(leases_for_cores(3, 64, 7), 147);
        assert_eq!(leases_for_cores(3, 1, 7), 3);
    }
}
