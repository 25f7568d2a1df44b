//! Tests of descriptions: the JSON form, all checks, and the inputs of the hashes.

use expect_test::expect;

use super::*;

fn file(path: &str, bytes: u64) -> StoredFile {
    let data = bytes - if path.ends_with(".npy") { 128 } else { 0 };
    let blocks = (0..data.div_ceil(HASH_BLOCK_BYTES)).map(|block| BlockHash(block + 1)).collect();
    StoredFile { path: path.to_owned(), bytes, blocks }
}

/// Two node types, one relation with weights, features and two seed sets.
fn valid() -> GraphDescription {
    let user = NodeType {
        name: "user".to_owned(),
        count: 3,
        positions: None,
        names: Some(NodeNames {
            length_bytes: 10,
            offsets: file("ids/user.offsets.npy", 128 + 32),
            text: file("ids/user.text.npy", 128 + 10),
        }),
        features: Vec::new(),
    };
    let x = GraphFeature {
        name: "x".to_owned(),
        dtype: ScalarType::Float16,
        shape: vec![4],
        file: file("nodes/item.x.npy", 128 + 2 * 8),
    };
    let item =
        NodeType { name: "item".to_owned(), count: 2, positions: None, names: None, features: vec![x] };
    let buys = GraphRelation {
        source: "user".to_owned(),
        name: "buys".to_owned(),
        target: "item".to_owned(),
        edges: 5,
        undirected: false,
        offsets: file("topology/user__buys__item.offsets.npy", 128 + 24),
        sources: file("topology/user__buys__item.sources.npy", 128 + 20),
        weights: Some(file("topology/user__buys__item.weights.npy", 128 + 20)),
        times: None,
        edge_ids: None,
        features: Vec::new(),
    };
    let seed_set = |name: &str, of: SeedKind| SeedSet {
        name: name.to_owned(),
        of,
        rows: 2,
        classes: BTreeMap::new(),
        file: file(&format!("seeds/{name}.arrow"), 600),
    };
    GraphDescription {
        version: GRAPH_VERSION,
        order: NodeOrder::None,
        vip: None,
        nodes: vec![user, item],
        relations: vec![buys],
        seeds: vec![
            seed_set("train", SeedKind::Nodes("item".to_owned())),
            seed_set("links", SeedKind::Links("user__buys__item".to_owned())),
        ],
    }
}

fn vip(seeds: &str) -> VipOrder {
    let curve = |rows: u32| vec![ExpectedHitRate { rows, hits_per_million: 1_000_000 }; HIT_RATE_POINTS];
    VipOrder { seeds: seeds.to_owned(), fanouts: vec![5], batch_rows: 8, curves: vec![curve(3), curve(2)] }
}

/// Returns the error of a description after a change.
fn error(change: impl FnOnce(&mut GraphDescription)) -> String {
    let mut description = valid();
    change(&mut description);
    description.check().unwrap_err()
}

#[test]
fn a_description_round_trips() {
    let description = valid();
    assert_eq!(GraphDescription::parse(description.to_json().as_bytes()), Ok(description.clone()));
    let json = serde_json::to_string(&description.seeds[1]).unwrap();
    expect![[r#"{"name":"links","of":{"links":"user__buys__item"},"rows":2,"file":{"path":"seeds/links.arrow","bytes":600,"blocks":["0000000000000001"]}}"#]]
    .assert_eq(&json);
    assert_eq!(description.node_type("item").map(|(index, _)| index), Some(1));
    assert!(description.relation("user__buys__item").is_some() && description.relation("buys").is_none());
}

#[test]
fn the_batches_of_an_order_round_trip() {
    let mut description = valid();
    (description.order, description.vip) = (NodeOrder::Vip, Some(vip("train")));
    description.nodes[0].positions = Some(file("ids/p.npy", 140));
    description.nodes[1].positions = Some(file("ids/q.npy", 136));
    assert_eq!(GraphDescription::parse(description.to_json().as_bytes()), Ok(description));
}

#[test]
fn another_version_and_unknown_keys_are_rejected() {
    let parse = |json: &str| GraphDescription::parse(json.as_bytes()).unwrap_err();
    expect![[r#"the graph has version 2, but this release reads version 1: build the graph again, or use the release that built it"#]]
        .assert_eq(&parse(r#"{"version": 2, "anything": []}"#));
    assert!(parse("{").starts_with("invalid description: "));
    let unknown = valid().to_json().replacen("\"version\"", "\"extra\": 1, \"version\"", 1);
    assert!(parse(&unknown).contains("unknown field `extra`"));
}

#[test]
fn names_are_restricted() {
    for name in ["x", "built_from", "a-b", "0"] {
        assert_eq!(check_name("feature", name), Ok(()), "{name}");
    }
    for name in ["", "a__b", "_a", "a_", "-a", "a.b", "a/b", "ä", &"n".repeat(65)] {
        let error = check_name("feature", name).unwrap_err();
        assert!(error.starts_with("invalid feature `"), "{error}");
    }
}

#[test]
fn each_invalid_value_is_named() {
    let name = |text: &str| text.to_owned();
    let cases: Vec<(String, &str)> = vec![
        (error(|graph| graph.nodes.clear()), "the graph has no node types"),
        (error(|graph| graph.nodes[1].name = name("user")), "the node type `user` is listed twice"),
        (error(|graph| graph.order = NodeOrder::Degree), "has no positions, but the order is `degree`"),
        (error(|graph| graph.order = NodeOrder::Vip), "has no positions, but the order is `vip`"),
        (
            error(|graph| {
                graph.order = NodeOrder::Vip;
                graph.nodes[0].positions = Some(file("ids/p.npy", 140));
                graph.nodes[1].positions = Some(file("ids/q.npy", 136));
            }),
            "its batches are not described",
        ),
        (error(|graph| graph.vip = Some(vip("train"))), "the order is not `vip`"),
        (
            error(|graph| {
                graph.order = NodeOrder::Vip;
                graph.vip = Some(vip("test"));
                graph.nodes[0].positions = Some(file("ids/p.npy", 140));
                graph.nodes[1].positions = Some(file("ids/q.npy", 136));
            }),
            "refers to the unknown seed set `test`",
        ),
        (
            error(|graph| graph.nodes[1].positions = Some(file("ids/p.npy", 136))),
            "has positions, but the order is `none`",
        ),
        (error(|graph| graph.relations[0].source = name("x")), "the unknown node type `x`"),
        (error(|graph| graph.relations[0].name = name("a b")), "invalid relation `a b`"),
        (error(|graph| graph.relations[0].undirected = true), "is undirected, but its node types differ"),
        (
            error(|graph| {
                let twice = graph.relations[0].clone();
                graph.relations.push(twice);
            }),
            "the relation `user__buys__item` is listed twice",
        ),
        (
            error(|graph| graph.relations[0].edges = 6),
            "has 148 bytes, which does not match an array of uint32",
        ),
        (error(|graph| graph.relations[0].edges = u64::MAX), "does not match an array of uint32"),
        (error(|graph| graph.nodes[1].count = 3), "does not match an array of float16 with the shape [3, 4]"),
        (error(|graph| graph.nodes[1].features[0].shape = vec![0]), "has the invalid row shape [0]"),
        (error(|graph| graph.nodes[1].features[0].shape = vec![u32::MAX; 3]), "has the invalid row shape"),
        (error(|graph| graph.seeds[0].of = SeedKind::Nodes(name("x"))), "the unknown node type `x`"),
        (error(|graph| graph.seeds[1].of = SeedKind::Links(name("x"))), "the unknown relation `x`"),
        (error(|graph| graph.seeds[1].name = name("train")), "the seed set `train` is listed twice"),
        (error(|graph| graph.seeds[1].file.path = name("seeds/train.arrow")), "is listed twice"),
        (error(|graph| graph.seeds[0].file.path = name("../x")), "invalid path `../x`"),
        (error(|graph| graph.seeds[0].file.path = name("/x")), "invalid path `/x`"),
        (error(|graph| graph.seeds[0].file.path = name("a//x")), "invalid path `a//x`"),
        (
            error(|graph| graph.relations[0].sources.blocks.clear()),
            "has 0 hashes, but its 148 bytes have 1 blocks",
        ),
        (error(|graph| graph.nodes[0].names.as_mut().unwrap().length_bytes = 11), "array of uint8"),
    ];
    for (message, part) in cases {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

#[test]
fn the_fingerprint_covers_what_samples_depend_on() {
    let changed = |change: fn(&mut GraphDescription)| {
        let mut description = valid();
        change(&mut description);
        description.topology_fingerprint() != valid().topology_fingerprint()
    };
    assert!(changed(|graph| graph.nodes[0].count += 1));
    assert!(changed(|graph| graph.nodes[0].positions = Some(file("ids/p.npy", 140))));
    assert!(changed(|graph| graph.nodes[0].name.push('s')));
    assert!(changed(|graph| graph.relations[0].sources.blocks[0] = BlockHash(9)));
    assert!(changed(|graph| graph.relations[0].weights = None));
    assert!(changed(|graph| graph.relations[0].times = graph.relations[0].weights.take()));
    assert!(changed(|graph| graph.relations[0].edge_ids = Some(file("topology/e.npy", 168))));
    assert!(!changed(|graph| graph.nodes[1].features.clear()));
    assert!(!changed(|graph| graph.seeds.clear()));
    assert!(!changed(|graph| graph.relations[0].sources.path.push('x')));
}

#[test]
fn the_hash_of_a_feature_covers_its_rows_and_their_type() {
    let feature = valid().nodes[1].features[0].clone();
    let changed = |change: fn(&mut GraphFeature)| {
        let mut other = feature.clone();
        change(&mut other);
        other.content_hash() != feature.content_hash()
    };
    assert!(changed(|feature| feature.file.blocks[0] = BlockHash(9)));
    assert!(changed(|feature| feature.dtype = ScalarType::Int16));
    assert!(changed(|feature| feature.shape = vec![2, 2]));
    assert!(!changed(|feature| feature.name.push('y')));
}
