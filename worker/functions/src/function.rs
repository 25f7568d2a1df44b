//! A Python function on a worker: computes columns of chunks in its processes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use feedline_data::random::RowRandom;
use feedline_operators::{Chunk, FunctionCall, OutputBuffers};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::FunctionSettings;
use crate::inputs::{write_column, write_seeds};
use crate::outputs::{OutputColumn, new_output_column, read_output, store_outputs};
use crate::pool::ProcessPool;
use crate::process::{CallLimits, FunctionProcess, ProcessExit};
use crate::search::{CallOutcome, find_failing_rows};

/// Time limit for a process to start and to import the function's modules.
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);

/// A Python function with its processes.
#[derive(Debug)]
pub struct RowFunction {
    shared: Arc<Shared>,
    pool: ProcessPool,
}

#[derive(Debug)]
struct Shared {
    call: Arc<FunctionCall>,
    settings: FunctionSettings,
    /// Number of processes that exited unexpectedly so far.
    deaths: AtomicU64,
    /// Bytes of memory shared with the processes of all functions.
    held_bytes: Arc<AtomicU64>,
}

/// The result of a function for a chunk.
#[derive(Debug)]
pub struct ChunkOutcome {
    /// The chunk with the function's columns.
    pub chunk: Chunk,
    /// The remaining output buffers.
    pub buffers: OutputBuffers,
    /// Number of calls of the function.
    pub calls: u64,
    /// Number of processes that exited unexpectedly, or were killed because they exceeded a time or memory limit.
    pub deaths: u64,
    /// CPU time of the process for this chunk.
    pub process_cpu: Duration,
    /// CPU time of the worker's thread that transferred the rows.
    pub thread_cpu: Duration,
}

/// Sets a flag when it is dropped, which cancels the work on a chunk whose caller no longer waits.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl RowFunction {
    /// Creates a function with at most `processes` processes, which start when they are needed. The bytes of memory shared
    /// with them are added to `held_bytes`, which all functions use.
    pub fn new(
        call: Arc<FunctionCall>,
        settings: FunctionSettings,
        processes: usize,
        held_bytes: &Arc<AtomicU64>,
    ) -> Self {
        let held_bytes = Arc::clone(held_bytes);
        Self {
            shared: Arc::new(Shared { call, settings, deaths: AtomicU64::new(0), held_bytes }),
            pool: ProcessPool::new(processes),
        }
    }

    /// Computes the function's columns for a chunk, or filters its rows. Rows for which the function fails become failures of
    /// the chunk. With `first_only`, rows after the first failure are not processed.
    ///
    /// # Errors
    /// Returns a message if the function cannot run at all.
    pub async fn apply(
        &self,
        mut chunk: Chunk,
        mut buffers: OutputBuffers,
        first_only: bool,
    ) -> Result<ChunkOutcome, String> {
        let (result_sender, result) = oneshot::channel();
        let cancel = Arc::new(AtomicBool::new(false));
        let guard = CancelOnDrop(Arc::clone(&cancel));
        let shared = Arc::clone(&self.shared);
        let work = move |process: &mut Option<FunctionProcess>| {
            if cancel.load(Ordering::Relaxed) {
                return;
            }
            let start = thread_cpu_time();
            let run = ChunkRun { shared: &shared, process, cancel: &cancel, stats: CallStats::default() };
            let result = run.apply(&mut chunk, &mut buffers, first_only);
            let thread_cpu = thread_cpu_time().saturating_sub(start);
            let outcome = result.map(|CallStats { process_cpu, calls, deaths }| ChunkOutcome {
                chunk,
                buffers,
                calls,
                deaths,
                process_cpu,
                thread_cpu,
            });
            // The receiver is gone if the call was cancelled.
            let _ = result_sender.send(outcome);
        };
        let cannot = |error| {
            format!("cannot start a thread for the function: {error}; lower --cores or `parallelism`")
        };
        self.pool.submit(Box::new(work)).map_err(cannot)?;
        let result = result.await;
        drop(guard);
        result.unwrap_or_else(|_| {
            Err("the worker panicked while sending rows to the function; please report this error".to_owned())
        })
    }
}

/// Runs a function on one chunk.
struct ChunkRun<'a> {
    shared: &'a Shared,
    process: &'a mut Option<FunctionProcess>,
    cancel: &'a AtomicBool,
    stats: CallStats,
}

/// CPU time, calls and process deaths for one chunk.
#[derive(Debug, Default)]
struct CallStats {
    process_cpu: Duration,
    calls: u64,
    deaths: u64,
}

impl ChunkRun<'_> {
    fn apply(
        mut self,
        chunk: &mut Chunk,
        buffers: &mut OutputBuffers,
        first_only: bool,
    ) -> Result<CallStats, String> {
        let call = Arc::clone(&self.shared.call);
        let rows = chunk.rows();
        let mut outputs = call
            .outputs()
            .map(|(name, column_type)| new_output_column(&call, (name, column_type), rows, buffers))
            .collect::<Result<Vec<_>, String>>()?;
        self.call_all(chunk, &mut outputs, first_only)?;
        store_outputs(&call, chunk, outputs)?;
        Ok(self.stats)
    }

    /// Calls the function for all rows that have not failed, and marks the rows for which it fails.
    fn call_all(
        &mut self,
        chunk: &mut Chunk,
        outputs: &mut [OutputColumn],
        first_only: bool,
    ) -> Result<(), String> {
        if valid_ranges(chunk, None).is_empty() {
            return Ok(());
        }
        self.ensure_process()?;
        let mut nulls = Vec::new();
        let mut layout = self.write_inputs(chunk, &mut nulls)?;
        for (row, reason) in nulls {
            chunk.fail(row, reason);
        }
        let function = &self.shared.call.function;
        let ranges = valid_ranges(chunk, function.rows);
        let (_, failed) =
            find_failing_rows(ranges, first_only, |range| self.call(range, (&*chunk, &mut layout), outputs))?;
        for (row, reason) in failed {
            chunk.fail(row, format!("the function `{}` {reason}", function.function));
        }
        Ok(())
    }

    /// Starts a process and loads the function, if there is no process.
    fn ensure_process(&mut self) -> Result<(), String> {
        if self.process.is_some() {
            return Ok(());
        }
        let function = &self.shared.call.function;
        let name = &function.function;
        let cannot = |why: &str| format!("cannot load the function `{name}`: {why}");
        let Shared { call, settings, held_bytes, .. } = self.shared;
        let mut process = FunctionProcess::start(settings, name, &load_message(call), held_bytes)?;
        let limits = CallLimits { time: LOAD_TIMEOUT, memory_bytes: function.memory, cancel: self.cancel };
        let answer = process.receive_answer(limits).map_err(|exit| cannot(&format!("its process {exit}")))?;
        if let Some(reason) = answer["load_error"].as_str() {
            return Err(cannot(reason));
        }
        *self.process = Some(process);
        Ok(())
    }

    /// Writes the chunk's columns to the input region of the process, and returns their locations.
    fn write_inputs(&mut self, chunk: &Chunk, nulls: &mut Vec<(usize, String)>) -> Result<Value, String> {
        let call = &self.shared.call;
        let process =
            self.process.as_mut().ok_or("the function process is not running; please report this error")?;
        let region = &mut process.input;
        region.clear();
        let mut columns = Vec::with_capacity(call.inputs.len());
        for field in &call.inputs {
            let column = chunk.column(&field.name).ok_or_else(|| {
                format!("the chunk has no column `{}`; please report this error", field.name)
            })?;
            columns.push(write_column((&field.name, &field.column_type), column, region, nulls)?);
        }
        let seeds = match call.function.seeded {
            true => write_seeds(&row_seeds(call, chunk), region)?,
            false => Value::Null,
        };
        Ok(json!({"columns": columns, "seeds": seeds, "bytes": region.len()}))
    }

    /// Calls the function with a range of rows, and stores its results in `outputs`.
    fn call(
        &mut self,
        range: Range<usize>,
        (chunk, layout): (&Chunk, &mut Value),
        outputs: &mut [OutputColumn],
    ) -> Result<CallOutcome<()>, String> {
        if self.process.is_none() {
            self.ensure_process()?;
            *layout = self.write_inputs(chunk, &mut Vec::new())?;
        }
        let function = &self.shared.call.function;
        layout["from"] = range.start.into();
        layout["to"] = range.end.into();
        let limits = CallLimits {
            time: Duration::from_secs(function.timeout_s.into()),
            memory_bytes: function.memory,
            cancel: self.cancel,
        };
        let process =
            self.process.as_mut().ok_or("the function process is not running; please report this error")?;
        self.stats.calls += 1;
        let answer = match process.call(layout, limits) {
            Ok(answer) => answer,
            Err(exit) => return self.on_process_exit(exit),
        };
        self.stats.process_cpu += Duration::from_nanos(answer["cpu_ns"].as_u64().unwrap_or_default());
        if let Some(reason) = answer["failed"].as_str() {
            return Ok(CallOutcome::Failed { reason: format!("failed: {reason}"), retry: false });
        }
        for (number, column) in outputs.iter_mut().enumerate() {
            read_output(process, &answer["columns"][number], column, range.clone())?;
        }
        Ok(CallOutcome::Done(()))
    }

    /// Handles the exit of a process. The next call starts a new process.
    fn on_process_exit(&mut self, exit: ProcessExit) -> Result<CallOutcome<()>, String> {
        *self.process = None;
        if exit == ProcessExit::Cancelled {
            return Err("the call was cancelled".to_owned());
        }
        self.stats.deaths += 1;
        let deaths = self.shared.deaths.fetch_add(1, Ordering::Relaxed) + 1;
        // The search for a failing row crashes several processes, so log only at powers of two.
        if deaths.is_power_of_two() {
            let function = &self.shared.call.function.function;
            tracing::warn!(%function, deaths, "the function {exit}; starting a new process");
        }
        // Do not repeat a call that exceeded its time limit; continue with its halves.
        let retry = !matches!(exit, ProcessExit::TimeLimit(_));
        Ok(CallOutcome::Failed { reason: exit.to_string(), retry })
    }
}

/// The first message to a process.
fn load_message(call: &FunctionCall) -> Value {
    let function = &call.function;
    let environment = function.environment.clone().unwrap_or_default();
    let outputs: Vec<Value> = function
        .outputs
        .iter()
        .map(|(name, output)| {
            json!({"name": name, "dtype": output.dtype.name(), "shape": output.shape, "list": output.list})
        })
        .collect();
    json!({
        "parent": std::process::id(),
        "function": function.function,
        "code": function.code,
        "path": function.path,
        "environment": {"python": environment.python, "packages": environment.packages},
        "columns": call.inputs.iter().map(|field| &field.name).collect::<Vec<_>>(),
        "outputs": outputs,
        "seeded": function.seeded,
        "filter": call.is_filter,
    })
}

/// Returns one seed per row, so that random draws of a row do not depend on other rows.
fn row_seeds(call: &FunctionCall, chunk: &Chunk) -> Vec<u64> {
    let seed = |(row, pass): (&u64, &u32)| {
        let mut random = RowRandom::new(call.seed, call.draw_key, *pass, *row);
        u64::from(random.next_u32()) << 32 | u64::from(random.next_u32())
    };
    chunk.row_ids.iter().zip(&chunk.passes).map(seed).collect()
}

/// Returns consecutive ranges of rows that have not failed, with at most `max_rows` rows each.
fn valid_ranges(chunk: &Chunk, max_rows: Option<u32>) -> Vec<Range<usize>> {
    let failed = chunk.failed_rows();
    let max_rows = max_rows.map_or(usize::MAX, |max_rows| max_rows as usize);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for row in (0..chunk.rows()).filter(|row| !failed.contains(*row)) {
        match ranges.last_mut() {
            Some(range) if range.end == row && range.len() < max_rows => range.end = row + 1,
            _ => ranges.push(row..row + 1),
        }
    }
    ranges
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
