//! Tests of samplers: equality with a simple reference, the law of the samples, independence of the division into batches, and
//! golden digests.

mod bidirectional;
mod division;
mod golden;
mod invalid_input;
mod law;
mod law_of_negatives;
mod negatives;
mod properties;
mod reference;
mod stages;
mod test_graph;
