//! The wire format of a batch: one buffer, and a layout with the offset and length of each Arrow buffer in it.

mod decode;
mod encode;
mod omitted_rows;
mod schema;

pub use decode::decode_batch;
pub use encode::{BatchBuffer, BatchEncoder, ListInPlace, encode_batch};
pub use omitted_rows::{BatchCompleter, FeatureColumn, OmittedColumn, OmittedRows, omit_rows};
pub use schema::{BOOL_TENSOR_KEY, GRAPH_KEY, batch_schema, graph_schema, output_schema, plain_schema};

/// Alignment of each Arrow buffer, in bytes from the start of the buffer of the batch.
pub const ALIGNMENT_BYTES: usize = 64;

/// Positions of the columns of a batch in its buffer. Nodes and buffers are in depth-first order, as in Arrow IPC: a node for
/// each array and child array, and for each node a validity buffer, if its type has one, then its offsets and values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchLayout {
    /// Number of rows of the batch.
    pub rows: u32,
    /// Length of the buffer in bytes, including padding.
    pub total_bytes: u64,
    /// Number of elements and number of nulls of each array.
    pub nodes: Vec<(u64, u64)>,
    /// Offset of each Arrow buffer in the buffer of the batch, and its length, in bytes. A validity buffer of length 0 means
    /// that no element is null.
    pub buffers: Vec<(u64, u64)>,
}

#[cfg(test)]
mod tests;
