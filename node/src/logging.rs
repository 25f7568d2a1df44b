//! Structured logs on standard error, filtered by `FEEDLINE_LOG`.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::environment;
use crate::failure::Failure;

/// The format of log lines.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Human-readable lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging. `level` applies if `FEEDLINE_LOG` is not set.
pub(crate) fn start(format: LogFormat, level: &str) -> Result<(), Failure> {
    let configured = environment::log_filter();
    // Without this filter, object_store and kube log every retry.
    let default =
        if level == "info" { "info,object_store=warn,kube_client=off,kube_runtime=error" } else { level };
    let filter = EnvFilter::try_new(configured.as_deref().unwrap_or(default)).map_err(|error| {
        Failure::invalid_usage(format!(
            "invalid FEEDLINE_LOG: {error}; expected a level such as debug, or a filter such as feedline_worker=debug,info"
        ))
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::failed(format!("cannot start logging: {error}")))
}
