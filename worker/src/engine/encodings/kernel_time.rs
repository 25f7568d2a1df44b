//! The fraction of the CPU pool's time that is spent in the kernel.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::process::thread_ticks;

/// Measures the cost of allocating memory: the kernel zeroes each page at first use, which on some machines takes as
/// long as decoding an image.
#[derive(Debug, Default)]
pub(crate) struct KernelTime {
    user: AtomicU64,
    kernel: AtomicU64,
}

/// Rows are cached in the first pass only if the kernel uses at most this fraction of the CPU time.
const KERNEL_SHARE: f64 = 0.04;
/// Minimum number of ticks before the fraction is used.
const TICKS_MIN: u64 = 40;
/// Number of ticks after which all earlier ticks count half.
const TICKS_MAX: u64 = 400;

thread_local! {
    /// User and kernel ticks of this thread at the last sample.
    static TICKS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl KernelTime {
    /// Adds the ticks of the current pool thread since its last sample.
    pub(crate) fn sample(&self) {
        let Some(now) = thread_ticks() else { return };
        let before = TICKS.replace(now);
        if before != (0, 0) {
            self.add(now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        }
    }

    fn add(&self, user: u64, kernel: u64) {
        let user = self.user.fetch_add(user, Ordering::Relaxed) + user;
        let kernel = self.kernel.fetch_add(kernel, Ordering::Relaxed) + kernel;
        if user + kernel > TICKS_MAX {
            self.user.store(user / 2, Ordering::Relaxed);
            self.kernel.store(kernel / 2, Ordering::Relaxed);
        }
    }

    /// Whether the kernel uses at most [`KERNEL_SHARE`] of the CPU time.
    pub(crate) fn is_low(&self) -> bool {
        let (user, kernel) = (self.user.load(Ordering::Relaxed), self.kernel.load(Ordering::Relaxed));
        user + kernel < TICKS_MIN || kernel as f64 <= KERNEL_SHARE * (user + kernel) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_share_is_measured_and_decays() {
        let time = KernelTime::default();
        time.add(0, 30);
        assert!(time.is_low(), "30 ticks are too few for a decision");
        time.add(70, 10);
        assert!(!time.is_low());
        for _ in 0..12 {
            time.add(200, 2);
        }
        assert!(time.is_low());
        assert!(time.user.load(Ordering::Relaxed) <= TICKS_MAX);
        time.sample();
        let limit = KernelTime::default();
        limit.add(96, 4);
        assert!(limit.is_low(), "exactly the permitted share");
        limit.add(0, 1);
        assert!(!limit.is_low());
    }
}
