//! Python functions of a pipeline, run in processes of their own beside the worker.
//!
//! Owns the processes (`process`, `pool`), how rows come to them and back (`region`, `inputs`, `outputs`), and which row is
//! at fault when a call fails (`search`). Does not know pipelines' order or jobs: the engine gives it a chunk of rows and
//! gets the chunk with the function's columns. The other end of the exchange is `python/feedline_runner.py`.

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
