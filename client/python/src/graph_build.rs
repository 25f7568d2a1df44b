//! Builds of stored graphs.

use std::path::{Path, PathBuf};

use feedline_node::build_graph_file;
use pyo3::prelude::*;

use crate::errors::from_failure;
use crate::runtime;

/// Builds the graph of a build file at `out`. Ctrl-C stops the build.
#[pyfunction]
#[pyo3(signature = (file, out, memory, cores))]
pub(crate) fn build_graph(
    py: Python<'_>,
    file: String,
    out: PathBuf,
    memory: Option<String>,
    cores: Option<u32>,
) -> PyResult<()> {
    let built =
        runtime::wait(
            py,
            async move { build_graph_file(Path::new(&file), out, memory.as_deref(), cores).await },
        )?;
    built.map_err(|failure| from_failure(&failure))
}
