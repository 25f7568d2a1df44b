//! From a pipeline's operators to ones that run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feedline_data::pipeline::{OperatorKind, Pipeline, PipelineError, infer};
use feedline_data::schema::{ColumnType, Schema};

use crate::arrow_types::arrow_type;
use crate::burn::BurnOperator;
use crate::cast::CastOperator;
use crate::columns::{RenameOperator, SelectOperator};
use crate::filter::FilterOperator;
use crate::flip::FlipOperator;
use crate::lists::{PadOperator, TruncateOperator};
use crate::normalize::NormalizeOperator;
use crate::operator::{BuiltOperator, Decoding, FunctionCall, OperatorKernel};
use crate::pictures::{CropChoice, DecodeImageOperator, FixedSizeOperator};
use crate::recode::RecodeJpegOperator;
use crate::tokenize::TokenizeOperator;
use crate::wait::WaitOperator;

/// Builds the operators of a pipeline whose source has these columns, without those that are the engine's, such as `batch`
/// and `cache`. `load` reads a tokenizer's file.
///
/// An operator's place in the result is what its slots are keyed by.
pub fn build_operators(
    pipeline: &Pipeline,
    source_schema: &Schema,
    load: &dyn Fn(&str) -> Result<Bytes, String>,
) -> Result<Vec<BuiltOperator>, PipelineError> {
    let schemas = infer(pipeline, source_schema)?;
    let mut built: Vec<BuiltOperator> = Vec::with_capacity(pipeline.operators.len());
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut draws = 0;
    for (place, (spec, around)) in pipeline.operators.iter().zip(schemas.windows(2)).enumerate() {
        if spec.kind.is_engines() {
            continue;
        }
        let kind = spec.kind.name();
        let one = Building {
            index: built.len(),
            draws,
            seed: pipeline.seed,
            input: &around[0],
            output: &around[1],
            load,
        };
        let operator = one
            .operator(&spec.kind)
            .map_err(|sentence| PipelineError::new(format!("operator {} ({kind}): {sentence}", place + 1)))?;
        let count = counts.entry(kind).and_modify(|count| *count += 1).or_insert(1);
        let name = if *count == 1 { kind.to_owned() } else { format!("{kind}#{count}") };
        let wait_per_row = match &spec.kind {
            OperatorKind::Wait(wait) => Some(Duration::from_millis(wait.ms)),
            _ => None,
        };
        built.push(BuiltOperator {
            name,
            schema: around[1].clone(),
            parallelism: spec.parallelism,
            wait_per_row,
            function: one.function(&spec.kind),
            writes: written_column(&spec.kind, &around[1]),
            decodes: decoding(&spec.kind, &around[0]),
            changes_rows: spec.kind.drops_rows(),
            operator,
        });
        // Draws do not depend on whether JPEGs are recoded: the pixels do not either.
        draws += u32::from(!spec.kind.definition().is_encoding_only());
    }
    Ok(built)
}

/// What is known when one operator is built.
struct Building<'a> {
    /// Place among the operators that are built.
    index: usize,
    /// What its random draws are keyed by.
    draws: u32,
    seed: u64,
    input: &'a Schema,
    output: &'a Schema,
    load: &'a dyn Fn(&str) -> Result<Bytes, String>,
}

impl Building<'_> {
    fn operator(&self, kind: &OperatorKind) -> Result<Arc<dyn OperatorKernel>, String> {
        let fixed_size = |column: &str, size, choice| -> Arc<dyn OperatorKernel> {
            Arc::new(FixedSizeOperator {
                index: self.index,
                draws: self.draws,
                seed: self.seed,
                column: column.to_owned(),
                size,
                choice,
            })
        };
        Ok(match kind {
            OperatorKind::DecodeImage(p) => Arc::new(DecodeImageOperator { column: p.column.clone() }),
            OperatorKind::Resize(p) => fixed_size(&p.column, p.size, CropChoice::Whole),
            OperatorKind::CenterCrop(p) => fixed_size(&p.column, p.size, CropChoice::Center(p.resize)),
            OperatorKind::RandomResizedCrop(p) => {
                fixed_size(&p.column, p.size, CropChoice::Random { scale: p.scale, ratio: p.ratio })
            }
            OperatorKind::RandomHorizontalFlip(p) => Arc::new(FlipOperator {
                draws: self.draws,
                seed: self.seed,
                column: p.column.clone(),
                p: p.p,
            }),
            OperatorKind::Normalize(p) => {
                let channels = match self.input_type(&p.column)? {
                    ColumnType::Tensor { shape, .. } if shape.len() == 3 => shape[2] as usize,
                    other => return Err(format!("column `{}` holds {other}, not image tensors", p.column)),
                };
                let (_, shape) = self.output_tensor(&p.column)?;
                Arc::new(NormalizeOperator::new(self.index, p, channels, shape))
            }
            OperatorKind::Cast(p) => Arc::new(CastOperator {
                index: self.index,
                column: p.column.clone(),
                dtype: p.dtype,
                arrow: self.output.get(&p.column).and_then(arrow_type),
            }),
            OperatorKind::Select(p) => Arc::new(SelectOperator { columns: p.columns.clone() }),
            OperatorKind::Rename(p) => Arc::new(RenameOperator { columns: p.columns.clone() }),
            OperatorKind::Filter(p) => Arc::new(FilterOperator::new(&p.predicate, self.input)?),
            OperatorKind::Tokenize(p) => Arc::new(TokenizeOperator {
                column: p.column.clone(),
                output: p.output.clone().unwrap_or_else(|| p.column.clone()),
                add_special_tokens: p.add_special_tokens,
                tokenizer: TokenizeOperator::read(&(self.load)(&p.tokenizer)?, &p.tokenizer)?,
            }),
            OperatorKind::Truncate(p) => {
                Arc::new(TruncateOperator { column: p.column.clone(), length: p.length })
            }
            OperatorKind::Pad(p) => {
                let (scalar, _) = self.output_tensor(&p.column)?;
                Arc::new(PadOperator::new(self.index, &p.column, p.length, scalar, p.value))
            }
            OperatorKind::RecodeJpeg(p) => Arc::new(RecodeJpegOperator { column: p.column.clone() }),
            OperatorKind::Burn(p) => Arc::new(BurnOperator { cpu_us: p.cpu_us }),
            OperatorKind::Wait(_)
            | OperatorKind::Map(_)
            | OperatorKind::FilterFunction(_)
            | OperatorKind::Cache(_)
            | OperatorKind::Batch(_)
            | OperatorKind::BucketByLength(_)
            | OperatorKind::Pack(_)
            | OperatorKind::Repeat(_) => Arc::new(WaitOperator),
        })
    }

    fn function(&self, kind: &OperatorKind) -> Option<Arc<FunctionCall>> {
        let function = kind.function()?;
        let is_given = |name: &String| function.columns.is_empty() || function.columns.contains(name);
        Some(Arc::new(FunctionCall {
            function: function.clone(),
            is_filter: kind.drops_rows(),
            index: self.index,
            draws: self.draws,
            seed: self.seed,
            inputs: self.input.fields.iter().filter(|field| is_given(&field.name)).cloned().collect(),
        }))
    }

    fn input_type(&self, column: &str) -> Result<&ColumnType, String> {
        self.input.get(column).ok_or_else(|| format!("there is no column `{column}`"))
    }

    fn output_tensor(&self, column: &str) -> Result<(feedline_data::schema::ScalarType, &[u32]), String> {
        match self.output.get(column) {
            Some(ColumnType::Tensor { scalar, shape }) => Ok((*scalar, shape)),
            _ => Err(format!("column `{column}` does not become a tensor")),
        }
    }
}

/// The column for which an operator makes new tensor storage.
fn written_column(kind: &OperatorKind, output: &Schema) -> Option<String> {
    let column = match kind {
        OperatorKind::Resize(p) => &p.column,
        OperatorKind::CenterCrop(p) => &p.column,
        OperatorKind::RandomResizedCrop(p) => &p.column,
        OperatorKind::Normalize(p) => &p.column,
        OperatorKind::Cast(p) => &p.column,
        OperatorKind::Pad(p) => &p.column,
        _ => return None,
    };
    matches!(output.get(column), Some(ColumnType::Tensor { .. })).then(|| column.clone())
}

/// The encoded images that an operator decodes.
fn decoding(kind: &OperatorKind, input: &Schema) -> Option<Decoding> {
    let (column, size) = match kind {
        OperatorKind::Resize(p) => (&p.column, p.size),
        OperatorKind::CenterCrop(p) => {
            (&p.column, p.size.map(|extent| extent.min(p.resize.unwrap_or(extent))))
        }
        OperatorKind::RandomResizedCrop(p) => (&p.column, p.size),
        _ => return None,
    };
    let is_encoded = matches!(input.get(column), Some(ColumnType::Binary));
    is_encoded.then(|| Decoding { column: column.clone(), size })
}

#[cfg(test)]
mod tests;
