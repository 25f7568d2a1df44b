//! A decoder that is not used after an error.

use crate::decoder::{Boundary, DecodeError, Step, StreamDecoder};

/// Returns the first error of a decoder again at each later call. The library of bzip2 panics in a C function, which ends the
/// process, if it is called after some errors.
pub(crate) struct ErrorGuard<D> {
    decoder: D,
    error: Option<DecodeError>,
    /// Whether the last call returned the error of an earlier one.
    is_repeated: bool,
}

impl<D: StreamDecoder> ErrorGuard<D> {
    pub(crate) fn new(decoder: D) -> Self {
        Self { decoder, error: None, is_repeated: false }
    }
}

impl<D: StreamDecoder> StreamDecoder for ErrorGuard<D> {
    fn history_bytes(&self) -> usize {
        self.decoder.history_bytes()
    }

    fn take_history(&mut self) -> Vec<u8> {
        self.decoder.take_history()
    }

    fn decode(
        &mut self,
        input: &[u8],
        is_last: bool,
        content: &mut [u8],
        filled: usize,
    ) -> Result<Step, DecodeError> {
        if let Some(error) = &self.error {
            self.is_repeated = true;
            return Err(error.clone());
        }
        let step = self.decoder.decode(input, is_last, content, filled);
        self.error = step.as_ref().err().cloned();
        step
    }

    fn produced(&self) -> usize {
        if self.is_repeated { 0 } else { self.decoder.produced() }
    }

    fn max_decoded_ahead(&self) -> usize {
        self.decoder.max_decoded_ahead()
    }

    fn access_state(&self, boundary: &Boundary, history: &[u8], compressed: &[u8]) -> Vec<u8> {
        self.decoder.access_state(boundary, history, compressed)
    }

    fn continuation(&self, boundary: &Boundary) -> Option<Vec<u8>> {
        self.decoder.continuation(boundary)
    }

    fn memory_bytes(&self) -> usize {
        self.decoder.memory_bytes()
    }
}
