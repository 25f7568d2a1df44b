//! Chunks of image tensors, and pipelines of one operator.

use bytes::Bytes;
use feedline_data::pipeline::{Pipeline, PipelineError};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_operators::{BuiltOperator, Chunk, Column, OutputBuffers, Tensor, build_operators};

/// Rows, height, width and channels of the golden images.
pub(crate) const SHAPE: [usize; 4] = [16, 16, 20, 3];

/// Builds an operator for a column `image`, with the pipeline's seed 11.
pub(crate) fn build(
    column_type: ColumnType,
    operator: serde_json::Value,
) -> Result<BuiltOperator, PipelineError> {
    let pipeline: Pipeline = serde_json::from_value(serde_json::json!({
        "name": "test", "seed": 11, "source": {"url": "x", "format": "files"}, "operators": [operator],
    }))
    .expect("the pipeline has the keys of the pipeline file");
    let schema = Schema::new([("image", column_type)]);
    let built = build_operators(&pipeline, &schema, &|_| Ok(Bytes::new()))?;
    Ok(built.into_iter().next().expect("the operator has a kernel"))
}

/// The type of `uint8` tensors of the golden images' size.
pub(crate) fn pixels() -> ColumnType {
    ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![16, 20, 3] }
}

/// 16 rows with the same part of a photograph. The row ids start at 0.
pub(crate) fn photo() -> Vec<u8> {
    testdata("photo16.rgb").repeat(SHAPE[0])
}

/// A file of golden or input data.
pub(crate) fn testdata(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR")))
        .expect("the file is in the repository")
}

/// A chunk of 16 rows of a tensor.
pub(crate) fn chunk(scalar: ScalarType, shape: &[u32], data: &[u8], pass: u32) -> Chunk {
    let tensor = Tensor { scalar, shape: shape.to_vec(), data: data.into(), rows: SHAPE[0] };
    let columns = vec![("image".to_owned(), Column::Tensor(tensor))];
    Chunk::new(columns, (0..SHAPE[0] as u64).collect(), vec![pass; SHAPE[0]])
}

/// The column after the operator.
pub(crate) fn applied(operator: &BuiltOperator, mut chunk: Chunk) -> Vec<u8> {
    operator.operator.apply(&mut chunk, &mut OutputBuffers::new()).expect("the chunk has the column");
    match chunk.column("image") {
        Some(Column::Tensor(tensor)) => tensor.data.to_vec(),
        Some(Column::Images(images)) => images.iter().flat_map(|image| image.data.to_vec()).collect(),
        other => panic!("the column is {other:?}"),
    }
}
