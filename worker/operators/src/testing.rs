//! Test helpers: pipelines from JSON, chunks from columns, and golden images.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewArray};
use bytes::Bytes;
use feedline_data::pipeline::{Pipeline, PipelineError};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::{BuiltOperator, Chunk, Column, OutputBuffers, Tensor, build_operators};

/// Builds these operators.
pub(crate) fn try_build(
    schema: &Schema,
    operators: Vec<serde_json::Value>,
) -> Result<Vec<BuiltOperator>, PipelineError> {
    let pipeline: Pipeline = serde_json::from_value(serde_json::json!({
        "name": "test", "seed": 11, "source": {"url": "x", "format": "files"}, "operators": operators,
    }))
    .expect("the test's pipeline is well-formed");
    build_operators(&pipeline, schema, &|path| {
        std::fs::read(path).map(Bytes::from).map_err(|e| e.to_string())
    })
}

/// Builds these operators. Panics if they are invalid.
pub(crate) fn build(schema: &Schema, operators: Vec<serde_json::Value>) -> Vec<BuiltOperator> {
    try_build(schema, operators).expect("the test builds sound operators")
}

/// Runs operators on a chunk, each with its own storage.
pub(crate) fn run(operators: &[BuiltOperator], chunk: &mut Chunk) {
    for built in operators {
        built.operator.apply(chunk, &mut OutputBuffers::new()).expect("the chunk has the columns");
    }
}

/// A chunk with row ids from 0 and pass 0.
pub(crate) fn chunk<const N: usize>(columns: [(&str, Column); N]) -> Chunk {
    let rows = columns[0].1.rows();
    let columns = columns.into_iter().map(|(name, column)| (name.to_owned(), column)).collect();
    Chunk::new(columns, (0..rows as u64).collect(), vec![0; rows])
}

/// A column of an Arrow array.
pub(crate) fn arrow(array: impl arrow::array::Array + 'static) -> Column {
    Column::Arrow(Arc::new(array))
}

/// A column of encoded bytes.
pub(crate) fn bytes(values: &[&[u8]]) -> Column {
    arrow(BinaryViewArray::from_iter_values(values.iter().copied()))
}

/// The array of a column.
pub(crate) fn array<'a>(chunk: &'a Chunk, name: &str) -> &'a ArrayRef {
    match chunk.column(name) {
        Some(Column::Arrow(array)) => array,
        other => panic!("column `{name}` is {other:?}"),
    }
}

/// The tensor of a column.
pub(crate) fn tensor<'a>(chunk: &'a Chunk, name: &str) -> &'a Tensor {
    match chunk.column(name) {
        Some(Column::Tensor(tensor)) => tensor,
        other => panic!("column `{name}` is {other:?}"),
    }
}

/// A tensor of 8-bit values.
pub(crate) fn pixels(shape: &[u32], data: &[u8]) -> Column {
    let mut tensor = Tensor { scalar: ScalarType::UInt8, shape: shape.to_vec(), data: data.into(), rows: 0 };
    tensor.rows = data.len() / tensor.row_bytes();
    Column::Tensor(tensor)
}

/// A schema with one column of bytes, `image`.
pub(crate) fn image_schema() -> Schema {
    Schema::new([("image", ColumnType::Binary)])
}

/// Width, height and pixels of a golden file.
pub(crate) fn golden(bytes: &[u8]) -> (u32, u32, &[u8]) {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    (number(0), number(4), &bytes[8..])
}

/// The photograph that the golden images were made from.
pub(crate) fn photo() -> (u32, u32, &'static [u8]) {
    golden(include_bytes!("../testdata/photo.rgb"))
}

/// A JPEG of that photograph.
pub(crate) const JPEG: &[u8] = include_bytes!("../../jpeg/testdata/420.jpg");

/// Reads a test data file.
pub(crate) fn testdata(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR")))
        .expect("the file is in the repository")
}

/// Returns the mean and the maximum absolute difference.
pub(crate) fn difference(a: &[u8], b: &[u8]) -> (f64, u8) {
    assert_eq!(a.len(), b.len());
    let sum: u64 = a.iter().zip(b).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    (sum as f64 / a.len() as f64, a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0))
}
