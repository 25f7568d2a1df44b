//! The operators of a pipeline, which transform images, text, lists and other columns, and filter rows.
//!
//! The crate transforms the rows of a chunk. It does not read objects, schedule work or form batches. The engine calls a kernel
//! with a chunk and with buffers for the tensors that the kernel writes. The output of a kernel depends only on the chunk, the seed
//! of the pipeline, and the index of the operator.

mod arrow_types;
mod build;
mod cache_encodings;
mod chunk;
mod decode_memory;
mod error;
mod geometry;
pub mod kernel;
mod kernels;
mod operator;
mod output_buffers;
mod pixels;
mod raster;
mod render;
mod row_codec;
mod source_tensors;

pub use arrow_types::arrow_scalar;
pub use build::build_operators;
pub use cache_encodings::{encode_column, encode_row};
pub use chunk::{Chunk, Column, FailedRows, Image, Tensor};
pub use decode_memory::DecodeMemory;
pub use error::OperatorError;
pub use kernels::conjuncts::select_by_columns;
pub use kernels::filter::check_filter;
pub use operator::{BuiltOperator, Decoding, FunctionCall, OperatorKernel};
pub use output_buffers::OutputBuffers;
pub use row_codec::{RowCodec, RowCodecError};
pub use source_tensors::SourceTensors;

#[cfg(test)]
mod testing;
