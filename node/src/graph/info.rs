//! `feedline graph info`: describes a graph.

use feedline_data::graph::description::{
    GraphDescription, GraphFeature, GraphRelation, NodeOrder, NodeType, SeedKind,
};

use super::folder::open;
use crate::cli::GraphInfoArgs;
use crate::failure::Failure;
use crate::size::format_bytes;
use crate::{output, table};

/// Prints the description of a graph.
pub(super) async fn run(args: GraphInfoArgs) -> Result<(), Failure> {
    let folder = open(&args.url, &args.stores).await?;
    let description = folder.description();
    let text = if args.json { description.to_json() } else { render(description) };
    Ok(output::print(&text)?)
}

/// Renders a description as text.
pub(super) fn render(description: &GraphDescription) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for node_type in &description.nodes {
        rows.push(node_row(node_type));
        rows.extend(node_type.features.iter().map(feature_row));
    }
    for relation in &description.relations {
        rows.push(relation_row(relation));
        rows.extend(relation.features.iter().map(feature_row));
    }
    for seeds in &description.seeds {
        let of = match &seeds.of {
            SeedKind::Nodes(name) | SeedKind::Links(name) => name,
        };
        let bytes = format_bytes(seeds.file.bytes as f64);
        rows.push(vec![
            "seeds".to_owned(),
            seeds.name.clone(),
            seeds.rows.to_string(),
            bytes,
            format!("of {of}"),
        ]);
    }
    let order = match (description.order, &description.vip) {
        (NodeOrder::None, _) => "none".to_owned(),
        (NodeOrder::Degree, _) => "degree".to_owned(),
        (NodeOrder::Vip, None) => "vip".to_owned(),
        (NodeOrder::Vip, Some(vip)) => {
            let fanouts: Vec<String> = vip.fanouts.iter().map(i32::to_string).collect();
            format!("vip:{}:{}", vip.seeds, fanouts.join(","))
        }
    };
    let bytes: u64 = description.files().iter().map(|described| described.file.bytes).sum();
    format!(
        "{}order {order}, topology {}, {}\n",
        table::render_with_header(["kind", "name", "count", "size", "contents"], rows, &[0, 1, 4]),
        description.topology_fingerprint(),
        format_bytes(bytes as f64),
    )
}

fn node_row(node_type: &NodeType) -> Vec<String> {
    let names = node_type.names.iter().flat_map(|names| [&names.offsets, &names.text]);
    let bytes: u64 = names.chain(&node_type.positions).map(|file| file.bytes).sum();
    let contents = if node_type.names.is_some() { "ids" } else { "" };
    vec![
        "nodes".to_owned(),
        node_type.name.clone(),
        node_type.count.to_string(),
        format_bytes(bytes as f64),
        contents.to_owned(),
    ]
}

fn relation_row(relation: &GraphRelation) -> Vec<String> {
    let optional =
        [(&relation.weights, "weights"), (&relation.times, "times"), (&relation.edge_ids, "edge ids")];
    let stored = || optional.iter().filter_map(|(file, name)| Some((Option::as_ref(*file)?, *name)));
    let files = [&relation.offsets, &relation.sources].into_iter().chain(stored().map(|(file, _)| file));
    let bytes: u64 = files.map(|file| file.bytes).sum();
    let undirected = relation.undirected.then_some("undirected");
    let contents: Vec<&str> = undirected.into_iter().chain(stored().map(|(_, name)| name)).collect();
    vec![
        "relation".to_owned(),
        relation.key(),
        relation.edges.to_string(),
        format_bytes(bytes as f64),
        contents.join(", "),
    ]
}

fn feature_row(feature: &GraphFeature) -> Vec<String> {
    let shape: Vec<String> = feature.shape.iter().map(u32::to_string).collect();
    vec![
        "  feature".to_owned(),
        feature.name.clone(),
        String::new(),
        format_bytes(feature.file.bytes as f64),
        format!("{}[{}] {}", feature.dtype.name(), shape.join(", "), feature.content_hash()),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use expect_test::expect;
    use feedline_data::graph::description::{BlockHash, GRAPH_VERSION, SeedSet, StoredFile};
    use feedline_data::schema::ScalarType;

    use super::*;

    fn file(path: &str, bytes: u64) -> StoredFile {
        StoredFile { path: path.to_owned(), bytes, blocks: vec![BlockHash(1)] }
    }

    #[test]
    fn the_table_lists_nodes_relations_and_seeds() {
        let feature = GraphFeature {
            name: "x".to_owned(),
            dtype: ScalarType::Float16,
            shape: vec![128],
            file: file("nodes/node.x.npy", 896),
        };
        let node = NodeType {
            name: "node".to_owned(),
            count: 3,
            positions: None,
            names: None,
            features: vec![feature],
        };
        let relation = GraphRelation {
            source: "node".to_owned(),
            name: "to".to_owned(),
            target: "node".to_owned(),
            edges: 5,
            undirected: true,
            offsets: file("topology/a.npy", 160),
            sources: file("topology/b.npy", 148),
            weights: Some(file("topology/c.npy", 148)),
            times: None,
            edge_ids: None,
            features: Vec::new(),
        };
        let seeds = SeedSet {
            name: "train".to_owned(),
            of: SeedKind::Nodes("node".to_owned()),
            rows: 2,
            classes: BTreeMap::new(),
            file: file("seeds/train.arrow", 600),
        };
        let description = GraphDescription {
            version: GRAPH_VERSION,
            order: NodeOrder::None,
            vip: None,
            nodes: vec![node],
            relations: vec![relation],
            seeds: vec![seeds],
        };
        let (topology, x) = (
            description.topology_fingerprint().to_string(),
            description.nodes[0].features[0].content_hash().to_string(),
        );
        let text = render(&description).replace(&topology, "TOPOLOGY").replace(&x, "X");
        expect![[r#"
            kind       name            count   size  contents
            nodes      node                3    0 B
              feature  x                      896 B  float16[128] X
            relation   node__to__node      5  456 B  undirected, weights
            seeds      train               2  600 B  of node
            order none, topology TOPOLOGY, 2.0 kB
        "#]]
        .assert_eq(&text);
    }
}
