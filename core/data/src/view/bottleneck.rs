//! Bottlenecks of jobs.

use serde::{Deserialize, Serialize};

/// The kinds of resources that can limit the rate of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckKind {
    /// The cores of the workers.
    Cpu,
    /// The throughput of the store or of a cache tier.
    Store,
    /// The concurrency of operations that wait for an external system.
    Latency,
    /// The parallelism that an operator is limited to.
    Sequential,
    /// The network bandwidth of the workers.
    Network,
    /// The memory budget, which limits concurrent work.
    Memory,
    /// The rate at which consumers request rows.
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

/// The rate that one resource allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceBound {
    /// The resource.
    pub kind: BottleneckKind,
    /// The operator that uses most of the resource, if any.
    pub operator: Option<String>,
    /// Rows per second.
    pub rows_per_s: f64,
    /// An explanation of the bound for users, with the numbers that it follows from.
    #[serde(rename = "why")]
    pub explanation: String,
}

/// The lowest bound of a job.
pub type Bottleneck = ResourceBound;

/// Formats the bound, for example as `cpu of random_resized_crop: 2 cores compute 375 rows/s at 5.33 ms of CPU time per
/// row`.
impl std::fmt::Display for ResourceBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind.name())?;
        if let Some(operator) = &self.operator {
            write!(f, " of {operator}")?;
        }
        write!(f, ": {}", self.explanation)
    }
}
