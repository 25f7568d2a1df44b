//! `feedline graph build`: builds the folder of a graph from the flags or a build file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use feedline_data::schema::ScalarType;
use feedline_graph::{
    BuildSettings, ColumnName, ColumnRef, FeatureSpec, GraphBoltMetadata, GraphError, GraphSpec,
    METADATA_FILE, NodeSpec, SeedSpec, build_graph, graphbolt_spec, ogb_spec,
};

use super::folder::graph_failure;
use super::inclusion_ranking::InclusionRanking;
use super::info;
use crate::cli::GraphBuildArgs;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{environment, output, signals, yaml};

/// Builds the graph and prints its description.
pub(super) async fn run(args: GraphBuildArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let spec = input(&args)?;
    let progress = Arc::new(Progress::start());
    let shown = Arc::clone(&progress);
    let stop_build = Arc::new(AtomicBool::new(false));
    let settings = BuildSettings {
        memory_bytes: environment::memory_budget_bytes(args.memory)?,
        threads: args.cores.unwrap_or_else(environment::default_cores) as usize,
        stop: Arc::clone(&stop_build),
        on_step: Arc::new(move |step: &str| shown.show(step.to_owned())),
        ranking: Some(Arc::new(InclusionRanking)),
    };
    let stop = signals::watch()?;
    let out = args.out.clone();
    let build = tokio::task::spawn_blocking(move || build_graph(&spec, &out, &settings));
    tokio::pin!(build);
    let built = tokio::select! {
        built = &mut build => built,
        () = stop.cancelled() => {
            stop_build.store(true, Ordering::Relaxed);
            build.await
        }
    };
    drop(progress);
    let description = built.map_err(Failure::failed)?.map_err(graph_failure)?;
    let text = info::render(&description);
    Ok(output::print(&format!(
        "{text}built {} in {:.1} s\n",
        args.out.display(),
        started.elapsed().as_secs_f64()
    ))?)
}

/// Returns the graph of a build file, of a dataset, or of the flags.
fn input(args: &GraphBuildArgs) -> Result<GraphSpec, Failure> {
    let dataset = match (&args.from, &args.ogb, &args.graphbolt) {
        (Some(path), ..) => return yaml::load(path, "a build file", yaml::parse),
        (None, Some(folder), _) => ogb_spec(folder),
        (None, None, Some(folder)) => {
            let path = folder.join(METADATA_FILE);
            let metadata: GraphBoltMetadata = yaml::load(&path, "a dataset of GraphBolt", yaml::parse)?;
            graphbolt_spec(&metadata, folder)
        }
        (None, None, None) => return spec(args).map_err(Failure::invalid_usage),
    };
    let mut dataset = dataset.map_err(graph_failure)?;
    apply_flags(&mut dataset, args).map_err(Failure::invalid_usage)?;
    Ok(dataset)
}

/// Applies the flags that are permitted with a dataset.
fn apply_flags(spec: &mut GraphSpec, args: &GraphBuildArgs) -> Result<(), GraphError> {
    spec.order = args.order.clone();
    for relation in &mut spec.relations {
        relation.undirected |= args.undirected;
        relation.edge_ids |= args.edge_ids;
    }
    for (name, dtype) in &args.dtype {
        let of_nodes = spec.nodes.values_mut().map(|node| &mut node.features);
        let of_edges = spec.relations.iter_mut().map(|relation| &mut relation.features);
        let mut features: Vec<&mut FeatureSpec> =
            of_nodes.chain(of_edges).filter_map(|features| features.get_mut(name)).collect();
        if features.is_empty() {
            return Err(GraphError::Setting(format!("--dtype: the dataset has no feature `{name}`")));
        }
        features.iter_mut().for_each(|feature| feature.dtype = Some(*dtype));
    }
    Ok(())
}

/// Returns the graph with one node type and one relation that the flags describe.
fn spec(args: &GraphBuildArgs) -> Result<GraphSpec, GraphError> {
    let mut dtypes: BTreeMap<&str, ScalarType> =
        args.dtype.iter().map(|(name, dtype)| (name.as_str(), *dtype)).collect();
    let mut features = |named: &[(String, String)]| -> BTreeMap<String, FeatureSpec> {
        let feature = |(name, file): &(String, String)| {
            let spec =
                FeatureSpec { from: ColumnRef::from(file.clone()), dtype: dtypes.remove(name.as_str()) };
            (name.clone(), spec)
        };
        named.iter().map(feature).collect()
    };
    let (node_features, edge_features) = (features(&args.feature), features(&args.edge_feature));
    if let Some((name, _)) = dtypes.first_key_value() {
        return Err(GraphError::Setting(format!(
            "--dtype: there is no feature `{name}`; add it with --feature"
        )));
    }
    let column = |(name, file): &(String, String)| (name.clone(), ColumnRef::from(file.clone()));
    let seeds = |named: &(String, String)| {
        let (name, from) = column(named);
        (name, SeedSpec::new(from))
    };
    let nodes = NodeSpec {
        count: args.nodes,
        ids: args.ids.clone().map(ColumnRef::from),
        features: node_features,
        labels: args.label.iter().map(column).collect(),
        seeds: args.seeds.iter().map(seeds).collect(),
    };
    let mut spec = GraphSpec::homogeneous(nodes, args.edges.clone());
    spec.order = args.order.clone();
    let relation = &mut spec.relations[0];
    relation.columns = match args.columns.as_slice() {
        [] => None,
        [source, target] => Some([ColumnName(source.clone()), ColumnName(target.clone())]),
        other => {
            return Err(GraphError::Setting(format!(
                "--columns has {} columns: expected the source and the target, such as src,dst",
                other.len()
            )));
        }
    };
    relation.weight = args.weight.clone();
    relation.time = args.time.clone();
    relation.undirected = args.undirected;
    relation.edge_ids = args.edge_ids;
    relation.features = edge_features;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, GraphAction, GraphArgs};

    fn spec_of(flags: &str) -> Result<GraphSpec, String> {
        let line = ["feedline", "graph", "build", "out"].into_iter().chain(flags.split(' '));
        match Cli::try_parse_from(line).map_err(|error| error.to_string())?.command {
            Command::Graph(GraphArgs { action: GraphAction::Build(args) }) => {
                spec(&args).map_err(|error| error.to_string())
            }
            other => Err(format!("{other:?}")),
        }
    }

    /// The flags and this build file describe the same graph.
    #[test]
    fn flags_equal_a_build_file() {
        let flags = "--edges a.csv --edges b.csv --columns src,dst --nodes 9 --ids n.csv:id --undirected --weight w --time t.npy \
                     --feature x=x.npy --dtype x=float16 --edge-feature f=f.npy --edge-ids --label y=n.csv:y --seeds train=s.npy \
                     --order vip:train:15,10";
        let file = "order: vip:train:15,10
nodes:
  node:
    count: 9
    ids: n.csv:id
    features: { x: { from: x.npy, dtype: float16 } }
    labels: { y: 'n.csv:y' }
    seeds: { train: s.npy }
relations:
  - edges: [a.csv, b.csv]
    columns: [src, dst]
    undirected: true
    weight: w
    time: t.npy
    edge_ids: true
    features: { f: f.npy }
";
        let flags: Vec<&str> = flags.split_whitespace().collect();
        assert_eq!(spec_of(&flags.join(" ")), yaml::parse::<GraphSpec>(file, "g.yaml"));
    }

    #[test]
    fn a_build_file_describes_several_relations() {
        let file = "nodes:
  package: { features: { x: x.npy }, labels: { section: 'packages.parquet:section' }, seeds: { all: { from: all } } }
relations:
  - { source: package, name: depends, target: package, edges: edges.parquet, columns: [from, to], where: { relation: 0 } }
  - { source: package, name: built_from, target: source, edges: packages.parquet, columns: ['#row', source], reverse: builds }
";
        let spec: GraphSpec = yaml::parse(file, "g.yaml").expect("the build file is valid");
        assert_eq!(spec.relations[0].key(), "package__depends__package");
        assert_eq!(spec.relations[0].filter["relation"].0, "0");
        assert_eq!(spec.relations[1].reverse.as_deref(), Some("builds"));
        let error = yaml::parse::<GraphSpec>("relations: []\norder: vip\n", "g.yaml").unwrap_err();
        assert!(error.contains("such as vip:train:15,10,5"), "{error}");
        let error = yaml::parse::<GraphSpec>("relations:\n  - { edges: a.csv, colums: [a, b] }\n", "g.yaml")
            .unwrap_err();
        assert!(error.contains("unknown key `colums`"), "{error}");
    }

    #[test]
    fn contradicting_flags_are_rejected() {
        let error = spec_of("--edges e.npy --dtype x=float16").unwrap_err();
        assert_eq!(error, "--dtype: there is no feature `x`; add it with --feature");
        let error = spec_of("--edges e.csv --columns a,b,c").unwrap_err();
        assert_eq!(error, "--columns has 3 columns: expected the source and the target, such as src,dst");
    }
}
