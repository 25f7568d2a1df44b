//! Forms of kept rows: what they cost, tried on a few of a job's rows; how they are made, and how much of the time may go
//! into that.

mod encoder;
mod kernel_time;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use feedline_data::messages::FormStats;
use feedline_data::pipeline::{CacheEncoding, Pipeline};
use feedline_operators::{BuiltOperator, Chunk, Decoding, OutputBuffers, row_in_form};

pub(crate) use self::encoder::{CacheEncoder, EncodingPermission};
pub(crate) use self::kernel_time::KernelTime;
use super::trace::thread_cpu;

/// A row of each so many chunks is tried.
const EVERY: u64 = 32;
/// So many rows are enough.
const MOST_ROWS: u64 = 16;
/// A form is made at any time if the passes to come save so many times what it costs.
const REPAID: f64 = 2.0;

/// What has been tried.
#[derive(Debug)]
pub(crate) struct EncodingTrials {
    /// The operator that decodes: the first, with nothing random before it.
    pub(crate) place: usize,
    decoding: Decoding,
    chunks: AtomicU64,
    stats: Mutex<[FormStats; CacheEncoding::MADE.len()]>,
}

impl EncodingTrials {
    /// `None` where no rows could be kept before an operator that decodes.
    pub(crate) fn new(pipeline: &Pipeline, operators: &[BuiltOperator]) -> Option<Self> {
        let place = operators.iter().position(|operator| operator.decodes.is_some())?;
        let mut running = pipeline.operators.iter().filter(|operator| !operator.kind.is_engines());
        if running.by_ref().take(place).any(|operator| operator.kind.is_random()) {
            return None;
        }
        let none = |form| FormStats { after: place as u32, form, ..FormStats::default() };
        Some(Self {
            place,
            decoding: operators[place].decodes.clone()?,
            chunks: AtomicU64::new(0),
            stats: Mutex::new(CacheEncoding::MADE.map(none)),
        })
    }

    /// Tries a row of the chunk that comes to the operator, if it is time to.
    pub(crate) fn try_one(&self, chunk: &Chunk, operator: &BuiltOperator) {
        let number = self.chunks.fetch_add(1, Ordering::Relaxed);
        if number % EVERY == EVERY - 1 && number / EVERY < MOST_ROWS && chunk.rows() > 0 {
            for (place, form) in CacheEncoding::MADE.into_iter().enumerate() {
                if let Some(tried) = self.try_form(chunk, operator, form) {
                    self.lock()[place].add(&tried);
                }
            }
        }
    }

    fn try_form(&self, chunk: &Chunk, operator: &BuiltOperator, form: CacheEncoding) -> Option<FormStats> {
        let timed = |mut one: Chunk| {
            let begun = thread_cpu();
            operator.operator.apply(&mut one, &mut OutputBuffers::new()).ok()?;
            Some((thread_cpu() - begun).as_nanos() as u64).filter(|_| one.failures.is_empty())
        };
        let (plain, plain_bytes) = row_in_form(chunk, 0, &self.decoding, CacheEncoding::AsIs)?;
        let begun = thread_cpu();
        let (made, bytes) = row_in_form(chunk, 0, &self.decoding, form)?;
        let make_ns = (thread_cpu() - begun).as_nanos() as u64;
        Some(FormStats {
            rows: 1,
            plain_bytes: plain_bytes as u64,
            bytes: bytes as u64,
            make_ns,
            plain_ns: timed(plain)?,
            use_ns: timed(made)?,
            ..FormStats::default()
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, [FormStats; CacheEncoding::MADE.len()]> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the forms.
    pub(crate) fn stats(&self) -> Vec<FormStats> {
        self.lock().iter().filter(|form| form.rows > 0).copied().collect()
    }

    /// Whether making a form costs less than what so many passes save by it.
    fn repays(&self, form: CacheEncoding, passes: f64) -> bool {
        let stats = self.lock();
        let Some(form) = stats.iter().find(|known| known.form == form) else { return false };
        form.rows > 0
            && passes * form.plain_ns.saturating_sub(form.use_ns) as f64 > REPAID * form.make_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_repays_by_the_passes_that_are_to_come() {
        let pixels = FormStats {
            form: CacheEncoding::Pixels,
            rows: 3,
            make_ns: 30,
            plain_ns: 20,
            use_ns: 10,
            ..FormStats::default()
        };
        let indexed = FormStats {
            form: CacheEncoding::Indexed,
            rows: 3,
            make_ns: 1,
            plain_ns: 10,
            use_ns: 20,
            ..FormStats::default()
        };
        let mut stats = CacheEncoding::MADE.map(|form| FormStats { form, ..FormStats::default() });
        let trials = |stats| EncodingTrials {
            place: 0,
            decoding: Decoding { column: "image".to_owned(), size: [8, 8] },
            chunks: AtomicU64::new(0),
            stats: Mutex::new(stats),
        };
        assert!(!trials(stats).repays(CacheEncoding::Pixels, 1e9), "nothing was tried");
        for known in &mut stats {
            *known = if known.form == CacheEncoding::Pixels { pixels } else { indexed };
        }
        let trials = trials(stats);
        // Ten are saved each time, and twice thirty are wanted.
        assert!(!trials.repays(CacheEncoding::Pixels, 6.0) && trials.repays(CacheEncoding::Pixels, 7.0));
        assert!(!trials.repays(CacheEncoding::Indexed, 1e9), "it is slower");
        assert_eq!(trials.stats().len(), CacheEncoding::MADE.len());
    }
}
