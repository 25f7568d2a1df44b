//! Settings of Python functions on a worker.

use std::path::PathBuf;

/// The interpreter and environment of functions, on a worker that runs functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSettings {
    /// The interpreter: a path, or a name that is searched in `PATH`.
    pub python: PathBuf,
    /// All environment variables of a function. Other variables of the worker may contain keys and are not passed.
    pub environment: Vec<(String, String)>,
}
