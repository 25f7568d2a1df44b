//! What the engine knows of a job: dataset, operators, order, where finished columns lie, and its counters.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{CacheDecision, JobDetails, OperatorStats};
use feedline_data::mix::MixChange;
use feedline_data::order::RowRef;
use feedline_data::pipeline::{CacheEncoding, OnError, Operator, OperatorKind};
use feedline_data::schema::{ColumnType, Field, Schema};
use feedline_data::sequence::{Sequence, SharedPass};
use feedline_functions::RowFunction;
use feedline_operators::{BuiltOperator, build_operators};
use feedline_proto::batch::{ALIGNMENT_BYTES, output_schema};
use feedline_sources::{Dataset, Stores};

use super::allocation::JobLimits;
use super::cache_point::{CachePoint, CachePointCounters};
use super::encodings::{EncodingTrials, KernelTime};
use super::pace::Pace;
use super::round::Coordination;
use super::settings::EngineSettings;
use super::trace::{OperatorCounters, StoreCounters, Tracing};
use crate::cache::Caches;
use crate::process::ProcessClock;

/// A chunk of rows that one thread works on holds about this many encoded bytes.
const CHUNK_BYTES: u64 = 512 << 10;
/// Bytes of a row's columns of varying size while none has been seen.
const LEAST_TAIL_BYTES: u64 = 64;
/// Passes whose order is kept: epochs overlap at most at their borders.
const KEPT_PASSES: usize = 3;

/// What the order of rows is computed from, and that of passes which are being worked on.
struct Order {
    sequence: Arc<Sequence>,
    passes: VecDeque<(u32, SharedPass)>,
}

impl Order {
    fn new(sequence: Sequence) -> Self {
        Self { sequence: Arc::new(sequence), passes: VecDeque::new() }
    }

    fn pass(&mut self, pass: u32) -> SharedPass {
        if let Some((_, order)) = self.passes.iter().find(|(known, _)| *known == pass) {
            return order.clone();
        }
        let order = self.sequence.pass(pass);
        if self.passes.len() == KEPT_PASSES {
            self.passes.pop_front();
        }
        self.passes.push_back((pass, order.clone()));
        order
    }
}

pub(crate) struct JobContext {
    pub(crate) details: JobDetails,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) dataset: Dataset,
    /// Columns that are read: those that can influence the output.
    pub(crate) read_schema: Schema,
    pub(crate) operators: Vec<BuiltOperator>,
    /// Python functions, by their place among the operators.
    pub(crate) functions: BTreeMap<usize, Arc<RowFunction>>,
    /// What it may use at present.
    pub(crate) limits: JobLimits,
    /// What the plan has it keep.
    pub(crate) keep: Option<CacheDecision>,
    /// Where the pipeline's `cache` is, or what the plan has it keep.
    pub(crate) cut: Option<CachePoint>,
    /// How many rows its groups take.
    pub(crate) pace: Arc<Pace>,
    /// What forms of kept rows cost; `None` where it is the pipeline's to say what is kept.
    pub(crate) trials: Option<Arc<EncodingTrials>>,
    /// What the kernel takes of the pool's time, where rows are kept that no pipeline asks to keep.
    pub(crate) kernel_time: KernelTime,
    /// Counts of the cut; `None` as long as there was none.
    cut_counters: Option<CachePointCounters>,
    /// How batches are made for all streams together.
    pub(crate) coordination: Option<Coordination>,
    pub(crate) tensors: Vec<FinalTensor>,
    pub(crate) output: Schema,
    pub(crate) output_arrow: SchemaRef,
    pub(crate) chunk_rows: usize,
    pub(crate) source_counters: Arc<OperatorCounters>,
    pub(crate) store_counters: Arc<StoreCounters>,
    pub(crate) operator_counters: Vec<Arc<OperatorCounters>>,
    pub(crate) batch_counters: Arc<OperatorCounters>,
    /// Time in nanoseconds in which its next group waited for memory, and its consumer for rows.
    pub(crate) memory_wait_ns: Arc<AtomicU64>,
    clock: Arc<ProcessClock>,
    order: Mutex<Order>,
    /// Largest seen: bytes per row of a batch's columns of varying size.
    tail_row_bytes: AtomicU64,
}

/// A column of the finished batch that is written in place.
pub(crate) struct FinalTensor {
    /// Its name in the output.
    pub(crate) column: String,
    /// The operator that makes its storage, and the column's name there; `None` where it comes from the source.
    pub(crate) writer: Option<(usize, String)>,
    pub(crate) row_bytes: usize,
    pub(crate) elements_per_row: u64,
}

impl JobContext {
    /// The job as the plan has it keep rows; `before` is the same job as it was loaded before, whose counts go on.
    pub(crate) async fn load(
        details: JobDetails,
        (manifest, keep): (Arc<Manifest>, Option<CacheDecision>),
        stores: Arc<Stores>,
        (caches, runs): (&Caches, &EngineSettings),
        tracing: &Tracing,
        before: Option<&Self>,
    ) -> Result<Self, String> {
        let keeping = |keep: CacheDecision| details.pipeline.keeping(keep.after, keep.tier);
        let pipeline = &keep.map_or_else(|| details.pipeline.clone(), keeping);
        let wanted = pipeline.required_columns(&manifest.schema);
        let fields = manifest.schema.fields.iter().filter(|field| wanted.contains(&field.name));
        let read_schema = Schema { fields: fields.cloned().collect() };
        let file = |operator: &Operator| operator.kind.definition().file().map(|(_, url)| url.to_owned());
        let files = stores.files(pipeline.operators.iter().filter_map(file).collect(), &details.reads).await;
        let files = files.map_err(|error| error.to_string())?;
        let load = |url: &str| files.get(url).cloned().ok_or_else(|| format!("{url} was not read"));
        let operators = build_operators(pipeline, &read_schema, &load).map_err(|error| error.to_string())?;
        let parts = (&read_schema, operators.as_slice());
        let form = keep.map_or(CacheEncoding::AsIs, |keep| keep.form);
        let counters = before.and_then(|job| job.cut_counters.clone());
        let cut = CachePoint::new((pipeline, form), &manifest, parts, &files, tracing, counters)?;
        if let Some(cut) = &cut {
            caches.open(cut.prefix, cut.tier).await?;
        }
        let batch_parallelism = pipeline.operators.last().and_then(|batch| batch.parallelism);
        let cut_place = cut.as_ref().map(|cut| cut.place);
        let coordination = Coordination::of(pipeline, &read_schema)?;
        let delivered = || operators.last().map_or_else(|| read_schema.clone(), |last| last.schema.clone());
        let (coordination, output) = match coordination {
            Some((coordination, output)) => (Some(coordination), output),
            None => (None, delivered()),
        };
        let dataset = Dataset::of_tenant(pipeline.source.clone(), stores, &details.reads)
            .map_err(|error| error.to_string())?;
        let mean_row_bytes = (details.dataset.bytes / details.dataset.rows.max(1)).max(1);
        let carried = carries_bulk(&read_schema, &output);
        let tail_row_bytes = if carried { mean_row_bytes.max(LEAST_TAIL_BYTES) } else { LEAST_TAIL_BYTES };
        let fixed = |field: &Field| field.column_type.fixed_row_bytes().unwrap_or(0) as u64;
        let tail_row_bytes = match &coordination {
            // All of its columns count as such: no operator writes to a batch in place.
            Some(_) => tail_row_bytes + output.fields.iter().map(fixed).sum::<u64>(),
            None => tail_row_bytes,
        };
        let tensors = match &coordination {
            Some(_) => Vec::new(),
            None => final_tensors(&operators, cut_place.unwrap_or(0), &output, pipeline_renames(&details)),
        };
        let counters = before.map_or_else(
            || JobCounters::new(&operators, batch_parallelism, &manifest, tracing),
            JobCounters::of,
        );
        let mut limits = JobLimits::new(&operators, cut_place, batch_parallelism, runs.threads);
        let functions = match before {
            Some(before) => before.functions.clone(),
            None => runs.functions(&operators)?,
        };
        if let Some(before) = before {
            limits.join(&before.limits);
        }
        let trials = match before {
            Some(job) => job.trials.clone(),
            None if tracing.on && details.pipeline.cached().is_none() => {
                EncodingTrials::new(pipeline, &operators).map(Arc::new)
            }
            None => None,
        };
        let cut_counters = cut.as_ref().map(|cut| (Arc::clone(&cut.counters), Arc::clone(&cut.reads)));
        Ok(Self {
            order: Mutex::new(Order::new(Sequence::new(&details.pipeline, &manifest, &details.layout.mix))),
            limits,
            tensors,
            coordination,
            output_arrow: output_schema(&output),
            output,
            chunk_rows: (CHUNK_BYTES / mean_row_bytes).clamp(1, u64::from(details.layout.group_rows))
                as usize,
            source_counters: counters.source,
            store_counters: counters.store,
            operator_counters: counters.operators,
            batch_counters: counters.batch,
            memory_wait_ns: counters.memory_wait_ns,
            cut_counters: cut_counters.or_else(|| before.and_then(|job| job.cut_counters.clone())),
            keep,
            pace: before.map_or_else(|| Arc::new(Pace::new(&details.layout)), |job| Arc::clone(&job.pace)),
            kernel_time: KernelTime::default(),
            trials,
            tail_row_bytes: AtomicU64::new(tail_row_bytes),
            cut,
            operators,
            functions,
            clock: Arc::clone(&tracing.clock),
            read_schema,
            dataset,
            manifest,
            details,
        })
    }

    /// The rows at these places of an epoch's sequence.
    pub(crate) fn rows(&self, epoch: u32, places: Range<u64>) -> Vec<RowRef> {
        let layout = &self.details.layout;
        let mut rows = Vec::with_capacity((places.end - places.start) as usize);
        let mut start = places.start;
        while start < places.end {
            let pass = start / layout.dataset_rows;
            let base = pass * layout.dataset_rows;
            let end = places.end.min(base + layout.dataset_rows);
            let (sequence, order) = self.pass_order(epoch * layout.passes + pass as u32);
            rows.extend(sequence.rows(&order, start - base..end - base));
            start = end;
        }
        rows
    }

    fn pass_order(&self, pass: u32) -> (Arc<Sequence>, SharedPass) {
        let mut order = self.lock_order();
        let found = order.pass(pass);
        (Arc::clone(&order.sequence), found)
    }

    fn lock_order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().expect("no code panics while it holds the order")
    }

    /// Takes over how the mix has changed. Rows before a change stay as they are, and of those behind it none was granted before.
    pub(crate) fn remix(&self, changes: &[MixChange]) {
        let mut order = self.lock_order();
        if order.sequence.changes() != changes {
            *order = Order::new(order.sequence.remixed(changes));
        }
    }

    pub(crate) fn on_error(&self) -> OnError {
        self.details.pipeline.on_error
    }

    /// Bytes of a finished group: its tensors, and what its other columns took at most so far.
    pub(crate) fn slab_bytes(&self, rows: usize) -> usize {
        let tensors: usize = self
            .tensors
            .iter()
            .map(|tensor| (tensor.row_bytes * rows).next_multiple_of(ALIGNMENT_BYTES))
            .sum();
        let varying = self.output.fields.len() > self.tensors.len();
        let tail =
            if varying { self.tail_row_bytes.load(Ordering::Relaxed) as usize * rows + 4096 } else { 0 };
        (tensors + tail).next_multiple_of(4096)
    }

    /// Rows of the next group: as its pace has it, and fewer where so many do not fit the memory of a worker.
    pub(crate) fn group_rows(&self, memory_bytes: u64) -> u32 {
        let batch_rows = self.details.layout.batch_rows;
        let mut rows = self.pace.group_rows();
        while rows > batch_rows && self.group_bytes(rows) > memory_bytes {
            rows = (rows / 2 / batch_rows).max(1) * batch_rows;
        }
        rows
    }

    /// Bytes that a group of these rows takes while it is worked on: encoded rows and the finished buffer.
    pub(crate) fn group_bytes(&self, rows: u32) -> u64 {
        let dataset = &self.details.dataset;
        let encoded = dataset.bytes / dataset.rows.max(1);
        let kept = self.cut.as_ref().map_or(0, CachePoint::row_bytes);
        encoded.max(kept) * u64::from(rows) + self.slab_bytes(rows as usize) as u64
    }

    pub(crate) fn note_tail(&self, rows: usize, bytes: usize) {
        if rows > 0 {
            let per_row = (bytes * 5 / 4).div_ceil(rows) as u64;
            self.tail_row_bytes.fetch_max(per_row, Ordering::Relaxed);
        }
    }

    /// Passes that come after the one of a row, as far as it is not in the first: that shall be no slower for what is kept.
    pub(crate) fn passes_after(&self, pass: u32) -> Option<f64> {
        let layout = &self.details.layout;
        (pass > 0).then(|| f64::from((layout.epochs * layout.passes).saturating_sub(pass + 1)))
    }

    /// A thread beside the pool worked this long for an operator.
    pub(super) fn charge(&self, cpu: Duration) {
        if self.is_traced() {
            self.clock.charge(cpu);
        }
    }

    /// Whether what operators do is measured.
    pub(crate) fn is_traced(&self) -> bool {
        self.source_counters.is_on()
    }

    /// What a byte that the cut keeps saves when it is found: seconds of CPU and of waiting for the store that the row took
    /// before the cut, over its size; 0 where nothing has been made yet.
    pub(crate) fn saved_s_per_byte(&self, cut: &CachePoint) -> f64 {
        let source = self.source_counters.snapshot();
        let made = source.rows_out as f64;
        let before = self.operator_counters[..cut.place].iter().map(|counters| counters.snapshot().cpu_ns);
        let cpu_ns = source.cpu_ns + self.store_counters.blocking_cpu_ns() + before.sum::<u64>();
        let ns = cpu_ns + self.store_counters.snapshot().wait_ns;
        let bytes = made * cut.mean_row_bytes();
        if bytes > 0.0 { ns as f64 / 1e9 / bytes } else { 0.0 }
    }

    /// What each operator has done; nothing where nothing is traced.
    pub(crate) fn stats(&self) -> Vec<OperatorStats> {
        if !self.is_traced() {
            return Vec::new();
        }
        let mut source = self.source_counters.snapshot();
        source.cpu_ns += self.store_counters.blocking_cpu_ns();
        let mut stats = vec![source];
        stats.extend(self.operator_counters.iter().map(|counters| counters.snapshot()));
        if let Some(cut) = &self.cut {
            stats.insert(1 + cut.place, cut.stats());
        }
        stats.push(self.batch_counters.snapshot());
        stats
    }
}

/// What is counted of a job, however often it is loaded.
struct JobCounters {
    source: Arc<OperatorCounters>,
    store: Arc<StoreCounters>,
    operators: Vec<Arc<OperatorCounters>>,
    batch: Arc<OperatorCounters>,
    memory_wait_ns: Arc<AtomicU64>,
}

impl JobCounters {
    fn new(
        operators: &[BuiltOperator],
        batch_parallelism: Option<u32>,
        manifest: &Manifest,
        tracing: &Tracing,
    ) -> Self {
        let counters = |operator: &BuiltOperator| {
            OperatorCounters::new(&operator.name, operator.parallelism, tracing.on)
        };
        Self {
            source: OperatorCounters::new("source", None, tracing.on),
            store: Arc::new(StoreCounters::new(manifest.shards.len(), tracing)),
            operators: operators.iter().map(counters).collect(),
            batch: OperatorCounters::new("batch", batch_parallelism, tracing.on),
            memory_wait_ns: Arc::default(),
        }
    }

    fn of(job: &JobContext) -> Self {
        Self {
            source: Arc::clone(&job.source_counters),
            store: Arc::clone(&job.store_counters),
            operators: job.operator_counters.clone(),
            batch: Arc::clone(&job.batch_counters),
            memory_wait_ns: Arc::clone(&job.memory_wait_ns),
        }
    }
}

/// Whether the columns that make up most of the source's bytes reach the output as they are: binary ones if there are
/// any, else those of varying size.
fn carries_bulk(source: &Schema, output: &Schema) -> bool {
    let is_binary = |field: &&Field| matches!(field.column_type, ColumnType::Binary | ColumnType::Image);
    let varies = |field: &&Field| field.column_type.fixed_row_bytes().is_none();
    let binary = source.fields.iter().any(|field| is_binary(&field));
    let bulk = |field: &&Field| if binary { is_binary(field) } else { varies(field) };
    source.fields.iter().filter(bulk).any(|field| output.fields.contains(field))
}

/// For each operator that renames columns: new name -> present name.
type Renames = BTreeMap<usize, BTreeMap<String, String>>;

fn pipeline_renames(details: &JobDetails) -> Renames {
    let kinds = details.pipeline.operators.iter().map(|operator| &operator.kind);
    let kinds = kinds.filter(|kind| !kind.is_engines());
    kinds
        .enumerate()
        .filter_map(|(place, kind)| match kind {
            OperatorKind::Rename(rename) => Some((place, rename.columns.clone())),
            _ => None,
        })
        .collect()
}

/// Finds for each tensor of the output the operator that makes its final storage, from operator `first` on.
fn final_tensors(
    operators: &[BuiltOperator],
    first: usize,
    output: &Schema,
    renames: Renames,
) -> Vec<FinalTensor> {
    let mut tensors = Vec::new();
    for field in &output.fields {
        let ColumnType::Tensor { shape, .. } = &field.column_type else { continue };
        let mut name = field.name.clone();
        let mut writer = None;
        for (place, operator) in operators.iter().enumerate().skip(first).rev() {
            if let Some(earlier) = renames.get(&place).and_then(|names| names.get(&name)) {
                name.clone_from(earlier);
            } else if operator.changes_rows {
                // Rows move behind it only if it comes after the writer; then they are copied when the batch is cut.
                break;
            } else if operator.is_writer_of(&name) {
                writer = Some((place, name.clone()));
                break;
            }
        }
        tensors.push(FinalTensor {
            column: field.name.clone(),
            writer,
            row_bytes: field.column_type.fixed_row_bytes().unwrap_or_default(),
            elements_per_row: shape.iter().map(|&extent| u64::from(extent)).product(),
        });
    }
    tensors
}
