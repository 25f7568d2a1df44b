//! Datasets in the layouts of OGB, GraphBolt and SciPy. The files are written as these libraries write them.

use std::fs;
use std::io::Write;
use std::path::Path;

use feedline_data::schema::ScalarType;
use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Crc};

use super::super::spec::{ColumnRef, FeatureSpec, GraphSpec, NodeSpec, SeedSpec};
use super::scratch::{BuiltGraph, Scratch, numbers};
use crate::import::{GraphBoltMetadata, graphbolt_spec, ogb_spec};
use crate::npy;

/// The names and contents of the members of an archive.
type Members = Vec<(&'static str, Vec<u8>)>;

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn array(dtype: ScalarType, shape: &[u64], bytes: &[u8]) -> Vec<u8> {
    let extents: Vec<u32> = shape[1..].iter().map(|&extent| extent as u32).collect();
    [npy::header(dtype, shape[0], &extents).as_slice(), bytes].concat()
}

fn integers(shape: &[u64], numbers: &[i32]) -> Vec<u8> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    array(ScalarType::Int32, shape, &bytes)
}

/// Returns a zip archive with deflated members, as `numpy.savez_compressed` writes it.
fn zip(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(data).unwrap();
        let stored = encoder.finish().unwrap();
        let mut crc = Crc::new();
        crc.update(data);
        let offset = archive.len() as u32;
        // Version, flags, method, time and date; the checksum, the sizes, and the lengths of the name and the extra field.
        let mut fields = [20_u16, 0, 8, 0, 0].map(u16::to_le_bytes).concat();
        for number in [crc.sum(), stored.len() as u32, data.len() as u32] {
            fields.extend(number.to_le_bytes());
        }
        fields.extend([name.len() as u16, 0].map(u16::to_le_bytes).concat());
        archive.extend([b"PK\x03\x04".as_slice(), fields.as_slice(), name.as_bytes(), &stored].concat());
        directory.extend([b"PK\x01\x02\x14\x00".as_slice(), fields.as_slice(), &[0; 10]].concat());
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let count = members.len() as u16;
    let (start, length) = (archive.len() as u32, directory.len() as u32);
    archive.extend(directory);
    archive.extend(
        [b"PK\x05\x06".as_slice(), [0, 0, count, count].map(u16::to_le_bytes).concat().as_slice()].concat(),
    );
    archive.extend([length, start].map(u32::to_le_bytes).concat());
    archive.extend([0, 0]);
    archive
}

/// A sparse matrix with three edges: 1 to 0, 2 to 0, and 0 to 2.
fn matrix(format: &str) -> Members {
    let (pointers, indices, values) = match format {
        "csc" => ([0, 2, 2, 3], [1, 2, 0], [1, 5, 3]),
        _ => ([0, 1, 2, 3], [2, 0, 0], [3, 1, 5]),
    };
    vec![
        ("indices.npy", integers(&[3], &indices)),
        ("indptr.npy", integers(&[4], &pointers)),
        (
            "format.npy",
            [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), [b' '; 118].as_slice(), format.as_bytes()].concat(),
        ),
        ("shape.npy", integers(&[2], &[3, 3])),
        ("data.npy", integers(&[3], &values)),
    ]
}

fn edges(built: &BuiltGraph) -> (Vec<u64>, Vec<u32>) {
    let topology = built.topology();
    let views = topology.relation_views();
    (views[0].offsets.to_vec(), views[0].sources.to_vec())
}

#[test]
fn sparse_matrices_have_edges_from_rows_to_columns() {
    let scratch = Scratch::new();
    for format in ["csc", "csr"] {
        let path = scratch.write(&format!("{format}.npz"), zip(&matrix(format)));
        let mut spec = GraphSpec::homogeneous(NodeSpec::default(), vec![path]);
        spec.relations[0].weight = Some("data".to_owned());
        let built = scratch.build(format, &spec);
        built.check().unwrap();
        assert_eq!(edges(&built), (vec![0, 2, 2, 3], vec![1, 2, 0]), "{format}");
        assert_eq!(
            numbers(&built.array("topology/node__to__node.weights.npy"), u32::from_le_bytes),
            [1, 6, 3]
        );
        assert_eq!(built.description.nodes[0].count, 3);
    }
}

#[test]
fn invalid_matrices_are_rejected() {
    let scratch = Scratch::new();
    let error = |change: &dyn Fn(&mut Members)| {
        let mut members = matrix("csc");
        change(&mut members);
        let path = scratch.write("m.npz", zip(&members));
        scratch.error(&GraphSpec::homogeneous(NodeSpec::default(), vec![path]))
    };
    let beyond = error(&|members| members[0].1 = integers(&[3], &[1, 3, 0]));
    assert!(beyond.contains("m.npz`: `indices` at 1: 3 is not below 3"), "{beyond}");
    let negative = error(&|members| members[0].1 = integers(&[3], &[1, -1, 0]));
    assert!(negative.contains("`indices` at 1: -1 is not below 3"), "{negative}");
    for pointers in [[0, 2, 1, 3], [1, 2, 2, 3], [0, 2, 2, 4]] {
        let message = error(&|members| members[1].1 = integers(&[4], &pointers));
        assert!(message.contains("the pointers must ascend from 0 to 3"), "{message}");
    }
    let short = error(&|members| members[1].1 = integers(&[4], &[0, 2, 2, 2]));
    assert!(short.contains("`indptr` at 3: the last pointer must be 3"), "{short}");
    let few = error(&|members| members[1].1 = integers(&[3], &[0, 2, 3]));
    assert!(few.contains("the number of pointers does not match the shape"), "{few}");
    let coo = error(&|members| members[2].1 = b"coo".to_vec());
    assert!(coo.contains("neither csc nor csr"), "{coo}");
    let none = error(&|members| drop(members.remove(1)));
    assert!(none.contains("there is no member `edge_index.npy`"), "{none}");
    let path = scratch.write("cut.npz", &zip(&matrix("csc"))[..99]);
    let cut = scratch.error(&GraphSpec::homogeneous(NodeSpec::default(), vec![path]));
    assert!(cut.contains("not a complete zip archive"), "{cut}");
}

#[test]
fn features_are_read_from_csv_files_and_archives() {
    let scratch = Scratch::new();
    let edges = scratch.write("e.csv", "0,1\n1,0\n");
    let csv = scratch.write("x.csv", "a,b\n0.5,-1\n2,3e2\n");
    let archive = scratch.write("x.npz", zip(&[("x.npy", integers(&[2], &[7, 8]))]));
    let mut spec = GraphSpec::homogeneous(NodeSpec::default(), vec![edges]);
    let node = spec.nodes.get_mut("node").unwrap();
    let feature = |path: String| FeatureSpec { from: ColumnRef::from(path), dtype: None };
    node.features.insert("x".to_owned(), feature(csv));
    node.features.insert("z".to_owned(), feature(format!("{archive}:x")));
    let built = scratch.build("g", &spec);
    assert_eq!(numbers(&built.array("nodes/node.x.npy"), f32::from_le_bytes), [0.5, -1.0, 2.0, 300.0]);
    assert_eq!(numbers(&built.array("nodes/node.z.npy"), i32::from_le_bytes), [7, 8]);
    let error = |text: &str| {
        let mut spec = spec.clone();
        let path = scratch.write("bad.csv", text);
        spec.nodes.get_mut("node").unwrap().features.insert("x".to_owned(), feature(path));
        scratch.error(&spec)
    };
    assert!(error("1,2\n3\n").contains("row 1: the row has 1 numbers, but other rows have 2"));
    assert!(error("1,2\n3,b\n").contains("row 1: `b` is not a number"));
    assert!(error("a,b\n").contains("the file has no rows"));
    spec.nodes.get_mut("node").unwrap().features.insert("z".to_owned(), feature(archive));
    assert!(scratch.error(&spec).contains("append the name of one, such as FILE.npz:x"));
}

/// Writes a folder of OGB with four nodes and three edges. Returns its path.
fn ogb_folder(scratch: &Scratch, name: &str, files: &[(&str, Vec<u8>)]) -> String {
    let folder = scratch.path(name);
    let split = [("train", "3\n0\n"), ("valid", "1\n"), ("test", "2\n")]
        .map(|(set, text)| (format!("split/time/{set}.csv.gz"), gzip(text)));
    let raw = files.iter().map(|(name, contents)| (format!("raw/{name}"), contents.clone()));
    for (path, contents) in raw.chain(split) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    scratch.text(name)
}

fn check_ogb(scratch: &Scratch, name: &str, built: &BuiltGraph) {
    built.check().unwrap();
    assert_eq!(edges(built), (vec![0, 0, 2, 2, 3], vec![0, 2, 1]), "{name}");
    assert_eq!(
        numbers(&built.array("nodes/node.x.npy"), f32::from_le_bytes),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    );
    let seeds: Vec<(&str, u64)> =
        built.description.seeds.iter().map(|set| (set.name.as_str(), set.rows)).collect();
    assert_eq!(seeds, [("test", 1), ("train", 2), ("valid", 1)]);
    assert!(!scratch.path(&format!(".{name}.building")).exists());
}

#[test]
fn folders_of_ogb_are_built() {
    let scratch = Scratch::new();
    let text = [
        ("edge.csv.gz", gzip("0,1\n2,1\n1,3\n")),
        ("node-feat.csv.gz", gzip("1.0,2.0\n3.0,4.0\n5.0,6.0\n7.0,8.0\n")),
        ("node-label.csv.gz", gzip("4\n0\n1\n2\n")),
        ("node_year.csv.gz", gzip("2017\n2018\n2017\n2019\n")),
        ("num-node-list.csv.gz", gzip("4\n")),
        ("num-edge-list.csv.gz", gzip("3\n")),
    ];
    let folder = ogb_folder(&scratch, "text", &text);
    let built = scratch.build("g", &ogb_spec(Path::new(&folder)).unwrap());
    check_ogb(&scratch, "g", &built);
    assert_eq!(
        numbers(&built.array("nodes/node.node_year.npy"), f32::from_le_bytes),
        [2017.0, 2018.0, 2017.0, 2019.0]
    );
    let x: Vec<u8> = (1_u8..9).flat_map(|number| f32::from(number).to_le_bytes()).collect();
    let x = array(ScalarType::Float32, &[4, 2], &x);
    let archive =
        zip(&[("edge_index.npy", integers(&[2, 3], &[0, 2, 1, 1, 1, 3])), ("node_feat.npy", x.clone())]);
    let labels = zip(&[("node_label.npy", integers(&[4, 1], &[4, 0, 1, 2]))]);
    let folder = ogb_folder(&scratch, "archives", &[("data.npz", archive), ("node-label.npz", labels)]);
    check_ogb(&scratch, "a", &scratch.build("a", &ogb_spec(Path::new(&folder)).unwrap()));
    let arrays = [("edge.npy", integers(&[2, 3], &[0, 2, 1, 1, 1, 3])), ("node-feat.npy", x)];
    let folder = ogb_folder(&scratch, "arrays", &arrays);
    check_ogb(&scratch, "n", &scratch.build("n", &ogb_spec(Path::new(&folder)).unwrap()));
}

#[test]
fn datasets_of_ogb_with_several_graphs_or_splits_are_rejected() {
    let scratch = Scratch::new();
    let error = |name: &str, files: &[(&str, Vec<u8>)]| {
        let folder = ogb_folder(&scratch, name, files);
        ogb_spec(Path::new(&folder)).unwrap_err().to_string()
    };
    let edges = ("edge.csv.gz", gzip("0,1\n"));
    let graphs = error("graphs", &[edges.clone(), ("num-node-list.csv.gz", gzip("4\n5\n"))]);
    assert!(graphs.contains("the dataset has several graphs"), "{graphs}");
    let none = error("none", &[("node-feat.csv.gz", gzip("1\n"))]);
    assert!(none.contains("neither edge.csv.gz nor data.npz"), "{none}");
    let missing = ogb_spec(&scratch.path("missing")).unwrap_err().to_string();
    assert!(missing.contains("there is no folder `raw`"), "{missing}");
    let folder = ogb_folder(&scratch, "splits", &[edges]);
    let other = Path::new(&folder).join("split/random");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("train.csv.gz"), gzip("0\n")).unwrap();
    assert!(ogb_spec(Path::new(&folder)).unwrap_err().to_string().contains("several splits"));
}

/// The layout of ogbn-mag.
#[test]
fn folders_of_ogb_with_several_node_types_are_built() {
    let scratch = Scratch::new();
    let files = [
        ("raw/triplet-type-list.csv.gz", "author,writes,paper\npaper,cites,paper\n"),
        ("raw/num-node-dict.csv.gz", "author,paper\n2,3\n"),
        ("raw/relations/author___writes___paper/edge.csv.gz", "0,2\n1,0\n"),
        ("raw/relations/author___writes___paper/num-edge-list.csv.gz", "2\n"),
        ("raw/relations/paper___cites___paper/edge.csv.gz", "2,1\n"),
        ("raw/node-feat/paper/node-feat.csv.gz", "1,2\n3,4\n5,6\n"),
        ("raw/node-feat/paper/node_year.csv.gz", "2017\n2018\n2019\n"),
        ("raw/node-label/paper/node-label.csv.gz", "7\n8\n9\n"),
        ("split/time/paper/train.csv.gz", "2\n0\n"),
        ("split/time/paper/valid.csv.gz", "1\n"),
    ];
    for (name, text) in files {
        let path = scratch.path("mag").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, gzip(text)).unwrap();
    }
    let folder = scratch.path("mag");
    let built = scratch.build("g", &ogb_spec(&folder).unwrap());
    built.check().unwrap();
    assert_eq!(built.topology().node_counts(), [2, 3]);
    assert_eq!(edges(&built), (vec![0, 1, 1, 2], vec![1, 0]));
    assert_eq!(built.description.relations[1].key(), "paper__cites__paper");
    let years = numbers(&built.array("nodes/paper.node_year.npy"), f32::from_le_bytes);
    assert_eq!(years, [2017.0, 2018.0, 2019.0]);
    let seeds: Vec<(&str, u64)> =
        built.description.seeds.iter().map(|set| (set.name.as_str(), set.rows)).collect();
    assert_eq!(seeds, [("train", 2), ("valid", 1)]);
    let error = |name: &str, text: &str| {
        fs::write(folder.join(name), gzip(text)).unwrap();
        ogb_spec(&folder).unwrap_err().to_string()
    };
    let counts = error("raw/num-node-dict.csv.gz", "author,paper\n2,x\n");
    assert!(counts.contains("the numbers of nodes in num-node-dict are invalid"), "{counts}");
    let graphs = error("raw/num-node-dict.csv.gz", "author,paper\n2,3\n4,5\n");
    assert!(graphs.contains("the dataset has several graphs"), "{graphs}");
    fs::write(folder.join("raw/num-node-dict.csv.gz"), gzip("author,paper\n2,3\n")).unwrap();
    let missing = error("raw/triplet-type-list.csv.gz", "author,likes,paper\n");
    assert!(missing.contains("`raw/relations/author___likes___paper` contains no edge.csv.gz"), "{missing}");
    let invalid = error("raw/triplet-type-list.csv.gz", "author,paper\n");
    assert!(invalid.contains("invalid relation `author,paper`"), "{invalid}");
}

/// The description of a dataset, as GraphBolt documents it.
const METADATA: &str = r#"{
  "dataset_name": "shop",
  "graph": {
    "nodes": [{"type": "user", "num": 3}, {"type": "item", "num": 2}],
    "edges": [{"type": "user:buys:item", "format": "csv", "path": "edges/buys.csv"}],
    "feature_data": [{"domain": "edge", "type": "user:buys:item", "name": "price", "format": "numpy", "path": "price.npy"}]
  },
  "feature_data": [
    {"domain": "node", "type": "item", "name": "feat", "format": "numpy", "in_memory": true, "path": "feat.npy"}
  ],
  "tasks": [{
    "name": "node_classification", "num_classes": 3,
    "train_set": [{"type": "item", "data": [
      {"name": "seeds", "format": "numpy", "path": "train.npy"},
      {"name": "labels", "format": "numpy", "path": "labels.npy"}
    ]}],
    "test_set": [{"type": "user:buys:item", "data": [{"name": "seeds", "format": "numpy", "path": "links.npy"}]}]
  }]
}"#;

fn graphbolt(folder: &Path, metadata: &str) -> Result<GraphSpec, String> {
    let metadata: GraphBoltMetadata = serde_json::from_str(metadata).unwrap();
    graphbolt_spec(&metadata, folder).map_err(|error| error.to_string())
}

#[test]
fn datasets_of_graphbolt_are_built() {
    let scratch = Scratch::new();
    let folder = scratch.path("shop");
    fs::create_dir_all(folder.join("edges")).unwrap();
    let files = [
        ("edges/buys.csv", b"0,1\n2,1\n1,0\n".to_vec()),
        ("price.npy", integers(&[3], &[30, 31, 32])),
        ("feat.npy", integers(&[2, 2], &[1, 2, 3, 4])),
        ("train.npy", integers(&[2], &[1, 0])),
        ("labels.npy", integers(&[2], &[2, 0])),
        ("links.npy", integers(&[1, 2], &[2, 1])),
    ];
    for (name, contents) in files {
        fs::write(folder.join(name), contents).unwrap();
    }
    let built = scratch.build("g", &graphbolt(&folder, METADATA).unwrap());
    built.check().unwrap();
    assert_eq!(edges(&built), (vec![0, 1, 3], vec![1, 0, 2]));
    assert_eq!(numbers(&built.array("nodes/item.feat.npy"), i32::from_le_bytes), [1, 2, 3, 4]);
    assert_eq!(numbers(&built.array("edges/user__buys__item.price.npy"), i32::from_le_bytes), [32, 30, 31]);
    let seeds: Vec<(&str, u64)> =
        built.description.seeds.iter().map(|set| (set.name.as_str(), set.rows)).collect();
    assert_eq!(seeds, [("test", 1), ("train", 2)]);
}

#[test]
fn labels_of_seeds_in_csv_files_are_rejected() {
    let scratch = Scratch::new();
    let (edges, label) = (scratch.write("e.csv", "0,1\n1,0\n"), scratch.write("y.csv", "2\n0\n"));
    let seeds = ColumnRef::from(scratch.write_integers("train.npy", &[2], [1, 0]));
    let mut nodes = NodeSpec::default();
    nodes.seeds.insert("train".to_owned(), SeedSpec { label: Some(label), ..SeedSpec::new(seeds) });
    let error = scratch.error(&GraphSpec::homogeneous(nodes, vec![edges]));
    assert!(error.contains("y.csv") && error.contains("save them with `numpy.save`"), "{error}");
}

#[test]
fn datasets_of_graphbolt_that_cannot_be_built_are_rejected() {
    let scratch = Scratch::new();
    let error = |old: &str, new: &str| {
        assert!(METADATA.contains(old), "{old}");
        scratch.write_integers("train.npy", &[1], [0]);
        graphbolt(&scratch.path(""), &METADATA.replacen(old, new, 1)).unwrap_err()
    };
    assert!(
        error(r#""format": "csv""#, r#""format": "torch""#)
            .contains("has the format `torch`: save it with NumPy")
    );
    assert!(error("user:buys:item", "user:item").contains("invalid edge type `user:item`"));
    assert!(
        error(r#""type": "item", "name": "feat""#, r#""type": "x", "name": "feat""#)
            .contains("the node type `x`")
    );
    assert!(
        error(r#""name": "seeds""#, r#""name": "indexes""#).contains("only seeds and labels can be built")
    );
    let preprocessed = r#"{"graph_topology": {"path": "preprocessed/fused_csc_sampling_graph.pt"}}"#;
    let message = graphbolt(&scratch.path(""), preprocessed).unwrap_err();
    assert!(message.contains("pass the folder before its preprocessing"), "{message}");
}
