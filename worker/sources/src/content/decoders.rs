//! The decoders of compressed shards on a worker: their memory, and the paused decoders of runs. The blocks of a run are
//! decoded in order, each from where the previous one ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use feedline_data::ids::JobId;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::runs::{RunKey, RunPart, RunState};
use super::shared_memory::SharedMemory;
use crate::limits::MAX_SAMPLED_ROW_BYTES;
use crate::reader::BlockRead;

/// Maximum number of paused decoders.
const CAPACITY: usize = 1_024;
/// Time without a read after which a paused decoder is closed first if memory is short. Another worker probably reads its run now.
const UNUSED_AFTER: Duration = Duration::from_secs(60);
/// Default of [`Decoders::section_bytes`].
const DEFAULT_SECTION_BYTES: u64 = 512 << 10;
/// Default of [`Decoders::set_limit`].
const DEFAULT_LIMIT_BYTES: u64 = 64 << 20;

/// The state of a run, which its reads use in turn.
#[derive(Default)]
pub(super) struct RunSlot {
    pub(super) state: tokio::sync::Mutex<RunState>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The turn of a read of a run, which ends when it is dropped. A read waits for its turn before it reserves memory.
#[derive(Debug)]
pub struct RunTurn(#[expect(dead_code, reason = "holds the lock")] tokio::sync::OwnedMutexGuard<()>);

/// The turn of a read to decode, which ends when it is dropped.
pub(super) type DecodingTurn<'a> = SemaphorePermit<'a>;

/// The decoders of a worker.
pub struct Decoders {
    /// Memory of all decoders, including paused decoders.
    used_bytes: Arc<AtomicU64>,
    /// Maximum memory of paused decoders.
    limit_bytes: AtomicU64,
    /// Maximum memory of one decoder.
    decoder_bytes: AtomicU64,
    /// Maximum size of a row that determines the columns.
    sampled_row_bytes: AtomicU64,
    /// The memory of shards that are indexed. Set when a shard needs much memory for the first time.
    indexing: OnceLock<SharedMemory>,
    /// The memory of sections that are decoded ahead of the indexing of their shards. Set when the first shard has sections.
    sections: OnceLock<SharedMemory>,
    /// The number of compressed shards that are indexed now.
    indexed_shards: Arc<AtomicUsize>,
    /// One permit for each core. Set when the first section begins.
    section_threads: OnceLock<Arc<Semaphore>>,
    /// Minimum size of a section in a shard.
    section_bytes: AtomicU64,
    /// The number of sections that were decoded ahead and used.
    decoded_sections: AtomicU64,
    /// The number of cores. Set with `decoding`.
    cores: OnceLock<usize>,
    /// In the order of their use, the least recently used first.
    runs: Mutex<VecDeque<Entry>>,
    /// One permit for each core. Set when a read decodes for the first time, or by [`Decoders::set_cores`].
    decoding: OnceLock<Semaphore>,
}

struct Entry {
    job: JobId,
    run: RunKey,
    slot: Arc<RunSlot>,
    /// Memory of the paused decoder.
    bytes: u64,
    used_at: Instant,
}

impl Entry {
    /// Whether no read uses the decoder, or waits for its turn.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.slot) == 1 && Arc::strong_count(&self.slot.turn) == 1
    }
}

impl Default for Decoders {
    fn default() -> Self {
        let limit_bytes = AtomicU64::new(DEFAULT_LIMIT_BYTES);
        Self {
            used_bytes: Arc::default(),
            limit_bytes,
            decoder_bytes: AtomicU64::new(u64::MAX),
            sampled_row_bytes: AtomicU64::new(MAX_SAMPLED_ROW_BYTES),
            indexing: OnceLock::new(),
            sections: OnceLock::new(),
            indexed_shards: Arc::default(),
            section_threads: OnceLock::new(),
            section_bytes: AtomicU64::new(DEFAULT_SECTION_BYTES),
            decoded_sections: AtomicU64::new(0),
            cores: OnceLock::new(),
            runs: Mutex::default(),
            decoding: OnceLock::new(),
        }
    }
}

impl Decoders {
    /// Sets the maximum memory of paused decoders, which decoders of shards that are indexed may use too. A larger decoder is paused
    /// alone.
    pub fn set_limit(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Limits the rows that indexing holds in memory to determine the columns, below the limit for all workers.
    pub fn set_sampled_row_limit(&self, bytes: u64) {
        self.sampled_row_bytes.store(bytes.min(MAX_SAMPLED_ROW_BYTES), Ordering::Relaxed);
    }

    /// Maximum size of a row that determines the columns.
    pub(crate) fn sampled_row_limit(&self) -> u64 {
        self.sampled_row_bytes.load(Ordering::Relaxed)
    }

    /// The memory that large decoders and rows of shards that are indexed may use: as much as paused decoders, and one row.
    pub(super) fn indexing(&self) -> &SharedMemory {
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        self.indexing.get_or_init(|| SharedMemory::new(limit_bytes + self.sampled_row_limit()))
    }

    /// Sets the maximum memory of one decoder.
    pub fn set_decoder_limit(&self, bytes: u64) {
        self.decoder_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Maximum memory of one decoder.
    pub(super) fn decoder_limit(&self) -> u64 {
        self.decoder_bytes.load(Ordering::Relaxed)
    }

    /// Sets the number of reads that decode at a time, which is otherwise the number of cores of the machine. Only the first call
    /// has an effect, and only before the first read.
    pub fn set_cores(&self, cores: usize) {
        let _ = self.cores.set(cores.max(1));
        let _ = self.decoding.set(Semaphore::new(self.cores()));
    }

    /// The number of cores that decode.
    pub(super) fn cores(&self) -> usize {
        *self.cores.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// The memory of sections that are decoded ahead: as much as that of paused decoders.
    pub(super) fn sections(&self) -> &SharedMemory {
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        self.sections.get_or_init(|| SharedMemory::new(limit_bytes))
    }

    /// Limits the threads that decode sections.
    pub(super) fn section_threads(&self) -> &Arc<Semaphore> {
        self.section_threads.get_or_init(|| Arc::new(Semaphore::new(self.cores())))
    }

    /// Whether the sections that are decoded now leave a core for each other shard that is indexed. The decoder of a shard with sections
    /// waits for them. More decoders than cores would evict each other's windows from the caches of the cores.
    pub(super) fn has_core_for_section(&self) -> bool {
        let decoded = self.cores().saturating_sub(self.section_threads().available_permits());
        decoded + self.indexed_shards.load(Ordering::Relaxed) <= self.cores() + 1
    }

    /// Minimum size in a shard of a section that is decoded ahead.
    pub(super) fn section_bytes(&self) -> u64 {
        self.section_bytes.load(Ordering::Relaxed)
    }

    /// Counts a section that was decoded ahead and used.
    pub(super) fn count_section(&self) {
        self.decoded_sections.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn decoded_sections(&self) -> u64 {
        self.decoded_sections.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn set_section_bytes(&self, bytes: u64) {
        self.section_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The number of reads that may begin to decode now; `None` before the number of cores is set.
    pub fn free_cores(&self) -> Option<usize> {
        self.decoding.get().map(Semaphore::available_permits)
    }

    /// Memory of all decoders in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Waits until a core may decode. A read keeps its turn until it has its content or needs input, because two decoders that
    /// alternate on a core evict each other's windows from its cache. In its turn, a read only decodes, and lets other tasks
    /// run in between. It must be polled until its turn ends.
    pub(super) async fn decoding_turn(&self) -> DecodingTurn<'_> {
        let turns = self.decoding.get_or_init(|| Semaphore::new(self.cores()));
        turns.acquire().await.expect("the semaphore is never closed")
    }

    /// Forgets the paused decoders of jobs for which `is_retained` returns false.
    pub fn retain_jobs(&self, is_retained: impl Fn(JobId) -> bool) {
        self.lock().retain(|entry| is_retained(entry.job));
    }

    /// Waits until no other read of the run that contains a block has its turn. `None` if the block is not a part of a long run.
    pub(crate) async fn run_turn(&self, job: JobId, read: &BlockRead<'_>) -> Option<RunTurn> {
        let compression = read.compression().filter(|_| RunPart::of_group(read.block.group).is_some())?;
        let slot = self.slot(job, &RunKey::of(read.shard, compression, read.block.offset));
        let turn = Arc::clone(&slot.turn);
        Some(RunTurn(turn.lock_owned().await))
    }

    /// Returns the state of a run.
    pub(super) fn slot(&self, job: JobId, run: &RunKey) -> Arc<RunSlot> {
        let mut runs = self.lock();
        let is_entry = |entry: &Entry| entry.job == job && entry.run == *run;
        let known = runs.iter().position(is_entry).and_then(|index| runs.remove(index));
        let used_at = Instant::now();
        let new = || Entry { job, run: run.clone(), slot: Arc::default(), bytes: 0, used_at };
        let entry = Entry { used_at, ..known.unwrap_or_else(new) };
        let slot = Arc::clone(&entry.slot);
        if runs.len() >= CAPACITY
            && let Some(unused) = runs.iter().position(Entry::is_unused)
        {
            runs.remove(unused);
        }
        runs.push_back(entry);
        slot
    }

    /// Forgets a run whose last block was read.
    pub(super) fn remove(&self, job: JobId, run: &RunKey) {
        self.lock().retain(|entry| entry.job != job || entry.run != *run);
    }

    /// Records the memory of a paused decoder. Forgets decoders beyond the limit.
    pub(super) fn record_bytes(&self, job: JobId, run: &RunKey, bytes: u64) {
        self.record_bytes_at(job, run, bytes, Instant::now());
    }

    fn record_bytes_at(&self, job: JobId, run: &RunKey, bytes: u64, now: Instant) {
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        let mut runs = self.lock();
        if let Some(entry) = runs.iter_mut().find(|entry| entry.job == job && entry.run == *run) {
            entry.bytes = bytes;
        }
        let mut paused_bytes: u64 = runs.iter().map(|entry| entry.bytes).sum();
        while paused_bytes > limit_bytes
            && let Some(position) = first_to_forget(&runs, now)
            && let Some(forgotten) = runs.remove(position)
        {
            paused_bytes -= forgotten.bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Selects a paused decoder: one that was not used for a while, or else the most recently used one. The splits of a job read their runs in
/// turn, so the least recently used decoder is needed next.
fn first_to_forget(runs: &VecDeque<Entry>, now: Instant) -> Option<usize> {
    let is_paused = |entry: &Entry| entry.bytes > 0 && entry.is_unused();
    let is_old = |entry: &Entry| now.saturating_duration_since(entry.used_at) > UNUSED_AFTER;
    let oldest = runs.iter().position(is_paused)?;
    if is_old(&runs[oldest]) { Some(oldest) } else { runs.iter().rposition(is_paused) }
}

/// A compressed shard that is indexed, until it is dropped.
pub(super) struct IndexedShardGuard(Arc<AtomicUsize>);

impl IndexedShardGuard {
    pub(super) fn new(decoders: &Decoders) -> Self {
        decoders.indexed_shards.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&decoders.indexed_shards))
    }
}

impl Drop for IndexedShardGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The memory of one decoder, which counts until it is dropped.
pub(super) struct DecoderMemory {
    used_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl DecoderMemory {
    pub(super) fn new(decoders: &Decoders) -> Self {
        Self { used_bytes: Arc::clone(&decoders.used_bytes), bytes: 0 }
    }

    pub(super) fn set(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.used_bytes.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for DecoderMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::compression::{Codec, ShardCompression};
    use feedline_data::manifest::ShardRef;
    use futures::FutureExt;

    use std::sync::Weak;

    use super::*;

    const JOB: JobId = JobId(1);

    fn run(url: &str) -> RunKey {
        let compression = ShardCompression {
            codec: Codec::Zstd,
            content_bytes: 10,
            readable_bytes: 5,
            decoder_bytes: 1,
            points: Vec::new(),
        };
        RunKey::of(&ShardRef { url: url.to_owned(), ..ShardRef::default() }, &compression, 0)
    }

    #[test]
    fn decoders_are_counted_until_they_are_dropped() {
        let decoders = Decoders::default();
        let (mut first, mut second) = (DecoderMemory::new(&decoders), DecoderMemory::new(&decoders));
        first.set(100);
        second.set(7);
        first.set(30);
        assert_eq!(decoders.used_bytes(), 37);
        drop(first);
        assert_eq!(decoders.used_bytes(), 7);
    }

    #[test]
    fn as_many_reads_decode_at_a_time_as_the_worker_has_cores() {
        let decoders = Decoders::default();
        assert_eq!(decoders.free_cores(), None);
        decoders.set_cores(2);
        assert_eq!(decoders.free_cores(), Some(2));
        let turns: Vec<_> = (0..3).map(|_| decoders.decoding_turn().now_or_never()).collect();
        assert_eq!(turns.iter().filter(|turn| turn.is_some()).count(), 2);
        assert_eq!(decoders.free_cores(), Some(0));
        drop(turns);
        assert!(decoders.decoding_turn().now_or_never().is_some());
    }

    #[test]
    fn decoders_beyond_the_limit_are_forgotten_the_unused_ones_first() {
        let decoders = Decoders::default();
        decoders.set_limit(100);
        let slots = ["a", "b", "c"].map(|url| Arc::downgrade(&decoders.slot(JOB, &run(url))));
        let is_paused = |slot: &Weak<RunSlot>| slot.strong_count() == 1;
        decoders.slot(JOB, &run("a"));
        for url in ["a", "b", "c"] {
            decoders.record_bytes(JOB, &run(url), 45);
        }
        assert_eq!(slots.each_ref().map(is_paused), [false, true, true], "a was used last");
        let later = Instant::now() + 2 * UNUSED_AFTER;
        decoders.record_bytes_at(JOB, &run("c"), 60, later);
        assert_eq!(slots.each_ref().map(is_paused), [false, false, true], "b was not used for a while");
        decoders.record_bytes(JOB, &run("c"), 1_000);
        assert_eq!(slots.each_ref().map(is_paused), [false, false, false]);
        let other = Arc::downgrade(&decoders.slot(JobId(2), &run("a")));
        decoders.retain_jobs(|job| job == JOB);
        assert!(!is_paused(&other));
    }

    #[test]
    fn a_worker_with_little_memory_continues_most_decoders_that_it_reads_in_turn() {
        let decoders = Decoders::default();
        decoders.set_limit(600);
        let runs: Vec<RunKey> = (0..8).map(|number| run(&number.to_string())).collect();
        let mut continued = 0;
        for key in runs.iter().cycle().take(8 * 10) {
            let slot = decoders.slot(JOB, key);
            continued += usize::from(decoders.lock().back().is_some_and(|entry| entry.bytes > 0));
            decoders.record_bytes(JOB, key, 100);
            drop(slot);
        }
        assert!(continued > 8 * 10 / 2, "{continued} of 80 reads continued a decoder");
    }

    #[test]
    fn decoders_in_use_are_retained() {
        let decoders = Decoders::default();
        decoders.set_limit(100);
        let used = decoders.slot(JOB, &run("used"));
        let turn = Arc::clone(&decoders.slot(JOB, &run("waiting")).turn);
        let paused = Arc::downgrade(&decoders.slot(JOB, &run("paused")));
        for url in ["used", "waiting", "paused"] {
            decoders.record_bytes(JOB, &run(url), 90);
        }
        assert!(Arc::ptr_eq(&used, &decoders.slot(JOB, &run("used"))));
        assert!(Arc::ptr_eq(&turn, &decoders.slot(JOB, &run("waiting")).turn));
        assert_eq!(paused.strong_count(), 0);
    }
}
