//! What a coordinator is told when it starts.

use std::path::PathBuf;

use feedline_access::OwnFiles;

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
    /// Directory of the log of decisions. `None` keeps them in memory: jobs end with the process.
    #[serde(default)]
    pub data_dir: Option<PathBuf>,
    /// Directory of the saved dataset indexes.
    pub index_dir: PathBuf,
    /// Times and depths of the state machine.
    #[serde(default)]
    pub cluster: feedline_cluster::ClusterSettings,
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
    pub plan: plan::PlannerSettings,
    /// What may wait before further requests are refused.
    #[serde(default)]
    pub limits: RequestLimits,
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
            cluster: feedline_cluster::ClusterSettings::default(),
            tick_ms: default_tick_ms(),
            plan_interval_ms: default_plan_interval_ms(),
            peers: Vec::new(),
            url: String::new(),
            scale: ScaleSettings::default(),
            plan: plan::PlannerSettings::default(),
            limits: RequestLimits::default(),
            grace_ms: default_grace_ms(),
            reads: ReadPolicy::default(),
            own_files: OwnFiles::default(),
        }
    }

    /// Settings of a coordinator that keeps its decisions in `data_dir`.
    pub fn durable(data_dir: impl Into<PathBuf>, index_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: Some(data_dir.into()), ..Self::in_memory(index_dir) }
    }

    /// The files that the coordinator keeps in its folders, which no pipeline reads; in a name `*` stands for any text. A folder
    /// may hold data beside them.
    pub fn kept_files(&self) -> Vec<PathBuf> {
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

    /// What is read is refused by these names: a file that is written and is not among them would be open to pipelines.
    #[tokio::test]
    async fn all_that_a_coordinator_writes_is_among_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let settings = CoordinatorSettings::durable(folder.path().join("data"), folder.path().join("index"));
        let own = OwnFiles::new(settings.kept_files());
        let coordinator = crate::start(settings.clone(), 1).await.unwrap();
        let store = IndexStore::open(settings.index_dir.clone()).unwrap();
        let manifest = Manifest { schema: Schema::default(), shards: Vec::new() };
        store.save("key", &Arc::new(manifest)).unwrap();
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
        assert_eq!(written, ["key.index", "lock", "records.log"]);
        for later in ["data/records.part", "index/key.index.newAbC123"] {
            assert!(own.check(&folder.path().join(later)).is_err(), "{later}");
        }
    }
}
