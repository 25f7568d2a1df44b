//! The batches of a pipeline that samples the graph of a dataset: their columns, and their expected size.

use crate::manifest::DatasetSummary;
use crate::pipeline::{GraphBatchPlan, Pipeline, infer};
use crate::schema::Schema;

impl Pipeline {
    /// Plans the batches of a pipeline that samples the graph of a dataset. `None` for other pipelines.
    ///
    /// # Errors
    /// Returns a message if the pipeline does not fit the graph.
    pub fn graph_batches(&self, dataset: &DatasetSummary) -> Result<Option<GraphBatchPlan>, String> {
        if !self.is_indivisible() {
            return Ok(None);
        }
        let Some(graph) = &dataset.graph else {
            return Err(
                "the index of the dataset does not contain the graph; rebuild it with `feedline index --rebuild`"
                    .to_owned(),
            );
        };
        GraphBatchPlan::new(self, &dataset.schema, graph)
    }

    /// Returns the columns of batches.
    ///
    /// # Errors
    /// Returns a message if the pipeline does not fit the dataset.
    pub fn batch_columns(&self, dataset: &DatasetSummary) -> Result<Schema, String> {
        if let Some(plan) = self.graph_batches(dataset)? {
            return Ok(plan.schema());
        }
        let mut schemas = infer(self, &dataset.schema).map_err(|error| error.to_string())?;
        Ok(schemas.pop().unwrap_or_default())
    }

    /// Returns the expected size of an indivisible batch in bytes. `None` for divisible batches, and if the pipeline does not fit the
    /// dataset.
    pub fn expected_batch_bytes(&self, dataset: &DatasetSummary) -> Option<u64> {
        let plan = self.graph_batches(dataset).ok().flatten()?;
        Some(plan.expected_bytes(self.batch_size(), dataset.graph.as_deref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::description::GraphHash;
    use crate::graph::{FeatureSummary, GraphSummary, NodeTypeSummary, RelationSummary};
    use crate::layout::Layout;
    use crate::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
    use crate::pipeline::Source;
    use crate::schema::{ColumnType, ScalarType};

    /// A dataset of 10,000 seeds, and a graph whose nodes have features of 64 KiB.
    fn dataset() -> DatasetSummary {
        let x = FeatureSummary {
            name: "x".to_owned(),
            dtype: ScalarType::Float32,
            shape: vec![1 << 14],
            content: GraphHash(1),
        };
        let relation = RelationSummary {
            source: "n".to_owned(),
            name: "e".to_owned(),
            target: "n".to_owned(),
            edges: 1 << 30,
            undirected: false,
            has_weights: false,
            has_times: false,
            features: Vec::new(),
        };
        let graph = GraphSummary {
            topology: GraphHash(1),
            nodes: vec![NodeTypeSummary { name: "n".to_owned(), count: 1 << 20, features: vec![x] }],
            relations: vec![relation],
            seeds: Vec::new(),
        };
        let shard = |name: &str, index| {
            let object = ShardRef { url: format!("file:///g/{name}"), size_bytes: 1, ..ShardRef::default() };
            Shard::simulated(object, index)
        };
        let blocks = vec![Block { rows: 10_000, offset: 0, bytes: 80_000, group: 0, row_bytes: Vec::new() }];
        let schema = Schema::new([("node", ColumnType::Scalar(ScalarType::UInt32))]);
        let seeds = ShardIndex { blocks, schema: Some(schema), ..ShardIndex::default() };
        let description = ShardIndex { graph: Some(Box::new(graph)), ..ShardIndex::default() };
        let shards = vec![shard("graph.json", description), shard("seeds/train.arrow", seeds)];
        Manifest::build(shards).expect("one shard has rows").summary()
    }

    fn pipeline(fanouts: &[i64]) -> Pipeline {
        let builder = Pipeline::builder("p").source(Source::graph("g")).shuffle(1 << 20);
        builder.sample_neighbors(100, fanouts, &["x"]).build().expect("the pipeline is valid")
    }

    #[test]
    fn the_description_of_a_graph_is_a_shard_without_rows() {
        let dataset = dataset();
        assert_eq!((dataset.rows, dataset.shards, dataset.blocks), (10_000, 2, 1));
        assert_eq!(dataset.graph.as_ref().map(|graph| graph.nodes.len()), Some(1));
        let columns = pipeline(&[1]).batch_columns(&dataset).expect("the pipeline fits");
        assert!(columns.get("x").is_some() && columns.get("colptr").is_some());
        let without = DatasetSummary { graph: None, ..dataset.clone() };
        assert!(pipeline(&[1]).graph_batches(&without).is_err_and(|error| error.contains("--rebuild")));
        let plain = Pipeline::builder("p").source(Source::graph("g")).batch(4).build().expect("valid");
        assert_eq!(plain.graph_batches(&without), Ok(None));
        assert_eq!(plain.batch_columns(&without), Ok(dataset.schema.clone()));
        assert_eq!(plain.expected_batch_bytes(&dataset), None);
    }

    #[test]
    fn the_expected_size_of_a_batch_determines_the_length_of_splits() {
        let split_batches = |fanouts: &[i64]| {
            let (pipeline, mut dataset) = (pipeline(fanouts), dataset());
            dataset.batch_bytes = pipeline.expected_batch_bytes(&dataset);
            let layout = Layout::new(&pipeline, &dataset, 1, 1);
            assert!(layout.indivisible && layout.group_rows == 100);
            layout.split_rows / 100
        };
        // 100 seeds have 6.25 MiB of features, and each sampled neighbor adds as much.
        assert_eq!(split_batches(&[0]), 12, "there are at least 8 splits");
        assert_eq!(split_batches(&[3]), 10);
        assert_eq!(split_batches(&[9]), 4);
        assert_eq!(split_batches(&[100]), 1);
    }
}
