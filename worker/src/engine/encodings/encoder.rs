//! Rows are brought into a form as they come, in a small part of the time unless that is repaid.

use std::sync::atomic::{AtomicU64, Ordering};

use feedline_data::pipeline::CacheEncoding;
use feedline_operators::{Chunk, Decoding, column_in_form};

use super::EncodingTrials;
use crate::engine::trace::thread_cpu;

/// The part of the time of the operator behind the cut that making forms may take while there is other work.
const FILL_SHARE: f64 = 0.04;

/// What a cut keeps its rows as.
#[derive(Debug)]
pub(crate) struct CacheEncoder {
    form: CacheEncoding,
    decoding: Decoding,
    /// CPU time spent.
    spent_ns: AtomicU64,
}

/// Whether forms may be made now.
pub(crate) struct EncodingPermission<'a> {
    /// Whether a thread has nothing to do.
    pub(crate) is_idle: bool,
    /// Whether taking more memory costs little.
    pub(crate) is_cheap: bool,
    /// CPU time of the operator behind the cut.
    pub(crate) used_ns: u64,
    pub(crate) trials: Option<&'a EncodingTrials>,
    /// Passes that are to come after the present one; none in the first, which must not be slower.
    pub(crate) passes_left: Option<f64>,
}

impl EncodingPermission<'_> {
    /// Whether rows may be kept at all.
    pub(crate) fn is_allowed(&self) -> bool {
        self.is_idle || self.is_cheap || self.passes_left.is_some()
    }
}

impl CacheEncoder {
    pub(crate) fn new(form: CacheEncoding, decoding: Decoding) -> Self {
        Self { form, decoding, spent_ns: AtomicU64::new(0) }
    }

    /// What rows in the form depend on beside what they are made of.
    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?}\n", self.form, self.decoding)
    }

    /// The chunk with its images in the form, and how many of its rows are.
    pub(crate) fn make(
        &self,
        chunk: &Chunk,
        leave: &EncodingPermission<'_>,
    ) -> Result<(Chunk, usize), String> {
        let allowed_ns = (FILL_SHARE * leave.used_ns as f64) as u64;
        let repays = || {
            let passes = leave.passes_left.filter(|passes| *passes >= 1.0);
            passes.zip(leave.trials).is_some_and(|(passes, trials)| trials.repays(self.form, passes))
        };
        let is_free = leave.is_idle || repays();
        let begun = thread_cpu();
        let spent_before = self.spent_ns.load(Ordering::Relaxed);
        let spent_now = || (thread_cpu() - begun).as_nanos() as u64;
        let goes_on = || is_free || spent_before + spent_now() < allowed_ns;
        let (column, count) =
            column_in_form(chunk, &self.decoding, self.form, goes_on).map_err(|error| error.to_string())?;
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
    fn the_first_pass_keeps_what_costs_little() {
        let leave = |is_idle, is_cheap, passes_left| EncodingPermission {
            is_idle,
            is_cheap,
            used_ns: 0,
            trials: None,
            passes_left,
        };
        assert!(!leave(false, false, None).is_allowed());
        for allowed in [leave(true, false, None), leave(false, true, None), leave(false, false, Some(0.0))] {
            assert!(allowed.is_allowed());
        }
    }

    #[test]
    fn pixels_are_kept_for_one_size() {
        let making =
            |form, size| CacheEncoder::new(form, Decoding { column: "image".to_owned(), size }).describe();
        assert_ne!(making(CacheEncoding::Pixels, [224, 224]), making(CacheEncoding::Pixels, [64, 64]));
        assert_ne!(making(CacheEncoding::Pixels, [64, 64]), making(CacheEncoding::Indexed, [64, 64]));
    }
}
