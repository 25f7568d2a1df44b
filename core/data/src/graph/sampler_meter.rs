//! The stages of sampling, for callers that measure them. The sampler has no clock.

/// Receives the end of each stage. A sampler passes through the stages several times in a batch.
pub trait SamplerMeter {
    /// Edges of several nodes are drawn, and their sources are read.
    fn end_draws(&mut self);

    /// These sources have local ids.
    fn end_map(&mut self);
}

/// Measures nothing.
impl SamplerMeter for () {
    fn end_draws(&mut self) {}

    fn end_map(&mut self) {}
}
