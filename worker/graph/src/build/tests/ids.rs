//! Nodes that are identified by text, or by integers that are not positions.

use arrow::array::{Int64Array, StringArray};

use super::super::run::BuildSettings;
use super::super::spec::{ColumnName, ColumnRef, GraphSpec, NodeSpec, OneOrMore, RelationSpec, SeedSpec};
use super::scratch::{BuiltGraph, Scratch, column, numbers};

/// Returns the ids of a node type, in the user's order.
fn names(built: &BuiltGraph, node_type: &str) -> Vec<String> {
    let offsets = numbers(&built.array(&format!("ids/{node_type}.offsets.npy")), u64::from_le_bytes);
    let text = built.array(&format!("ids/{node_type}.text.npy"));
    let name = |pair: &[u64]| String::from_utf8(text[pair[0] as usize..pair[1] as usize].to_vec()).unwrap();
    offsets.windows(2).map(name).collect()
}

/// Returns the edges as ids.
fn named_edges(built: &BuiltGraph, relation: usize, sources: &[String], targets: &[String]) -> Vec<String> {
    let topology = built.topology();
    let view = topology.relation_views()[relation];
    let mut edges = Vec::new();
    for (target, ends) in targets.iter().zip(view.offsets.windows(2)) {
        for &source in &view.sources[ends[0] as usize..ends[1] as usize] {
            edges.push(format!("{}>{target}", sources[source as usize]));
        }
    }
    edges
}

#[test]
fn text_ids_are_numbered_in_their_sorted_order() {
    let scratch = Scratch::new();
    let edges = scratch.write("e.csv", "from,to\nzoe,ann\nbob, zoe\nann,\"bob\"\nzoe,bob\n");
    let mut nodes = NodeSpec::default();
    let seeds = scratch.write("s.csv", "who\nzoe\nann\n");
    nodes.seeds.insert("train".to_owned(), SeedSpec::new(ColumnRef::from(seeds)));
    for memory_bytes in [1 << 24, 4_000] {
        let spec = GraphSpec::homogeneous(nodes.clone(), vec![edges.clone()]);
        let name = format!("g{memory_bytes}");
        let built = scratch.build_with(&name, &spec, &BuildSettings::new(memory_bytes, 2)).unwrap();
        built.check().unwrap();
        let names = names(&built, "node");
        assert_eq!(names, ["ann", "bob", "zoe"]);
        let edges = named_edges(&built, 0, &names, &names);
        assert_eq!(edges, ["zoe>ann", "ann>bob", "zoe>bob", "bob>zoe"]);
        assert_eq!(built.description.seeds[0].rows, 2);
    }
}

#[test]
fn a_table_of_ids_determines_the_order_of_nodes() {
    let scratch = Scratch::new();
    let users = scratch
        .write_parquet("u.parquet", vec![("name", column(StringArray::from(vec!["zoe", "ann", "bob"])))]);
    let items = scratch.write_parquet("i.parquet", vec![("sku", column(Int64Array::from(vec![900, 700])))]);
    let edges = vec![
        ("user", column(StringArray::from(vec!["ann", "zoe", "bob"]))),
        ("item", column(Int64Array::from(vec![700, 900, 700]))),
    ];
    let edges = scratch.write_parquet("e.parquet", edges);
    let ids = |path: &str, name: &str| Some(ColumnRef::from(format!("{path}:{name}")));
    let mut spec = GraphSpec {
        relations: vec![RelationSpec::new("user", "buys", "item", vec![edges])],
        ..GraphSpec::default()
    };
    spec.nodes.insert("user".to_owned(), NodeSpec { ids: ids(&users, "name"), ..NodeSpec::default() });
    spec.nodes.insert("item".to_owned(), NodeSpec { ids: ids(&items, "sku"), ..NodeSpec::default() });
    let built = scratch.build("g", &spec);
    built.check().unwrap();
    let (users, items) = (names(&built, "user"), names(&built, "item"));
    assert_eq!(
        (users.as_slice(), items.as_slice()),
        (["zoe", "ann", "bob"].map(String::from).as_slice(), ["900", "700"].map(String::from).as_slice())
    );
    assert_eq!(named_edges(&built, 0, &users, &items), ["zoe>900", "ann>700", "bob>700"]);
}

/// Integers are positions if the table of ids contains text.
#[test]
fn integers_are_positions_in_a_table_of_text() {
    let scratch = Scratch::new();
    let ids = scratch.write("n.csv", "name\nb\na\n");
    let edges = scratch.write("e.csv", "0,1\n1,1\n");
    let nodes = NodeSpec { ids: Some(ColumnRef::from(format!("{ids}:name"))), ..NodeSpec::default() };
    let built = scratch.build("g", &GraphSpec::homogeneous(nodes, vec![edges]));
    let names = names(&built, "node");
    assert_eq!(names, ["b", "a"]);
    assert_eq!(named_edges(&built, 0, &names, &names), ["b>a", "a>a"]);
}

#[test]
fn unknown_and_repeated_ids_are_rejected() {
    let scratch = Scratch::new();
    let ids = scratch.write("n.csv", "name\nann\nbob\n");
    let edges = scratch.write("e.csv", "from,to\nann,bob\nbob,eve\n");
    let with_ids =
        |ids: &str| NodeSpec { ids: Some(ColumnRef::from(format!("{ids}:name"))), ..NodeSpec::default() };
    let error = scratch.error(&GraphSpec::homogeneous(with_ids(&ids), vec![edges.clone()]));
    assert_eq!(error, format!("`{edges}`: row 1: the id `eve` of node type `node` is not in `{ids}`"));
    let twice = scratch.write("t.csv", "name\nann\nbob\nann\neve\n");
    let error = scratch.error(&GraphSpec::homogeneous(with_ids(&twice), vec![edges.clone()]));
    assert_eq!(error, format!("`{twice}`: the id `ann` occurs twice: remove one of the rows"));
    let mut nodes = NodeSpec::default();
    let seeds = scratch.write("s.csv", "who\nann\nmax\n");
    nodes.seeds.insert("train".to_owned(), SeedSpec::new(ColumnRef::from(seeds.clone())));
    let error = scratch.error(&GraphSpec::homogeneous(nodes, vec![edges]));
    assert_eq!(error, format!("`{seeds}`: row 1: the id `max` of node type `node` is not in any edge"));
    let mut missing = GraphSpec::homogeneous(NodeSpec::default(), Vec::new());
    missing.relations[0].edges = OneOrMore::One(scratch.write("m.csv", "from,to\nann,\nbob,eve\n"));
    missing.relations[0].columns = Some(["from", "to"].map(|name| ColumnName(name.to_owned())));
    assert!(scratch.error(&missing).ends_with("m.csv`: row 0: the id is missing"));
}
