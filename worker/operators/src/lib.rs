//! The operators of a pipeline: images, text, lists, expressions.
//!
//! The crate transforms the rows of a chunk between source and batch. It does not schedule, read objects or form batches. The
//! engine calls a kernel with a chunk and with buffers for the kernel's tensors. A kernel is a pure function of its chunk, the
//! pipeline's seed and its index in the pipeline.

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

pub use build::build_operators;
pub use cache_encodings::{encode_column, encode_row};
pub use chunk::{Chunk, Column, FailedRows, Image, Tensor};
pub use decode_memory::DecodeMemory;
pub use error::OperatorError;
pub use kernels::filter::check_filter;
pub use operator::{BuiltOperator, Decoding, FunctionCall, OperatorKernel};
pub use output_buffers::OutputBuffers;
pub use row_codec::{RowCodec, RowCodecError};

#[cfg(test)]
mod testing;
