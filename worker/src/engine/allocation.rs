//! What a job may use of this worker, as it is now. The coordinator's plan changes it while groups are on their way: a
//! chunk keeps the stages with which it began, and takes its turns by the present numbers.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use feedline_data::messages::JobAllocation;
use feedline_operators::BuiltOperator;

use super::semaphore::{AdjustableSemaphore, UNLIMITED};

/// Name of the end of each pipeline, which is the engine's.
const BATCH: &str = "batch";
/// Groups in flight beyond one for each core, so that reading goes on beside computing, where nothing else was said.
const GROUPS_AHEAD: usize = 6;
/// Blocks of one group that are read at the same time where nothing else was said.
const CONCURRENT_READS: usize = 16;

/// Neighbouring operators that run in one task. A border is where concurrency is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Places in the job's operators.
    pub(crate) operators: Range<usize>,
    /// Whether executions of its first operator, then its only one, take turns.
    pub(crate) is_limited: bool,
}

/// A job's operators, cut where concurrency is limited, time passes without work, or rows come from a cache.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stages {
    pub(crate) list: Vec<Stage>,
    /// The first stage behind the pipeline's `cache`.
    pub(crate) cut: Option<usize>,
}

impl Stages {
    fn new(operators: &[Fixed], cut: Option<usize>, is_limited: impl Fn(usize) -> bool) -> Self {
        let mut list: Vec<Stage> = Vec::new();
        let mut fused = false;
        for (place, operator) in operators.iter().enumerate() {
            let is_limited = is_limited(place);
            let alone = is_limited || operator.waits;
            match list.last_mut() {
                Some(stage) if fused && !alone && cut != Some(place) => stage.operators.end = place + 1,
                _ => list.push(Stage { operators: place..place + 1, is_limited }),
            }
            fused = !alone;
        }
        let before = |place: usize| list.iter().take_while(|stage| stage.operators.start < place).count();
        Self { cut: cut.map(before), list }
    }
}

/// What does not change of an operator.
#[derive(Debug)]
struct Fixed {
    name: String,
    /// Concurrent executions as the pipeline pins them: no allotment changes that.
    pinned: Option<u32>,
    /// Whether it is a stage of its own: it waits without work, or others work for it.
    waits: bool,
    /// Concurrent executions where neither the pipeline nor an allotment says.
    usual: Option<u32>,
}

impl Fixed {
    /// Concurrent executions where an allotment says so many. What runs in processes of its own has no more of those.
    fn limit(&self, said: Option<u32>) -> Option<u32> {
        let said = match (said, self.usual) {
            (Some(said), Some(usual)) => Some(said.min(usual)),
            (said, usual) => said.or(usual),
        };
        self.pinned.or(said)
    }
}

/// A job's limits.
#[derive(Debug)]
pub(crate) struct JobLimits {
    operators: Vec<Fixed>,
    /// Where the pipeline's `cache` is among the operators.
    cut: Option<usize>,
    batch_pinned: Option<u32>,
    /// One for each operator.
    turns: Vec<Arc<AdjustableSemaphore>>,
    /// How many batches may be put together at a time.
    pub(crate) batch: Arc<AdjustableSemaphore>,
    /// How many blocks may be read at a time, over all groups.
    pub(crate) reads: Arc<AdjustableSemaphore>,
    read_concurrency: AtomicU32,
    prefetch_bytes: AtomicU64,
    stages: Mutex<Arc<Stages>>,
}

impl JobLimits {
    /// Those that the pipeline itself sets, on a worker with so many threads.
    pub(crate) fn new(
        operators: &[BuiltOperator],
        cut: Option<usize>,
        batch_pinned: Option<u32>,
        threads: u32,
    ) -> Self {
        let fixed = |operator: &BuiltOperator| Fixed {
            name: operator.name.clone(),
            pinned: operator.parallelism,
            waits: operator.wait_per_row.is_some() || operator.function.is_some(),
            // As many processes as cores.
            usual: operator.function.is_some().then_some(threads),
        };
        Self::of(operators.iter().map(fixed).collect(), cut, batch_pinned)
    }

    fn of(operators: Vec<Fixed>, cut: Option<usize>, batch_pinned: Option<u32>) -> Self {
        let stages = Stages::new(&operators, cut, |place| {
            operators[place].pinned.or(operators[place].usual).is_some()
        });
        Self {
            turns: operators
                .iter()
                .map(|operator| {
                    Arc::new(AdjustableSemaphore::new(
                        operator.pinned.or(operator.usual).unwrap_or(UNLIMITED),
                    ))
                })
                .collect(),
            batch: Arc::new(AdjustableSemaphore::new(batch_pinned.unwrap_or(UNLIMITED))),
            reads: Arc::new(AdjustableSemaphore::new(UNLIMITED)),
            read_concurrency: AtomicU32::new(0),
            prefetch_bytes: AtomicU64::new(0),
            stages: Mutex::new(Arc::new(stages)),
            operators,
            cut,
            batch_pinned,
        }
    }

    /// Takes turns together with the groups of the same job as it was loaded before.
    pub(crate) fn join(&mut self, before: &Self) {
        self.turns.clone_from(&before.turns);
        self.batch = Arc::clone(&before.batch);
        self.reads = Arc::clone(&before.reads);
    }

    /// Obeys from now on; nothing was said where there is no allotment.
    pub(crate) fn obey(&self, allotment: Option<&JobAllocation>) {
        let said = |name: &str| {
            let limits = allotment.map_or(&[][..], |allotment| allotment.operator_limits.as_slice());
            limits.iter().find(|(operator, limit)| operator == name && *limit > 0).map(|(_, limit)| *limit)
        };
        let limits: Vec<Option<u32>> =
            self.operators.iter().map(|operator| operator.limit(said(&operator.name))).collect();
        for (turns, limit) in self.turns.iter().zip(&limits) {
            turns.resize(limit.unwrap_or(UNLIMITED));
        }
        self.batch.resize(self.batch_pinned.or_else(|| said(BATCH)).unwrap_or(UNLIMITED));
        let reads = allotment.map_or(0, |allotment| allotment.read_concurrency);
        self.reads.resize(if reads == 0 { UNLIMITED } else { reads });
        self.read_concurrency.store(reads, Ordering::Relaxed);
        let prefetch = allotment.map_or(0, |allotment| allotment.prefetch_bytes);
        self.prefetch_bytes.store(prefetch, Ordering::Relaxed);
        let stages = Stages::new(&self.operators, self.cut, |place| limits[place].is_some());
        *self.stages.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(stages);
    }

    /// The stages of a chunk that begins now.
    pub(crate) fn stages(&self) -> Arc<Stages> {
        Arc::clone(&self.stages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where a stage's executions take turns.
    pub(crate) fn turns(&self, stage: &Stage) -> Option<&AdjustableSemaphore> {
        stage.is_limited.then(|| &*self.turns[stage.operators.start])
    }

    /// Blocks of one group that are read at the same time.
    pub(crate) fn reads_of_group(&self) -> usize {
        match self.read_concurrency.load(Ordering::Relaxed) {
            0 => CONCURRENT_READS,
            reads => reads as usize,
        }
    }

    /// Whether the job was told how much to read at a time.
    pub(crate) fn has_reads(&self) -> bool {
        self.read_concurrency.load(Ordering::Relaxed) > 0
    }

    /// Whether one more group of `bytes` may be computed ahead. With a limit in bytes: if the job's groups, computed or not, hold
    /// fewer. Else: if few groups run. A group may need a single read, so as many groups run as reads are allowed; and if
    /// rows are slow and groups are small, more groups run, so that reading is as far ahead of the threads.
    pub(crate) fn admits(&self, bytes: u64, held_bytes: impl FnOnce() -> u64, load: GroupLoad) -> bool {
        match self.prefetch_bytes.load(Ordering::Relaxed) {
            0 => {
                let reads = self.read_concurrency.load(Ordering::Relaxed) as usize;
                let ahead = GROUPS_AHEAD * load.groups_per_full_group.clamp(1, load.threads.max(1));
                load.groups < load.threads + reads.max(ahead)
            }
            limit => {
                let held = held_bytes();
                held == 0 || held + bytes <= limit
            }
        }
    }
}

/// The running groups of a worker, for the decision about another one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLoad {
    /// Running groups that count for the job's limit.
    pub(crate) groups: usize,
    /// Threads of the worker.
    pub(crate) threads: usize,
    /// Groups of the job that have the rows of one group of fast rows.
    pub(crate) groups_per_full_group: usize,
}

#[cfg(test)]
mod tests {
    use feedline_data::ids::JobId;
    use futures::FutureExt;

    use super::*;

    /// `read, decode (pinned to 2), wait, crop, flip`, with a cache before `flip`.
    fn limits() -> JobLimits {
        let operator =
            |name: &str, pinned, waits| Fixed { name: name.to_owned(), pinned, waits, usual: None };
        let operators = vec![
            operator("read", None, false),
            operator("decode", Some(2), false),
            operator("wait", None, true),
            operator("crop", None, false),
            operator("flip", None, false),
        ];
        JobLimits::of(operators, Some(4), None)
    }

    fn allot(limits: &[(&str, u32)]) -> JobAllocation {
        let operator_limits = limits.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect();
        JobAllocation { operator_limits, ..JobAllocation::unlimited(JobId(1)) }
    }

    fn borders(limits: &JobLimits) -> Vec<Range<usize>> {
        limits.stages().list.iter().map(|stage| stage.operators.clone()).collect()
    }

    /// How many may execute an operator at the same time, up to 9.
    fn turns(limits: &JobLimits, place: usize) -> usize {
        let stages = limits.stages();
        let stage = stages.list.iter().find(|stage| stage.operators.contains(&place)).expect("it has one");
        let Some(turns) = limits.turns(stage) else { return 9 };
        let out: Vec<_> = (0..9).filter_map(|_| turns.acquire(0).now_or_never()).collect();
        out.len()
    }

    #[test]
    fn limits_come_and_go_and_the_file_has_the_last_word() {
        let limits = limits();
        let plain = [0..1, 1..2, 2..3, 3..4, 4..5];
        assert_eq!((borders(&limits), limits.stages().cut), (plain.to_vec(), Some(4)));
        limits.obey(Some(&allot(&[("decode", 1), ("crop", 3), ("nobody", 1), ("read", 0), ("batch", 1)])));
        assert_eq!([0, 1, 2, 3, 4].map(|place| turns(&limits, place)), [9, 2, 9, 3, 9]);
        let one = limits.batch.acquire(0).now_or_never();
        assert!(one.is_some() && limits.batch.acquire(0).now_or_never().is_none());
        limits.obey(Some(&allot(&[("decode", 5), ("crop", 1)])));
        assert_eq!([1, 3].map(|place| turns(&limits, place)), [2, 1]);
        assert!(limits.batch.acquire(0).now_or_never().is_some());
        limits.obey(None);
        assert_eq!([0, 1, 2, 3, 4].map(|place| turns(&limits, place)), [9, 2, 9, 9, 9]);
    }

    #[test]
    fn a_limit_makes_borders_and_its_end_takes_them_away() {
        let operator = |name: &str| Fixed { name: name.to_owned(), pinned: None, waits: false, usual: None };
        let limits = JobLimits::of(["a", "b", "c"].map(operator).into(), None, None);
        let all = std::iter::once(0..3).collect::<Vec<_>>();
        assert_eq!(borders(&limits), all);
        limits.obey(Some(&allot(&[("b", 4)])));
        assert_eq!(borders(&limits), [0..1, 1..2, 2..3]);
        limits.obey(None);
        assert_eq!(borders(&limits), all);
    }

    #[test]
    fn what_runs_in_processes_is_a_stage_of_its_own_with_as_many_turns() {
        let operator = |name: &str, waits, usual| Fixed { name: name.to_owned(), pinned: None, waits, usual };
        let operators =
            vec![operator("a", false, None), operator("map", true, Some(3)), operator("b", false, None)];
        let limits = JobLimits::of(operators, None, None);
        assert_eq!((borders(&limits), turns(&limits, 1)), (vec![0..1, 1..2, 2..3], 3));
        limits.obey(Some(&allot(&[("map", 2)])));
        assert_eq!(turns(&limits, 1), 2);
        limits.obey(Some(&allot(&[("map", 8)])));
        assert_eq!(turns(&limits, 1), 3);
        limits.obey(None);
        assert_eq!(turns(&limits, 1), 3);
    }

    #[test]
    fn what_is_not_said_is_as_it_was() {
        let limits = limits();
        limits.obey(Some(&JobAllocation { read_concurrency: 40, prefetch_bytes: 7, ..allot(&[]) }));
        assert_eq!(limits.reads_of_group(), 40);
        let load = |groups: usize, groups_per_full_group: usize| GroupLoad {
            groups,
            threads: 2,
            groups_per_full_group,
        };
        let held = |held: u64| limits.admits(5, || held, load(1000, 1));
        assert!(held(2) && !held(3), "whatever the number of groups");
        assert!(limits.admits(500, || 0, load(1000, 1)), "one group at least");
        limits.obey(Some(&JobAllocation { read_concurrency: 40, ..allot(&[]) }));
        let groups = |groups: usize| limits.admits(5, || 1 << 40, load(groups, 1));
        assert!(groups(41) && !groups(42));
        limits.obey(None);
        assert_eq!(limits.reads_of_group(), CONCURRENT_READS);
        let groups = |groups: usize, per_full: usize| limits.admits(5, || 1 << 40, load(groups, per_full));
        assert!(groups(7, 1) && !groups(8, 1));
        assert!(groups(13, 64) && !groups(14, 64), "small groups: for each thread as many");
    }
}
