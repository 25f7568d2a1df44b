//! Stored seed sets.

use std::collections::BTreeMap;
use std::fs::File;

use arrow::array::{AsArray, Float32Array, Int32Array, RecordBatch, StringArray, TimestampSecondArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float32Type, Int64Type, UInt32Type};
use arrow::ipc::reader::FileReader;
use feedline_data::graph::description::SeedKind;
use feedline_data::schema::ScalarType;

use super::super::spec::{ColumnRef, GraphSpec, LinkSeedSpec, NodeSpec, OneOrMore, OrderSpec, SeedSpec};
use super::scratch::{BuiltGraph, Scratch, column};

fn seeds(from: impl Into<String>, time: Option<&str>) -> SeedSpec {
    SeedSpec { time: time.map(str::to_owned), ..SeedSpec::new(ColumnRef::from(from.into())) }
}

/// Four nodes. Their stored ids are 2, 3, 0, 1.
fn spec(scratch: &Scratch, name: &str, seeds: SeedSpec) -> GraphSpec {
    let edges = scratch.write("e.csv", "2,0\n2,1\n3,2\n2,3\n");
    let nodes = NodeSpec { seeds: BTreeMap::from([(name.to_owned(), seeds)]), ..NodeSpec::default() };
    let mut spec = GraphSpec::homogeneous(nodes, vec![edges]);
    spec.order = OrderSpec::Degree;
    spec
}

fn read(built: &BuiltGraph, name: &str) -> RecordBatch {
    let file = File::open(built.path.join(format!("seeds/{name}.arrow"))).unwrap();
    let reader = FileReader::try_new(file, None).unwrap();
    let schema = reader.schema();
    let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>().unwrap();
    concat_batches(&schema, &batches).unwrap()
}

fn nodes(rows: &RecordBatch, name: &str) -> Vec<u32> {
    rows.column_by_name(name).unwrap().as_primitive::<UInt32Type>().values().to_vec()
}

fn integers(rows: &RecordBatch, name: &str) -> Vec<i64> {
    rows.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec()
}

#[test]
fn seeds_are_positions_masks_or_all_nodes() {
    let scratch = Scratch::new();
    let positions = scratch.write_integers("train.npy", &[3], [3, 0, 3]);
    let mask = scratch.write_array("mask.npy", ScalarType::Bool, &[4], &[0, 1, 0, 1]);
    let csv = scratch.write("s.csv", "n\n2\n");
    let cases = [
        ("positions", positions, vec![1, 2, 1]),
        ("mask", mask, vec![3, 1]),
        ("csv", csv, vec![0]),
        ("everything", "all".to_owned(), vec![2, 3, 0, 1]),
    ];
    for (name, from, expected) in cases {
        let built = scratch.build(name, &spec(&scratch, name, seeds(from, None)));
        built.check().unwrap();
        let rows = read(&built, name);
        assert_eq!(nodes(&rows, "node"), expected, "{name}");
        assert_eq!(integers(&rows, "input_id"), (0..expected.len() as i64).collect::<Vec<_>>());
        let set = &built.description.seeds[0];
        assert_eq!((set.rows, &set.of), (expected.len() as u64, &SeedKind::Nodes("node".to_owned())));
    }
}

#[test]
fn labels_and_times_are_columns() {
    let scratch = Scratch::new();
    let labels = vec![
        ("kind", column(StringArray::from(vec!["b", "a", "b", "c"]))),
        ("score", column(Float32Array::from(vec![Some(0.5), None, Some(1.5), Some(2.5)]))),
    ];
    let labels = scratch.write_parquet("n.parquet", labels);
    let rows = vec![
        ("who", column(Int32Array::from(vec![3, 0, 2]))),
        ("at", column(TimestampSecondArray::from(vec![1, 2, 3]))),
    ];
    let from = scratch.write_parquet("s.parquet", rows);
    let mut spec = spec(&scratch, "train", seeds(format!("{from}:who"), Some("at")));
    let node = spec.nodes.get_mut("node").unwrap();
    node.labels.insert("y".to_owned(), ColumnRef::from(format!("{labels}:kind")));
    node.labels.insert("score".to_owned(), ColumnRef::from(format!("{labels}:score")));
    let built = scratch.build("g", &spec);
    built.check().unwrap();
    let rows = read(&built, "train");
    let names: Vec<&String> = rows.schema_ref().fields().iter().map(|field| field.name()).collect();
    assert_eq!(names, ["node", "score", "y", "time", "input_id"]);
    assert_eq!(integers(&rows, "y"), [2, 1, 1]);
    assert_eq!(
        rows.column_by_name("score").unwrap().as_primitive::<Float32Type>().values(),
        &[2.5, 0.5, 1.5]
    );
    assert_eq!(integers(&rows, "time"), [1_000_000, 2_000_000, 3_000_000]);
    assert_eq!(built.description.seeds[0].classes["y"], ["a", "b", "c"]);
    assert!(!built.description.seeds[0].classes.contains_key("score"));
    let mut all = spec.clone();
    all.nodes.get_mut("node").unwrap().seeds.insert("train".to_owned(), seeds("all", None));
    assert!(scratch.error(&all).contains("the node has no label `score`"));
}

/// Integers of a CSV file keep their values, although all its columns are text.
#[test]
fn labels_of_a_csv_file_are_integers_or_classes() {
    let scratch = Scratch::new();
    let labels = scratch.write("y.csv", "y,kind\n10,b\n2,a\n7,a\n-1,a\n");
    let mut spec = spec(&scratch, "train", seeds("all", None));
    let node = spec.nodes.get_mut("node").unwrap();
    node.labels.insert("y".to_owned(), ColumnRef::from(format!("{labels}:y")));
    node.labels.insert("kind".to_owned(), ColumnRef::from(format!("{labels}:kind")));
    let built = scratch.build("g", &spec);
    let rows = read(&built, "train");
    assert_eq!((integers(&rows, "y"), integers(&rows, "kind")), (vec![10, 2, 7, -1], vec![1, 0, 0, 0]));
    assert_eq!(built.description.seeds[0].classes.keys().collect::<Vec<_>>(), ["kind"]);
}

#[test]
fn links_have_a_source_a_target_and_a_label() {
    let scratch = Scratch::new();
    let from = scratch.write("links.csv", "a,b,hit,at\n2,0,1,7\n0,3,0,9\n");
    let mut spec = spec(&scratch, "all", seeds("all", None));
    let links = LinkSeedSpec {
        edges: OneOrMore::One(from),
        columns: None,
        label: Some("hit".to_owned()),
        time: Some("at".to_owned()),
    };
    spec.relations[0].seeds.insert("links".to_owned(), links);
    let built = scratch.build("g", &spec);
    built.check().unwrap();
    let rows = read(&built, "links");
    assert_eq!((nodes(&rows, "source"), nodes(&rows, "target")), (vec![0, 2], vec![2, 1]));
    assert_eq!(integers(&rows, "label"), [1, 0]);
    assert_eq!(integers(&rows, "time"), [7, 9]);
    let set = built.description.seeds.iter().find(|set| set.name == "links").unwrap();
    assert_eq!(set.of, SeedKind::Links("node__to__node".to_owned()));
}

#[test]
fn seeds_have_labels_and_times_of_their_own() {
    let scratch = Scratch::new();
    let from = scratch.write_integers("train.npy", &[2], [3, 0]);
    let labels = scratch.write_integers("labels.npy", &[2], [7, 5]);
    let times = scratch.write_integers("times.npy", &[2], [-1, 1]);
    let mut set = seeds(from, Some(&times));
    set.label = Some(labels.clone());
    let built = scratch.build("g", &spec(&scratch, "train", set.clone()));
    built.check().unwrap();
    let rows = read(&built, "train");
    assert_eq!((nodes(&rows, "node"), integers(&rows, "y")), (vec![1, 2], vec![7, 5]));
    assert_eq!(integers(&rows, "time"), [-1, 1]);
    let mut twice = spec(&scratch, "train", set.clone());
    let node = twice.nodes.get_mut("node").unwrap();
    node.labels.insert("y".to_owned(), ColumnRef::from(labels));
    assert!(scratch.error(&twice).contains("the nodes have the label `y` too"));
    set.label = Some(scratch.write_integers("long.npy", &[3], [7, 5, 3]));
    assert!(scratch.error(&spec(&scratch, "train", set)).contains("the array has 3 rows, but `"));
}

#[test]
fn invalid_seeds_are_rejected() {
    let scratch = Scratch::new();
    let error = |from: String, time: Option<&str>| scratch.error(&spec(&scratch, "train", seeds(from, time)));
    let beyond = scratch.write_integers("beyond.npy", &[2], [0, 4]);
    assert_eq!(
        error(beyond.clone(), None),
        format!("`{beyond}`: row 1: the node 4 does not exist: there are 4 nodes, which are counted from 0")
    );
    let negative = scratch.write_integers("negative.npy", &[1], [-1]);
    assert!(error(negative, None).contains("row 0: the node -1 does not exist"));
    let mask = scratch.write_array("short.npy", ScalarType::Bool, &[3], &[0, 1, 0]);
    assert!(error(mask, None).contains("the column has 3 booleans, but there are 4 nodes"));
    assert!(error("all".to_owned(), Some("t")).contains("the seeds `all` have no times and labels"));
    let mut labels = spec(&scratch, "train", seeds("all", None));
    let short = scratch.write_integers("y.npy", &[3], [0, 1, 2]);
    labels.nodes.get_mut("node").unwrap().labels.insert("y".to_owned(), ColumnRef::from(short));
    assert!(scratch.error(&labels).contains("the label `y` has 3 rows, but there are 4 nodes"));
    let mut reserved = spec(&scratch, "train", seeds("all", None));
    let node = reserved.nodes.get_mut("node").unwrap();
    node.labels.insert("time".to_owned(), ColumnRef::from("y.npy".to_owned()));
    assert!(scratch.error(&reserved).contains("the label `time` has the name of another column"));
}
