//! `feedline._native`: the native part of the Python package, a wrapper around the Rust client that also converts
//! batches. Blocking calls release the GIL and can be interrupted with Ctrl-C. Calls in a forked child are rejected.

mod batch;
mod checkpoint;
mod column;
mod consumer;
mod errors;
mod graph_build;
mod job;
mod origins;
mod runtime;
mod service;

use pyo3::prelude::*;

/// The native part of the package `feedline`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::batch::{Batch, RecordedGrowth};
    #[pymodule_export]
    use crate::checkpoint::{position_at_step, steps_per_epoch};
    #[pymodule_export]
    use crate::column::ColumnBuffer;
    #[pymodule_export]
    use crate::consumer::Consumer;
    #[pymodule_export]
    use crate::graph_build::build_graph;
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::service::{Service, check_pipeline, describe_changes, operators, to_yaml};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::errors::register(module)
    }
}
