//! Grows and frees the buffers that a decoder reuses.

/// Larger buffers are freed after use, so that one huge image does not occupy memory in every thread.
const MAX_RETAINED_BYTES: usize = 64 << 20;

/// Frees a buffer that is larger than most images need.
pub(crate) fn shrink_if_large(buffer: &mut Vec<u8>) {
    if buffer.capacity() > MAX_RETAINED_BYTES {
        *buffer = Vec::new();
    }
}

/// Grows `buffer` to at least `length` bytes. Does not preserve its content.
pub(crate) fn grow_buffer(buffer: &mut Vec<u8>, length: usize) {
    if buffer.capacity() < length {
        // Newly allocated zeroed pages are not touched; growing the vector would copy its content.
        *buffer = vec![0; length];
    } else if buffer.len() < length {
        buffer.resize(length, 0);
    }
}
