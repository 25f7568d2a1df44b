//! Checks the operators against the columns of the source, and runs them on the first rows of a few shards.

use feedline_data::pipeline::{OnError, Pipeline, PipelinePart};
use feedline_data::schema::Schema;
use feedline_worker::sample::{PipelineSampler, SampleOperators};

use super::checks::Check;
use super::finding::Finding;
use super::sampling::{self, ShardSample};

/// Number of shards whose first rows pass through the operators, and the number of these rows.
const READ_SHARDS: usize = 3;
const ROWS_PER_SHARD: u32 = 8;

/// The result of the operators.
#[derive(Debug, Default)]
pub(crate) struct RowChecks {
    /// The findings.
    pub(crate) findings: Vec<Finding>,
    /// The columns of a batch, if all operators accept their columns.
    pub(crate) output: Option<Schema>,
    /// The number of rows that were read.
    pub(crate) rows: u64,
}

/// Checks all operators.
pub(crate) async fn check(
    pipeline: &Pipeline,
    sampler: &PipelineSampler,
    sample: &ShardSample,
    source: &Schema,
) -> RowChecks {
    let mut checks = RowChecks::default();
    match infer(pipeline, source) {
        Ok(output) => checks.output = Some(output),
        Err(finding) => {
            checks.findings.push(finding);
            return checks;
        }
    }
    let operators = match sampler.operators(source).await {
        Ok(operators) => operators,
        Err(failure) => {
            checks.findings.push(operator_finding(pipeline, failure.operator, &failure.reason));
            return checks;
        }
    };
    let columns = sampling::check_columns(sample, &pipeline.source, operators.read_schema());
    let readable = columns.is_empty();
    checks.findings.extend(columns);
    if readable {
        run(pipeline, sampler, sample, &operators, &mut checks).await;
    }
    checks
}

/// Returns the columns after the last operator.
fn infer(pipeline: &Pipeline, source: &Schema) -> Result<Schema, Finding> {
    let mut schema = source.clone();
    for (index, operator) in pipeline.operators.iter().enumerate() {
        schema = operator
            .kind
            .definition()
            .infer(&schema)
            .map_err(|sentence| operator_finding(pipeline, Some(index), &sentence))?;
    }
    Ok(schema)
}

fn operator_finding(pipeline: &Pipeline, operator: Option<usize>, sentence: &str) -> Finding {
    let Some(index) = operator else { return Finding::new(Check::Operator, sentence) };
    Finding::new(Check::Operator, format!("{}: {sentence}", name(pipeline, index)))
        .in_part(PipelinePart::Operator(index))
}

/// The name of an operator in messages, such as `operator 2 (resize)`.
fn name(pipeline: &Pipeline, index: usize) -> String {
    let kind = pipeline.operators.get(index).map_or("", |operator| operator.kind.name());
    format!("operator {} ({kind})", index + 1)
}

/// Runs the operators on the first rows of some shards.
async fn run(
    pipeline: &Pipeline,
    sampler: &PipelineSampler,
    sample: &ShardSample,
    operators: &SampleOperators,
    checks: &mut RowChecks,
) {
    let with_rows: Vec<_> =
        sample.shards.iter().filter(|(_, sampled)| !sampled.index.blocks.is_empty()).collect();
    let step = with_rows.len().div_ceil(READ_SHARDS).max(1);
    let mut rows_after = 0;
    for (shard, sampled) in with_rows.into_iter().step_by(step) {
        let schema = operators.read_schema();
        let read = sampler.dataset().first_rows(shard, &sampled.index, schema, ROWS_PER_SHARD).await;
        let rows = match read {
            Ok(rows) => rows,
            Err(error) => {
                checks.findings.push(Finding::of_source(&error, &shard.url));
                continue;
            }
        };
        let applied = operators.apply(&rows.batch, &rows.failures, checks.rows).await;
        checks.rows += rows.batch.num_rows() as u64;
        match applied {
            Ok(transformed) => {
                rows_after += transformed.chunk.rows();
                for failure in transformed.failures {
                    let place = failure
                        .operator
                        .map_or_else(String::new, |index| format!(", {}", name(pipeline, index)));
                    let message =
                        format!("row {} of `{}`{place}: {}", failure.row, shard.url, failure.reason);
                    let finding = Finding::new(Check::FailingRows, message).at(shard);
                    let finding = finding.warning_if(pipeline.on_error != OnError::Fail);
                    checks.findings.push(match failure.operator {
                        Some(index) => finding.in_part(PipelinePart::Operator(index)),
                        None => finding,
                    });
                }
            }
            Err(failure) => {
                checks.findings.push(operator_finding(pipeline, failure.operator, &failure.reason));
                return;
            }
        }
    }
    if rows_after == 0 && checks.rows > 0 && checks.findings.is_empty() {
        let message = format!(
            "the operators remove all {} rows of the sample: check the condition of `filter`",
            checks.rows
        );
        let filter = pipeline.operators.iter().position(|operator| operator.kind.drops_rows());
        let finding = Finding::new(Check::FilteredRows, message);
        checks.findings.push(match filter {
            Some(index) => finding.in_part(PipelinePart::Operator(index)),
            None => finding,
        });
    }
}
