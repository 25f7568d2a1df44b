//! The way of a chunk through its job's stages: turns, waits and work on the CPU pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_data::pipeline::OnError;
use feedline_functions::RowFunction;
use feedline_operators::OutputBuffers;

use super::allocation::Stages;
use super::chunk::{ChunkInput, WorkChunk};
use super::group::{TaskContext, WorkerResources};
use super::job::JobContext;
use super::trace::{Lap, OperatorCounters, QueuedRows};
use crate::metrics;

/// Longest part of a wait between two signs that it goes on.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// A chunk between two stages.
struct Passage {
    job: Arc<JobContext>,
    stages: Arc<Stages>,
    tools: WorkerResources,
    course: TaskContext,
    input: Option<Arc<ChunkInput>>,
    slots: Option<OutputBuffers>,
    chunk: Option<WorkChunk>,
    /// Who worked on it last.
    last: Arc<OperatorCounters>,
}

/// Runs a chunk through all stages, from the cache on where all its rows are kept.
pub(super) async fn run_chunk(
    job: Arc<JobContext>,
    tools: WorkerResources,
    course: TaskContext,
    input: ChunkInput,
    slots: OutputBuffers,
) -> Result<WorkChunk, String> {
    let stages = job.limits.stages();
    let first = stages.cut.filter(|_| !input.is_read()).unwrap_or(0);
    let mut passage = Passage {
        last: Arc::clone(&job.source_counters),
        job: Arc::clone(&job),
        stages: Arc::clone(&stages),
        tools,
        course,
        input: Some(Arc::new(input)),
        slots: Some(slots),
        chunk: None,
    };
    for number in first..=stages.list.len() {
        passage.pass(number).await?;
    }
    let mut work = passage.chunk.ok_or("no stage built the chunk; please report this")?;
    work.waiting = QueuedRows::begin(&passage.last, Some(&job.batch_counters), work.bytes);
    Ok(work)
}

impl Passage {
    /// Goes through one stage; the one behind the last has no operators.
    async fn pass(&mut self, number: usize) -> Result<(), String> {
        let (job, stages) = (Arc::clone(&self.job), Arc::clone(&self.stages));
        let (stage, joins) = (stages.list.get(number), stages.cut == Some(number));
        let next = match (stage, &job.cut) {
            (_, Some(cut)) if joins => &cut.counters,
            (Some(stage), _) => &job.operator_counters[stage.operators.start],
            (None, _) => &job.batch_counters,
        };
        let bytes = match (&self.chunk, &self.input) {
            (Some(work), _) => work.bytes,
            (None, input) => input.as_ref().map_or(0, |input| input.bytes),
        };
        let waiting = QueuedRows::begin(&self.last, Some(next), bytes);
        let _turn = match stage.and_then(|stage| job.limits.turns(stage)) {
            Some(turns) => Some(turns.acquire(self.course.priority).await),
            None => None,
        };
        let wait = stage.and_then(|stage| job.operators[stage.operators.start].wait_per_row);
        let function = stage.and_then(|stage| job.functions.get(&stage.operators.start));
        let is_elsewhere = wait.is_some() || function.is_some();
        let operators = stage.filter(|_| !is_elsewhere).map_or(0..0, |stage| stage.operators.clone());
        let is_built = self.chunk.is_some();
        if let Some(last) = operators.clone().last() {
            self.last = Arc::clone(&job.operator_counters[last]);
        } else if let Some(cut) = job.cut.as_ref().filter(|_| joins) {
            self.last = Arc::clone(&cut.counters);
        }
        if !is_built || joins || !operators.is_empty() {
            // What was read goes as soon as it is used: before the last stages, which take the longest.
            let is_used = stages.cut.is_none_or(|cut| number >= cut);
            self.work(operators, joins, is_used, waiting).await?;
        } else {
            drop(waiting);
        }
        if let (Some(wait), Some(stage)) = (wait, stage) {
            let rows = self.chunk.as_ref().map_or(0, |work| work.chunk.rows());
            let counters = &job.operator_counters[stage.operators.start];
            let begun = Instant::now();
            self.wait(wait * rows as u32).await;
            let waited = begun.elapsed();
            counters.add_latency(waited, Duration::ZERO);
            counters.add_rows(rows, rows);
            if let Some(work) = &mut self.chunk {
                counters.add_bytes(work.bytes, work.bytes);
                work.took += waited;
            }
            self.last = Arc::clone(counters);
        }
        if let (Some(function), Some(stage)) = (function, stage) {
            self.call(function, stage.operators.start).await?;
        }
        Ok(())
    }

    /// Has a Python function called, in a process of its own. Each second of it is a step.
    async fn call(&mut self, function: &RowFunction, place: usize) -> Result<(), String> {
        let job = Arc::clone(&self.job);
        let Some(mut work) = self.chunk.take() else { return Ok(()) };
        let (chunk, slots) = (std::mem::take(&mut work.chunk), std::mem::take(&mut work.slots));
        let (rows, begun) = (chunk.rows(), Instant::now());
        let applied = function.apply(chunk, slots, job.on_error() == OnError::Fail);
        tokio::pin!(applied);
        let applied = loop {
            match tokio::time::timeout(WAIT_STEP, &mut applied).await {
                Ok(applied) => break applied,
                Err(_) => self.course.steps.step(),
            }
        };
        let name = &job.operators[place].name;
        let applied = applied.map_err(|error| format!("operator {} ({name}): {error}", place + 1))?;
        (work.chunk, work.slots) = (applied.chunk, applied.slots);
        let took = begun.elapsed();
        let counters = &job.operator_counters[place];
        counters.add_elsewhere(took, applied.process_cpu, applied.thread_cpu);
        job.charge(applied.thread_cpu);
        metrics::count_functions(applied.calls, applied.deaths);
        work.applied(&job, place, rows);
        work.took += took;
        self.last = Arc::clone(counters);
        self.chunk = Some(work);
        self.course.steps.step();
        Ok(())
    }

    /// Waits without work. Each part of it is a step, so that a long wait is not taken for an end.
    async fn wait(&self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < end {
            tokio::time::sleep_until(end.min(tokio::time::Instant::now() + WAIT_STEP)).await;
            self.course.steps.step();
        }
    }

    /// Builds the chunk, keeps it at the cut and runs operators, as far as each is due, in one task of the CPU pool.
    async fn work(
        &mut self,
        operators: std::ops::Range<usize>,
        joins: bool,
        is_used: bool,
        waiting: Option<QueuedRows>,
    ) -> Result<(), String> {
        // The work must not hold the pool that runs it: the last to let go of that waits for its threads.
        let (job, caches) = (Arc::clone(&self.job), Arc::clone(&self.tools.caches));
        let (idle, steps) = (self.tools.pool.idle(), self.course.steps.clone());
        let input = if is_used { self.input.take() } else { self.input.clone() };
        let (present, slots) = (self.chunk.take(), self.slots.take().unwrap_or_default());
        let image_bytes = Arc::clone(&self.tools.image_bytes);
        let work = move || {
            drop(waiting);
            let begun = Instant::now();
            let mut lap = Lap::begin(job.is_traced());
            let mut work = match (present, &input) {
                (Some(work), _) => work,
                (None, Some(input)) => input.build(&job, slots, &image_bytes, &mut lap)?,
                (None, None) => unreachable!("the input is taken when the chunk is there"),
            };
            if let (true, Some(input)) = (joins, &input) {
                input.join(&job, (&caches, idle.is_any()), &mut work, &mut lap)?;
            }
            drop(input);
            steps.step();
            operators.into_iter().try_for_each(|place| {
                work.apply(&job, place, &mut lap)?;
                steps.step();
                Ok::<_, String>(())
            })?;
            if job.keep.is_some() {
                job.kernel_time.look();
            }
            work.took += begun.elapsed();
            Ok::<_, String>(work)
        };
        let done = self.tools.pool.run(self.job.details.job, self.course.priority, work).await;
        self.chunk = Some(done.map_err(|panic| panic.to_string())??);
        Ok(())
    }
}
