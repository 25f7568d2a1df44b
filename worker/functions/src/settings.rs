//! Settings of Python functions on a worker.

use std::path::PathBuf;

/// The interpreter and the environment of Python functions, for a worker that runs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSettings {
    /// The interpreter: a path, or a name that is looked up in `PATH`.
    pub python: PathBuf,
    /// All environment variables of a function. Other variables of the worker may contain secrets and are not passed.
    pub environment: Vec<(String, String)>,
}
