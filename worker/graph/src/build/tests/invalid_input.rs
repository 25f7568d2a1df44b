//! Invalid input is rejected with one sentence, and nothing is left at the path of the graph.

use std::sync::atomic::Ordering;

use feedline_data::schema::ScalarType;

use super::super::run::BuildSettings;
use super::super::spec::{ColumnName, GraphSpec, NodeSpec};
use super::scratch::Scratch;
use crate::error::GraphError;

fn spec(path: String) -> GraphSpec {
    GraphSpec::homogeneous(NodeSpec::default(), vec![path])
}

/// Returns a spec after a change.
fn changed(path: &str, change: impl FnOnce(&mut GraphSpec)) -> GraphSpec {
    let mut spec = spec(path.to_owned());
    change(&mut spec);
    spec
}

#[test]
fn each_error_names_the_file_the_row_and_the_fix() {
    let scratch = Scratch::new();
    let edges = scratch.write("e.csv", "src,dst,w,t\n0,1,0.5,1\n1,2,1,noon\n2,0,-1,3\n");
    let word = scratch.write("word.csv", "0,1\n1,two\n");
    let negative = scratch.write("negative.csv", "0,1\n1,-2\n");
    let ragged = scratch.write("ragged.csv", "0,1\n1,2,3\n");
    let empty = scratch.write("empty.csv", "");
    let parquet = scratch.write("bad.parquet", "PAR1 is not enough");
    let unknown = scratch.write("e.json", "{}");
    let cube = scratch.write_integers("cube.npy", &[2, 2, 2], 0..8);
    let times =
        scratch.write_array("nan.npy", ScalarType::Float64, &[3], &[f64::NAN.to_le_bytes(); 3].concat());
    let few = scratch.write_integers("few.npy", &[2], [1, 2]);
    let own = |name: &str| Some(name.to_owned());
    let names = |from: &str, to: &str| Some([ColumnName(from.to_owned()), ColumnName(to.to_owned())]);
    let cases = [
        (
            changed(&edges, |spec| spec.relations[0].weight = own("w")),
            "row 2: the weight: the weight -1 is not",
        ),
        (
            changed(&edges, |spec| spec.relations[0].time = own("t")),
            "row 1: the time: the time is not an integer",
        ),
        (
            changed(&edges, |spec| spec.relations[0].weight = own("x")),
            "the column `x` does not exist: the columns are `src`",
        ),
        (
            changed(&edges, |spec| spec.relations[0].time = own(&times)),
            "row 0: the time: the time NaN is not an integer",
        ),
        (changed(&edges, |spec| spec.relations[0].weight = own(&few)), "the array has only 2 rows"),
        (
            changed(&edges, |spec| spec.relations[0].columns = names("src", "to")),
            "the column `to` does not exist",
        ),
        (
            changed(&edges, |spec| spec.nodes.get_mut("node").unwrap().count = Some(2)),
            "the node 2 does not exist: there are 2 nodes",
        ),
        (spec(word), "row 1: the target: `two` is not an integer"),
        (spec(negative), "row 1: the node -2 does not exist"),
        (spec(ragged), "the file is not valid CSV"),
        (spec(empty), "the file is empty"),
        (spec(parquet), "bad.parquet`"),
        (spec(unknown), "the format is unknown: expected .parquet, .csv"),
        (spec(cube), "the array has the shape [2, 2, 2]: expected [2, N] or [N, 2]"),
        (spec(scratch.text("missing-*.csv")), "the file does not exist: check the path"),
        (changed(&edges, |spec| spec.relations.clear()), "the graph has no relations"),
        (changed(&edges, |spec| spec.relations[0].target = "a__b".to_owned()), "invalid node type `a__b`"),
        (
            changed(&edges, |spec| {
                spec.relations[0].target = "other".to_owned();
                spec.relations[0].undirected = true;
            }),
            "cannot be undirected, because its node types differ",
        ),
        (
            changed(&edges, |spec| {
                spec.relations[0].undirected = true;
                spec.relations[0].edge_ids = true;
            }),
            "cannot have edge ids or edge features if it is undirected",
        ),
        (
            changed(&edges, |spec| spec.nodes.get_mut("node").unwrap().count = Some(1 << 32)),
            "has 4294967296 nodes; the limit is 4294967295",
        ),
        (
            changed(&edges, |spec| {
                let twice = spec.relations[0].clone();
                spec.relations.push(twice);
            }),
            "the relation `node__to__node` is listed twice",
        ),
    ];
    for (spec, part) in cases {
        let error = scratch.error(&spec);
        assert!(error.contains(part), "`{part}` is missing in: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_stopped_build_leaves_nothing() {
    let scratch = Scratch::new();
    let edges = scratch.write("e.csv", "0,1\n1,2\n");
    let settings = BuildSettings::new(1 << 20, 2);
    settings.stop.store(true, Ordering::Relaxed);
    let stopped = scratch.build_with("g", &spec(edges), &settings).map(drop);
    assert_eq!(stopped.unwrap_err(), GraphError::Interrupted);
    assert!(!scratch.path("g").exists() && !scratch.path(".g.building").exists());
}
