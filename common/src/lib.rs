//! Utilities that several roles share. This crate depends on no other crate of the workspace.

pub mod backoff;
pub mod child_processes;
pub mod concurrency_limit;
pub mod files;
pub mod idle_buffers;
pub mod metric_table;
pub mod mismatch_timer;
pub mod process;
