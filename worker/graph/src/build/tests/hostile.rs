//! Damaged folders are rejected with one sentence and without a panic.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use feedline_data::graph::description::{BlockHash, DESCRIPTION_FILE, GraphDescription};
use feedline_data::schema::ScalarType;

use super::super::spec::{ColumnRef, FeatureSpec, GraphSpec, NodeSpec, OrderSpec, SeedSpec};
use super::scratch::{BuiltGraph, Scratch, check_folder, open_file};
use crate::block_hasher::hash_block;

/// A graph with all kinds of files.
fn build(scratch: &Scratch) -> BuiltGraph {
    let edges = scratch.write("e.csv", "from,to,w,t\na,b,1,5\nb,c,2,4\nc,a,3,3\na,c,4,2\n");
    let x = scratch.write_array("x.npy", ScalarType::Float32, &[3, 2], &[1; 24]);
    let mut nodes = NodeSpec::default();
    nodes.features.insert("x".to_owned(), FeatureSpec { from: ColumnRef::from(x), dtype: None });
    nodes.seeds = BTreeMap::from([("train".to_owned(), SeedSpec::new(ColumnRef::from("all".to_owned())))]);
    let mut spec = GraphSpec::homogeneous(nodes, vec![edges]);
    spec.order = OrderSpec::Degree;
    let relation = &mut spec.relations[0];
    (relation.weight, relation.time, relation.edge_ids) = (Some("w".to_owned()), Some("t".to_owned()), true);
    scratch.build("g", &spec)
}

/// Returns the message of a check that must fail.
fn error(folder: &Path) -> String {
    let error = check_folder(folder).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

/// Replaces the contents of a file, and its hash in the description.
fn replace(built: &BuiltGraph, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(built.path.join(path)).unwrap();
    change(&mut bytes);
    fs::write(built.path.join(path), &bytes).unwrap();
    let json = built.description.to_json();
    let header = if path.ends_with(".npy") { 128 } else { 0 };
    let file = built.description.files().into_iter().find(|described| described.file.path == path).unwrap();
    let (old, new) = (file.file.blocks[0].to_string(), hash_block(&bytes[header..]).to_string());
    fs::write(built.path.join(DESCRIPTION_FILE), json.replace(&old, &new)).unwrap();
}

#[test]
fn a_flipped_bit_is_found_in_each_file() {
    let scratch = Scratch::new();
    let built = build(&scratch);
    built.check().unwrap();
    for described in built.description.files() {
        let path = built.path.join(&described.file.path);
        let intact = fs::read(&path).unwrap();
        let start = if described.array.is_some() { 128 } else { 0 };
        for position in [start, (start + intact.len()) / 2, intact.len() - 1] {
            let mut bytes = intact.clone();
            bytes[position] ^= 4;
            fs::write(&path, &bytes).unwrap();
            let error = error(&built.path);
            assert!(error.contains(&described.file.path) && error.contains("have the hash"), "{error}");
        }
        fs::write(&path, &intact).unwrap();
    }
    built.check().unwrap();
}

#[test]
fn a_truncated_file_is_found() {
    let scratch = Scratch::new();
    let built = build(&scratch);
    for described in built.description.files() {
        let path = built.path.join(&described.file.path);
        let intact = fs::read(&path).unwrap();
        for length in 0..intact.len() {
            fs::write(&path, &intact[..length]).unwrap();
            let error = open_file(&built, &described.file.path).unwrap_err().to_string();
            assert!(error.contains(&format!("the file has {length} bytes")), "{error}");
        }
        fs::remove_file(&path).unwrap();
        assert!(error(&built.path).contains("does not exist"));
        fs::write(&path, &intact).unwrap();
    }
}

#[test]
fn a_header_that_differs_from_the_description_is_found() {
    let scratch = Scratch::new();
    let built = build(&scratch);
    for described in built.description.files().into_iter().filter(|described| described.array.is_some()) {
        let path = built.path.join(&described.file.path);
        let intact = fs::read(&path).unwrap();
        for position in 0..128 {
            for value in [0, b' ', b'9', 0xff] {
                let mut bytes = intact.clone();
                bytes[position] = value;
                fs::write(&path, &bytes).unwrap();
                // A change of white space is harmless.
                if let Err(error) = open_file(&built, &described.file.path) {
                    let error = error.to_string();
                    assert!(error.contains(&described.file.path) && !error.contains('\n'), "{error}");
                }
            }
        }
        fs::write(&path, &intact).unwrap();
    }
}

#[test]
fn a_truncated_or_changed_description_is_rejected() {
    let scratch = Scratch::new();
    let built = build(&scratch);
    let path = built.path.join(DESCRIPTION_FILE);
    let json = fs::read_to_string(&path).unwrap();
    for length in (0..json.len() - 1).step_by(7) {
        fs::write(&path, &json[..length]).unwrap();
        assert!(error(&built.path).contains("invalid description"));
    }
    for (from, to) in [
        ("\"version\": 1", "\"version\": 9"),
        ("\"edges\": 4", "\"edges\": 5"),
        ("\"edges\": 4", "\"edges\": 18446744073709551615"),
        ("\"count\": 3", "\"count\": 4294967295"),
        ("\"rows\": 3", "\"rows\": 4"),
        ("\"source\": \"node\"", "\"source\": \"nodes\""),
        ("\"dtype\": \"float32\"", "\"dtype\": \"float64\""),
        ("topology/node__to__node.sources.npy", "../../etc/passwd"),
    ] {
        assert!(json.contains(from), "{from}");
        fs::write(&path, json.replacen(from, to, 1)).unwrap();
        error(&built.path);
    }
}

/// Contents with correct hashes are checked too.
#[test]
fn invalid_arrays_are_found() {
    let scratch = Scratch::new();
    let built = build(&scratch);
    let key = "topology/node__to__node";
    let cases: [(&str, usize, u8, &str); 7] = [
        ("offsets", 128, 1, "invalid offsets"),
        ("offsets", 136, 200, "invalid offset at index 1"),
        ("sources", 128, 77, "invalid source 77 at position 0"),
        ("times", 144, 99, "are not sorted"),
        ("weights", 136, 255, "the weights of node 2"),
        ("positions", 128, 3, "position 3, but there are 3 nodes"),
        // The last byte.
        ("seeds", usize::MAX, 0, "does not contain correct footer"),
    ];
    for (name, position, value, part) in cases {
        let path = match name {
            "positions" => "ids/node.positions.npy".to_owned(),
            "seeds" => "seeds/train.arrow".to_owned(),
            _ => format!("{key}.{name}.npy"),
        };
        let intact = fs::read(built.path.join(&path)).unwrap();
        let position = position.min(intact.len() - 1);
        replace(&built, &path, |bytes| bytes[position] = value);
        let Err(error) = check_folder(&built.path) else { panic!("invalid {name} are not found") };
        let error = error.to_string();
        assert!(error.contains(part) && !error.contains('\n'), "`{part}` is missing in: {error}");
        fs::write(built.path.join(&path), intact).unwrap();
        fs::write(built.path.join(DESCRIPTION_FILE), built.description.to_json()).unwrap();
    }
    built.check().unwrap();
}

#[test]
fn hashes_of_wrong_number_are_rejected() {
    let scratch = Scratch::new();
    let built = build(&scratch);
    let mut description: GraphDescription = built.description.clone();
    description.relations[0].sources.blocks.push(BlockHash(1));
    fs::write(built.path.join(DESCRIPTION_FILE), description.to_json()).unwrap();
    assert!(error(&built.path).contains("has 2 hashes, but its 144 bytes have 1 blocks"));
}
