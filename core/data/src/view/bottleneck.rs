//! What bounds a job's rate.

use serde::{Deserialize, Serialize};

/// What can bound a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckKind {
    /// All cores work.
    Cpu,
    /// The store, or a cache's tier, gives no more bytes.
    Store,
    /// Too little goes on at once for the time that something outside takes.
    Latency,
    /// An operator may not run more executions at once.
    Sequential,
    /// The network of the workers is full.
    Network,
    /// Memory admits no more work at once.
    Memory,
    /// The consumers take no more.
    Consumer,
}

impl BottleneckKind {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Store => "store",
            Self::Latency => "latency",
            Self::Sequential => "sequential",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Consumer => "consumer",
        }
    }
}

/// What one resource allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceBound {
    /// The resource.
    pub kind: BottleneckKind,
    /// The operator that it concerns most, where there is one.
    pub operator: Option<String>,
    /// Rows per second.
    pub rows_per_s: f64,
    /// One sentence with the numbers.
    pub why: String,
}

/// What bounds a job: the smallest of its bounds.
pub type Bottleneck = ResourceBound;

/// Such as `cpu of random_resized_crop: 2 cores give 375 rows/s at 5.33 ms of CPU per row`.
impl std::fmt::Display for ResourceBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind.name())?;
        if let Some(operator) = &self.operator {
            write!(f, " of {operator}")?;
        }
        write!(f, ": {}", self.why)
    }
}
