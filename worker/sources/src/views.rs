//! Builds text and binary columns that reference the read buffers, without copies.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewBuilder, StringViewBuilder};
use arrow::buffer::Buffer;
use bytes::Bytes;

use crate::object::BufferSpan;

/// A builder of a text or binary column. Values are views of the read buffers.
pub(crate) enum Views {
    Text(StringViewBuilder),
    Binary(BinaryViewBuilder),
}

impl Views {
    pub(crate) fn text(buffers: &[Bytes], rows: usize) -> Self {
        let mut builder = StringViewBuilder::with_capacity(rows);
        for buffer in buffers {
            builder.append_block(Buffer::from(buffer.clone()));
        }
        Self::Text(builder)
    }

    pub(crate) fn binary(buffers: &[Bytes], rows: usize) -> Self {
        Self::Binary(binary_builder(buffers, rows))
    }

    /// Appends a value. Returns an error and appends nothing if a text value is not UTF-8.
    pub(crate) fn append(&mut self, span: BufferSpan) -> Result<(), String> {
        let (block, start, len) = (span.buffer as u32, span.start as u32, span.len as u32);
        match self {
            Self::Text(builder) => builder
                .try_append_view(block, start, len)
                .map_err(|_| "the text is not valid UTF-8".to_owned()),
            Self::Binary(builder) => {
                builder.try_append_view(block, start, len).map_err(|error| error.to_string())
            }
        }
    }

    pub(crate) fn append_null(&mut self) {
        match self {
            Self::Text(builder) => builder.append_null(),
            Self::Binary(builder) => builder.append_null(),
        }
    }

    pub(crate) fn finish(self) -> ArrayRef {
        match self {
            Self::Text(mut builder) => Arc::new(builder.finish()),
            Self::Binary(mut builder) => Arc::new(builder.finish()),
        }
    }
}

/// Creates a builder whose block `i` is `buffers[i]`.
pub(crate) fn binary_builder(buffers: &[Bytes], rows: usize) -> BinaryViewBuilder {
    let mut builder = BinaryViewBuilder::with_capacity(rows);
    for buffer in buffers {
        builder.append_block(Buffer::from(buffer.clone()));
    }
    builder
}

/// Returns the span of `part`, which is a slice of `row`. `span` is the span of `row`.
pub(crate) fn span_within(span: BufferSpan, row: &[u8], part: &[u8]) -> BufferSpan {
    let start = (part.as_ptr() as usize).wrapping_sub(row.as_ptr() as usize);
    if start.saturating_add(part.len()) > row.len() {
        // The pointer of an empty slice may be outside of the row.
        return BufferSpan { buffer: span.buffer, start: span.start, len: 0 };
    }
    BufferSpan { buffer: span.buffer, start: span.start + start, len: part.len() }
}
