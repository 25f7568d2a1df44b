//! How a batch lies in one buffer: where each column's Arrow buffers start and how long they are.

mod decode;
mod encode;
mod schema;

pub use decode::decode_batch;
pub use encode::{BatchBuffer, BatchEncoder, encode_batch};
pub use schema::{BOOL_TENSOR_KEY, output_schema, plain_schema};

/// Every Arrow buffer starts at a multiple of this, in bytes from the start of the batch's buffer.
pub const ALIGNMENT_BYTES: usize = 64;

/// Where the columns of a batch lie in its buffer. Nodes and buffers are listed depth-first, as in Arrow IPC: a node
/// for each array and child array; a validity buffer for each node that can have one, then its offsets and values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchLayout {
    /// Rows of the batch.
    pub rows: u32,
    /// Bytes of the whole buffer, padding included.
    pub total_bytes: u64,
    /// (Length in elements, nulls) of each array.
    pub nodes: Vec<(u64, u64)>,
    /// (Offset in bytes from the start of the batch's buffer, length in bytes) of each Arrow buffer. A validity
    /// buffer of length 0 means that nothing is null.
    pub buffers: Vec<(u64, u64)>,
}

#[cfg(test)]
mod tests;
