//! Encodes rows for a cache. Unless a benefit has been measured, encoding uses only a small fraction of the CPU time.

use std::sync::atomic::{AtomicU64, Ordering};

use feedline_data::pipeline::CacheEncoding;
use feedline_operators::{Chunk, Decoding, encode_column};

use super::EncodingTrials;
use crate::engine::trace::thread_cpu;

/// Maximum CPU time for encoding while threads are busy, as a fraction of the CPU time of the operator after the cache
/// point.
const ENCODING_SHARE: f64 = 0.04;

/// Encodes the images of a cache point.
#[derive(Debug)]
pub(crate) struct CacheEncoder {
    encoding: CacheEncoding,
    decoding: Decoding,
    /// CPU time spent on encoding without a measured benefit.
    spent_ns: AtomicU64,
}

/// The conditions under which rows may be encoded.
pub(crate) struct EncodingPermission<'a> {
    /// Whether a thread is idle.
    pub(crate) has_idle_thread: bool,
    /// Whether allocating memory is cheap, as measured by [`KernelTime`](super::KernelTime).
    pub(crate) is_allocation_cheap: bool,
    /// CPU time that the operator after the cache point has used so far.
    pub(crate) operator_cpu_ns: u64,
    pub(crate) trials: Option<&'a EncodingTrials>,
    /// Number of passes after the current pass. `None` in the first pass, which caching must not slow down.
    pub(crate) passes_left: Option<f64>,
}

impl EncodingPermission<'_> {
    /// Whether rows may be cached at all.
    pub(crate) fn is_allowed(&self) -> bool {
        self.has_idle_thread || self.is_allocation_cheap || self.passes_left.is_some()
    }
}

impl CacheEncoder {
    pub(crate) fn new(encoding: CacheEncoding, decoding: Decoding) -> Self {
        Self { encoding, decoding, spent_ns: AtomicU64::new(0) }
    }

    /// Describes the parameters that encoded rows depend on. The text is part of the cache key.
    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?}\n", self.encoding, self.decoding)
    }

    /// Encodes the images of a chunk until the time limit. Returns the chunk, and the number of rows that were encoded,
    /// from the start of the chunk.
    pub(crate) fn encode(
        &self,
        chunk: &Chunk,
        permission: &EncodingPermission<'_>,
    ) -> Result<(Chunk, usize), String> {
        let allowed_ns = (ENCODING_SHARE * permission.operator_cpu_ns as f64) as u64;
        let repays = || {
            let passes = permission.passes_left.filter(|passes| *passes >= 1.0);
            passes.zip(permission.trials).is_some_and(|(passes, trials)| trials.repays(self.encoding, passes))
        };
        let is_free = permission.has_idle_thread || repays();
        let begun = thread_cpu();
        let spent_before = self.spent_ns.load(Ordering::Relaxed);
        let spent_now = || (thread_cpu() - begun).as_nanos() as u64;
        let continues = || is_free || spent_before + spent_now() < allowed_ns;
        let (column, count) = encode_column(chunk, &self.decoding, self.encoding, continues)
            .map_err(|error| error.to_string())?;
        if !is_free {
            self.spent_ns.fetch_add(spent_now(), Ordering::Relaxed);
        }
        let mut made = chunk.clone();
        made.set(&self.decoding.column, column);
        Ok((made, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pass_caches_rows_if_that_is_cheap() {
        let permission = |has_idle_thread, is_allocation_cheap, passes_left| EncodingPermission {
            has_idle_thread,
            is_allocation_cheap,
            operator_cpu_ns: 0,
            trials: None,
            passes_left,
        };
        assert!(!permission(false, false, None).is_allowed());
        for allowed in [
            permission(true, false, None),
            permission(false, true, None),
            permission(false, false, Some(0.0)),
        ] {
            assert!(allowed.is_allowed());
        }
    }

    #[test]
    fn encoded_pixels_depend_on_the_size() {
        let description = |encoding, size| {
            CacheEncoder::new(encoding, Decoding { column: "image".to_owned(), size }).describe()
        };
        assert_ne!(
            description(CacheEncoding::Pixels, [224, 224]),
            description(CacheEncoding::Pixels, [64, 64])
        );
        assert_ne!(
            description(CacheEncoding::Pixels, [64, 64]),
            description(CacheEncoding::Indexed, [64, 64])
        );
    }
}
