//! Logs: structured, on standard error, filtered by `FEEDLINE_LOG`.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::environment;
use crate::failure::Failure;

/// How log lines look.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Readable lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging; `level` holds where `FEEDLINE_LOG` says nothing.
pub(crate) fn start(format: LogFormat, level: &str) -> Result<(), Failure> {
    let wanted = environment::log_filter();
    // A store that is out of order for a moment is asked again, a line each time.
    let usual = if level == "info" { "info,object_store=warn" } else { level };
    let filter = EnvFilter::try_new(wanted.as_deref().unwrap_or(usual)).map_err(|error| {
        Failure::wrong_use(format!(
            "FEEDLINE_LOG is no filter: {error}; write a level such as debug, or feedline_worker=debug,info"
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
