//! Standard output: human-readable reports, or one line of JSON.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;

/// The format of a report.
#[derive(ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object on one line.
    Json,
}

impl ReportFormat {
    /// Prints a report: the text that `text` returns, or one line of JSON.
    ///
    /// # Errors
    /// Returns an error if the report cannot be serialized or standard output cannot be written.
    pub fn print<T: Serialize + ?Sized>(
        self,
        report: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = match self {
            Self::Text => text(report),
            Self::Json => serde_json::to_string(report).map_err(Failure::failed)? + "\n",
        };
        Ok(print(&text)?)
    }
}

/// Prints text that ends in a newline, and flushes. A closed pipe is not an error.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}

/// Returns the name of an enum value on the command line.
pub fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
