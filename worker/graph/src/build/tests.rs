//! Tests of builds: against arrays that are sorted in memory, from each format, and with invalid input.

mod datasets;
mod features;
mod formats;
mod hostile;
mod ids;
mod invalid_input;
mod relations;
mod scratch;
mod seeds;
mod vip;
