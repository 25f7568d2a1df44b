//! The settings of a coordinator.

use std::path::PathBuf;

use feedline_access::ProtectedFiles;

use feedline_data::ids::Millis;
use feedline_data::read_policy::ReadPolicy;
use feedline_planner::plan;
use feedline_planner::plan::ScaleSettings;
use feedline_raft::log::FileLog;
use serde::{Deserialize, Serialize};

use crate::index_store::IndexStore;
use crate::limits::RequestLimits;

/// Settings of a coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorSettings {
    /// Directory of the log. With `None`, the state is in memory, and jobs end with the process.
    #[serde(default)]
    pub data_dir: Option<PathBuf>,
    /// Directory of saved indexes.
    pub index_dir: PathBuf,
    /// Settings of the state machine.
    #[serde(default)]
    pub cluster: feedline_cluster::ClusterSettings,
    /// Time between two ticks in milliseconds; 50 by default.
    #[serde(default = "default_tick_ms")]
    pub tick_ms: u64,
    /// Time between two plans in milliseconds; 0 disables planning. 1,000 by default.
    #[serde(default = "default_plan_interval_ms")]
    pub plan_interval_ms: u64,
    /// URLs of all coordinators, including this one; empty for a single coordinator.
    #[serde(default)]
    pub peers: Vec<String>,
    /// URL at which the other coordinators reach this coordinator.
    #[serde(default)]
    pub url: String,
    /// Time in milliseconds for which fewer workers must be enough before a scaler removes workers; 30,000 by default.
    #[serde(default = "default_shrink_after_ms")]
    pub shrink_after_ms: Millis,
    /// Settings of the planner.
    #[serde(default)]
    pub plan: plan::PlannerSettings,
    /// Limits on unanswered requests and on the log.
    #[serde(default)]
    pub limits: RequestLimits,
    /// Maximum time in milliseconds to answer queued requests during a shutdown; 10,000 by default.
    #[serde(default = "default_grace_ms")]
    pub grace_ms: u64,
    /// Sources that pipelines may read. The coordinator checks them when a job is opened, and workers check them again.
    #[serde(default)]
    pub reads: ReadPolicy,
    /// The coordinator's own files and directories, which no pipeline may read.
    #[serde(skip)]
    pub own_files: ProtectedFiles,
}

fn default_plan_interval_ms() -> u64 {
    1_000
}

fn default_shrink_after_ms() -> Millis {
    ScaleSettings::default().shrink_after_ms
}

fn default_grace_ms() -> u64 {
    10_000
}

fn default_tick_ms() -> u64 {
    50
}

impl CoordinatorSettings {
    /// Returns settings of a coordinator with its state in memory.
    pub fn in_memory(index_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: None,
            index_dir: index_dir.into(),
            cluster: feedline_cluster::ClusterSettings::default(),
            tick_ms: default_tick_ms(),
            plan_interval_ms: default_plan_interval_ms(),
            peers: Vec::new(),
            url: String::new(),
            shrink_after_ms: default_shrink_after_ms(),
            plan: plan::PlannerSettings::default(),
            limits: RequestLimits::default(),
            grace_ms: default_grace_ms(),
            reads: ReadPolicy::default(),
            own_files: ProtectedFiles::default(),
        }
    }

    /// Returns settings of a coordinator with its state in `data_dir`.
    pub fn durable(data_dir: impl Into<PathBuf>, index_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: Some(data_dir.into()), ..Self::in_memory(index_dir) }
    }

    /// Returns patterns of the coordinator's files, which no pipeline may read. `*` matches any text. Other files in the
    /// same directories may be data.
    pub fn protected_paths(&self) -> Vec<PathBuf> {
        let log = self.data_dir.iter().flat_map(|folder| FileLog::files(folder));
        log.chain(IndexStore::files(&self.index_dir)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use feedline_data::manifest::Manifest;
    use feedline_data::schema::Schema;

    use super::*;

    /// Pipelines could read a file that is missing from this list.
    #[tokio::test]
    async fn the_list_contains_every_file_that_a_coordinator_writes() {
        let folder = tempfile::tempdir().unwrap();
        let settings = CoordinatorSettings::durable(folder.path().join("data"), folder.path().join("index"));
        let own = ProtectedFiles::new(settings.protected_paths());
        let coordinator = crate::start(settings.clone(), 1).await.unwrap();
        let store = IndexStore::open(settings.index_dir.clone()).unwrap();
        let manifest = Manifest { schema: Schema::default(), shards: Vec::new() };
        let earlier = format!("key-{}.index", manifest.index_id());
        store.save("key", &Arc::new(manifest.clone()), &[]).unwrap();
        store.save_earlier("key", &Arc::new(manifest)).unwrap();
        coordinator.shutdown().await.unwrap();
        let mut written = Vec::new();
        for folder in [folder.path().join("data"), settings.index_dir] {
            assert_eq!(own.check(&folder.join("train.jsonl")), Ok(()));
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                assert!(own.check(&path).is_err(), "{}", path.display());
                written.push(path.file_name().unwrap().to_str().unwrap().to_owned());
            }
        }
        written.sort();
        assert_eq!(written, [earlier.as_str(), "key.index", "lock", "records.log"]);
        for later in ["data/records.part", "index/key.index.newAbC123"] {
            assert!(own.check(&folder.path().join(later)).is_err(), "{later}");
        }
    }
}
