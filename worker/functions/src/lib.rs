//! Runs the Python functions of a pipeline in separate processes.
//!
//! Owns the processes (`process`, `pool`), the transfer of rows (`region`, `inputs`, `outputs`), and the search for the row
//! that makes a call fail (`search`). Does not depend on the order of rows or on jobs: the engine passes a chunk of rows and
//! receives the chunk with the function's columns. The Python side is `python/feedline_runner.py`.

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
