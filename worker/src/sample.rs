//! Samples of a pipeline without a job: lists and samples its dataset, and runs its operators on a few rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::array::RecordBatch;
use bytes::Bytes;
use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::{OnError, Pipeline};
use feedline_data::schema::Schema;
use feedline_data::tenants::TenantReads;
use feedline_functions::RowFunction;
use feedline_operators::{BuiltOperator, OutputBuffers, build_operators};
use feedline_sources::{ObjectAccess, Stores};

use crate::FunctionSettings;
use crate::engine::EngineSettings;
use crate::shard_filter;

pub use feedline_operators::{Chunk, Column, Image, Tensor};
pub use feedline_sources::{Dataset, RowFailure, SampledRows, SampledShard, SourceError};

/// The dataset of a pipeline, and the stores that its operators read.
#[derive(Debug)]
pub struct PipelineSampler {
    pipeline: Pipeline,
    dataset: Dataset,
    stores: Arc<Stores>,
    functions: Option<FunctionSettings>,
}

/// The operators of a pipeline, ready to transform sampled rows. By default without operators.
#[derive(Debug, Default)]
pub struct SampleOperators {
    operators: Vec<BuiltOperator>,
    functions: BTreeMap<usize, Arc<RowFunction>>,
    /// The index in the pipeline of each operator.
    places: Vec<usize>,
    read_schema: Schema,
    on_error: OnError,
}

/// Rows after the operators.
#[derive(Debug, Clone)]
pub struct TransformedRows {
    /// The rows. [`Chunk::origins`] contains the index of each row in the sample.
    pub chunk: Chunk,
    /// The rows that failed.
    pub failures: Vec<TransformFailure>,
}

/// A row that could not be read or transformed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransformFailure {
    /// The index of the row in the sample.
    pub row: u32,
    /// The index in the pipeline of the operator that failed. `None` if the row could not be read.
    pub operator: Option<usize>,
    /// The error message.
    pub reason: String,
}

/// An operator that fails for all rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorFailure {
    /// The index of the operator in the pipeline. `None` if the message names the operator.
    pub operator: Option<usize>,
    /// The error message.
    pub reason: String,
}

impl PipelineSampler {
    /// Opens the dataset of a pipeline. Checks URLs and the permission to read them, without requests. Without
    /// `functions`, pipelines with Python functions are rejected.
    ///
    /// # Errors
    /// Returns an error if a URL is invalid or rejected, or credentials are unknown.
    pub fn new(
        pipeline: Pipeline,
        access: ObjectAccess,
        functions: Option<FunctionSettings>,
    ) -> Result<Self, SourceError> {
        let stores = Stores::with_access(access);
        // The rows of an unbounded source are those that its topics retain.
        let dataset = Dataset::new(pipeline.source.clone().bounded(), Arc::clone(&stores))?;
        Ok(Self { pipeline, dataset, stores, functions })
    }

    /// The pipeline's dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Removes the shards that the first filter of the pipeline excludes, as the listing of a job does.
    ///
    /// # Errors
    /// Returns an error if the filter excludes all shards.
    pub fn exclude(&self, listed: Vec<ShardRef>) -> Result<Vec<ShardRef>, SourceError> {
        shard_filter::exclude(listed, &self.pipeline.listed_source())
    }

    /// Reads a file that an operator requires.
    ///
    /// # Errors
    /// Returns an error if the file may not be read, or the store fails.
    pub async fn read_file(&self, url: &str) -> Result<Bytes, SourceError> {
        self.stores.get(url).await
    }

    /// Reads the files of the operators, and builds the operators for the columns of the source.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or an operator does not accept its columns or its file.
    pub async fn operators(&self, source: &Schema) -> Result<SampleOperators, OperatorFailure> {
        let pipeline = &self.pipeline;
        let unplaced = |reason: String| OperatorFailure { operator: None, reason };
        let wanted = pipeline.required_columns(source);
        let fields = source.fields.iter().filter(|field| wanted.contains(&field.name));
        let read_schema = Schema { fields: fields.cloned().collect() };
        let mut files = BTreeMap::new();
        for (operator, kind) in pipeline.operators.iter().map(|operator| &operator.kind).enumerate() {
            let Some((_, url)) = kind.definition().file() else { continue };
            let read = self.stores.files([url.to_owned()].into(), &TenantReads::default()).await;
            let read = read
                .map_err(|error| OperatorFailure { operator: Some(operator), reason: error.to_string() })?;
            files.extend(read);
        }
        let load = |url: &str| files.get(url).cloned().ok_or_else(|| format!("{url} was not read"));
        let operators =
            build_operators(pipeline, &read_schema, &load).map_err(|error| unplaced(error.to_string()))?;
        let settings = EngineSettings {
            threads: 1,
            functions: self.functions.clone(),
            function_bytes: Arc::new(AtomicU64::new(0)),
            graphs: None,
        };
        let functions = settings.build_functions(&operators).map_err(unplaced)?;
        let names = pipeline.operator_names();
        let place = |operator: &BuiltOperator| names.iter().position(|name| *name == operator.name);
        let places = operators.iter().map(|operator| place(operator).unwrap_or_default()).collect();
        Ok(SampleOperators { operators, functions, places, read_schema, on_error: pipeline.on_error })
    }
}

impl SampleOperators {
    /// The columns to read: only columns that can affect the output.
    pub fn read_schema(&self) -> &Schema {
        &self.read_schema
    }

    /// Runs all operators on rows with the columns of [`read_schema`](Self::read_schema). `failures` are rows that could not
    /// be read. Row ids start at `first_row_id`.
    ///
    /// # Errors
    /// Returns an error if an operator fails for all rows.
    pub async fn apply(
        &self,
        rows: &RecordBatch,
        failures: &[RowFailure],
        first_row_id: u64,
    ) -> Result<TransformedRows, OperatorFailure> {
        let schema = rows.schema();
        let names = schema.fields().iter().map(|field| field.name().clone());
        let columns = names.zip(rows.columns().iter().cloned().map(Column::Arrow)).collect();
        let ids = (first_row_id..).take(rows.num_rows()).collect();
        let mut chunk = Chunk::new(columns, ids, vec![0; rows.num_rows()]);
        let mut failed = Vec::new();
        for failure in failures {
            chunk.fail(failure.row as usize, failure.reason.clone());
        }
        self.record(&mut chunk, None, &mut failed);
        for (index, operator) in self.operators.iter().enumerate() {
            let place = Some(self.places[index]);
            let broken = |reason: String| OperatorFailure { operator: place, reason };
            chunk = match self.functions.get(&index) {
                Some(function) => {
                    function.apply(chunk, OutputBuffers::new(), false).await.map_err(broken)?.chunk
                }
                None => {
                    let applied = operator.operator.apply(&mut chunk, &mut OutputBuffers::new());
                    applied.map_err(|error| broken(error.message))?;
                    chunk
                }
            };
            self.record(&mut chunk, place, &mut failed);
        }
        Ok(TransformedRows { chunk, failures: failed })
    }

    /// Records the new failures of a chunk, and removes the failed rows if the pipeline skips them.
    fn record(&self, chunk: &mut Chunk, operator: Option<usize>, failed: &mut Vec<TransformFailure>) {
        let new = chunk.failures.iter().skip(failed.len());
        let new: Vec<TransformFailure> = new
            .map(|(row, reason)| TransformFailure { row: *row, operator, reason: reason.clone() })
            .collect();
        if new.is_empty() {
            return;
        }
        failed.extend(new);
        if self.on_error == OnError::Skip {
            let failures = chunk.failed_rows();
            let keep: Vec<bool> = (0..chunk.rows()).map(|row| !failures.contains(row)).collect();
            chunk.retain(&keep);
        }
    }
}
