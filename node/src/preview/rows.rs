//! Reads the first rows of each dataset and runs the operators on them.

use std::collections::{BTreeMap, HashMap};

use feedline_data::manifest::{Manifest, Shard, ShardRef};
use feedline_data::pipeline::{Normalize, OperatorKind, Pipeline, Source, infer};
use feedline_data::schema::Schema;
use feedline_worker::sample::{Column, PipelineSampler, SampleOperators, SampledShard, TransformFailure};
use feedline_worker::{FunctionSettings, ObjectAccess};

use super::tokens;
use super::value::PreviewValue;
use crate::failure::Failure;
use crate::lint::{ColumnReport, columns};

/// The rows of a preview.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PreviewedRows {
    /// The name of the pipeline.
    pub(crate) pipeline: String,
    /// The pipeline as text.
    pub(crate) description: String,
    /// Whether the rows are those before the operators.
    pub(crate) is_raw: bool,
    /// The names of the columns of the rows.
    pub(crate) names: Vec<String>,
    /// The rows.
    pub(crate) rows: Vec<PreviewedRow>,
    /// The columns of a batch.
    pub(crate) batch_columns: Vec<ColumnReport>,
    /// The number of rows of a batch.
    pub(crate) batch_rows: u32,
    /// Whether batches are sampled graphs, which a preview does not contain.
    pub(crate) samples_graph: bool,
    /// The rows that failed, as sentences.
    pub(crate) failures: Vec<String>,
}

/// What a preview does not contain if batches are sampled graphs.
pub(crate) const GRAPH_NOTE: &str = "A batch also contains the sampled neighbors of its rows. A preview does not, because it would have to load the whole graph.";

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PreviewedRow {
    /// The URL of the shard, and the index of the row in it.
    pub(crate) url: String,
    pub(crate) index: u64,
    /// One value per column.
    pub(crate) cells: Vec<PreviewValue>,
}

/// Reads at most `count` rows, in equal parts from each dataset of a mix.
pub(crate) async fn read(
    pipeline: &Pipeline,
    access: ObjectAccess,
    functions: Option<FunctionSettings>,
    count: u32,
    is_raw: bool,
) -> Result<PreviewedRows, Failure> {
    let sampler =
        PipelineSampler::new(pipeline.clone(), access, functions).map_err(Failure::invalid_usage)?;
    let listed = sampler.dataset().list().await.map_err(Failure::failed)?;
    let listed = sampler.exclude(listed).map_err(Failure::failed)?;
    let shards = sample(&sampler, &listed, count).await?;
    let source = merged_columns(&shards, &pipeline.source)?;
    let schemas = infer(pipeline, &source).map_err(Failure::invalid_usage)?;
    let batch = schemas.last().unwrap_or(&source);
    let mut previewed = PreviewedRows {
        pipeline: pipeline.name.clone(),
        description: pipeline.render(),
        is_raw,
        names: Vec::new(),
        rows: Vec::new(),
        batch_columns: columns(batch),
        batch_rows: pipeline.batch_size(),
        samples_graph: pipeline.is_indivisible(),
        failures: Vec::new(),
    };
    let reader = RowReader::new(pipeline, &sampler, &source, is_raw).await?;
    for (shard, sampled, rows) in &shards {
        reader.read(shard, sampled, *rows, &mut previewed).await?;
    }
    Ok(previewed)
}

/// Selects the first shards with rows, and the number of rows of each.
async fn sample(
    sampler: &PipelineSampler,
    listed: &[ShardRef],
    count: u32,
) -> Result<Vec<(ShardRef, SampledShard, u32)>, Failure> {
    let parts = listed.iter().map(|shard| shard.part).max().map_or(1, |last| last + 1);
    let mut sampled = Vec::new();
    for part in 0..parts {
        let mut missing = count / parts + u32::from(part < count % parts);
        for shard in listed.iter().filter(|shard| shard.part == part && !shard.is_empty()) {
            if missing == 0 {
                break;
            }
            let found = sampler.dataset().sample_shard(shard).await.map_err(Failure::failed)?;
            let rows = found.index.rows().min(u64::from(missing)) as u32;
            if rows > 0 {
                missing -= rows;
                sampled.push((shard.clone(), found, rows));
            }
        }
    }
    Ok(sampled)
}

/// Merges the columns of the sampled shards, as the manifest of a job does.
fn merged_columns(shards: &[(ShardRef, SampledShard, u32)], source: &Source) -> Result<Schema, Failure> {
    let shard = |(object, sampled, _): &(ShardRef, SampledShard, u32)| {
        Shard::new(object.clone(), sampled.index.clone())
    };
    if shards.is_empty() {
        return Err(Failure::failed("the dataset has no rows: check `source.url`"));
    }
    let mut manifest = Manifest::build(shards.iter().map(shard).collect()).map_err(Failure::failed)?;
    if let Some(sentence) = manifest.missing_column(source) {
        let is_exact = shards
            .iter()
            .all(|(shard, sampled, _)| sampled.index.columns.is_fixed || sampled.is_whole(shard));
        let sampled = if is_exact { "" } else { "; a preview reads only the first rows of some shards" };
        return Err(Failure::failed(format!("{sentence}{sampled}")));
    }
    manifest.add_optional_columns(source);
    Ok(manifest.schema)
}

/// Reads and transforms the rows of shards.
struct RowReader<'a> {
    sampler: &'a PipelineSampler,
    /// The operators, without operators to show the rows before them.
    operators: SampleOperators,
    read_schema: Schema,
    /// The operator that normalized each column, by the name of the column in the batch.
    normalized: HashMap<String, Normalize>,
    /// The tokens of each column of token ids.
    tokens: HashMap<String, HashMap<u64, String>>,
}

impl<'a> RowReader<'a> {
    async fn new(
        pipeline: &Pipeline,
        sampler: &'a PipelineSampler,
        source: &Schema,
        is_raw: bool,
    ) -> Result<Self, Failure> {
        if is_raw {
            let (normalized, tokens) = (HashMap::new(), HashMap::new());
            let operators = SampleOperators::default();
            return Ok(Self { sampler, operators, read_schema: source.clone(), normalized, tokens });
        }
        let operators = sampler.operators(source).await.map_err(|failure| Failure::failed(failure.reason))?;
        let read_schema = operators.read_schema().clone();
        let (mut normalized, mut tokens) = (HashMap::new(), HashMap::new());
        for operator in &pipeline.operators {
            match &operator.kind {
                OperatorKind::Normalize(normalize) => {
                    normalized.insert(normalize.column.clone(), normalize.clone());
                }
                OperatorKind::Tokenize(tokenize) => {
                    let file = sampler.read_file(&tokenize.tokenizer).await.map_err(Failure::failed)?;
                    let column = tokenize.output.clone().unwrap_or_else(|| tokenize.column.clone());
                    tokens.insert(column, tokens::of_tokenizer(&file));
                }
                OperatorKind::Rename(rename) => {
                    rename_keys(&mut normalized, &rename.columns);
                    rename_keys(&mut tokens, &rename.columns);
                }
                _ => {}
            }
        }
        Ok(Self { sampler, operators, read_schema, normalized, tokens })
    }

    async fn read(
        &self,
        shard: &ShardRef,
        sampled: &SampledShard,
        rows: u32,
        previewed: &mut PreviewedRows,
    ) -> Result<(), Failure> {
        let dataset = self.sampler.dataset();
        let read = dataset
            .first_rows(shard, &sampled.index, &self.read_schema, rows)
            .await
            .map_err(Failure::failed)?;
        let first_id = previewed.rows.len() as u64;
        let transformed = self
            .operators
            .apply(&read.batch, &read.failures, first_id)
            .await
            .map_err(|failure| Failure::failed(failure.reason))?;
        let sentence = |failure: &TransformFailure| {
            let place =
                failure.operator.map_or_else(String::new, |index| format!(", operator {}", index + 1));
            format!("row {} of `{}`{place}: {}", failure.row, shard.url, failure.reason)
        };
        previewed.failures.extend(transformed.failures.iter().map(sentence));
        let chunk = transformed.chunk;
        previewed.names = chunk.columns.iter().map(|(name, _)| name.clone()).collect();
        for row in 0..chunk.rows() {
            let cell = |(name, column): &(String, Column)| {
                let cell = PreviewValue::of_column(column, row, self.normalized.get(name));
                self.with_tokens(name, cell)
            };
            previewed.rows.push(PreviewedRow {
                url: shard.url.clone(),
                index: u64::from(chunk.origins[row]),
                cells: chunk.columns.iter().map(cell).collect(),
            });
        }
        Ok(())
    }

    /// Adds the tokens to a list of token ids.
    fn with_tokens(&self, column: &str, cell: PreviewValue) -> PreviewValue {
        let Some(tokens) = self.tokens.get(column).filter(|tokens| !tokens.is_empty()) else { return cell };
        let token = |id: &String| {
            let token = id.parse().ok().and_then(|id: u64| tokens.get(&id)).cloned();
            (id.clone(), token.unwrap_or_default())
        };
        match cell {
            PreviewValue::List { elements, length } => {
                PreviewValue::Tokens { tokens: elements.iter().map(token).collect(), length }
            }
            PreviewValue::Tensor { elements, .. } => {
                let length = elements.len();
                PreviewValue::Tokens { tokens: elements.iter().map(token).collect(), length }
            }
            other => other,
        }
    }
}

/// Renames the keys. `columns` maps new names to current names.
fn rename_keys<T>(map: &mut HashMap<String, T>, columns: &BTreeMap<String, String>) {
    let renamed: Vec<(String, T)> =
        columns.iter().filter_map(|(new, current)| Some((new.clone(), map.remove(current)?))).collect();
    map.extend(renamed);
}
