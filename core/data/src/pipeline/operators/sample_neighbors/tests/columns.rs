//! Tests of the columns of batches.

use super::*;

#[test]
fn the_columns_of_a_graph_with_one_type_have_plain_names() {
    let graph = citations();
    let found = plan(&pipeline("size: 4, fanouts: [15, 10], features: [x, year]"), &node_rows(), &graph);
    let found = found.expect("the graph has the features");
    expect![[r#"
        n_id: list of uint32
        num_sampled_nodes: list of uint32
        x: list of float16 tensor [128]
        year: list of int32 tensor []
        colptr: list of int32
        row: list of int32
        num_sampled_edges: list of uint32
        y: list of int64
        input_id: list of int64
        time: list of int64
    "#]]
    .assert_eq(&shown(&found));
    expect![[r#"{"layout":"subgraph","hops":2,"disjoint":false,"homogeneous":true,"node_types":["paper"],"relations":[["paper","cites","paper"]],"seeds":{"nodes":"paper"},"rows":["y","input_id","time"]}"#]]
        .assert_eq(&found.metadata);
    assert_eq!(found.seeds, [("node".to_owned(), 0)]);
    let settings = SamplingSettings {
        seed: 9,
        fanouts: vec![vec![Fanout::Limit(15)], vec![Fanout::Limit(10)]],
        ..SamplingSettings::default()
    };
    assert_eq!(found.settings, settings);
    assert_eq!((found.excluded, found.time_column.as_deref(), found.weighted), (None, None, false));
}

#[test]
fn the_columns_of_a_graph_with_several_types_begin_with_the_type() {
    let parameters = "size: 4, fanouts: {user__buys__item: [3, 2]}, features: {item.x: float16}, edge_features: [price], \
                      disjoint: true, edge_ids: true, weighted: true, exclude_seed_edges: both, time: {column: time, window: 5}";
    let links = read(
        "url: g/, format: graph, seeds: links",
        "select: {columns: [source, target, time]},",
        parameters,
    );
    let found = plan(&links.expect("valid"), &link_rows(), &shop()).expect("valid");
    expect![[r#"
        user.n_id: list of uint32
        user.batch: list of int32
        user.num_sampled_nodes: list of uint32
        item.n_id: list of uint32
        item.batch: list of int32
        item.num_sampled_nodes: list of uint32
        item.x: list of float16 tensor [8]
        user__buys__item.colptr: list of int32
        user__buys__item.row: list of int32
        user__buys__item.e_id: list of int64
        user__buys__item.num_sampled_edges: list of uint32
        user__buys__item.price: list of float32 tensor [1]
        edge_label_index: list of int32
        time: list of uint32
    "#]]
    .assert_eq(&shown(&found));
    assert_eq!(found.seeds, [("source".to_owned(), 0), ("target".to_owned(), 1)]);
    assert_eq!(found.excluded, Some(ExcludedRelations { relation: 0, reverse: Some(1) }));
    let settings = &found.settings;
    let temporal = TemporalRule { strategy: TemporalStrategy::Uniform, window: Some(5) };
    assert_eq!((settings.temporal, settings.operator), (Some(temporal), 1), "select is operator 0");
    assert!(settings.merge_seeds && settings.edge_positions && settings.disjoint);
    let none = Fanout::Limit(0);
    assert_eq!(settings.fanouts, [[Fanout::Limit(3), none, none], [Fanout::Limit(2), none, none]]);
}

#[test]
fn links_with_negatives_have_the_columns_of_pyg() {
    let columns = |negatives: &str, rows: &Schema| {
        let parameters =
            format!("size: 4, fanouts: {{user__buys__item: [3]}}, seed_type: user__buys__item, {negatives}");
        let found = plan(&pipeline(&parameters), rows, &shop()).expect("valid");
        let links: String = shown(&found)
            .lines()
            .filter(|line| !line.contains('.'))
            .map(|line| format!("{line}\n"))
            .collect();
        (links, found)
    };
    let (shown, found) = columns("negatives: {mode: binary, amount: 2}", &link_rows());
    expect![[r#"
        edge_label_index: list of int32
        edge_label: list of float32
        input_id: list of uint32
        time: list of uint32
    "#]]
    .assert_eq(&shown);
    let rule = NegativeRule {
        mode: NegativeMode::Binary,
        amount: 2,
        strict: false,
        by: NegativeWeights::Uniform,
        relation: 0,
        reverse: 0,
    };
    assert_eq!((found.settings.negatives, found.seeds_per_row()), (Some(rule), 6));
    let negatives = r#""negatives":{"mode":"binary","amount":2,"strict":false,"by":"uniform"}"#;
    assert!(found.metadata.contains(negatives), "{}", found.metadata);

    let int = |name| (name, ColumnType::Scalar(ScalarType::Int16));
    let labeled = Schema::new(["id", "source", "target", "label"].map(int));
    let (shown, found) = columns("negatives: {mode: binary, by: degree^0.75}", &labeled);
    expect![[r#"
        edge_label_index: list of int32
        edge_label: list of int64
        id: list of int16
        label: list of int16
    "#]]
    .assert_eq(&shown);
    assert_eq!(found.label_column(), Some(1));
    let reverse = found.settings.negatives.map(|rule| rule.reverse);
    assert_eq!(reverse, Some(1), "the sources have their degrees in rev_buys");

    let (shown, found) = columns("negatives: {mode: triplet, strict: true}", &link_rows());
    expect![[r#"
        src_index: list of int32
        dst_pos_index: list of int32
        dst_neg_index: list of int32
        input_id: list of uint32
        time: list of uint32
    "#]]
    .assert_eq(&shown);
    assert_eq!((found.label_column(), found.seeds_per_row()), (None, 3));
    let (shown, _) = columns("negatives: {mode: triplet, amount: 5}", &link_rows());
    assert!(shown.contains("dst_neg_index: list of int32 tensor [5]\n"), "{shown}");
}

#[test]
fn a_bidirectional_graph_has_the_reverse_relations() {
    let found = plan(
        &pipeline("size: 4, fanouts: {user__buys__item: [3]}, seed_type: item, subgraph: bidirectional"),
        &node_rows(),
        &shop(),
    )
    .expect("valid");
    expect![[r#"
        user.n_id: list of uint32
        item.n_id: list of uint32
        user__buys__item.colptr: list of int32
        user__buys__item.row: list of int32
        item__rev_buys__user.colptr: list of int32
        item__rev_buys__user.row: list of int32
        y: list of int64
        input_id: list of int64
        time: list of int64
    "#]]
    .assert_eq(&shown(&found));
    assert_eq!(found.settings.reverses, [Some(1), Some(0), None]);
    assert!(found.metadata.contains(r#""subgraph":"bidirectional""#), "{}", found.metadata);
    let citations = citations();
    let parameters = "size: 4, fanouts: [2], subgraph: bidirectional, edge_ids: true";
    let found = plan(&pipeline(parameters), &node_rows(), &citations).expect("edges have ids");
    assert_eq!(found.settings.reverses, [Some(0)]);
    // Each edge has a reverse edge, and each node is a target. Features and hops have no columns.
    let (nodes, edges) = (4 + 4 * 2, 2 * 4 * 2);
    let seed_bytes = 4 * 24;
    let offsets = (nodes + 1) * 4;
    assert_eq!(found.expected_bytes(4, &citations), nodes * 4 + edges * (4 + 8) + offsets + seed_bytes);
}
