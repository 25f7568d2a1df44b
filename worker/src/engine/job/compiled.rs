//! A job compiled for one worker: its dataset, its operators, and the columns of its batches. A compiled job is
//! immutable. The worker compiles the job again when the planned cache decision changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{CacheDecision, JobDetails};
use feedline_data::pipeline::{CacheEncoding, OnError, Operator, Pipeline};
use feedline_data::schema::{Field, Schema};
use feedline_functions::RowFunction;
use feedline_operators::{BuiltOperator, build_operators};
use feedline_proto::batch::{ALIGNMENT_BYTES, output_schema};
use feedline_sources::{Dataset, Stores};

use super::tensors::{FinalTensor, final_tensors, has_bulk_column};
use crate::cache::Caches;
use crate::engine::cache_point::{CachePoint, CachePointCounters, CachePointInput};
use crate::engine::coordination::Coordination;
use crate::engine::graph_job::GraphJob;
use crate::engine::settings::EngineSettings;
use crate::engine::trace::Tracing;

/// Maximum encoded size of a chunk in bytes. A larger row has its own chunk.
const CHUNK_BYTES_MAX: u64 = 512 << 10;
/// Minimum value of the initial estimate of the bytes per row in columns of varying size.
const TAIL_ROW_BYTES_MIN: u64 = 64;

/// The inputs from which a job is compiled.
pub(crate) struct JobSource {
    pub(crate) details: JobDetails,
    pub(crate) manifest: Arc<Manifest>,
    /// The planned cache decision.
    pub(crate) cache: Option<CacheDecision>,
    pub(crate) stores: Arc<Stores>,
}

/// The worker's caches, settings and tracing, which job compilation uses.
#[derive(Clone, Copy)]
pub(crate) struct CompileContext<'a> {
    pub(crate) caches: &'a Caches,
    pub(crate) settings: &'a EngineSettings,
    pub(crate) tracing: &'a Tracing,
}

pub(crate) struct CompiledJob {
    pub(crate) details: JobDetails,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) dataset: Dataset,
    /// The columns to read: only columns that can affect the output.
    pub(crate) read_schema: Schema,
    pub(crate) operators: Vec<BuiltOperator>,
    /// Python functions by operator index.
    pub(crate) functions: BTreeMap<usize, Arc<RowFunction>>,
    /// The planned cache decision.
    pub(crate) cache: Option<CacheDecision>,
    /// The cache point that the pipeline or the plan specifies.
    pub(crate) cache_point: Option<CachePoint>,
    /// How batches are built for all streams together. `None` if each stream has its own batches.
    pub(crate) coordination: Option<Coordination>,
    /// How batches are sampled from a graph. `None` if batches consist of rows.
    pub(crate) graph: Option<Arc<GraphJob>>,
    pub(crate) tensors: Vec<FinalTensor>,
    pub(crate) output: Schema,
    pub(crate) output_arrow: SchemaRef,
    pub(crate) chunk_rows_max: u32,
    /// Initial estimate of the bytes per row in a batch's columns of varying size.
    pub(super) tail_row_bytes: u64,
}

impl CompiledJob {
    /// Compiles a job. Reuses the Python functions of the `previous` compilation, and `cache_counters`.
    ///
    /// # Errors
    /// Returns a message if a file that the pipeline uses cannot be read, or if the worker does not run Python
    /// functions.
    pub(super) async fn compile(
        source: JobSource,
        context: CompileContext<'_>,
        previous: Option<&Self>,
        cache_counters: Option<CachePointCounters>,
    ) -> Result<Self, String> {
        let JobSource { details, manifest, cache, stores } = source;
        let pipeline = planned_pipeline(&details, cache);
        let wanted = pipeline.required_columns(&manifest.schema);
        let fields = manifest.schema.fields.iter().filter(|field| wanted.contains(&field.name));
        let read_schema = Schema { fields: fields.cloned().collect() };
        let files = read_files(&pipeline, &details, &stores).await?;
        let load = |url: &str| files.get(url).cloned().ok_or_else(|| format!("{url} was not read"));
        let operators = build_operators(&pipeline, &read_schema, &load).map_err(|error| error.to_string())?;
        let input = CachePointInput {
            pipeline: &pipeline,
            encoding: cache.map_or(CacheEncoding::AsIs, |cache| cache.encoding),
            manifest: &manifest,
            read_schema: &read_schema,
            operators: &operators,
            files: &files,
        };
        let cache_point = CachePoint::new(&input, context.tracing, cache_counters)?;
        if let Some(cache_point) = &cache_point {
            context.caches.open(cache_point.prefix, cache_point.tier).await?;
        }
        let coordination = Coordination::new(&pipeline, &read_schema)?;
        let loaded = previous.and_then(|previous| previous.graph.as_ref());
        let graph = GraphJob::load(&pipeline, &details, context.settings, &stores, loaded).await?;
        let output = match (&coordination, &graph, operators.last()) {
            (Some(coordination), _, _) => coordination.output.clone(),
            (None, Some(graph), _) => graph.plan.schema(),
            (None, None, Some(last)) => last.schema.clone(),
            (None, None, None) => read_schema.clone(),
        };
        let output_arrow =
            graph.as_ref().map_or_else(|| output_schema(&output), |graph| Arc::clone(&graph.schema));
        let tensors = match (&coordination, &graph) {
            (Some(_), _) | (_, Some(_)) => Vec::new(),
            (None, None) => {
                let first = cache_point.as_ref().map_or(0, |cache_point| cache_point.operator);
                final_tensors(&pipeline, &operators, first, &output)
            }
        };
        let functions = match previous {
            Some(previous) => previous.functions.clone(),
            None => context.settings.build_functions(&operators)?,
        };
        let dataset = Dataset::of_tenant(pipeline.source.clone(), stores, &details.reads)
            .map_err(|error| error.to_string())?
            .with_job(details.job);
        let mean_row_bytes = (details.dataset.bytes / details.dataset.rows.max(1)).max(1);
        Ok(Self {
            tail_row_bytes: tail_row_bytes(mean_row_bytes, &read_schema, &output, coordination.is_some()),
            chunk_rows_max: max_chunk_rows(mean_row_bytes, details.layout.group_rows),
            output_arrow,
            output,
            tensors,
            coordination,
            graph,
            cache_point,
            cache,
            functions,
            operators,
            read_schema,
            dataset,
            manifest,
            details,
        })
    }

    /// The columns of a chunk after all operators.
    pub(crate) fn computed_schema(&self) -> &Schema {
        self.operators.last().map_or(&self.read_schema, |last| &last.schema)
    }

    pub(crate) fn on_error(&self) -> OnError {
        self.details.pipeline.on_error
    }

    /// Bytes of the tensor columns in the buffer of a group with this number of rows.
    pub(super) fn tensor_bytes(&self, rows: usize) -> usize {
        let bytes = |tensor: &FinalTensor| (tensor.row_bytes * rows).next_multiple_of(ALIGNMENT_BYTES);
        self.tensors.iter().map(bytes).sum()
    }

    /// Whether batches have columns that are not tensors.
    pub(super) fn has_tail(&self) -> bool {
        self.output.fields.len() > self.tensors.len()
    }

    /// The number of passes that follow `pass`. `None` for the first pass, which caching must not slow down.
    pub(crate) fn passes_after(&self, pass: u32) -> Option<f64> {
        let layout = &self.details.layout;
        (pass > 0).then(|| f64::from((layout.epochs * layout.passes).saturating_sub(pass + 1)))
    }
}

/// Returns the maximum number of rows per chunk, so that the encoded rows of a chunk have at most [`CHUNK_BYTES_MAX`] bytes.
fn max_chunk_rows(mean_row_bytes: u64, group_rows: u32) -> u32 {
    (CHUNK_BYTES_MAX / mean_row_bytes).clamp(1, u64::from(group_rows)) as u32
}

/// The job's pipeline with the planned cache added.
fn planned_pipeline(details: &JobDetails, cache: Option<CacheDecision>) -> Pipeline {
    match cache {
        Some(cache) => details.pipeline.with_cache_after(cache.operators_before, cache.tier),
        None => details.pipeline.clone(),
    }
}

async fn read_files(
    pipeline: &Pipeline,
    details: &JobDetails,
    stores: &Arc<Stores>,
) -> Result<BTreeMap<String, Bytes>, String> {
    let url = |operator: &Operator| operator.kind.definition().file().map(|(_, url)| url.to_owned());
    let urls = pipeline.operators.iter().filter_map(url).collect();
    stores.files(urls, &details.reads).await.map_err(|error| error.to_string())
}

fn tail_row_bytes(mean_row_bytes: u64, source: &Schema, output: &Schema, is_coordinated: bool) -> u64 {
    let varying = if has_bulk_column(source, output) { mean_row_bytes } else { 0 };
    let fixed = |field: &Field| field.column_type.fixed_row_bytes().unwrap_or(0) as u64;
    // The operators of a coordinated job do not write columns in place, so all columns are in the tail.
    let fixed: u64 = if is_coordinated { output.fields.iter().map(fixed).sum() } else { 0 };
    varying.max(TAIL_ROW_BYTES_MIN) + fixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_few_large_rows() {
        assert_eq!(
            [1, 1 << 10, 1 << 19, 1 << 30].map(|bytes| max_chunk_rows(bytes, 4096)),
            [4096, 512, 1, 1]
        );
    }
}
