//! Stored edges are those of a sort in memory, for any memory, number of threads and format.

use arrow::array::{Float64Array, Int32Array, Int64Array};
use feedline_data::graph::RelationView;
use feedline_data::graph::description::relation_key;
use proptest::prelude::*;

use super::super::run::BuildSettings;
use super::super::spec::{ColumnName, FilterValue, GraphSpec, NodeSpec, OrderSpec, RelationSpec};
use super::super::weights::append_sums;
use super::scratch::{Scratch, column};

/// An edge of the input: source, target, weight, time.
type InputEdge = (u32, u32, f64, i64);

/// The options of a relation.
#[derive(Debug, Clone, Copy)]
struct Options {
    weights: bool,
    times: bool,
    edge_ids: bool,
    undirected: bool,
    by_degree: bool,
}

/// The arrays of a relation.
#[derive(Debug, Default, PartialEq)]
struct Arrays {
    offsets: Vec<u64>,
    sources: Vec<u32>,
    weights: Option<Vec<u32>>,
    times: Option<Vec<i64>>,
    edge_ids: Option<Vec<u64>>,
}

impl Arrays {
    fn of(view: &RelationView<'_>, edge_ids: Option<&[u64]>) -> Self {
        Self {
            offsets: view.offsets.to_vec(),
            sources: view.sources.to_vec(),
            weights: view.weights.map(<[u32]>::to_vec),
            times: view.times.map(<[i64]>::to_vec),
            edge_ids: edge_ids.map(<[u64]>::to_vec),
        }
    }

    /// Sorts edges in memory. `ids` are the stored ids of nodes.
    fn sorted(edges: &[InputEdge], ids: &[u32], options: Options) -> Self {
        let mut rows = Vec::new();
        for (row, &(source, target, weight, time)) in edges.iter().enumerate() {
            let (source, target) = (ids[source as usize], ids[target as usize]);
            let time = if options.times { time } else { 0 };
            rows.push((target, time, source, row as u64, weight));
            if options.undirected {
                rows.push((source, time, target, row as u64, weight));
            }
        }
        rows.sort_by_key(|&(target, time, source, row, _)| (target, time, source, row));
        if options.undirected {
            let mut merged: Vec<(u32, i64, u32, u64, f64)> = Vec::new();
            for row in rows {
                match merged.last_mut() {
                    Some(last) if (last.0, last.1, last.2) == (row.0, row.1, row.2) => last.4 += row.4,
                    _ => merged.push(row),
                }
            }
            rows = merged;
        }
        let mut sums = Vec::new();
        let mut offsets = vec![0];
        for target in 0..ids.len() as u32 {
            let of_target = rows.iter().filter(|row| row.0 == target);
            let weights: Vec<f64> = of_target.map(|row| row.4).collect();
            append_sums(&weights, &mut sums);
            offsets.push(offsets[target as usize] + weights.len() as u64);
        }
        Self {
            offsets,
            sources: rows.iter().map(|row| row.2).collect(),
            weights: options.weights.then_some(sums),
            times: options.times.then(|| rows.iter().map(|row| row.1).collect()),
            edge_ids: options.edge_ids.then(|| rows.iter().map(|row| row.3).collect()),
        }
    }
}

/// Returns the stored id of each node, by the number of edges that begin at it.
fn degree_ids(edges: &[InputEdge], nodes: u32, undirected: bool) -> Vec<u32> {
    let mut degrees = vec![0; nodes as usize];
    for &(source, target, ..) in edges {
        degrees[source as usize] += 1;
        degrees[target as usize] += u32::from(undirected);
    }
    let mut positions: Vec<u32> = (0..nodes).collect();
    positions.sort_by_key(|&position| (std::cmp::Reverse(degrees[position as usize]), position));
    let mut ids = vec![0; nodes as usize];
    (0..nodes).zip(&positions).for_each(|(id, &position)| ids[position as usize] = id);
    ids
}

fn write_edges(scratch: &Scratch, format: &str, edges: &[InputEdge]) -> String {
    match format {
        "csv" => {
            let line =
                |&(source, target, weight, time): &InputEdge| format!("{source},{target},{weight},{time}\n");
            scratch.write("e.csv", format!("src,dst,w,t\n{}", edges.iter().map(line).collect::<String>()))
        }
        _ => {
            let columns = vec![
                ("src", column(Int32Array::from_iter_values(edges.iter().map(|edge| edge.0 as i32)))),
                ("dst", column(Int64Array::from_iter_values(edges.iter().map(|edge| i64::from(edge.1))))),
                ("w", column(Float64Array::from_iter_values(edges.iter().map(|edge| edge.2)))),
                ("t", column(Int64Array::from_iter_values(edges.iter().map(|edge| edge.3)))),
            ];
            scratch.write_parquet("e.parquet", columns)
        }
    }
}

fn spec(path: String, nodes: u32, options: Options) -> GraphSpec {
    let count = NodeSpec { count: Some(u64::from(nodes)), ..NodeSpec::default() };
    let mut spec = GraphSpec::homogeneous(count, vec![path]);
    spec.order = if options.by_degree { OrderSpec::Degree } else { OrderSpec::None };
    let relation = &mut spec.relations[0];
    relation.weight = options.weights.then(|| "w".to_owned());
    relation.time = options.times.then(|| "t".to_owned());
    relation.edge_ids = options.edge_ids;
    relation.undirected = options.undirected;
    spec
}

fn options() -> impl Strategy<Value = Options> {
    any::<[bool; 5]>().prop_map(|[weights, times, edge_ids, undirected, by_degree]| Options {
        weights,
        times,
        edge_ids: edge_ids && !undirected,
        undirected,
        by_degree,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn edges_are_those_of_a_sort_in_memory(
        nodes in 1_u32..60, seed in prop::collection::vec((any::<u32>(), any::<u32>(), 0_u32..5, -3_i64..3), 0..400),
        options in options(), memory_bytes in 4_000_u64..200_000, threads in 1_usize..4,
        format in prop_oneof![Just("csv"), Just("parquet")],
    ) {
        // Low nodes have most edges.
        let skewed = |number: u32| (u64::from(number % 100).pow(2) * u64::from(nodes) / 10_000) as u32;
        let edges: Vec<InputEdge> = seed
            .into_iter()
            .map(|(source, target, weight, time)| (source % nodes, skewed(target), f64::from(weight) / 4.0, time))
            .collect();
        let scratch = Scratch::new();
        let spec = spec(write_edges(&scratch, format, &edges), nodes, options);
        let built = scratch.build_with("g", &spec, &BuildSettings::new(memory_bytes, threads)).unwrap();
        built.check().unwrap();
        let topology = built.topology();
        let ids =
            if options.by_degree { degree_ids(&edges, nodes, options.undirected) } else { (0..nodes).collect() };
        let views = topology.relation_views();
        let found = Arrays::of(&views[0], topology.edge_ids(0));
        prop_assert_eq!(found, Arrays::sorted(&edges, &ids, options));
        let positions = topology.positions(0).map(|positions| {
            positions.iter().map(|&position| ids[position as usize]).collect::<Vec<_>>()
        });
        let expected = options.by_degree.then(|| (0..nodes).collect());
        prop_assert_eq!(positions, expected);
    }
}

/// Many edges with little memory are sorted in runs, in parts that begin and end within targets.
#[test]
fn large_buckets_are_merged_in_parts() {
    let count = 600_000_u32;
    let source = |index: u32| (u64::from(index) * 7_919 % 50_021) as u32;
    let edges: Vec<InputEdge> =
        (0..count).map(|index| (source(index), index % 3, f64::from(index % 5), 0)).collect();
    let mut rows: Vec<(u32, u32, u64)> =
        edges.iter().zip(0..).map(|(edge, row)| (edge.1, edge.0, row)).collect();
    rows.sort_unstable();
    let scratch = Scratch::new();
    let path = write_edges(&scratch, "csv", &edges);
    let plain =
        Options { weights: false, times: false, edge_ids: false, undirected: false, by_degree: false };
    for options in [plain, Options { weights: true, edge_ids: true, ..plain }] {
        let name = format!("g{}", options.weights);
        // The weights of a target need 8 MB.
        let settings = BuildSettings::new(if options.weights { 10 << 20 } else { 2 << 20 }, 2);
        let built = scratch.build_with(&name, &spec(path.clone(), 50_021, options), &settings).unwrap();
        let topology = built.topology();
        let found = Arrays::of(&topology.relation_views()[0], topology.edge_ids(0));
        assert_eq!(found.offsets[..4], [0, 200_000, 400_000, 600_000]);
        assert_eq!(found.weights.is_some(), options.weights);
        assert_eq!(found.sources, rows.iter().map(|row| row.1).collect::<Vec<_>>());
        if let Some(edge_ids) = found.edge_ids {
            assert_eq!(edge_ids, rows.iter().map(|row| row.2).collect::<Vec<_>>());
        }
        built.check().unwrap();
    }
}

#[test]
fn the_number_of_nodes_is_found_in_the_edges() {
    let scratch = Scratch::new();
    let path = write_edges(&scratch, "csv", &[(3, 1, 0.0, 0), (0, 9, 0.0, 0)]);
    let built = scratch.build("csv", &GraphSpec::homogeneous(NodeSpec::default(), vec![path]));
    assert_eq!(built.topology().node_counts(), [10]);
    let path = write_edges(&scratch, "parquet", &[(3, 1, 0.0, 0), (7, 2, 0.0, 0)]);
    let built = scratch.build("parquet", &GraphSpec::homogeneous(NodeSpec::default(), vec![path]));
    assert_eq!(built.topology().node_counts(), [8]);
    let path = scratch.write("empty.csv", "src,dst\n");
    let built = scratch.build("empty", &GraphSpec::homogeneous(NodeSpec::default(), vec![path]));
    assert_eq!(built.topology().node_counts(), [0]);
    built.check().unwrap();
}

/// Three relations of one file, a relation whose sources are rows, and a reverse relation.
#[test]
fn relations_are_selected_by_values_and_reversed() {
    let scratch = Scratch::new();
    let edges = scratch.write("e.csv", "from,to,kind\n0,1,0\n1,2,1\n2,0,0\n0,2,1\n");
    let packages =
        scratch.write_parquet("p.parquet", vec![("origin", column(Int32Array::from(vec![1, 0, 1])))]);
    let mut depends = RelationSpec::new("package", "depends", "package", vec![edges.clone()]);
    depends.filter.insert("kind".to_owned(), FilterValue("0".to_owned()));
    depends.reverse = Some("needed-by".to_owned());
    depends.edge_ids = true;
    let mut suggests = RelationSpec::new("package", "suggests", "package", vec![edges]);
    suggests.filter.insert("kind".to_owned(), FilterValue("1".to_owned()));
    suggests.undirected = true;
    let mut built_from = RelationSpec::new("package", "built_from", "source", vec![packages]);
    built_from.columns = Some([ColumnName("#row".to_owned()), ColumnName("origin".to_owned())]);
    let spec = GraphSpec { relations: vec![depends, suggests, built_from], ..GraphSpec::default() };
    let built = scratch.build("g", &spec);
    built.check().unwrap();
    let description = &built.description;
    let keys: Vec<String> = description.relations.iter().map(|relation| relation.key()).collect();
    assert_eq!(
        keys,
        [
            relation_key("package", "depends", "package"),
            relation_key("package", "needed-by", "package"),
            relation_key("package", "suggests", "package"),
            relation_key("package", "built_from", "source"),
        ]
    );
    let topology = built.topology();
    assert_eq!(topology.node_counts(), [3, 2]);
    let views = topology.relation_views();
    let arrays = |index: usize| (views[index].offsets.to_vec(), views[index].sources.to_vec());
    assert_eq!(arrays(0), (vec![0, 1, 2, 2], vec![2, 0]));
    assert_eq!(topology.edge_ids(0), Some(&[2, 0][..]), "rows that are not edges are counted");
    assert_eq!(arrays(1), (vec![0, 1, 1, 2], vec![1, 0]));
    assert_eq!(topology.edge_ids(1), Some(&[0, 2][..]));
    assert_eq!(arrays(2), (vec![0, 1, 2, 4], vec![2, 2, 0, 1]));
    assert_eq!(arrays(3), (vec![0, 1, 3], vec![1, 0, 2]));
    assert_eq!((views[3].source_type, views[3].target_type), (0, 1));
}
