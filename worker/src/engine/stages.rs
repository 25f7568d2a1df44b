//! Runs the operator stages of a job on one chunk: acquires permits, waits, calls Python functions, and runs operators
//! on the CPU pool.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_data::pipeline::OnError;
use feedline_functions::RowFunction;
use feedline_operators::OutputBuffers;
use tokio::time::Instant as TimerInstant;

use super::allocation::{Stage, Stages};
use super::chunk::{ChunkInput, WorkChunk};
use super::job::JobContext;
use super::pool::Priority;
use super::semaphore::{AdjustableSemaphore, SemaphorePermit};
use super::task::{TaskContext, WorkerResources};
use super::trace::{LapTimer, OperatorCounters, QueuedRows};
use crate::metrics;

/// Interval between progress reports during long waits and function calls.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// A chunk to run through the operator stages.
pub(super) struct ChunkTask {
    pub(super) job: Arc<JobContext>,
    pub(super) resources: WorkerResources,
    pub(super) context: TaskContext,
    pub(super) input: ChunkInput,
    pub(super) buffers: OutputBuffers,
}

/// Runs a chunk through all stages. If all rows of the chunk are cached, starts at the cache point.
///
/// # Errors
/// Returns a message if an operator fails for the whole chunk.
pub(super) async fn run_chunk(task: ChunkTask) -> Result<WorkChunk, String> {
    let ChunkTask { job, resources, context, input, buffers } = task;
    let stages = job.limits.stages();
    let first = stages.cache_stage.filter(|_| !input.has_read_rows()).unwrap_or(0);
    let mut runner = StageRunner {
        previous: Arc::clone(&job.counters.source),
        job: Arc::clone(&job),
        stages: Arc::clone(&stages),
        resources,
        context,
        input: Some(Arc::new(input)),
        buffers: Some(buffers),
        chunk: None,
    };
    for number in first..=stages.list.len() {
        runner.run_stage(number).await?;
    }
    let mut work = runner.chunk.ok_or("no stage built the chunk; please report this")?;
    work.queued = QueuedRows::begin(&runner.previous, Some(&job.counters.batch), work.bytes);
    Ok(work)
}

/// Runs the stages of one chunk, and stores the chunk between two stages.
struct StageRunner {
    job: Arc<JobContext>,
    stages: Arc<Stages>,
    resources: WorkerResources,
    context: TaskContext,
    input: Option<Arc<ChunkInput>>,
    buffers: Option<OutputBuffers>,
    chunk: Option<WorkChunk>,
    /// Counters of the last operator that processed the chunk.
    previous: Arc<OperatorCounters>,
}

/// Acquires a permit if the stage has a concurrency limit.
async fn acquire(limit: Option<&AdjustableSemaphore>, priority: Priority) -> Option<SemaphorePermit<'_>> {
    match limit {
        Some(limit) => Some(limit.acquire(priority).await),
        None => None,
    }
}

/// The work of one stage on the CPU pool.
struct PoolWork {
    /// Indexes of the operators to run.
    operators: Range<usize>,
    /// Whether cached rows join the chunk before the operators run.
    joins_cached: bool,
    /// Whether the encoded rows can be released because no later stage needs them.
    releases_input: bool,
    queued: Option<QueuedRows>,
}

impl StageRunner {
    /// Runs one stage. The number after the last stage denotes a stage without operators, which builds the chunk if no
    /// earlier stage has built it.
    async fn run_stage(&mut self, number: usize) -> Result<(), String> {
        let (job, stages) = (Arc::clone(&self.job), Arc::clone(&self.stages));
        let (stage, joins_cached) = (stages.list.get(number), stages.cache_stage == Some(number));
        let first = stage.map(|stage| stage.operators.start);
        let wait = first.and_then(|first| job.compiled.operators[first].wait_per_row);
        let function = first.and_then(|first| job.compiled.functions.get(&first));
        let runs_outside = wait.is_some() || function.is_some();
        let operators = stage.filter(|_| !runs_outside).map_or(0..0, |stage| stage.operators.clone());
        let queued =
            QueuedRows::begin(&self.previous, Some(self.counters(stage, joins_cached)), self.bytes());
        let limit = stage.and_then(|stage| job.limits.permits(stage));
        let _permit = acquire(limit.filter(|_| !runs_outside), self.context.priority).await;
        if let Some(last) = operators.clone().last() {
            self.previous = Arc::clone(&job.counters.operators[last]);
        } else if let Some(cache_point) = job.compiled.cache_point.as_ref().filter(|_| joins_cached) {
            self.previous = Arc::clone(&cache_point.counters.rows);
        }
        if self.chunk.is_none() || joins_cached || !operators.is_empty() {
            // Encoded rows are released as early as possible, because the stages after the cache point take longest.
            let releases_input = stages.cache_stage.is_none_or(|cache_stage| number >= cache_stage);
            self.run_on_pool(PoolWork { operators, joins_cached, releases_input, queued }).await?;
        } else {
            drop(queued);
        }
        if !runs_outside {
            return Ok(());
        }
        // An operator that runs outside the pool keeps its permit only while it runs.
        let queued = QueuedRows::begin(&self.previous, Some(self.counters(stage, false)), self.bytes());
        let permit = acquire(limit, self.context.priority).await;
        drop(queued);
        if let (Some(wait), Some(first)) = (wait, first) {
            let started = permit.as_ref().map_or_else(TimerInstant::now, SemaphorePermit::granted_at);
            self.wait(wait, first, started).await;
        }
        if let (Some(function), Some(first)) = (function, first) {
            self.call(function, first).await?;
        }
        Ok(())
    }

    /// Returns the counters of the next operator, which record how long the chunk waits.
    fn counters(&self, stage: Option<&Stage>, joins_cached: bool) -> &Arc<OperatorCounters> {
        match (stage, &self.job.compiled.cache_point) {
            (_, Some(cache_point)) if joins_cached => &cache_point.counters.rows,
            (Some(stage), _) => &self.job.counters.operators[stage.operators.start],
            (None, _) => &self.job.counters.batch,
        }
    }

    fn bytes(&self) -> u64 {
        match (&self.chunk, &self.input) {
            (Some(work), _) => work.bytes,
            (None, Some(input)) => input.encoded.bytes,
            (None, None) => 0,
        }
    }

    /// Runs a `wait` operator without blocking a thread. The wait begins at `started`, when the permit was granted.
    async fn wait(&mut self, per_row: Duration, operator: usize, started: TimerInstant) {
        let rows = self.chunk.as_ref().map_or(0, |work| work.chunk.rows());
        let counters = &self.job.counters.operators[operator];
        let wanted = per_row * rows as u32;
        let shortened = self.job.wait_overshoot.take(wanted);
        let end = started + wanted - shortened;
        while TimerInstant::now() < end {
            tokio::time::sleep_until(end.min(TimerInstant::now() + PROGRESS_INTERVAL)).await;
            self.context.progress.increment();
        }
        let waited = started.elapsed();
        self.job.wait_overshoot.add((waited + shortened).saturating_sub(wanted), wanted);
        counters.add_latency(waited, Duration::ZERO);
        counters.add_rows(rows, rows);
        if let Some(work) = &mut self.chunk {
            counters.add_bytes(work.bytes, work.bytes);
            work.took += waited;
        }
        self.previous = Arc::clone(counters);
    }

    /// Calls a Python function, which runs in a separate process.
    async fn call(&mut self, function: &RowFunction, operator: usize) -> Result<(), String> {
        let job = Arc::clone(&self.job);
        let Some(mut work) = self.chunk.take() else { return Ok(()) };
        let (chunk, buffers) = (std::mem::take(&mut work.chunk), std::mem::take(&mut work.buffers));
        let (rows, started) = (chunk.rows(), Instant::now());
        let outcome = function.apply(chunk, buffers, job.compiled.on_error() == OnError::Fail);
        tokio::pin!(outcome);
        let outcome = loop {
            match tokio::time::timeout(PROGRESS_INTERVAL, &mut outcome).await {
                Ok(outcome) => break outcome,
                Err(_) => self.context.progress.increment(),
            }
        };
        let name = &job.compiled.operators[operator].name;
        let outcome = outcome.map_err(|error| format!("operator {} ({name}): {error}", operator + 1))?;
        (work.chunk, work.buffers) = (outcome.chunk, outcome.buffers);
        let took = started.elapsed();
        let counters = &job.counters.operators[operator];
        counters.add_elsewhere(took, outcome.process_cpu, outcome.thread_cpu);
        job.charge(outcome.thread_cpu);
        metrics::count_functions(outcome.calls, outcome.deaths);
        work.record_output(&job, operator, rows);
        work.took += took;
        self.previous = Arc::clone(counters);
        self.chunk = Some(work);
        self.context.progress.increment();
        Ok(())
    }

    /// Builds the chunk, joins it with cached rows, and runs operators in one task. Skips the steps that the stage does
    /// not need.
    async fn run_on_pool(&mut self, stage: PoolWork) -> Result<(), String> {
        // The closure must not own the pool, because dropping the pool waits for its threads.
        let (job, caches) = (Arc::clone(&self.job), Arc::clone(&self.resources.caches));
        let (idle, progress) = (self.resources.pool.idle(), self.context.progress.clone());
        let input = if stage.releases_input { self.input.take() } else { self.input.clone() };
        let (chunk, buffers) = (self.chunk.take(), self.buffers.take().unwrap_or_default());
        let budget = Arc::clone(&self.resources.budget);
        let run = move || {
            drop(stage.queued);
            let started = Instant::now();
            let mut lap = LapTimer::start(job.is_traced());
            let mut work = match (chunk, &input) {
                (Some(work), _) => work,
                (None, Some(input)) => input.build(&job, buffers, &budget, &mut lap)?,
                (None, None) => unreachable!("the input is released after the chunk is built"),
            };
            if let (true, Some(input)) = (stage.joins_cached, &input) {
                input.join_cached(&job, &caches, idle.is_any(), &mut work, &mut lap)?;
            }
            drop(input);
            progress.increment();
            for operator in stage.operators {
                work.apply(&job, operator, &mut lap)?;
                progress.increment();
            }
            if job.compiled.cache.is_some() {
                job.kernel_time.sample();
            }
            work.took += started.elapsed();
            Ok::<_, String>(work)
        };
        let result = self.resources.pool.run(self.job.id(), self.context.priority, run).await;
        self.chunk = Some(result.map_err(|panic| panic.to_string())??);
        Ok(())
    }
}
