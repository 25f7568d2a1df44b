//! The seed sets of stored graphs. The description of a graph names the Arrow file of each seed set. The description itself is a
//! shard without rows.

use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::graph::description::{DESCRIPTION_FILE, GraphDescription, SeedSet};
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::pipeline::Source;

use super::arrow_ipc::ArrowReader;
use crate::cache::ShardCacheMemory;
use crate::error::SourceError;
use crate::graph_description;
use crate::list;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleTraits};
use crate::select::Selection;
use crate::stores::ScopedStores;

/// Reads the seed sets of graphs.
pub(super) struct GraphSeedsReader {
    /// The name of the seed set; `None` for the only one.
    seeds: Option<String>,
    arrow: ArrowReader,
}

impl GraphSeedsReader {
    pub(super) fn new(source: &Source, memory: &ShardCacheMemory) -> Self {
        Self { seeds: source.seeds.clone(), arrow: ArrowReader::new(memory) }
    }

    /// Returns the selected seed set.
    fn seed_set<'a>(&self, description: &'a GraphDescription) -> Result<&'a SeedSet, String> {
        let names: Vec<&str> = description.seeds.iter().map(|seeds| seeds.name.as_str()).collect();
        match (&self.seeds, description.seeds.as_slice()) {
            (_, []) => Err("the graph has no seed sets: build it with seeds".to_owned()),
            (None, [only]) => Ok(only),
            (None, _) => Err(format!(
                "the graph has several seed sets: set `source.seeds` to one of {}",
                names.join(", ")
            )),
            (Some(name), sets) => sets.iter().find(|seeds| seeds.name == *name).ok_or_else(|| {
                format!(
                    "the graph has no seed set `{name}`: set `source.seeds` to one of {}",
                    names.join(", ")
                )
            }),
        }
    }
}

#[async_trait]
impl FormatReader for GraphSeedsReader {
    async fn list(&self, reads: &ScopedStores, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        let mut shards = Vec::new();
        for url in urls {
            let description = graph_description::read(reads, url).await?;
            let seeds = self.seed_set(&description).map_err(|reason| SourceError::Url {
                url: graph_description::description_url(url),
                reason,
            })?;
            let file = format!("{}/{}", url.trim_end_matches('/'), seeds.file.path);
            shards.extend(list::list(reads, &[file]).await?);
            shards.extend(graph_description::list(reads, url).await?);
        }
        Ok(shards)
    }

    fn sample_traits(&self, shard: &ShardRef) -> SampleTraits {
        if is_description(shard) { SampleTraits::default() } else { self.arrow.sample_traits(shard) }
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        if is_description(object.shard()) {
            return graph_description::index(object).await;
        }
        self.arrow.index(object, selection).await
    }

    async fn fetch(&self, object: &Arc<Object>, read: &BlockRead<'_>) -> Result<Option<u64>, SourceError> {
        self.arrow.fetch(object, read).await
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        self.arrow.read(object, read, selection).await
    }
}

/// Whether a shard is the description of a graph.
fn is_description(shard: &ShardRef) -> bool {
    shard.url.rsplit('/').next() == Some(DESCRIPTION_FILE)
}

#[cfg(test)]
mod tests {
    use feedline_data::graph::description::SeedKind;
    use feedline_data::manifest::{Manifest, Shard};
    use feedline_data::pipeline::Format;
    use tempfile::TempDir;

    use super::*;
    use crate::testing::write_settled;
    use crate::{Dataset, Stores};

    /// A graph of ten nodes without edges, and two seed sets with the same rows.
    fn graph() -> TempDir {
        let arrow = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/columnar/pyarrow_plain.arrow");
        let bytes = std::fs::read(arrow).unwrap();
        let set = |name: &str| {
            serde_json::json!({
                "name": name,
                "of": {"nodes": "paper"},
                "rows": 5,
                "file": {"path": format!("seeds/{name}.arrow"), "bytes": bytes.len(), "blocks": ["0000000000000001"]},
            })
        };
        let description = serde_json::json!({
            "version": 1,
            "nodes": [{"name": "paper", "count": 10}],
            "relations": [],
            "seeds": [set("train"), set("valid")],
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("seeds")).unwrap();
        write_settled(&folder.path().join(DESCRIPTION_FILE), description.to_string().as_bytes());
        for name in ["train", "valid"] {
            write_settled(&folder.path().join(format!("seeds/{name}.arrow")), &bytes);
        }
        folder
    }

    fn dataset(folder: &TempDir, seeds: Option<&str>) -> Dataset {
        let url = folder.path().to_str().unwrap();
        let source = Source { seeds: seeds.map(str::to_owned), ..Source::new(Format::Graph, url) };
        Dataset::new(source, Stores::new(Vec::new())).unwrap()
    }

    #[tokio::test]
    async fn the_shards_are_a_seed_set_and_the_description() {
        let folder = graph();
        let dataset = dataset(&folder, Some("valid"));
        let mut shards = Vec::new();
        for object in dataset.list().await.unwrap() {
            let indexed = dataset.index_shard(&object).await.unwrap();
            shards.push(Shard { object, index: indexed.index, digest: indexed.digest });
        }
        let names: Vec<&str> =
            shards.iter().map(|shard| shard.object.url.rsplit('/').next().unwrap()).collect();
        assert_eq!(names, ["valid.arrow", DESCRIPTION_FILE]);
        assert!(shards[0].index.rows() > 0 && shards[1].index.blocks.is_empty());
        let summary = Manifest::build(shards).unwrap().summary();
        let graph = summary.graph.expect("the description is indexed");
        assert_eq!((graph.nodes[0].count, graph.seeds.len()), (10, 2));
        assert_eq!(graph.seeds[1].of, SeedKind::Nodes("paper".to_owned()));
    }

    #[tokio::test]
    async fn the_description_of_the_sampled_graph_follows_the_shards_of_other_formats() {
        let folder = graph();
        let rows = tempfile::tempdir().unwrap();
        write_settled(&rows.path().join("seeds.txt"), b"1\n2\n");
        let path = |folder: &TempDir| folder.path().to_str().unwrap().to_owned();
        let source = Source {
            graph: Some(path(&folder) + "/"),
            ..Source::new(Format::Text, path(&rows) + "/seeds.txt")
        };
        let dataset = Dataset::new(source, Stores::new(Vec::new())).unwrap();
        assert_eq!(dataset.list().await.unwrap().len(), 1);
        let listed = dataset.list_graph().await.unwrap();
        assert_eq!(listed.len(), 1);
        let indexed = dataset.index_shard(&listed[0]).await.unwrap();
        assert!(indexed.index.blocks.is_empty() && indexed.digest.is_some());
        assert_eq!(indexed.index.graph.expect("the description is indexed").nodes[0].count, 10);
    }

    #[tokio::test]
    async fn a_seed_set_must_be_named_and_exist() {
        let folder = graph();
        let error =
            async |seeds: Option<&'static str>| dataset(&folder, seeds).list().await.unwrap_err().to_string();
        assert!(error(None).await.contains("set `source.seeds` to one of train, valid"));
        assert!(error(Some("test")).await.contains("the graph has no seed set `test`"));
        let empty = tempfile::tempdir().unwrap();
        let missing = dataset(&empty, None).list().await.unwrap_err().to_string();
        assert!(missing.contains("graph.json` does not exist"), "{missing}");
        std::fs::write(empty.path().join(DESCRIPTION_FILE), "{\"version\": 1}").unwrap();
        let invalid = dataset(&empty, None).list().await.unwrap_err().to_string();
        assert!(invalid.contains("invalid description"), "{invalid}");
    }
}
