//! `feedline._native`: what the Python package is built on. Owns the hand-over of batches and the interpreter's rules (the GIL is let
//! go of while waiting, Ctrl-C ends a wait, a forked child is refused); what a job is, the Rust client knows.

mod batch;
mod column;
mod consumer;
mod errors;
mod job;
mod place;
mod runtime;
mod service;

use pyo3::prelude::*;

/// The native part of the package `feedline`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::column::Memory;
    #[pymodule_export]
    use crate::consumer::Consumer;
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::place::{place_of_step, steps_of_epoch};
    #[pymodule_export]
    use crate::service::{Service, check_pipeline, operators, to_yaml};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::errors::add(module)
    }
}
