//! Runs the Python functions of a pipeline in separate processes.
//!
//! The crate manages the processes (`process`, `pool`), transfers rows (`region`, `inputs`, `outputs`), and finds the
//! rows that make a call fail (`search`). It does not depend on the row order or on jobs: the engine passes a chunk of
//! rows and receives the chunk with the function's columns. The Python side is `python/feedline_runner.py`.

mod function;
mod inputs;
mod memory;
mod outputs;
mod pool;
mod process;
mod region;
mod search;
mod settings;

pub use function::{ChunkOutcome, RowFunction};
pub use settings::FunctionSettings;

#[cfg(test)]
mod tests;
