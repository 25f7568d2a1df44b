//! Flags of `feedline graph`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use feedline_data::schema::ScalarType;
use feedline_graph::OrderSpec;

use super::StoreArgs;
use crate::memory_size::{MemorySize, parse_memory_size};

/// Arguments of `feedline graph`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline graph build cora --edges cora.tsv --undirected --feature x=x.npy --label y=y.npy --seeds train=train.npy\n  \
    feedline graph build debian --from debian.yaml --memory 4GiB\n  \
    feedline graph info s3://bucket/debian\n  \
    feedline graph check debian")]
pub(crate) struct GraphArgs {
    /// The action.
    #[command(subcommand)]
    pub(crate) action: GraphAction,
}

/// An action on a stored graph.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum GraphAction {
    /// Builds the folder of a graph from edges and features.
    Build(Box<GraphBuildArgs>),
    /// Describes a graph: its nodes, relations, features and seed sets.
    Info(GraphInfoArgs),
    /// Reads all files of a graph, and checks their hashes and contents.
    Check(GraphCheckArgs),
}

/// Arguments of `feedline graph build`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Files are Parquet (.parquet), CSV with commas, tabs or spaces (.csv, .tsv, .txt, .csv.gz), and NumPy arrays (.npy): \
    edges of shape [2, E] or [E, 2], and one row per node or edge for all others. FILE:COLUMN selects a column, and FILE.npz:NAME an array of an archive.\n\
    Ids of nodes are positions, counted from 0. Ids that are text are numbered in their sorted order, or in the order of --ids.\n\n\
    Examples:\n  \
    feedline graph build papers --edges 'edges/*.parquet' --columns src,dst --feature x=x.npy --dtype x=float16 --memory 4GiB\n  \
    feedline graph build cora --edges cora.tsv --undirected --label y=y.npy --seeds train=train.npy --seeds all=all\n  \
    feedline graph build arxiv --ogb dataset/ogbn_arxiv --undirected --dtype x=float16\n  \
    feedline graph build shop --from shop.yaml"
)]
pub(crate) struct GraphBuildArgs {
    /// Directory to create; it must be empty or not exist.
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// YAML file with node types and relations, for graphs with several of them; it replaces all flags about data. Relative
    /// paths start at the working directory.
    #[arg(long, value_name = "FILE", conflicts_with_all = DATA_FLAGS)]
    pub(crate) from: Option<PathBuf>,
    /// Folder of a dataset of OGB with one graph, which contains `raw` and `split`. --undirected adds the reverse edges that OGB
    /// adds when it loads a dataset with one node type.
    #[arg(long, value_name = "DIR", conflicts_with_all = DATASET_FLAGS)]
    pub(crate) ogb: Option<PathBuf>,
    /// Folder of a dataset of DGL's GraphBolt before its preprocessing, which contains `metadata.yaml`.
    #[arg(long, value_name = "DIR", conflicts_with_all = DATASET_FLAGS, conflicts_with = "ogb")]
    pub(crate) graphbolt: Option<PathBuf>,
    /// File or pattern with the edges; the flag can be repeated. A .npz file is a sparse matrix of SciPy, in which the entry in
    /// row i and column j is the edge from i to j.
    #[arg(long, value_name = "PATTERN", required_unless_present_any = ["from", "ogb", "graphbolt"])]
    pub(crate) edges: Vec<String>,
    /// Columns with the source and the target of an edge, as names or positions from 0 [default: the first two].
    #[arg(long, value_name = "SOURCE,TARGET", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// Number of nodes [default: that of the ids or features, otherwise one more than the largest node of an edge].
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<u64>,
    /// File with the id of each node, in the order of the nodes.
    #[arg(long, value_name = "FILE[:COLUMN]")]
    pub(crate) ids: Option<String>,
    /// Store each edge in both directions, and merge duplicates; the weights of duplicates are added.
    #[arg(long)]
    pub(crate) undirected: bool,
    /// Store the position of each edge in the input, so that batches can contain it.
    #[arg(long)]
    pub(crate) edge_ids: bool,
    /// Column of the edges with the weight, or a .npy file with one weight per edge; `data` for the values of a sparse matrix.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) weight: Option<String>,
    /// Column of the edges with the time, or a .npy file with one time per edge.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) time: Option<String>,
    /// Feature of the nodes, such as x=x.npy; the flag can be repeated.
    #[arg(long, value_name = "NAME=FILE[:COLUMN]", value_parser = parse_named)]
    pub(crate) feature: Vec<(String, String)>,
    /// Feature of the edges, one row per edge of the input; the flag can be repeated.
    #[arg(long, value_name = "NAME=FILE[:COLUMN]", value_parser = parse_named)]
    pub(crate) edge_feature: Vec<(String, String)>,
    /// Type to which a feature is converted, such as x=float16; the flag can be repeated [default: that of the file].
    #[arg(long, value_name = "NAME=DTYPE", value_parser = parse_dtype)]
    pub(crate) dtype: Vec<(String, ScalarType)>,
    /// Label of the nodes, which becomes a column of the seed sets, such as y=y.npy; the flag can be repeated.
    #[arg(long, value_name = "NAME=FILE[:COLUMN]", value_parser = parse_named)]
    pub(crate) label: Vec<(String, String)>,
    /// Seed set: a file with nodes, or with a boolean per node, or `all`; the flag can be repeated.
    #[arg(long, value_name = "NAME=FILE[:COLUMN]", value_parser = parse_named)]
    pub(crate) seeds: Vec<(String, String)>,
    /// Order in which nodes are stored: `none` keeps their order; `degree` begins with the nodes at which most edges begin;
    /// `vip:SEEDS:FANOUTS`, such as vip:train:15,10,5, begins with the nodes that batches of these seeds most probably contain.
    /// The first rows of features are then read most often.
    #[arg(long, value_name = "ORDER", default_value = "none", value_parser = OrderSpec::parse)]
    pub(crate) order: OrderSpec,
    /// Memory of the build, such as 4GiB, or a percentage of the memory limit of the container or of the machine's memory, such
    /// as 70% [default: 1 GiB, or a quarter of this memory if that is less]. Larger graphs are sorted in files beside OUT.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_size)]
    pub(crate) memory: Option<MemorySize>,
    /// Number of threads [default: the CPU limit of the container, otherwise its CPU request in Kubernetes, otherwise all cores
    /// that this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
}

/// The flags that a build file replaces.
const DATA_FLAGS: [&str; 16] = [
    "ogb",
    "graphbolt",
    "edges",
    "columns",
    "nodes",
    "ids",
    "undirected",
    "edge_ids",
    "weight",
    "time",
    "feature",
    "edge_feature",
    "dtype",
    "label",
    "seeds",
    "order",
];

/// The flags that a dataset replaces.
const DATASET_FLAGS: [&str; 10] =
    ["edges", "columns", "nodes", "ids", "weight", "time", "feature", "edge_feature", "label", "seeds"];

/// Arguments of `feedline graph info`.
#[derive(Args, Debug, Clone)]
pub(crate) struct GraphInfoArgs {
    /// Directory or URL of the graph.
    #[arg(value_name = "GRAPH")]
    pub(crate) url: String,
    /// Print the description as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
}

/// Arguments of `feedline graph check`.
#[derive(Args, Debug, Clone)]
pub(crate) struct GraphCheckArgs {
    /// Directory or URL of the graph.
    #[arg(value_name = "GRAPH")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
}

fn parse_named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_owned(), file.to_owned())),
        _ => Err(format!("invalid value `{text}`: expected NAME=FILE, such as x=x.npy")),
    }
}

fn parse_dtype(text: &str) -> Result<(String, ScalarType), String> {
    let invalid = || {
        format!(
            "invalid value `{text}`: expected NAME=DTYPE, such as x=float16; the types are bool, int8 to int64, uint8 to uint64, \
             float16, float32 and float64"
        )
    };
    let (name, dtype) = text.split_once('=').ok_or_else(invalid)?;
    let dtype = serde_json::from_value(dtype.into()).map_err(|_| invalid())?;
    Ok((name.to_owned(), dtype))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn build(flags: &[&str]) -> Result<GraphBuildArgs, String> {
        let line = ["feedline", "graph", "build", "out"].iter().chain(flags);
        match Cli::try_parse_from(line).map_err(|error| error.to_string())?.command {
            Command::Graph(GraphArgs { action: GraphAction::Build(args) }) => Ok(*args),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn names_and_types_are_parsed() {
        let args = build(&["--edges", "e.npy", "--feature", "x=a=b.npy", "--dtype", "x=float16"]).unwrap();
        assert_eq!(args.feature, [("x".to_owned(), "a=b.npy".to_owned())]);
        assert_eq!(args.dtype, [("x".to_owned(), ScalarType::Float16)]);
        let error = build(&["--edges", "e.npy", "--dtype", "x=half"]).unwrap_err();
        assert!(error.contains("such as x=float16"), "{error}");
        let error = build(&["--edges", "e.npy", "--feature", "x.npy"]).unwrap_err();
        assert!(error.contains("expected NAME=FILE"), "{error}");
    }

    #[test]
    fn a_build_file_replaces_all_flags_about_data() {
        assert!(build(&["--from", "g.yaml", "--memory", "1GiB", "--cores", "2"]).is_ok());
        for flags in [
            &["--edges", "e.npy"][..],
            &["--undirected"],
            &["--order", "degree"],
            &["--seeds", "a=all"],
            &["--nodes", "3"],
        ] {
            let error = build(&[&["--from", "g.yaml"][..], flags].concat()).unwrap_err();
            assert!(error.contains("cannot be used with"), "{error}");
        }
        assert!(build(&[]).unwrap_err().contains("--edges"));
    }

    #[test]
    fn a_dataset_replaces_the_flags_about_files() {
        let args = build(&["--ogb", "arxiv", "--undirected", "--dtype", "x=float16", "--edge-ids"]).unwrap();
        assert_eq!(args.ogb, Some(PathBuf::from("arxiv")));
        assert!(build(&["--graphbolt", "d", "--order", "degree"]).is_ok());
        for flags in [
            &["--ogb", "d", "--edges", "e.npy"][..],
            &["--ogb", "d", "--graphbolt", "d"],
            &["--ogb", "d", "--from", "g.yaml"],
            &["--graphbolt", "d", "--seeds", "a=all"],
        ] {
            let error = build(flags).unwrap_err();
            assert!(error.contains("cannot be used with"), "{error}");
        }
    }

    #[test]
    fn the_order_vip_names_seeds_and_fanouts() {
        let args = build(&["--edges", "e.npy", "--order", "vip:train:15,10"]).unwrap();
        assert_eq!(args.order, OrderSpec::parse("vip:train:15,10").unwrap());
        let error = build(&["--edges", "e.npy", "--order", "vip"]).unwrap_err();
        assert!(error.contains("such as vip:train:15,10,5"), "{error}");
    }
}
