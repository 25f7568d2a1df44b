//! The limits of one job on this worker. A new allocation changes the limits while groups are in flight: a running
//! chunk keeps its stages, but acquires permits under the current limits.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use feedline_data::messages::JobAllocation;
use feedline_operators::BuiltOperator;

use super::semaphore::{AdjustableSemaphore, UNLIMITED};

/// The operator name of batch assembly in an allocation.
const BATCH_OPERATOR: &str = "batch";
/// Number of groups in flight in addition to one for each thread, if the allocation has no `prefetch_bytes`. These
/// groups read blocks while other groups compute.
const GROUPS_AHEAD: usize = 6;

/// Consecutive operators that run in one task. An operator with a concurrency limit is a separate stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Indexes of the job's operators.
    pub(crate) operators: Range<usize>,
    /// Whether running the stage requires a permit. A limited stage has only one operator.
    pub(crate) is_limited: bool,
}

/// The operators of a job, divided into stages at the cache point, at operators with a concurrency limit, and at
/// operators that wait without using CPU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stages {
    pub(crate) list: Vec<Stage>,
    /// Index of the first stage after the cache point. `None` if the job has no cache point.
    pub(crate) cache_stage: Option<usize>,
}

impl Stages {
    fn new(
        operators: &[OperatorConcurrency],
        cache_operator: Option<usize>,
        is_limited: impl Fn(usize) -> bool,
    ) -> Self {
        let mut list: Vec<Stage> = Vec::new();
        let mut can_extend = false;
        for (index, operator) in operators.iter().enumerate() {
            let is_limited = is_limited(index);
            let is_alone = is_limited || operator.waits;
            match list.last_mut() {
                Some(stage) if can_extend && !is_alone && cache_operator != Some(index) => {
                    stage.operators.end = index + 1
                }
                _ => list.push(Stage { operators: index..index + 1, is_limited }),
            }
            can_extend = !is_alone;
        }
        let stages_before =
            |index: usize| list.iter().take_while(|stage| stage.operators.start < index).count();
        Self { cache_stage: cache_operator.map(stages_before), list }
    }
}

/// The properties of an operator that determine its concurrency limit.
#[derive(Debug)]
struct OperatorConcurrency {
    name: String,
    /// The number of concurrent executions that the pipeline sets. An allocation cannot change this number.
    pinned: Option<u32>,
    /// Whether executions wait without using CPU, or run in separate processes.
    waits: bool,
    /// The number of processes that run the operator. More concurrent executions would only wait.
    process_limit: Option<u32>,
}

impl OperatorConcurrency {
    /// Returns the maximum number of concurrent executions if the allocation allows `allocated`. `None` means no limit.
    fn limit(&self, allocated: Option<u32>) -> Option<u32> {
        self.pinned.or(allocated.into_iter().chain(self.process_limit).min())
    }
}

/// The number of running groups on a worker, and the numbers that limit it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLoad {
    /// Running groups that count against the job's limit.
    pub(crate) groups: usize,
    /// Threads of the worker's CPU pool.
    pub(crate) threads: usize,
    /// The number of groups of the job's current size that together have as many rows as a group of maximum size.
    pub(crate) groups_per_full_group: usize,
}

/// The limits of one job.
#[derive(Debug)]
pub(crate) struct JobLimits {
    operators: Vec<OperatorConcurrency>,
    /// Index of the first operator after the cache point. `None` if the job has no cache point.
    cache_operator: Option<usize>,
    batch_pinned: Option<u32>,
    /// Semaphore for concurrent executions of each operator.
    permits: Vec<Arc<AdjustableSemaphore>>,
    /// Semaphore for concurrent batch assemblies.
    pub(crate) batch_permits: Arc<AdjustableSemaphore>,
    /// Semaphore for concurrent block reads of all groups.
    pub(crate) read_permits: Arc<AdjustableSemaphore>,
    read_concurrency: AtomicU32,
    prefetch_bytes: AtomicU64,
    stages: Mutex<Arc<Stages>>,
}

impl JobLimits {
    /// Creates the limits that the pipeline itself sets, on a worker with this many threads.
    pub(crate) fn new(
        operators: &[BuiltOperator],
        cache_operator: Option<usize>,
        batch_pinned: Option<u32>,
        threads: u32,
    ) -> Self {
        let concurrency = |operator: &BuiltOperator| OperatorConcurrency {
            name: operator.name.clone(),
            pinned: operator.parallelism,
            waits: operator.wait_per_row.is_some() || operator.function.is_some(),
            // A Python function has one process for each thread.
            process_limit: operator.function.is_some().then_some(threads),
        };
        Self::from_concurrency(operators.iter().map(concurrency).collect(), cache_operator, batch_pinned)
    }

    fn from_concurrency(
        operators: Vec<OperatorConcurrency>,
        cache_operator: Option<usize>,
        batch_pinned: Option<u32>,
    ) -> Self {
        let semaphore = |limit: Option<u32>| Arc::new(AdjustableSemaphore::new(limit.unwrap_or(UNLIMITED)));
        let stages = Stages::new(&operators, cache_operator, |index| operators[index].limit(None).is_some());
        Self {
            permits: operators.iter().map(|operator| semaphore(operator.limit(None))).collect(),
            batch_permits: semaphore(batch_pinned),
            read_permits: semaphore(None),
            read_concurrency: AtomicU32::new(0),
            prefetch_bytes: AtomicU64::new(0),
            stages: Mutex::new(Arc::new(stages)),
            operators,
            cache_operator,
            batch_pinned,
        }
    }

    /// Uses the same permits as `before`, the limits from an earlier compilation of the same job.
    pub(crate) fn share_permits(&mut self, before: &Self) {
        self.permits.clone_from(&before.permits);
        self.batch_permits = Arc::clone(&before.batch_permits);
        self.read_permits = Arc::clone(&before.read_permits);
    }

    /// Applies an allocation. Without an allocation, only the limits of the pipeline remain.
    pub(crate) fn apply(&self, allocation: Option<&JobAllocation>) {
        let allocated = |name: &str| {
            let limits = allocation.map_or(&[][..], |allocation| allocation.operator_limits.as_slice());
            limits.iter().find(|(operator, limit)| operator == name && *limit > 0).map(|(_, limit)| *limit)
        };
        let limits: Vec<Option<u32>> =
            self.operators.iter().map(|operator| operator.limit(allocated(&operator.name))).collect();
        for (permits, limit) in self.permits.iter().zip(&limits) {
            permits.resize(limit.unwrap_or(UNLIMITED));
        }
        self.batch_permits
            .resize(self.batch_pinned.or_else(|| allocated(BATCH_OPERATOR)).unwrap_or(UNLIMITED));
        let reads = allocation.map_or(0, |allocation| allocation.read_concurrency);
        self.read_permits.resize(if reads == 0 { UNLIMITED } else { reads });
        self.read_concurrency.store(reads, Ordering::Relaxed);
        let prefetch_bytes = allocation.map_or(0, |allocation| allocation.prefetch_bytes);
        self.prefetch_bytes.store(prefetch_bytes, Ordering::Relaxed);
        let stages = Stages::new(&self.operators, self.cache_operator, |index| limits[index].is_some());
        *self.stages.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(stages);
    }

    /// Returns the stages for a chunk that starts now.
    pub(crate) fn stages(&self) -> Arc<Stages> {
        Arc::clone(&self.stages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the semaphore that limits a stage. `None` if the stage has no limit.
    pub(crate) fn permits(&self, stage: &Stage) -> Option<&AdjustableSemaphore> {
        stage.is_limited.then(|| &*self.permits[stage.operators.start])
    }

    /// Returns the number of blocks that one group reads concurrently.
    pub(crate) fn reads_of_group(&self) -> usize {
        match self.read_concurrency.load(Ordering::Relaxed) {
            0 => JobAllocation::DEFAULT_READ_CONCURRENCY as usize,
            reads => reads as usize,
        }
    }

    /// Whether the allocation sets the number of concurrent reads.
    pub(crate) fn has_read_limit(&self) -> bool {
        self.read_concurrency.load(Ordering::Relaxed) > 0
    }

    /// Whether the job may start one more group of `bytes` ahead of its consumers. If the allocation sets
    /// `prefetch_bytes`, the job's running and finished groups may hold that many bytes, but at least one group may
    /// start. Otherwise the number of groups in flight is limited to one for each thread, plus the larger of the
    /// allocated reads (a group may need only one read) and [`GROUPS_AHEAD`]. Groups of slow rows are small, so more of
    /// them may be in flight.
    pub(crate) fn admits(&self, bytes: u64, held_bytes: impl FnOnce() -> u64, load: GroupLoad) -> bool {
        match self.prefetch_bytes.load(Ordering::Relaxed) {
            0 => {
                let reads = self.read_concurrency.load(Ordering::Relaxed) as usize;
                let ahead = GROUPS_AHEAD * load.groups_per_full_group.clamp(1, load.threads.max(1));
                load.groups < load.threads + reads.max(ahead)
            }
            prefetch_bytes => {
                let held_bytes = held_bytes();
                held_bytes == 0 || held_bytes + bytes <= prefetch_bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::ids::JobId;
    use futures::FutureExt;

    use super::*;

    fn operator(name: &str, pinned: Option<u32>, waits: bool) -> OperatorConcurrency {
        OperatorConcurrency { name: name.to_owned(), pinned, waits, process_limit: None }
    }

    /// The limits of `read, decode (pinned to 2), wait, crop, flip`, with a cache point before `flip`.
    fn limits() -> JobLimits {
        let operators = vec![
            operator("read", None, false),
            operator("decode", Some(2), false),
            operator("wait", None, true),
            operator("crop", None, false),
            operator("flip", None, false),
        ];
        JobLimits::from_concurrency(operators, Some(4), None)
    }

    fn allocation(limits: &[(&str, u32)]) -> JobAllocation {
        let operator_limits = limits.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect();
        JobAllocation { operator_limits, ..JobAllocation::unlimited(JobId(1)) }
    }

    fn stage_ranges(limits: &JobLimits) -> Vec<Range<usize>> {
        limits.stages().list.iter().map(|stage| stage.operators.clone()).collect()
    }

    /// The number of concurrent executions of an operator, counted up to 9.
    fn concurrency(limits: &JobLimits, index: usize) -> usize {
        let stages = limits.stages();
        let stage = stages.list.iter().find(|stage| stage.operators.contains(&index)).expect("it has one");
        let Some(permits) = limits.permits(stage) else { return 9 };
        let acquired: Vec<_> = (0..9).filter_map(|_| permits.acquire(0).now_or_never()).collect();
        acquired.len()
    }

    #[test]
    fn an_allocation_changes_all_limits_except_pinned_ones() {
        let limits = limits();
        let single = [0..1, 1..2, 2..3, 3..4, 4..5];
        assert_eq!((stage_ranges(&limits), limits.stages().cache_stage), (single.to_vec(), Some(4)));
        let allocated = [("decode", 1), ("crop", 3), ("unknown", 1), ("read", 0), ("batch", 1)];
        limits.apply(Some(&allocation(&allocated)));
        assert_eq!([0, 1, 2, 3, 4].map(|index| concurrency(&limits, index)), [9, 2, 9, 3, 9]);
        let permit = limits.batch_permits.acquire(0).now_or_never();
        assert!(permit.is_some() && limits.batch_permits.acquire(0).now_or_never().is_none());
        limits.apply(Some(&allocation(&[("decode", 5), ("crop", 1)])));
        assert_eq!([1, 3].map(|index| concurrency(&limits, index)), [2, 1]);
        assert!(limits.batch_permits.acquire(0).now_or_never().is_some());
        limits.apply(None);
        assert_eq!([0, 1, 2, 3, 4].map(|index| concurrency(&limits, index)), [9, 2, 9, 9, 9]);
    }

    #[test]
    fn a_limited_operator_is_a_stage_of_its_own_while_the_limit_lasts() {
        let operators = ["a", "b", "c"].map(|name| operator(name, None, false));
        let limits = JobLimits::from_concurrency(operators.into(), None, None);
        let all = std::iter::once(0..3).collect::<Vec<_>>();
        assert_eq!(stage_ranges(&limits), all);
        limits.apply(Some(&allocation(&[("b", 4)])));
        assert_eq!(stage_ranges(&limits), [0..1, 1..2, 2..3]);
        limits.apply(None);
        assert_eq!(stage_ranges(&limits), all);
    }

    #[test]
    fn a_function_has_at_most_one_execution_for_each_process() {
        let map = OperatorConcurrency { process_limit: Some(3), ..operator("map", None, true) };
        let operators = vec![operator("a", None, false), map, operator("b", None, false)];
        let limits = JobLimits::from_concurrency(operators, None, None);
        assert_eq!((stage_ranges(&limits), concurrency(&limits, 1)), (vec![0..1, 1..2, 2..3], 3));
        limits.apply(Some(&allocation(&[("map", 2)])));
        assert_eq!(concurrency(&limits, 1), 2);
        limits.apply(Some(&allocation(&[("map", 8)])));
        assert_eq!(concurrency(&limits, 1), 3);
        limits.apply(None);
        assert_eq!(concurrency(&limits, 1), 3);
    }

    #[test]
    fn missing_numbers_of_an_allocation_mean_the_defaults() {
        let limits = limits();
        let load = |groups, groups_per_full_group| GroupLoad { groups, threads: 2, groups_per_full_group };
        let with_prefetch = JobAllocation { read_concurrency: 40, prefetch_bytes: 7, ..allocation(&[]) };
        limits.apply(Some(&with_prefetch));
        assert_eq!(limits.reads_of_group(), 40);
        let admits = |held_bytes: u64| limits.admits(5, || held_bytes, load(1000, 1));
        assert!(admits(2) && !admits(3), "the number of groups has no effect");
        assert!(limits.admits(500, || 0, load(1000, 1)), "at least one group may start");
        limits.apply(Some(&JobAllocation { read_concurrency: 40, ..allocation(&[]) }));
        let admits = |groups, per_full_group| limits.admits(5, || 1 << 40, load(groups, per_full_group));
        assert!(admits(41, 1) && !admits(42, 1));
        limits.apply(None);
        assert_eq!(limits.reads_of_group(), JobAllocation::DEFAULT_READ_CONCURRENCY as usize);
        assert!(admits(7, 1) && !admits(8, 1));
        assert!(admits(13, 64) && !admits(14, 64), "small groups: more for each thread");
    }
}
