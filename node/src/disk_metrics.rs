//! Metrics of the disks on which a role stores its files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use feedline_common::metric_table::{self, ABSENT, MetricDescription};
use metrics::{Unit, gauge};
use rustix::fs::statvfs;
use tokio::time::MissedTickBehavior;

const FREE_BYTES: &str = "feedline_disk_free_bytes";
const TOTAL_BYTES: &str = "feedline_disk_total_bytes";
/// Time between two measurements.
const INTERVAL: Duration = Duration::from_secs(5);

/// Every metric of a disk.
pub(crate) const METRICS: &[MetricDescription] = &[
    metric_table::gauge(
        FREE_BYTES,
        Unit::Bytes,
        "Bytes that the process can still write to the disk of a `directory`: data, index or cache",
    ),
    metric_table::gauge(TOTAL_BYTES, Unit::Bytes, "Size of the disk of a `directory`: data, index or cache"),
];

/// A directory of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RoleDirectory {
    /// The label in metrics: data, index or cache.
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

/// Measures the disks of the directories until the future is dropped.
pub(crate) async fn watch(directories: Vec<RoleDirectory>) {
    let directories = Arc::new(directories);
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let directories = Arc::clone(&directories);
        // The call blocks while a disk hangs, so that it runs on a thread for blocking calls, at most once at a time.
        if let Err(error) = tokio::task::spawn_blocking(move || update(&directories)).await {
            tracing::error!(%error, "cannot measure the disks; please report this bug");
            return;
        }
    }
}

/// Updates the metrics. A directory that does not exist has none.
fn update(directories: &[RoleDirectory]) {
    for RoleDirectory { name, path } in directories {
        let (free_bytes, total_bytes) = match statvfs(path) {
            Ok(disk) => ((disk.f_bavail * disk.f_frsize) as f64, (disk.f_blocks * disk.f_frsize) as f64),
            Err(_) => (ABSENT, ABSENT),
        };
        gauge!(FREE_BYTES, "directory" => *name).set(free_bytes);
        gauge!(TOTAL_BYTES, "directory" => *name).set(total_bytes);
    }
}

#[cfg(test)]
mod tests {
    use metrics::with_local_recorder;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn the_disk_of_a_directory_has_free_and_total_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let directories = [("data", folder.path().to_owned()), ("cache", folder.path().join("missing"))]
            .map(|(name, path)| RoleDirectory { name, path });
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || update(&directories));
        let page = recorder.handle().render();
        let value = |name: &str, directory: &str| -> f64 {
            let start = format!("{name}{{directory=\"{directory}\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap()
        };
        let (free, total) = (value(FREE_BYTES, "data"), value(TOTAL_BYTES, "data"));
        assert!(0.0 < free && free <= total, "{page}");
        assert!(value(FREE_BYTES, "cache").is_nan(), "{page}");
    }
}
