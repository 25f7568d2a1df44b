//! The progress of a split, which tells a waiting consumer that a slow split is still being computed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the block reads and operator executions of a split. Clones share one count.
#[derive(Debug, Clone, Default)]
pub(crate) struct SplitProgress(Arc<AtomicU64>);

impl SplitProgress {
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_a_progress_count_together() {
        let progress = SplitProgress::default();
        progress.clone().increment();
        progress.increment();
        assert_eq!(progress.count(), 2);
    }
}
