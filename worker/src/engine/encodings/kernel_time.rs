//! How much of the pool's time goes to the kernel.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::process::thread_ticks;

/// What keeping costs beside what it computes: memory that is taken anew has to be cleared, by the kernel, wherever it is
/// touched first. On some machines that takes as long as decoding.
#[derive(Debug, Default)]
pub(crate) struct KernelTime {
    user: AtomicU64,
    kernel: AtomicU64,
}

/// Kept rows may bring the kernel's part of the CPU pool's time to this in the first pass.
const KERNEL_SHARE: f64 = 0.04;
/// Fewer ticks tell nothing; after so many, what is older counts half.
const FEW_TICKS: u64 = 40;
const MANY_TICKS: u64 = 400;

thread_local! {
    /// Ticks of this thread, of the pool, when it was looked at last.
    static TICKS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl KernelTime {
    /// Takes what this thread of the pool has spent since it was looked at last.
    pub(crate) fn look(&self) {
        let Some(now) = thread_ticks() else { return };
        let before = TICKS.replace(now);
        if before != (0, 0) {
            self.add(now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        }
    }

    fn add(&self, user: u64, kernel: u64) {
        let user = self.user.fetch_add(user, Ordering::Relaxed) + user;
        let kernel = self.kernel.fetch_add(kernel, Ordering::Relaxed) + kernel;
        if user + kernel > MANY_TICKS {
            self.user.store(user / 2, Ordering::Relaxed);
            self.kernel.store(kernel / 2, Ordering::Relaxed);
        }
    }

    /// Whether the kernel takes little enough.
    pub(crate) fn is_low(&self) -> bool {
        let (user, kernel) = (self.user.load(Ordering::Relaxed), self.kernel.load(Ordering::Relaxed));
        user + kernel < FEW_TICKS || kernel as f64 <= KERNEL_SHARE * (user + kernel) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_takes_much_is_seen_and_forgotten() {
        let time = KernelTime::default();
        time.add(0, 30);
        assert!(time.is_low(), "that is too little to tell");
        time.add(70, 10);
        assert!(!time.is_low());
        for _ in 0..12 {
            time.add(200, 2);
        }
        assert!(time.is_low());
        assert!(time.user.load(Ordering::Relaxed) <= MANY_TICKS);
        time.look();
    }
}
