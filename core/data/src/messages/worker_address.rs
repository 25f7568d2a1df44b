//! The addresses at which consumers connect to workers.

use std::fmt;

/// The address at which consumers connect to a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct WorkerAddress {
    /// The URL, such as `http://10.0.0.7:7071`.
    pub url: String,
    /// The name that the worker's certificate must contain; `None` means the host of the URL.
    pub tls_name: Option<String>,
}

impl WorkerAddress {
    /// Creates an address whose certificate must contain the host of the URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), tls_name: None }
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}
