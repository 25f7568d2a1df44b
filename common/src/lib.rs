//! Mechanisms that several roles share. No file here depends on another crate of the workspace.

pub mod backoff;
pub mod concurrency_limit;
pub mod idle_buffers;
pub mod metric_table;
pub mod process;
