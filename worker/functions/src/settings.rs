//! With what functions are run on a worker.

use std::path::PathBuf;

/// With what functions are run on a worker that allows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSettings {
    /// The interpreter: a path, or a name that is looked for as shells do.
    pub python: PathBuf,
    /// All variables that a function sees. None of the worker's others, among which may be keys.
    pub environment: Vec<(String, String)>,
}
