//! Builds of graphs for programs that embed Feedline.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use feedline_graph::{BuildSettings, GraphSpec, build_graph};

use super::folder::graph_failure;
use super::inclusion_ranking::InclusionRanking;
use crate::failure::Failure;
use crate::memory_size::parse_memory_size;
use crate::{environment, yaml};

/// Stops a build when its future is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Builds the graph of a build file at `out`. `memory` is a size such as `4GiB`; `None` for the defaults of `feedline graph build`.
///
/// # Errors
/// Returns an error if the file or an argument is invalid, or the build fails. Then nothing is left at `out`.
pub async fn build_graph_file(
    file: &Path,
    out: PathBuf,
    memory: Option<&str>,
    cores: Option<u32>,
) -> Result<(), Failure> {
    let spec: GraphSpec = yaml::load(file, "a build file", yaml::parse)?;
    let memory = memory.map(parse_memory_size).transpose();
    let memory = memory.map_err(|reason| Failure::invalid_usage(format!("memory: {reason}")))?;
    let settings = BuildSettings {
        ranking: Some(Arc::new(InclusionRanking)),
        ..BuildSettings::new(
            environment::memory_budget_bytes(memory)?,
            cores.unwrap_or_else(environment::default_cores) as usize,
        )
    };
    let _stop = StopOnDrop(Arc::clone(&settings.stop));
    let build = tokio::task::spawn_blocking(move || build_graph(&spec, &out, &settings));
    build.await.map_err(Failure::failed)?.map_err(graph_failure)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn a_build_file_becomes_a_graph() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("e.csv"), "0,1\n1,2\n").unwrap();
        let edges = path("e.csv").display().to_string();
        fs::write(path("g.yaml"), format!("relations: [{{ edges: '{edges}' }}]\n")).unwrap();
        build_graph_file(&path("g.yaml"), path("g"), Some("16MiB"), Some(1)).await.unwrap();
        assert!(path("g/graph.json").exists());
        let again = build_graph_file(&path("g.yaml"), path("g"), None, None).await.unwrap_err();
        assert!(again.to_string().contains("the directory is not empty"), "{again}");
        let size = build_graph_file(&path("g.yaml"), path("h"), Some("lots"), None).await.unwrap_err();
        assert!(size.to_string().starts_with("memory: "), "{size}");
    }

    /// A future that is dropped, as for Ctrl-C in Python, stops its build.
    #[test]
    fn a_dropped_build_is_stopped() {
        let stop = Arc::new(AtomicBool::new(false));
        drop(StopOnDrop(Arc::clone(&stop)));
        assert!(stop.load(Ordering::Relaxed));
    }
}
