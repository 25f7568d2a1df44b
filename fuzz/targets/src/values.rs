//! Operators on the values of one column.

use arrow::array::ArrayRef;
use bytes::Bytes;
use feedline_data::pipeline::{Pipeline, PipelineError};
use feedline_data::schema::{ColumnType, Schema};
use feedline_operators::{BuiltOperator, Chunk, Column, OutputBuffers, build_operators};

use crate::thread_state::ignore_contained_panics;

/// Builds the operators of a pipeline whose source has one column. All files that operators read contain `file`.
///
/// # Errors
/// Errors of the pipeline and of the file.
pub(crate) fn operators(
    pipeline: &str,
    (column, column_type): (&str, ColumnType),
    file: &[u8],
) -> Result<Vec<BuiltOperator>, PipelineError> {
    ignore_contained_panics();
    let pipeline = Pipeline::from_yaml(pipeline, "fuzz.yaml")?;
    let schema = Schema::new([(column, column_type)]);
    build_operators(&pipeline, &schema, &|_| Ok(Bytes::copy_from_slice(file)))
}

/// Applies operators to the values of one column.
pub(crate) fn apply(operators: &[BuiltOperator], column: &str, values: ArrayRef) {
    let rows = values.len();
    let columns = vec![(column.to_owned(), Column::Arrow(values))];
    let mut chunk = Chunk::new(columns, (0..rows as u64).collect(), vec![0; rows]);
    for built in operators {
        // Errors are expected; only panics and hangs are failures.
        if built.operator.apply(&mut chunk, &mut OutputBuffers::new()).is_err() {
            return;
        }
    }
}
