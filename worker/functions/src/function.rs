//! A function of a pipeline on a worker: has its processes make columns for chunks of rows.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray};
use feedline_data::random::RowRandom;
use feedline_data::schema::ColumnType;
use feedline_operators::{Chunk, Column, FunctionCall, OutputBuffers, Tensor};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::FunctionSettings;
use crate::inputs::{write_column, write_seeds};
use crate::outputs::{placeholder, read_array, read_tensor};
use crate::pool::ProcessPool;
use crate::process::{CallLimits, CancelCheck, FunctionProcess, ProcessExit};
use crate::search::{CallOutcome, search};

/// Longest time for a process to start and import the function's modules.
const LOAD_TIME: Duration = Duration::from_secs(300);

/// A function with its processes.
#[derive(Debug)]
pub struct RowFunction {
    shared: Arc<Shared>,
    pool: ProcessPool,
}

#[derive(Debug)]
struct Shared {
    call: Arc<FunctionCall>,
    settings: FunctionSettings,
    /// Its processes that died so far.
    deaths: AtomicU64,
    /// Memory shared with the processes of all functions.
    held_bytes: Arc<AtomicU64>,
}

/// What became of a chunk.
#[derive(Debug)]
pub struct ChunkOutcome {
    /// The chunk with the function's columns.
    pub chunk: Chunk,
    /// The places that are left.
    pub slots: OutputBuffers,
    /// Calls that it took.
    pub calls: u64,
    /// Processes that died on the way, or were killed for their time or memory.
    pub deaths: u64,
    /// CPU time that the process used for it.
    pub process_cpu: Duration,
    /// CPU time that a thread of this process used to hand rows over.
    pub thread_cpu: Duration,
}

/// Tells the thread that works on a chunk when nobody waits for it any more.
#[derive(Debug, Default)]
struct GivenUp(AtomicBool);

impl CancelCheck for GivenUp {
    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Gives up when it is dropped.
struct Interest(Arc<GivenUp>);

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

impl RowFunction {
    /// A function that runs in at most `processes` processes, which start when they are needed. The memory that is shared with
    /// them counts in `held_bytes`, as that of other functions does.
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

    /// Has the function make its columns for the rows of a chunk, or choose among them. A row that it fails for becomes
    /// one of the chunk's failures; with `first_only` the rows behind that are not looked at.
    ///
    /// # Errors
    /// One sentence, when the function cannot be run at all.
    pub async fn apply(
        &self,
        mut chunk: Chunk,
        mut slots: OutputBuffers,
        first_only: bool,
    ) -> Result<ChunkOutcome, String> {
        let (answer, answered) = oneshot::channel();
        let given_up = Arc::new(GivenUp::default());
        let interest = Interest(Arc::clone(&given_up));
        let shared = Arc::clone(&self.shared);
        let work = move |process: &mut Option<FunctionProcess>| {
            if given_up.is_cancelled() {
                return;
            }
            let begun = thread_cpu();
            let run = Run { shared: &shared, process, given_up: &given_up, spent: Spent::default() };
            let result = run.apply(&mut chunk, &mut slots, first_only);
            let thread_cpu = thread_cpu().saturating_sub(begun);
            let applied = result.map(|Spent { process_cpu, calls, deaths }| ChunkOutcome {
                chunk,
                slots,
                calls,
                deaths,
                process_cpu,
                thread_cpu,
            });
            // Who does not wait any more does not need it.
            let _ = answer.send(applied);
        };
        let cannot =
            |error| format!("there is no thread for the function: {error}; lower --cores or `parallelism`");
        self.pool.submit(Box::new(work)).map_err(cannot)?;
        let result = answered.await;
        drop(interest);
        result.unwrap_or_else(|_| Err("handing rows to the function crashed; please report this".to_owned()))
    }
}

/// One chunk's way through a process.
struct Run<'a> {
    shared: &'a Shared,
    process: &'a mut Option<FunctionProcess>,
    given_up: &'a GivenUp,
    spent: Spent,
}

/// What a chunk has taken.
#[derive(Debug, Default)]
struct Spent {
    process_cpu: Duration,
    calls: u64,
    deaths: u64,
}

/// What calls have made of a column, in order.
enum Made {
    Tensor(Tensor),
    Arrays { pieces: Vec<(usize, ArrayRef)>, column_type: ColumnType },
}

impl Run<'_> {
    fn apply(
        mut self,
        chunk: &mut Chunk,
        slots: &mut OutputBuffers,
        first_only: bool,
    ) -> Result<Spent, String> {
        let call = Arc::clone(&self.shared.call);
        let rows = chunk.rows();
        let mut made = call
            .outputs()
            .map(|(name, column_type)| begin(&call, (name, column_type), rows, slots))
            .collect::<Result<Vec<_>, String>>()?;
        self.call_all(chunk, &mut made, first_only)?;
        finish(&call, chunk, made)?;
        Ok(self.spent)
    }

    /// Calls the function for all rows that have not failed, and notes those that it fails for.
    fn call_all(&mut self, chunk: &mut Chunk, made: &mut [Made], first_only: bool) -> Result<(), String> {
        if ranges(chunk, None).is_empty() {
            return Ok(());
        }
        self.ready()?;
        let mut nulls = Vec::new();
        let mut layout = self.write(chunk, &mut nulls)?;
        for (row, reason) in nulls {
            chunk.fail(row, reason);
        }
        let function = &self.shared.call.function;
        let ranges = ranges(chunk, function.rows);
        let (_, failed) = search(ranges, first_only, |range| self.call(range, (&*chunk, &mut layout), made))?;
        for (row, reason) in failed {
            chunk.fail(row, format!("the function `{}` {reason}", function.function));
        }
        Ok(())
    }

    /// A process that has loaded the function.
    fn ready(&mut self) -> Result<(), String> {
        if self.process.is_some() {
            return Ok(());
        }
        let function = &self.shared.call.function;
        let name = &function.function;
        let cannot = |why: &str| format!("the function `{name}` cannot be loaded: {why}");
        let Shared { call, settings, held_bytes, .. } = self.shared;
        let mut process = FunctionProcess::start(settings, name, &load_message(call), held_bytes)?;
        let bounds =
            CallLimits { time: LOAD_TIME, memory_bytes: function.memory, is_given_up: self.given_up };
        let answer = process.answer(bounds).map_err(|death| cannot(&format!("its process {death}")))?;
        if let Some(refused) = answer["refused"].as_str() {
            return Err(cannot(refused));
        }
        *self.process = Some(process);
        Ok(())
    }

    /// Writes the chunk's columns into the process's region, and says where each lies.
    fn write(&mut self, chunk: &Chunk, nulls: &mut Vec<(usize, String)>) -> Result<Value, String> {
        let call = &self.shared.call;
        let process = self.process.as_mut().ok_or("it has no process; please report this")?;
        let region = &mut process.input;
        region.clear();
        let mut columns = Vec::with_capacity(call.inputs.len());
        for field in &call.inputs {
            let column =
                chunk.column(&field.name).ok_or_else(|| format!("there is no column `{}`", field.name))?;
            columns.push(write_column((&field.name, &field.column_type), column, region, nulls)?);
        }
        let seeds = match call.function.seeded {
            true => write_seeds(&seeds(call, chunk), region)?,
            false => Value::Null,
        };
        Ok(json!({"columns": columns, "seeds": seeds, "bytes": region.len()}))
    }

    /// Calls the function with some of the rows, and takes over what it makes of them.
    fn call(
        &mut self,
        range: Range<usize>,
        (chunk, layout): (&Chunk, &mut Value),
        made: &mut [Made],
    ) -> Result<CallOutcome<()>, String> {
        if self.process.is_none() {
            self.ready()?;
            *layout = self.write(chunk, &mut Vec::new())?;
        }
        let function = &self.shared.call.function;
        layout["from"] = range.start.into();
        layout["to"] = range.end.into();
        let bounds = CallLimits {
            time: Duration::from_secs(function.timeout_s.into()),
            memory_bytes: function.memory,
            is_given_up: self.given_up,
        };
        let process = self.process.as_mut().ok_or("it has no process; please report this")?;
        self.spent.calls += 1;
        let answer = match process.call(layout, bounds) {
            Ok(answer) => answer,
            Err(death) => return self.died(death),
        };
        self.spent.process_cpu += Duration::from_nanos(answer["cpu_ns"].as_u64().unwrap_or_default());
        if let Some(reason) = answer["failed"].as_str() {
            return Ok(CallOutcome::Failed { reason: format!("failed: {reason}"), again: false });
        }
        for (number, column) in made.iter_mut().enumerate() {
            take(process, &answer["columns"][number], column, range.clone())?;
        }
        Ok(CallOutcome::Done(()))
    }

    /// The process is no more: the next call starts another.
    fn died(&mut self, death: ProcessExit) -> Result<CallOutcome<()>, String> {
        *self.process = None;
        if death == ProcessExit::GivenUp {
            return Err("its rows are not wanted any more".to_owned());
        }
        self.spent.deaths += 1;
        let deaths = self.shared.deaths.fetch_add(1, Ordering::Relaxed) + 1;
        // A function that dies of a row dies of its halves, too: what is new is told, and how it goes on.
        if deaths.is_power_of_two() {
            let function = &self.shared.call.function.function;
            tracing::warn!(%function, deaths, "the function {death}; another process is started");
        }
        // What took too long once would take as long again: its halves are tried at once.
        let again = !matches!(death, ProcessExit::Time(_));
        Ok(CallOutcome::Failed { reason: death.to_string(), again })
    }
}

/// What a process is told first.
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

/// One seed per row: what it draws does not depend on the rows around it.
fn seeds(call: &FunctionCall, chunk: &Chunk) -> Vec<u64> {
    let seed = |(row, pass): (&u64, &u32)| {
        let mut random = RowRandom::new(call.seed, call.draws, *pass, *row);
        u64::from(random.next_u32()) << 32 | u64::from(random.next_u32())
    };
    chunk.row_ids.iter().zip(&chunk.passes).map(seed).collect()
}

/// Rows that have not failed, in neighbouring runs of at most `most`.
fn ranges(chunk: &Chunk, most: Option<u32>) -> Vec<Range<usize>> {
    let failed = chunk.failed_rows();
    let most = most.map_or(usize::MAX, |most| most as usize);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for row in (0..chunk.rows()).filter(|row| !failed.contains(*row)) {
        match ranges.last_mut() {
            Some(range) if range.end == row && range.len() < most => range.end = row + 1,
            _ => ranges.push(row..row + 1),
        }
    }
    ranges
}

/// An empty column for so many rows.
fn begin(
    call: &FunctionCall,
    (name, column_type): (&str, ColumnType),
    rows: usize,
    slots: &mut OutputBuffers,
) -> Result<Made, String> {
    let ColumnType::Tensor { scalar, shape } = &column_type else {
        return Ok(Made::Arrays { pieces: Vec::new(), column_type });
    };
    let tensor = slots.tensor(call.index, name, (*scalar, shape), rows);
    let mut tensor = tensor.map_err(|error| error.to_string())?;
    // Rows that fail keep this.
    tensor.data.fill(0);
    Ok(Made::Tensor(tensor))
}

/// Takes over what a call made of some rows of a column.
fn take(
    process: &FunctionProcess,
    place: &Value,
    column: &mut Made,
    range: Range<usize>,
) -> Result<(), String> {
    match column {
        Made::Tensor(tensor) => {
            let bytes = tensor.row_bytes();
            read_tensor(&process.output, place, &mut tensor.data[range.start * bytes..range.end * bytes])
        }
        Made::Arrays { pieces, column_type } => {
            pieces.push((range.start, read_array(&process.output, column_type, place, range.len())?));
            Ok(())
        }
    }
}

/// Puts the columns into the chunk, or keeps the rows that were chosen.
fn finish(call: &FunctionCall, chunk: &mut Chunk, made: Vec<Made>) -> Result<(), String> {
    let rows = chunk.rows();
    let mut columns = Vec::with_capacity(made.len());
    for column in made {
        columns.push(match column {
            Made::Tensor(tensor) => Column::Tensor(tensor),
            Made::Arrays { pieces, column_type } => Column::Arrow(join(pieces, &column_type, rows)?),
        });
    }
    if call.is_filter {
        let failed = chunk.failed_rows();
        let Some(Column::Arrow(kept)) = columns.first() else { return Ok(()) };
        let kept = kept.as_boolean();
        let keep: Vec<bool> = (0..rows).map(|row| kept.value(row) || failed.contains(row)).collect();
        chunk.retain(&keep);
        return Ok(());
    }
    let names: Vec<String> = call.outputs().map(|(name, _)| name.to_owned()).collect();
    for (name, column) in names.iter().zip(columns) {
        chunk.set(name, column);
    }
    Ok(())
}

/// Joins what calls have made, with placeholders for the rows between.
fn join(pieces: Vec<(usize, ArrayRef)>, column_type: &ColumnType, rows: usize) -> Result<ArrayRef, String> {
    if let [(0, only)] = pieces.as_slice()
        && only.len() == rows
    {
        return Ok(Arc::clone(only));
    }
    let nothing = placeholder(column_type)?;
    let mut parts: Vec<&dyn Array> = Vec::new();
    let mut next = 0;
    for (start, piece) in &pieces {
        parts.extend((next..*start).map(|_| nothing.as_ref()));
        parts.push(piece.as_ref());
        next = start + piece.len();
    }
    parts.extend((next..rows).map(|_| nothing.as_ref()));
    if parts.is_empty() {
        return Ok(nothing.slice(0, 0));
    }
    arrow::compute::concat(&parts).map_err(|error| format!("its results cannot be joined: {error}"))
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
