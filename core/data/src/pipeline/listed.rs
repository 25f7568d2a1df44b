//! The source as workers list it: with the filter that excludes whole shards, and the graph that is sampled.

use super::{Format, OperatorKind, Partitions, Pipeline, Source};

impl Pipeline {
    /// Returns the source with the predicate of a `filter` that directly follows it, for datasets with columns of directories.
    /// Workers do not list the shards whose columns exclude all of their rows. The filter itself stays in the pipeline. The last
    /// dataset has the folder of the graph that the last operator samples, unless it lists that graph itself.
    pub fn listed_source(&self) -> Source {
        let mut source = self.source.clone();
        source.clear_commit_group();
        let filter = match self.operators.first().map(|operator| &operator.kind) {
            Some(OperatorKind::Filter(filter)) => Some(&filter.predicate),
            _ => None,
        };
        let set = |source: &mut Source| {
            if source.partitions == Some(Partitions::Hive) {
                source.shard_filter = filter.cloned();
            }
        };
        match &mut source.mix {
            Some(mix) => {
                mix.parts.iter_mut().for_each(|part| set(&mut part.source));
                if let Some(last) = mix.parts.last_mut() {
                    last.source.graph = self.unlisted_graph(&last.source);
                }
            }
            None => {
                set(&mut source);
                source.graph = self.unlisted_graph(&source);
            }
        }
        source
    }

    /// The folder of the graph that the last operator names, unless the dataset lists its description.
    fn unlisted_graph(&self, dataset: &Source) -> Option<String> {
        let graph = self.operators.last()?.kind.definition().graph()?;
        let is_same = |url: &String| url.trim_end_matches('/') == graph.trim_end_matches('/');
        let is_listed = dataset.format == Format::Graph && dataset.url.iter().all(is_same);
        (!is_listed).then(|| graph.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Mix, MixPart, MixStop, SampleNeighbors};

    #[test]
    fn only_a_first_filter_over_directories_is_part_of_the_listed_source() {
        let listed = |source: &Source| {
            let pipeline =
                Pipeline::builder("p").source(source.clone()).filter("year = 1").filter("x").batch(1);
            pipeline.build().unwrap().listed_source()
        };
        let plain = Source::text("a/");
        assert_eq!(listed(&plain), plain);
        let hive = Source::text("a/").partitions(Partitions::Hive);
        assert_eq!(listed(&hive).shard_filter.as_deref(), Some("year = 1"));
        let later =
            Pipeline::builder("p").source(hive.clone()).wait(1).filter("year = 1").batch(1).build().unwrap();
        assert_eq!(later.listed_source(), hive);
        let part = |source: &Source| MixPart { weight: 1.0, source: source.clone() };
        let mixed = Source::mixed(Mix { parts: vec![part(&plain), part(&hive)], stop: MixStop::All });
        let listed = listed(&mixed).mix.unwrap();
        assert_eq!(listed.parts[0].source.shard_filter, None);
        assert_eq!(listed.parts[1].source.shard_filter.as_deref(), Some("year = 1"));
    }

    #[test]
    fn the_graph_is_listed_after_the_last_dataset_that_does_not_contain_it() {
        let listed = |source: &Source, graph: Option<&str>| {
            let sample = SampleNeighbors { graph: graph.map(str::to_owned), ..SampleNeighbors::new(2, &[5]) };
            let builder = Pipeline::builder("p").source(source.clone());
            builder.operator(OperatorKind::SampleNeighbors(sample)).build().unwrap().listed_source()
        };
        let seeds = Source::parquet("s3://b/seeds/");
        assert_eq!(listed(&seeds, Some("s3://b/g")).graph.as_deref(), Some("s3://b/g"));
        let own = Source::graph("s3://b/g/");
        assert_eq!(listed(&own, None), own);
        assert_eq!(listed(&own, Some("s3://b/g")), own);
        assert_eq!(listed(&own, Some("s3://b/h")).graph.as_deref(), Some("s3://b/h"));
        let part = |source: &Source| MixPart { weight: 1.0, source: source.clone() };
        let mixed = Source::mixed(Mix { parts: vec![part(&own), part(&seeds)], stop: MixStop::All });
        let mix = listed(&mixed, Some("s3://b/g")).mix.unwrap();
        assert_eq!(mix.parts[0].source, own);
        assert_eq!(mix.parts[1].source.graph.as_deref(), Some("s3://b/g"));
    }
}
