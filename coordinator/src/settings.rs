//! What a coordinator is told when it starts.

use std::path::PathBuf;

use feedline_access::OwnFiles;
use feedline_core::cluster;
use feedline_core::plan::{self, ScaleSettings};
use feedline_core::urls::ReadPolicy;
use serde::{Deserialize, Serialize};

use crate::limits::Limits;

/// Settings of a coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorSettings {
    /// Directory of the log of decisions. `None` keeps them in memory: jobs end with the process.
    #[serde(default)]
    pub data_dir: Option<PathBuf>,
    /// Directory of the saved dataset indexes.
    pub index_dir: PathBuf,
    /// Times and depths of the state machine.
    #[serde(default)]
    pub cluster: cluster::Settings,
    /// Milliseconds between looks at the clock when nothing else happens; 50 by default.
    #[serde(default = "default_tick_ms")]
    pub tick_ms: u64,
    /// Milliseconds between plans of what jobs may use of workers; 0 makes none. 1,000 by default.
    #[serde(default = "default_plan_interval_ms")]
    pub plan_interval_ms: u64,
    /// URLs of all coordinators, this one among them; none where it is the only one.
    #[serde(default)]
    pub peers: Vec<String>,
    /// URL of this one, as the others know it.
    #[serde(default)]
    pub url: String,
    /// Bounds of the number of workers, where there is a scaler.
    #[serde(default)]
    pub scale: ScaleSettings,
    /// How plans weigh things, and what resources cost.
    #[serde(default)]
    pub plan: plan::Settings,
    /// What may wait before further requests are refused.
    #[serde(default)]
    pub limits: Limits,
    /// Milliseconds that it has at its end to keep and answer what has arrived; 10,000 by default.
    #[serde(default = "default_grace_ms")]
    pub grace_ms: u64,
    /// What pipelines may read: looked at when a job is opened, before workers look again.
    #[serde(default)]
    pub reads: ReadPolicy,
    /// The coordinator's own files and folders, which no pipeline reads.
    #[serde(skip)]
    pub own_files: OwnFiles,
}

fn default_plan_interval_ms() -> u64 {
    1_000
}

fn default_grace_ms() -> u64 {
    10_000
}

fn default_tick_ms() -> u64 {
    50
}

impl CoordinatorSettings {
    /// Settings of a coordinator that keeps its decisions in memory.
    pub fn in_memory(index_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: None,
            index_dir: index_dir.into(),
            cluster: cluster::Settings::default(),
            tick_ms: default_tick_ms(),
            plan_interval_ms: default_plan_interval_ms(),
            peers: Vec::new(),
            url: String::new(),
            scale: ScaleSettings::default(),
            plan: plan::Settings::default(),
            limits: Limits::default(),
            grace_ms: default_grace_ms(),
            reads: ReadPolicy::default(),
            own_files: OwnFiles::default(),
        }
    }

    /// Settings of a coordinator that keeps its decisions in `data_dir`.
    pub fn durable(data_dir: impl Into<PathBuf>, index_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: Some(data_dir.into()), ..Self::in_memory(index_dir) }
    }
}
