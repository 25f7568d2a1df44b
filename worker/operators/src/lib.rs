//! The operators of a pipeline: images, text, lists, expressions.
//!
//! Owns what happens to the rows of a chunk between source and batch. Does not schedule, read objects or batch: the
//! engine calls an operator with a range of rows and, where the finished batch has a place for the result, with that
//! place. An operator is a pure function of its chunk, the pipeline's seed and its place in the pipeline.

mod arrow_types;
mod build;
mod cache_encodings;
mod chunk;
mod decode_memory;
mod geometry;
pub mod kernel;
mod kernels;
mod operator;
mod output_buffers;
mod raster;
mod render;
mod row_codec;

pub use build::build_operators;
pub use cache_encodings::{column_in_form, row_in_form};
pub use chunk::{Chunk, Column, FailedRows, Image, Tensor};
pub use decode_memory::DecodeMemory;
pub use kernels::filter::check_filter;
pub use operator::{BuiltOperator, Decoding, FunctionCall, OperatorError, OperatorKernel};
pub use output_buffers::OutputBuffers;
pub use row_codec::{RowCodec, RowCodecError};

#[cfg(test)]
mod testing;
