//! Stored features of nodes and edges.

use arrow::array::{FixedSizeListArray, Float32Array, Int16Array, Int32Array, ListArray};
use arrow::datatypes::{Float32Type, Int64Type};
use feedline_data::schema::ScalarType;

use super::super::run::BuildSettings;
use super::super::spec::{ColumnRef, FeatureSpec, GraphSpec, NodeSpec, OrderSpec};
use super::scratch::{BuiltGraph, Scratch, column, numbers};

fn feature(path: impl Into<String>, dtype: Option<ScalarType>) -> FeatureSpec {
    FeatureSpec { from: ColumnRef::from(path.into()), dtype }
}

/// Four nodes, of which node 2 has most edges, and a feature `x`.
fn spec(scratch: &Scratch, x: FeatureSpec) -> GraphSpec {
    let edges = scratch.write("e.csv", "2,0\n2,1\n3,2\n2,3\n");
    let mut nodes = NodeSpec::default();
    nodes.features.insert("x".to_owned(), x);
    GraphSpec::homogeneous(nodes, vec![edges])
}

fn floats(built: &BuiltGraph) -> Vec<f32> {
    numbers(&built.array("nodes/node.x.npy"), f32::from_le_bytes)
}

fn float_bytes(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn rows_are_stored_in_the_order_of_nodes() {
    let scratch = Scratch::new();
    let bytes = float_bytes((0..8).map(|number| number as f32));
    let path = scratch.write_array("x.npy", ScalarType::Float32, &[4, 2], &bytes);
    let mut spec = spec(&scratch, feature(path, None));
    let built = scratch.build("plain", &spec);
    assert_eq!(floats(&built), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let description = &built.description.nodes[0].features[0];
    assert_eq!((description.dtype, description.shape.as_slice()), (ScalarType::Float32, &[2][..]));
    spec.order = OrderSpec::Degree;
    for memory_bytes in [1 << 24, 128] {
        let name = format!("degree{memory_bytes}");
        let built = scratch.build_with(&name, &spec, &BuildSettings::new(memory_bytes, 2)).unwrap();
        built.check().unwrap();
        assert_eq!(numbers(&built.array("ids/node.positions.npy"), u32::from_le_bytes), [2, 3, 0, 1]);
        assert_eq!(floats(&built), [4.0, 5.0, 6.0, 7.0, 0.0, 1.0, 2.0, 3.0]);
    }
}

#[test]
fn columns_of_numbers_and_lists_are_features() {
    let scratch = Scratch::new();
    let rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]];
    let optional = || rows.iter().map(|row| Some(row.map(Some).to_vec()));
    let columns = vec![
        ("fixed", column(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(optional(), 2))),
        ("list", column(ListArray::from_iter_primitive::<Float32Type, _, _>(optional()))),
        ("number", column(Int16Array::from(vec![1, 2, 3, 4]))),
    ];
    let path = scratch.write_parquet("x.parquet", columns);
    let expected: Vec<f32> = rows.concat();
    for name in ["fixed", "list"] {
        let built = scratch.build(name, &spec(&scratch, feature(format!("{path}:{name}"), None)));
        assert_eq!(floats(&built), expected, "{name}");
    }
    let numbers_spec = spec(&scratch, feature(format!("{path}:number"), Some(ScalarType::Float32)));
    let built = scratch.build("number", &numbers_spec);
    assert_eq!(floats(&built), [1.0, 2.0, 3.0, 4.0]);
    assert!(built.description.nodes[0].features[0].shape.is_empty());
    built.check().unwrap();
}

#[test]
fn numbers_are_converted_to_another_type() {
    let scratch = Scratch::new();
    let path =
        scratch.write_array("x.npy", ScalarType::Float32, &[4], &float_bytes([1.0, -2.0, 0.5, 65_504.0]));
    let built = scratch.build("half", &spec(&scratch, feature(path, Some(ScalarType::Float16))));
    assert_eq!(
        numbers(&built.array("nodes/node.x.npy"), u16::from_le_bytes),
        [0x3c00, 0xc000, 0x3800, 0x7bff]
    );
    let path = scratch.write_integers("n.npy", &[4], [1, 2, 3, 70_000]);
    let error = scratch.error(&spec(&scratch, feature(path.clone(), Some(ScalarType::UInt16))));
    assert!(error.starts_with(&format!("`{path}`: a number does not fit in uint16")), "{error}");
}

/// Edge features follow the order of stored edges, also if some rows are not edges.
#[test]
fn edge_features_are_stored_in_the_order_of_edges() {
    let scratch = Scratch::new();
    let edges = scratch.write("e.csv", "a,b,keep\n2,1,1\n0,1,1\n1,0,0\n1,0,1\n0,1,1\n");
    let path = scratch.write_integers("w.npy", &[5], [10, 11, 12, 13, 14]);
    for (memory_bytes, edge_ids) in [(1 << 24, false), (96, true)] {
        let mut spec = GraphSpec::homogeneous(NodeSpec::default(), vec![edges.clone()]);
        let relation = &mut spec.relations[0];
        relation.filter.insert("keep".to_owned(), super::super::spec::FilterValue("1".to_owned()));
        relation.features.insert("w".to_owned(), feature(path.clone(), None));
        relation.edge_ids = edge_ids;
        let built = scratch
            .build_with(&format!("g{memory_bytes}"), &spec, &BuildSettings::new(memory_bytes, 1))
            .unwrap();
        built.check().unwrap();
        let rows = numbers(&built.array("edges/node__to__node.w.npy"), i64::from_le_bytes);
        assert_eq!(rows, [13, 11, 14, 10]);
        assert_eq!(built.description.relations[0].edge_ids.is_some(), edge_ids);
        assert_eq!(built.path.join("topology/node__to__node.edge_ids.npy").exists(), edge_ids);
    }
}

#[test]
fn arrays_of_edges_have_one_row_per_edge() {
    let scratch = Scratch::new();
    let edges = scratch.write_integers("e.npy", &[2, 3], [0, 1, 2, 1, 2, 0]);
    let long = scratch.write_integers("long.npy", &[4], [1, 2, 3, 4]);
    let plain = GraphSpec::homogeneous(NodeSpec::default(), vec![edges]);
    let mut weighted = plain.clone();
    weighted.relations[0].weight = Some(long.clone());
    assert!(scratch.error(&weighted).contains("the array has 4 rows, but `"));
    let mut featured = plain;
    featured.relations[0].features.insert("f".to_owned(), feature(long, None));
    assert!(scratch.error(&featured).contains("the feature `f` has 4 rows, but there are 3 edges"));
}

#[test]
fn invalid_features_are_rejected() {
    let scratch = Scratch::new();
    let short = scratch.write_integers("short.npy", &[3], [1, 2, 3]);
    let long = scratch.write("truncated.npy", &std::fs::read(scratch.path("short.npy")).unwrap()[..140]);
    let text = scratch.write("text.npy", "not an array");
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1)]),
        Some(vec![Some(1), Some(2)]),
    ]);
    let lists = scratch.write_parquet("l.parquet", vec![("x", column(lists))]);
    let missing = column(Float32Array::from(vec![Some(1.0), None]));
    let missing =
        scratch.write_parquet("m.parquet", vec![("x", missing), ("y", column(Int32Array::from(vec![1, 2])))]);
    let count = |rows: u64| format!("has {rows} rows, but there are 4 nodes: save one row for each");
    let cases = [
        (feature(short.clone(), None), count(3)),
        (feature(long, None), "at byte 140: the file has 140 bytes, which does not match".to_owned()),
        (feature(text, None), "at byte 0: the file is not a NumPy file".to_owned()),
        (feature(lists, None), "row 1: the list has 2 numbers, but other rows have 1".to_owned()),
        (feature(format!("{missing}:x"), None), "row 1: the feature is missing".to_owned()),
        (
            feature(format!("{missing}:z"), None),
            "the column `z` does not exist: the columns are `x`, `y`".to_owned(),
        ),
        (feature(scratch.text("no.npy"), None), "cannot open the file".to_owned()),
        (feature(short, Some(ScalarType::Bool)), "int64 cannot be converted to bool".to_owned()),
    ];
    for (x, part) in cases {
        let mut spec = spec(&scratch, x);
        if !part.contains("nodes") {
            // The number of nodes is that of the feature.
            spec.relations[0].edges = super::super::spec::OneOrMore::One(scratch.write("none.csv", "a,b\n"));
        } else {
            spec.nodes.get_mut("node").unwrap().count = Some(4);
        }
        let error = scratch.error(&spec);
        assert!(error.contains(&part), "`{part}` is missing in: {error}");
    }
}
