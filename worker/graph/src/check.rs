//! Checks of a whole graph: the hashes of all files, the order of edges, the positions of nodes, and the ids in seed sets.

use std::io::Cursor;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::UInt32Type;
use arrow::ipc::reader::FileReader;
use feedline_contained::contained;
use feedline_data::graph::description::{DescribedFile, SeedKind, SeedSet};

use crate::error::GraphError;
use crate::folder::GraphFolder;
use crate::topology::LoadedTopology;

/// The result of a check without errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckedGraph {
    /// The number of files.
    pub files: u64,
    /// The size of all files.
    pub bytes: u64,
}

/// Reads all files of a graph, and checks their contents. The topology and each seed set must fit in `limit_bytes`.
///
/// # Errors
/// Returns an error that names the first damaged file, or that the store fails.
pub async fn check_graph(folder: &GraphFolder, limit_bytes: u64) -> Result<CheckedGraph, GraphError> {
    let description = folder.description();
    let mut checked = CheckedGraph::default();
    for described in description.files() {
        folder.open_file(&described).await?.verify().await?;
        checked.files += 1;
        checked.bytes += described.file.bytes;
    }
    let topology = LoadedTopology::load(folder, limit_bytes).await?;
    for (index, node_type) in description.nodes.iter().enumerate() {
        if let (Some(positions), Some(file)) = (topology.positions(index), &node_type.positions) {
            check_permutation(positions)
                .map_err(|reason| GraphError::file(format!("{}/{}", folder.url(), file.path), reason))?;
        }
    }
    drop(topology);
    for seeds in &description.seeds {
        check_seeds(folder, seeds, limit_bytes).await?;
    }
    Ok(checked)
}

/// Checks that each position occurs once.
fn check_permutation(positions: &[u32]) -> Result<(), String> {
    let mut has_occurred = vec![false; positions.len()];
    for (node, &position) in positions.iter().enumerate() {
        match has_occurred.get_mut(position as usize) {
            Some(occurred) if !*occurred => *occurred = true,
            Some(_) => {
                return Err(format!(
                    "node {node} has position {position}, which another node has too: build the graph again"
                ));
            }
            None => {
                return Err(format!(
                    "node {node} has position {position}, but there are {} nodes: build the graph again",
                    positions.len()
                ));
            }
        }
    }
    Ok(())
}

/// Checks that the nodes of a seed set exist.
async fn check_seeds(folder: &GraphFolder, seeds: &SeedSet, limit_bytes: u64) -> Result<(), GraphError> {
    let described = DescribedFile { file: &seeds.file, array: None };
    let file = folder.open_file(&described).await?;
    let needed = seeds.file.bytes;
    if needed > limit_bytes {
        let reason = format!(
            "the seeds need {needed} bytes of memory, but only {limit_bytes} bytes are allowed: allow more memory"
        );
        return Err(GraphError::file(file.url(), reason));
    }
    let bytes = file.load().await?;
    let columns = seed_columns(folder, &seeds.of);
    contained(|| check_rows(bytes.as_slice(), &columns, seeds.rows), "the Arrow data is invalid")
        .map_err(|reason| GraphError::file(file.url(), format!("{reason}: build the graph again")))
}

fn check_rows(bytes: &[u8], columns: &[(&str, u32)], expected_rows: u64) -> Result<(), String> {
    let reader = FileReader::try_new(Cursor::new(bytes), None).map_err(|error| error.to_string())?;
    let mut rows = 0;
    for batch in reader {
        let batch = batch.map_err(|error| error.to_string())?;
        for (column, count) in columns {
            check_column(&batch, column, *count, rows)?;
        }
        rows += batch.num_rows() as u64;
    }
    if rows == expected_rows {
        return Ok(());
    }
    Err(format!("the file has {rows} rows, but the description lists {expected_rows}"))
}

/// Returns the columns with nodes, and the number of nodes of their type.
fn seed_columns(folder: &GraphFolder, kind: &SeedKind) -> Vec<(&'static str, u32)> {
    let description = folder.description();
    let count = |name: &str| description.node_type(name).map_or(0, |(_, node_type)| node_type.count);
    match kind {
        SeedKind::Nodes(name) => vec![("node", count(name))],
        SeedKind::Links(key) => match description.relation(key) {
            Some((_, relation)) => {
                vec![("source", count(&relation.source)), ("target", count(&relation.target))]
            }
            None => Vec::new(),
        },
    }
}

fn check_column(batch: &RecordBatch, column: &str, count: u32, first_row: u64) -> Result<(), String> {
    let array = batch.column_by_name(column).ok_or_else(|| format!("the column `{column}` is missing"))?;
    let nodes = array
        .as_primitive_opt::<UInt32Type>()
        .filter(|nodes| nodes.null_count() == 0)
        .ok_or_else(|| format!("the column `{column}` is not uint32 without nulls"))?;
    match nodes.values().iter().position(|&node| node >= count) {
        Some(row) => Err(format!(
            "row {} has the node {}, but there are {count} nodes",
            first_row + row as u64,
            nodes.value(row)
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::tenants::TenantReads;
    use feedline_sources::Stores;

    use super::*;
    use crate::build::{BuildSettings, ColumnRef, GraphSpec, NodeSpec, SeedSpec, build_graph};
    use crate::folder::GraphAccess;
    use crate::topology::topology_bytes;

    #[tokio::test]
    async fn topology_and_seeds_must_fit_in_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let (edges, graph) = (folder.path().join("e.csv"), folder.path().join("g"));
        std::fs::write(&edges, "0,1\n1,0\n").unwrap();
        let mut nodes = NodeSpec::default();
        let all = ColumnRef { path: "all".to_owned(), column: None };
        nodes.seeds.insert("all".to_owned(), SeedSpec { from: all, label: None, time: None });
        let spec = GraphSpec::homogeneous(nodes, vec![edges.to_str().unwrap().to_owned()]);
        build_graph(&spec, &graph, &BuildSettings::new(1 << 20, 1)).unwrap();
        let access = GraphAccess {
            stores: Stores::new(Vec::new()),
            credentials: None,
            tenant: TenantReads::default(),
        };
        let graph = GraphFolder::open(access, graph.to_str().unwrap()).await.unwrap();
        let (topology, seeds) = (topology_bytes(&graph), graph.description().seeds[0].file.bytes);
        assert!(topology < seeds, "the headers of an Arrow file are larger than two edges");
        let error = async |limit_bytes| check_graph(&graph, limit_bytes).await.unwrap_err().to_string();
        assert!(error(topology - 1).await.contains("the topology needs"));
        assert!(error(seeds - 1).await.contains(&format!("the seeds need {seeds} bytes")));
        assert!(check_graph(&graph, seeds).await.is_ok());
    }

    #[test]
    fn positions_must_be_a_permutation() {
        assert_eq!(check_permutation(&[2, 0, 1]), Ok(()));
        assert_eq!(check_permutation(&[]), Ok(()));
        assert!(check_permutation(&[0, 0]).unwrap_err().contains("node 1 has position 0, which another"));
        assert!(check_permutation(&[0, 2]).unwrap_err().contains("position 2, but there are 2 nodes"));
    }
}
