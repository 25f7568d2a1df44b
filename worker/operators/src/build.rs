//! Builds the kernels of a pipeline's operators.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use feedline_data::pipeline::{Operator, Pipeline, PipelineError, infer};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::kernels::{KernelContext, KernelDefinition, kernel_definition};
use crate::operator::{BuiltOperator, Decoding, FunctionCall};
use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

/// Builds the operators of a pipeline, except operators that the engine runs itself, such as `batch` and `cache`. `source_schema`
/// contains the columns of the source. `load` reads a file that an operator requires.
///
/// The index of an operator in the result is the key of its output buffers.
///
/// # Errors
/// Returns an error if the parameters of an operator do not match its input columns, or a file cannot be loaded. The
/// message contains the operator.
pub fn build_operators(
    pipeline: &Pipeline,
    source_schema: &Schema,
    load: &dyn Fn(&str) -> Result<Bytes, String>,
) -> Result<Vec<BuiltOperator>, PipelineError> {
    let schemas = infer(pipeline, source_schema)?;
    let mut built: Vec<BuiltOperator> = Vec::with_capacity(pipeline.operators.len());
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut draw_key = 0;
    for (index, (operator, in_out)) in pipeline.operators.iter().zip(schemas.windows(2)).enumerate() {
        let Some(definition) = kernel_definition(&operator.kind) else { continue };
        let context = KernelContext {
            index: built.len(),
            draw_key,
            seed: pipeline.seed,
            input: &in_out[0],
            output: &in_out[1],
            load,
        };
        let kind = operator.kind.name();
        let count = counts.entry(kind).and_modify(|count| *count += 1).or_insert(1);
        let name = if *count == 1 { kind.to_owned() } else { format!("{kind}#{count}") };
        let one = build(operator, definition, &context, name)
            .map_err(|reason| PipelineError::new(format!("operator {} ({kind}): {reason}", index + 1)))?;
        built.push(one);
        // An operator that changes only the encoding must not change the random draws of later operators.
        draw_key += u32::from(!operator.kind.definition().is_encoding_only());
    }
    Ok(built)
}

fn build(
    operator: &Operator,
    definition: &dyn KernelDefinition,
    context: &KernelContext<'_>,
    name: String,
) -> Result<BuiltOperator, String> {
    let (input, output) = (context.input, context.output);
    let is_tensor = |column: &&str| matches!(output.get(column), Some(ColumnType::Tensor { .. }));
    let is_encoded = |(column, _): &(&str, _)| matches!(input.get(column), Some(ColumnType::Binary));
    Ok(BuiltOperator {
        name,
        schema: output.clone(),
        parallelism: operator.parallelism,
        wait_per_row: definition.wait_per_row(),
        function: function_call(operator, context),
        written_column: definition.written_column().filter(is_tensor).map(str::to_owned),
        decoding: definition
            .decoded_column()
            .filter(is_encoded)
            .map(|(column, size)| Decoding { column: column.to_owned(), size }),
        changes_rows: operator.kind.drops_rows(),
        operator: with_source_tensors(definition, context)?,
    })
}

/// Builds the kernel of an operator. If the kernel reads a column of tensors, the kernel also accepts the tensors of a source.
fn with_source_tensors(
    definition: &dyn KernelDefinition,
    context: &KernelContext<'_>,
) -> Result<Arc<dyn OperatorKernel>, String> {
    let kernel = definition.build(context)?;
    let Some(column) = definition.tensor_column() else { return Ok(kernel) };
    Ok(match context.input.get(column) {
        Some(ColumnType::Tensor { scalar, shape }) => Arc::new(TensorKernel {
            column: column.to_owned(),
            scalar: *scalar,
            shape: shape.clone(),
            kernel,
        }),
        _ => kernel,
    })
}

/// Converts a column of tensors that comes unchanged from the source, and then runs the kernel.
struct TensorKernel {
    column: String,
    scalar: ScalarType,
    shape: Vec<u32>,
    kernel: Arc<dyn OperatorKernel>,
}

impl OperatorKernel for TensorKernel {
    fn apply(&self, chunk: &mut Chunk, buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        chunk.convert_source_tensors(&self.column, (self.scalar, &self.shape))?;
        self.kernel.apply(chunk, buffers)
    }
}

fn function_call(operator: &Operator, context: &KernelContext<'_>) -> Option<Arc<FunctionCall>> {
    let function = operator.kind.function()?;
    let is_input = |name: &String| function.columns.is_empty() || function.columns.contains(name);
    Some(Arc::new(FunctionCall {
        function: function.clone(),
        is_filter: operator.kind.drops_rows(),
        index: context.index,
        draw_key: context.draw_key,
        seed: context.seed,
        inputs: context.input.fields.iter().filter(|field| is_input(&field.name)).cloned().collect(),
    }))
}

#[cfg(test)]
mod tests;
