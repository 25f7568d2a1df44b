//! Forms of kept rows: what they cost, tried on a few of a job's rows; and how much of the time may go into making them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use feedline_core::cluster::messages::FormStats;
use feedline_core::pipeline::{KeptForm, Pipeline};
use feedline_operators::{BuiltOperator, Chunk, Decoding, Slots, column_in_form, row_in_form};

use super::trace::thread_cpu;
use crate::process::thread_ticks;

/// A row of each so many chunks is tried.
const EVERY: u64 = 32;
/// So many rows are enough.
const MOST_ROWS: u64 = 16;
/// The part of the time of the operator behind the cut that making forms may take while there is other work.
const FILL_SHARE: f64 = 0.04;
/// A form is made at any time if the passes to come save so many times what it costs.
const REPAID: f64 = 2.0;

/// What has been tried.
#[derive(Debug)]
pub(crate) struct Trials {
    /// The operator that decodes: the first, with nothing random before it.
    pub(crate) place: usize,
    decoding: Decoding,
    chunks: AtomicU64,
    stats: Mutex<[FormStats; KeptForm::MADE.len()]>,
}

impl Trials {
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
            stats: Mutex::new(KeptForm::MADE.map(none)),
        })
    }

    /// Tries a row of the chunk that comes to the operator, if it is time to.
    pub(crate) fn try_one(&self, chunk: &Chunk, operator: &BuiltOperator) {
        let number = self.chunks.fetch_add(1, Ordering::Relaxed);
        if number % EVERY == EVERY - 1 && number / EVERY < MOST_ROWS && chunk.rows() > 0 {
            for (place, form) in KeptForm::MADE.into_iter().enumerate() {
                if let Some(tried) = self.try_form(chunk, operator, form) {
                    self.lock()[place].add(&tried);
                }
            }
        }
    }

    fn try_form(&self, chunk: &Chunk, operator: &BuiltOperator, form: KeptForm) -> Option<FormStats> {
        let timed = |mut one: Chunk| {
            let begun = thread_cpu();
            operator.operator.apply(&mut one, &mut Slots::new()).ok()?;
            Some((thread_cpu() - begun).as_nanos() as u64).filter(|_| one.failures.is_empty())
        };
        let (plain, plain_bytes) = row_in_form(chunk, 0, &self.decoding, KeptForm::AsIs)?;
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

    fn lock(&self) -> std::sync::MutexGuard<'_, [FormStats; KeptForm::MADE.len()]> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the forms.
    pub(crate) fn stats(&self) -> Vec<FormStats> {
        self.lock().iter().filter(|form| form.rows > 0).copied().collect()
    }

    /// Whether making a form costs less than what so many passes save by it.
    fn repays(&self, form: KeptForm, passes: f64) -> bool {
        let stats = self.lock();
        let Some(form) = stats.iter().find(|known| known.form == form) else { return false };
        form.rows > 0
            && passes * form.plain_ns.saturating_sub(form.use_ns) as f64 > REPAID * form.make_ns as f64
    }
}

/// What keeping costs beside what it computes: memory that is taken anew has to be cleared, by the kernel, wherever it is
/// touched first. On some machines that takes as long as decoding.
#[derive(Debug, Default)]
pub(crate) struct KernelTime {
    user: AtomicU64,
    kernel: AtomicU64,
}

/// Kept rows may bring the kernel's part of the CPU pool's time to this in the first pass.
const KERNEL_SHARE: f64 = 0.08;
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

/// What a cut keeps its rows as.
#[derive(Debug)]
pub(crate) struct Making {
    form: KeptForm,
    decoding: Decoding,
    /// CPU time spent.
    spent_ns: AtomicU64,
}

/// Whether forms may be made now.
pub(crate) struct Leave<'a> {
    /// Whether a thread has nothing to do.
    pub(crate) is_idle: bool,
    /// Whether taking more memory costs little.
    pub(crate) is_cheap: bool,
    /// CPU time of the operator behind the cut.
    pub(crate) used_ns: u64,
    pub(crate) trials: Option<&'a Trials>,
    /// Passes that are to come after the present one; none in the first, which must not be slower.
    pub(crate) passes_left: Option<f64>,
}

impl Leave<'_> {
    /// Whether rows may be kept at all.
    pub(crate) fn is_allowed(&self) -> bool {
        self.is_idle || self.is_cheap || self.passes_left.is_some()
    }
}

impl Making {
    pub(crate) fn new(form: KeptForm, decoding: Decoding) -> Self {
        Self { form, decoding, spent_ns: AtomicU64::new(0) }
    }

    /// What rows in the form depend on beside what they are made of.
    pub(crate) fn describe(&self) -> String {
        format!("{:?} {:?}\n", self.form, self.decoding)
    }

    /// The chunk with its images in the form, and how many of its rows are.
    pub(crate) fn make(&self, chunk: &Chunk, leave: &Leave<'_>) -> Result<(Chunk, usize), String> {
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

    #[test]
    fn pixels_are_kept_for_one_size() {
        let making = |form, size| Making::new(form, Decoding { column: "image".to_owned(), size }).describe();
        assert_ne!(making(KeptForm::Pixels, [224, 224]), making(KeptForm::Pixels, [64, 64]));
        assert_ne!(making(KeptForm::Pixels, [64, 64]), making(KeptForm::Indexed, [64, 64]));
    }
}
