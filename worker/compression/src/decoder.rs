//! The interface of the decoders.

use thiserror::Error;

/// Decodes one compressed stream sequentially.
///
/// The caller owns a buffer for the content. Before the write position, the buffer contains the previous content, at least
/// [`StreamDecoder::history_bytes`] bytes of it (or all of it, at the start). After a resume, the caller first copies
/// [`StreamDecoder::take_history`] into the buffer.
pub trait StreamDecoder: Send {
    /// Number of bytes before the write position that the decoder may read from the caller's buffer. 0 for codecs with
    /// their own window.
    fn history_bytes(&self) -> usize {
        0
    }

    /// Returns the content before the access point at which the decoder starts, at most `history_bytes`. It is not
    /// necessarily complete: bytes that no later data refers to may be 0.
    fn take_history(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Decodes `input`, the compressed data after everything that earlier calls consumed, and writes the content to
    /// `content[filled..]`. Stops at every boundary, if `content` is full, or if the decoder needs more input. `is_last`
    /// states that the shard ends after `input`.
    ///
    /// The first byte of the first input after a resume contains bit `bit_offset` of the access point.
    ///
    /// # Errors
    /// Returns an error if the data is damaged or truncated. The content up to the error has been written:
    /// [`DecodeError`] does not contain its length, so callers ask [`StreamDecoder::produced`]. Later calls return the same error.
    fn decode(
        &mut self,
        input: &[u8],
        is_last: bool,
        content: &mut [u8],
        filled: usize,
    ) -> Result<Step, DecodeError>;

    /// Number of bytes that the last call of `decode` wrote, also if it failed.
    fn produced(&self) -> usize;

    /// Maximum number of bytes after the last written one that are already decoded, because the codec decodes whole blocks.
    fn max_decoded_ahead(&self) -> usize {
        0
    }

    /// Returns the state of an access point at a boundary. `history` is the content before the boundary, at most
    /// `history_bytes`. `compressed` is the compressed data from the byte that contains the boundary. It may end anywhere, but
    /// the state is smaller if it contains the data of the next `history_bytes` of content.
    fn access_state(&self, boundary: &Boundary, history: &[u8], compressed: &[u8]) -> Vec<u8> {
        let _ = (boundary, history, compressed);
        Vec::new()
    }

    /// Returns the state with which another decoder can continue at the boundary that this one has just reported, and then verifies
    /// everything that this one would. It may be larger than the state of an access point. `None` where no scanner can start.
    fn continuation(&self, boundary: &Boundary) -> Option<Vec<u8>> {
        let _ = boundary;
        None
    }

    /// Memory of the decoder in bytes, without the caller's buffer.
    fn memory_bytes(&self) -> usize;
}

/// The result of one call of [`StreamDecoder::decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Number of bytes of `input` that were consumed. The next input starts after them.
    pub consumed: usize,
    /// Number of bytes that were written to the content.
    pub produced: usize,
    /// Why the call stopped.
    pub event: Event,
}

/// Why a call of [`StreamDecoder::decode`] stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The decoder needs more input. The next input starts with the rest of this one.
    NeedsInput,
    /// The content buffer is full.
    ContentFull,
    /// Another decoder could start here.
    Boundary(Boundary),
    /// The stream has ended. All input has been consumed.
    End,
}

/// A position in a stream from which another decoder could start: the end of all content that has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundary {
    /// The offset in the shard, in bits.
    pub bit_offset: u64,
    /// A value of the codec for `access_state`, for example the kind of the next frame.
    pub tag: u64,
}

/// An error in compressed data.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct DecodeError {
    /// The byte offset in the shard.
    pub offset: u64,
    /// The cause, as part of a sentence.
    pub reason: String,
}
