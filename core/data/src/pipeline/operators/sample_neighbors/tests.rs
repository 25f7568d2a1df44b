//! Tests of `sample_neighbors`: pipeline files, checks, and the columns and sizes of batches.

mod columns;

use expect_test::{Expect, expect};

use super::*;
use crate::graph::description::{GraphHash, SeedKind};
use crate::graph::{
    Fanout, FeatureSummary, GraphSummary, NegativeMode, NegativeRule, NegativeWeights, NodeTypeSummary,
    RelationSummary, SamplingSettings, SeedSetSummary, TemporalRule,
};
use crate::pipeline::{Pipeline, Source, infer};
use crate::schema::{ColumnType, ScalarType};

/// Reads a pipeline whose source is a graph, and whose operators end with `sample_neighbors` with these parameters.
fn read(source: &str, before: &str, parameters: &str) -> Result<Pipeline, String> {
    let yaml = format!(
        "name: p\nsource: {{ {source} }}\nseed: 9\noperators: [{before} sample_neighbors: {{ {parameters} }}]\n"
    );
    Pipeline::from_yaml(&yaml, "p.yaml").map_err(|error| error.to_string())
}

fn pipeline(parameters: &str) -> Pipeline {
    read("url: g/, format: graph, seeds: train", "", parameters).expect("the pipeline is valid")
}

fn check(parameters: &str, expect: Expect) {
    let found = read("url: g/, format: graph", "", parameters).err();
    expect.assert_eq(found.as_deref().unwrap_or("accepted"));
}

fn feature(name: &str, dtype: ScalarType, shape: &[u32]) -> FeatureSummary {
    FeatureSummary { name: name.to_owned(), dtype, shape: shape.to_vec(), content: GraphHash(1) }
}

fn relation(source: &str, name: &str, target: &str, edges: u64) -> RelationSummary {
    RelationSummary {
        source: source.to_owned(),
        name: name.to_owned(),
        target: target.to_owned(),
        edges,
        undirected: false,
        has_weights: false,
        has_times: false,
        features: Vec::new(),
    }
}

fn nodes(name: &str, count: u32, features: Vec<FeatureSummary>) -> NodeTypeSummary {
    NodeTypeSummary { name: name.to_owned(), count, features }
}

fn seeds(name: &str, of: SeedKind) -> SeedSetSummary {
    SeedSetSummary { name: name.to_owned(), of }
}

/// A graph with one node type and one relation.
fn citations() -> GraphSummary {
    let x = feature("x", ScalarType::Float16, &[128]);
    GraphSummary {
        topology: GraphHash(1),
        nodes: vec![nodes("paper", 1_000, vec![x, feature("year", ScalarType::Int32, &[])])],
        relations: vec![relation("paper", "cites", "paper", 20_000)],
        seeds: vec![seeds("train", SeedKind::Nodes("paper".to_owned()))],
    }
}

/// A graph with two node types, three relations and link seeds.
fn shop() -> GraphSummary {
    let buys = RelationSummary {
        has_weights: true,
        has_times: true,
        features: vec![feature("price", ScalarType::Float32, &[1])],
        ..relation("user", "buys", "item", 500)
    };
    GraphSummary {
        topology: GraphHash(2),
        nodes: vec![
            nodes("user", 100, vec![feature("x", ScalarType::Float32, &[4])]),
            nodes("item", 50, vec![feature("x", ScalarType::Float32, &[8])]),
        ],
        relations: vec![
            buys,
            relation("item", "rev_buys", "user", 500),
            relation("item", "like", "item", 60),
        ],
        seeds: vec![
            seeds("train", SeedKind::Nodes("item".to_owned())),
            seeds("links", SeedKind::Links("user__buys__item".to_owned())),
        ],
    }
}

fn node_rows() -> Schema {
    let int = |name| (name, ColumnType::Scalar(ScalarType::Int64));
    Schema::new([int("node"), int("y"), int("input_id"), int("time")])
}

fn link_rows() -> Schema {
    let int = |name| (name, ColumnType::Scalar(ScalarType::UInt32));
    Schema::new([int("source"), int("target"), int("input_id"), int("time")])
}

fn plan(pipeline: &Pipeline, rows: &Schema, graph: &GraphSummary) -> Result<GraphBatchPlan, String> {
    GraphBatchPlan::new(pipeline, rows, graph).map(|plan| plan.expect("the pipeline samples a graph"))
}

fn shown(plan: &GraphBatchPlan) -> String {
    let columns = plan.columns.iter().map(|column| format!("{}: {}\n", column.name, column.column_type));
    columns.collect()
}

#[test]
fn a_pipeline_file_has_the_fanouts_and_features_in_two_forms() {
    let short = pipeline("size: 4, fanouts: [15, -1]");
    assert_eq!(Pipeline::from_yaml(&short.to_yaml(), "p.yaml"), Ok(short.clone()));
    let built = Pipeline::builder("p")
        .source(Source::graph("g/").seeds("train"))
        .seed(9)
        .operator(OperatorKind::SampleNeighbors(SampleNeighbors::new(4, &[15, -1])))
        .build();
    assert_eq!(built, Ok(short.clone()));
    assert_eq!((short.batch_size(), short.is_indivisible(), short.graph_url()), (4, true, Some("g/")));
    let long = pipeline(
        "size: 4, fanouts: {a__b__c: [1, 2]}, features: {x: float16}, edge_features: [w], layout: blocks, remainder: drop, \
         graph: 's3://g', seed_type: a, replace: true, disjoint: true, weighted: true, \
         time: {column: time, strategy: last, window: 60}, resample: never, exclude_seed_edges: both, edge_ids: true, \
         placement: partition",
    );
    assert!(long.partitions_features() && !short.partitions_features());
    assert_eq!(Pipeline::from_yaml(&long.to_yaml(), "p.yaml"), Ok(long.clone()));
    assert_eq!((long.remainder(), long.graph_url()), (Remainder::Drop, Some("s3://g")));
    assert!(
        long.read_locations()
            .iter()
            .any(|(name, url)| { name == "operator 1 (sample_neighbors).graph" && *url == "s3://g" })
    );
    expect![[r#"
        pipeline p
              source            graph g/, seeds train
              order             deterministic, storage order, seed 9, on error fail
           1  sample_neighbors  4 seeds, fanouts [15, -1]
    "#]]
    .assert_eq(&short.render());
    expect!["4 seeds, fanouts a__b__c [1, 2], features x as float16, edge features w, blocks, with replacement, disjoint, weighted, edge ids, partitioned features, edges until time in a window of 60, latest edges, drawn once, without seed edges and their reverse, remainder drop, graph s3://g"]
        .assert_eq(&long.operators[0].kind.definition().summary());
}

#[test]
fn a_pipeline_file_has_negatives_and_bidirectional_graphs() {
    let long = pipeline(
        "size: 4, fanouts: [3], subgraph: bidirectional, \
         negatives: {mode: triplet, amount: 4, strict: true, by: degree^0.75}",
    );
    assert_eq!(Pipeline::from_yaml(&long.to_yaml(), "p.yaml"), Ok(long.clone()));
    expect!["4 seeds, fanouts [3], bidirectional, 4 strict triplet negatives by degree^0.75"]
        .assert_eq(&long.operators[0].kind.definition().summary());
    let short = pipeline("size: 4, fanouts: [3], negatives: {mode: binary}");
    expect!["4 seeds, fanouts [3], 1 binary negatives"]
        .assert_eq(&short.operators[0].kind.definition().summary());
}

#[test]
fn invalid_parameters_are_rejected_in_one_sentence() {
    let message = |parameters: &str| {
        let error = read("url: g/, format: graph", "", parameters).expect_err("invalid");
        error.split_once("(sample_neighbors): ").map_or(error.clone(), |(_, sentence)| sentence.to_owned())
    };
    let cases = [
        ("size: 0, fanouts: [1]", "size is 0; expected a number from 1 to 1000000"),
        (
            "size: 1, fanouts: []",
            "fanouts is empty; write a number of neighbors for each hop, such as [15, 10]",
        ),
        (
            "size: 1, fanouts: [-2]",
            "fanouts contains -2; expected a number of neighbors from 0 to 65536, or -1 for all neighbors",
        ),
        (
            "size: 1, fanouts: {a: [1], b: [1, 2]}",
            "fanouts has 2 hops for `b`, but 1 for another relation; write the same number of hops for each relation",
        ),
        ("size: 1, fanouts: [1], features: [x, x]", "features lists `x` twice; remove one entry"),
        ("size: 1, fanouts: [1], edge_features: [w, w]", "edge_features lists `w` twice; remove one entry"),
        (
            "size: 1, fanouts: [1], remainder: carry",
            "remainder is carry, but a sampled graph cannot be divided between epochs; use emit or drop",
        ),
        (
            "size: 1, fanouts: [1], time: {column: t}",
            "time requires disjoint trees, because each seed has its own time; set `disjoint: true`",
        ),
        (
            "size: 1, fanouts: [1], disjoint: true, time: {column: t, window: 0}",
            "time.window is 0, which contains no edges; write its length, or remove window",
        ),
        (
            "size: 1, fanouts: [1], negatives: {mode: binary, amount: 0}",
            "negatives.amount is 0; expected a number from 1 to 10000",
        ),
        (
            "size: 1000, fanouts: [1], negatives: {mode: triplet, amount: 1000}",
            "a batch would have 1001000 links and negatives; the limit is 1000000; use a smaller size or a smaller negatives.amount",
        ),
        (
            "size: 1, fanouts: [1], subgraph: bidirectional, layout: blocks",
            "subgraph is bidirectional, but the edges of blocks lead only to the targets of a hop; use `layout: subgraph`, or remove subgraph",
        ),
        (
            "size: 1, fanouts: [1], placement: partition, edge_features: [w]",
            "placement is partition, but the batches contain no features of nodes; add features, or remove placement",
        ),
        ("size: 1, fanouts: [1], graph: ' '", "graph is empty; write the path or URL of a graph's folder"),
    ];
    for (parameters, expected) in cases {
        assert_eq!(message(parameters), expected, "{parameters}");
    }
    check("size: 1, fanouts: [0], graph: g", expect!["accepted"]);
    let untagged = message("size: 1, fanouts: 5");
    assert!(untagged.contains("expected a list with a number of neighbors for each hop"), "{untagged}");
    let untagged = message("size: 1, fanouts: [5], features: x");
    assert!(untagged.contains("expected a list of features"), "{untagged}");
}

#[test]
fn a_pipeline_samples_one_graph() {
    let error = |source: &str, parameters: &str| {
        let error = read(source, "", parameters).expect_err("invalid");
        error.split_once(": ").map(|(_, sentence)| sentence.to_owned()).expect("it begins with the file")
    };
    let parameters = "size: 1, fanouts: [1]";
    assert_eq!(
        error("url: a, format: parquet", parameters),
        "operator 1 (sample_neighbors): graph is missing; write the path or URL of the graph's folder, because the source has the format parquet"
    );
    assert!(read("url: a, format: parquet", "", "size: 1, fanouts: [1], graph: g").is_ok());
    let mix = |second: &str| {
        format!("mix: [{{url: g, format: graph, seeds: a}}, {{url: {second}, format: graph, seeds: b}}]")
    };
    assert!(read(&mix("g/"), "", parameters).is_ok());
    assert_eq!(
        error(&mix("h"), parameters),
        "operator 1 (sample_neighbors): the source reads the seeds of several graphs (g and h); set graph to the folder of the graph to sample"
    );
    assert_eq!(
        error("url: a, format: parquet, seeds: s", "size: 1, fanouts: [1], graph: g"),
        "source.seeds: the format parquet has no seeds; remove `seeds`, or use `format: graph` for the folder of a graph"
    );
    assert_eq!(
        error("url: [a, b], format: graph", parameters),
        "source.url: a graph has one folder; write one path or URL, and list other graphs under `mix`"
    );
    let replacing = "name: p\nsource: {url: g, format: graph}\non_error: replace\noperators: [sample_neighbors: {size: 1, fanouts: [1]}]\n";
    assert!(
        Pipeline::from_yaml(replacing, "p.yaml").is_err_and(|error| error.message.contains("node 0")),
        "a failed seed has no node"
    );
}

#[test]
fn the_rows_need_nodes_or_links() {
    let inferred = |rows: &Schema, parameters: &str| {
        infer(&pipeline(parameters), rows).map(|schemas| schemas[1].clone()).map_err(|error| error.message)
    };
    let columns = inferred(&node_rows(), "size: 1, fanouts: [1]").expect("the rows have nodes");
    assert_eq!(columns.names().collect::<Vec<_>>(), ["y", "input_id", "time"]);
    assert_eq!(columns.get("y").map(ToString::to_string).as_deref(), Some("list of int64"));
    let required = |rows: &Schema| pipeline("size: 1, fanouts: [1]").required_columns(rows);
    assert_eq!(required(&node_rows()), ["node", "y", "input_id", "time"]);
    let error = |rows: &Schema, parameters: &str| inferred(rows, parameters).expect_err("invalid");
    let text = Schema::new([("node", ColumnType::Utf8)]);
    assert!(
        error(&text, "size: 1, fanouts: [1]")
            .contains("column `node` contains text, but the operator needs integers")
    );
    let none = Schema::new([("id", ColumnType::Scalar(ScalarType::Int64))]);
    assert!(error(&none, "size: 1, fanouts: [1]").contains("neither a column `node` nor the columns"));
    let both =
        Schema::new(["node", "source", "target"].map(|name| (name, ColumnType::Scalar(ScalarType::Int64))));
    assert!(error(&both, "size: 1, fanouts: [1]").contains("drop `node`"));
    assert!(
        error(&node_rows(), "size: 1, fanouts: [1], exclude_seed_edges: seeds")
            .contains("remove exclude_seed_edges")
    );
    assert!(
        error(&node_rows(), "size: 1, fanouts: [1], negatives: {mode: binary}").ends_with("remove negatives")
    );
    let timed = "size: 1, fanouts: [1], disjoint: true, time: {column: when}";
    assert!(error(&node_rows(), timed).contains("there is no column `when`"));
}

#[test]
fn negatives_are_part_of_the_expected_size() {
    let expected = |negatives: &str| {
        let parameters = format!("size: 4, fanouts: [0], seed_type: paper__cites__paper, {negatives}");
        let found = plan(&pipeline(&parameters), &link_rows(), &citations()).expect("valid");
        found.expected_bytes(10, &citations())
    };
    // Two columns of the rows with values of 4 bytes, and the numbers of nodes of the seeds and of the hop.
    let rows = 10 * 8 + 2 * 4;
    assert_eq!(expected("negatives: {mode: binary, amount: 2}"), 60 * 4 + 60 * 4 + 30 * 4 + rows);
    assert_eq!(expected("negatives: {mode: triplet, amount: 3}"), 50 * 4 + 10 * 4 * 5 + rows);
}

#[test]
fn what_the_graph_lacks_is_named_with_the_fix() {
    let error = |parameters: &str, rows: &Schema, graph: &GraphSummary| {
        plan(&pipeline(parameters), rows, graph)
            .expect_err("invalid")
            .replace("operator 1 (sample_neighbors): ", "")
    };
    let (graph, shop) = (citations(), shop());
    let cases = [
        (
            error("size: 1, fanouts: [1], features: [z]", &node_rows(), &graph),
            "features: the graph has no feature `z`; the features are x, year",
        ),
        (
            error("size: 1, fanouts: [1], features: [paper.yaer]", &node_rows(), &graph),
            "features: the graph has no feature `paper.yaer`; did you mean `paper.year`? the features are paper.x, paper.year",
        ),
        (
            error(
                "size: 1, fanouts: {item__like__item: [1]}, features: [user.x], seed_type: item",
                &node_rows(),
                &shop,
            ),
            "features: `user.x` is a feature of `user`, which the batches do not contain; sample a relation of `user`, or remove the feature",
        ),
        (
            error(
                "size: 1, fanouts: {item__like__item: [1]}, edge_features: [price], seed_type: item",
                &node_rows(),
                &shop,
            ),
            "edge_features: `price` is a feature of `user__buys__item`, which the batches do not contain; sample `user__buys__item`, or remove the feature",
        ),
        (
            error("size: 1, fanouts: [1], features: {year: float32}", &node_rows(), &graph),
            "features: `year` is stored as int32, which cannot be converted to float32; use int32, or build the graph with another type",
        ),
        (
            error("size: 1, fanouts: {paper__cite__paper: [1]}", &node_rows(), &graph),
            "fanouts names the relation `paper__cite__paper`, which the graph does not have; did you mean `paper__cites__paper`? the relations are paper__cites__paper",
        ),
        (
            error("size: 1, fanouts: [1], weighted: true", &node_rows(), &graph),
            "weighted is true, but the relation `paper__cites__paper` has no weights; build the graph with weights, or remove weighted",
        ),
        (
            error("size: 1, fanouts: [1], disjoint: true, time: {column: time}", &node_rows(), &graph),
            "time is set, but the sampled relations have no times; build the graph with times, or remove time",
        ),
        (
            error("size: 1, fanouts: [1], seed_type: shop", &node_rows(), &graph),
            "seed_type is `shop`, but the graph has no such node type; set it to one of paper",
        ),
        (
            error("size: 1, fanouts: [1]", &link_rows(), &shop),
            "seed_type is missing, and the seeds do not determine it; set it to one of user__buys__item, item__rev_buys__user, item__like__item",
        ),
        (
            error(
                "size: 1, fanouts: [1], seed_type: item__like__item, exclude_seed_edges: seeds",
                &node_rows(),
                &shop,
            ),
            "exclude_seed_edges applies to seeds with the columns `source` and `target`, but the rows have the column `node`; remove exclude_seed_edges",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    let mut one_way = shop.clone();
    one_way.relations.remove(1);
    let bidirectional = "size: 1, fanouts: {user__buys__item: [1]}, seed_type: item, subgraph: bidirectional";
    assert_eq!(
        error(bidirectional, &node_rows(), &one_way),
        "subgraph is bidirectional, but the graph has no relation `rev_buys` from `item` to `user`; remove `user__buys__item` from fanouts, or remove subgraph"
    );
    assert_eq!(
        error(&format!("{bidirectional}, edge_ids: true"), &node_rows(), &shop),
        "a bidirectional graph has no edge ids and edge features if the reverse edges are in another relation; use `subgraph: sampled`, or remove edge_ids and edge_features"
    );
    let links = "size: 1, fanouts: [1], seed_type: user__buys__item";
    let by_degree = format!("{links}, negatives: {{mode: binary, by: degree^0.75}}");
    assert_eq!(
        error(&by_degree, &link_rows(), &one_way),
        "negatives.by is degree^0.75, but the graph has no relation `rev_buys` from `item` to `user` with the degrees of the sources; use `mode: triplet` or `by: uniform`"
    );
    one_way.relations[0].edges = 0;
    assert_eq!(
        error(&format!("{links}, negatives: {{mode: triplet, by: degree^0.75}}"), &link_rows(), &one_way),
        "negatives.by is degree^0.75, but the relation `user__buys__item` has no edges; use `by: uniform`"
    );
    let text = Schema::new([
        ("source", ColumnType::Scalar(ScalarType::Int64)),
        ("target", ColumnType::Scalar(ScalarType::Int64)),
        ("label", ColumnType::Utf8),
    ]);
    assert_eq!(
        error(&format!("{links}, negatives: {{mode: binary}}"), &text, &shop),
        "column `label` becomes list of text, but binary negatives have the label 0 and need links with integers; drop or rename `label` before sample_neighbors"
    );
    let named_x = Schema::new(["node", "x"].map(|name| (name, ColumnType::Scalar(ScalarType::Int64))));
    assert_eq!(
        error("size: 1, fanouts: [1], features: [x]", &named_x, &graph),
        "column `x` conflicts with a column of the sampled graph; rename `x` before sample_neighbors"
    );
}

#[test]
fn the_expected_size_of_a_batch_is_bounded_by_the_graph() {
    let bytes = |fanouts: &str, seeds: u32| {
        let pipeline = pipeline(&format!("size: 4, fanouts: {fanouts}, features: [x]"));
        plan(&pipeline, &node_rows(), &citations()).expect("valid").expected_bytes(seeds, &citations())
    };
    // A node has an id of 4 bytes and a feature of 256 bytes, an edge 4 bytes, a target 4 bytes, and a seed three values of 8.
    let (seeds, edges) = (4, 4 * 15 + 60 * 10);
    let (nodes, targets, counts) = (seeds + edges, seeds + 60 + 1, 3 * 4 + 2 * 4);
    assert_eq!(bytes("[15, 10]", 4), nodes * 260 + edges * 4 + targets * 4 + counts + seeds * 24);
    let (edges, targets, counts) = (20_000, 500 + 1, 2 * 4 + 4);
    assert_eq!(
        bytes("[100]", 500),
        1_000 * 260 + edges * 4 + targets * 4 + counts + 500 * 24,
        "there are 1,000 nodes and 20,000 edges"
    );
    assert_eq!(bytes("[-1]", 5), (5 + 100) * 260 + 100 * 4 + 6 * 4 + 12 + 5 * 24, "the mean degree is 20");
    assert!(bytes("[65536, 65536, 65536]", u32::MAX) > 0, "the numbers do not overflow");
}

#[test]
fn the_size_of_a_batch_has_its_totals_and_a_loaded_graph_has_the_features_of_batches() {
    let pipeline = pipeline("size: 4, fanouts: [15, 10], features: [x]");
    let plan = plan(&pipeline, &node_rows(), &citations()).expect("valid");
    let (seeds, edges) = (4, 4 * 15 + 60 * 10);
    let size = plan.expected_size(4, &citations());
    assert_eq!((size.seeds, size.nodes, size.edges), (4, seeds + edges, edges));
    assert_eq!(size.bytes, plan.expected_bytes(4, &citations()));
    let counts = GraphBatchCounts { nodes: vec![10], targets: vec![5], edges: vec![8] };
    let bytes = 10 * 260 + 8 * 4 + 6 * 4 + 3 * 4 + 2 * 4 + 4 * 24;
    assert_eq!(plan.size_of(4, &counts), GraphBatchSize { seeds: 4, nodes: 10, edges: 8, bytes });
    let empty = GraphBatchCounts::default();
    assert!(plan.size_of(4, &empty).bytes < bytes, "missing numbers are 0");
    // The offsets, the sources, and the feature x of 256 bytes.
    assert_eq!(plan.loaded_bytes(&citations()), 8 * 1_001 + 4 * 20_000 + 256 * 1_000);
}
