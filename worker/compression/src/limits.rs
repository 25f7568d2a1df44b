//! Limits of the decoders.

/// The binary logarithm of [`MAX_WINDOW_BYTES`].
pub(crate) const MAX_WINDOW_LOG: u32 = 27;
/// Maximum size of a decoder's window, which xz calls dictionary.
pub(crate) const MAX_WINDOW_BYTES: u64 = 1 << MAX_WINDOW_LOG;
