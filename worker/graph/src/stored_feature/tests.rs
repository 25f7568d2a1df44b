//! Reads of some rows of a feature whose rows continue in the next block.

use std::fs;
use std::path::Path;

use feedline_data::tenants::TenantReads;
use feedline_sources::Stores;
use tempfile::TempDir;

use super::*;
use crate::build::{BuildSettings, ColumnRef, FeatureSpec, GraphSpec, NodeSpec, SeedSpec, build_graph};
use crate::folder::GraphAccess;

/// Numbers of a row: a row has 5 MiB, and a block 8 MiB.
const ROW_NUMBERS: usize = 5 << 18;
const ROWS: u32 = 5;

/// The number at a place of a row.
fn number(row: u32, place: usize) -> f32 {
    row as f32 * 1e6 + (place % 1_000) as f32
}

fn row(row: u32) -> Vec<u8> {
    (0..ROW_NUMBERS).flat_map(|place| number(row, place).to_le_bytes()).collect()
}

/// Builds a graph with one feature.
fn build(directory: &Path) {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({ROWS}, {ROW_NUMBERS}), }}");
    let text = format!("{text:<117}\n");
    let mut array = b"\x93NUMPY\x01\x00".to_vec();
    array.extend((text.len() as u16).to_le_bytes());
    array.extend(text.bytes());
    (0..ROWS).for_each(|number| array.extend(row(number)));
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    fs::write(path("x.npy"), array).unwrap();
    fs::write(path("edges.csv"), "0,1\n1,2\n2,3\n3,4\n").unwrap();
    let mut spec = NodeSpec::default();
    let from = ColumnRef::from(path("x.npy"));
    spec.features.insert("x".to_owned(), FeatureSpec { from, dtype: None });
    let all = ColumnRef { path: "all".to_owned(), column: None };
    spec.seeds.insert("all".to_owned(), SeedSpec::new(all));
    let spec = GraphSpec::homogeneous(spec, vec![path("edges.csv")]);
    build_graph(&spec, &directory.join("g"), &BuildSettings::new(1 << 26, 1)).unwrap();
}

async fn open(directory: &TempDir) -> StoredFeature {
    let stores = Stores::new(Vec::new());
    let access = GraphAccess { stores, credentials: None, tenant: TenantReads::default() };
    let url = directory.path().join("g");
    let folder = Arc::new(GraphFolder::open(access, url.to_str().unwrap()).await.unwrap());
    let feature = folder.description().nodes[0].features[0].clone();
    StoredFeature::new(folder, feature, ROWS).unwrap()
}

#[tokio::test]
async fn some_rows_are_read_from_their_blocks() {
    let directory = tempfile::tempdir().unwrap();
    build(directory.path());
    let feature = open(&directory).await;
    assert_eq!((feature.rows(), feature.row_bytes()), (ROWS, 5 << 20));
    assert_eq!((feature.dtype(), feature.feature().name.as_str()), (ScalarType::Float32, "x"));
    for rows in [vec![], vec![1], vec![0, 4], vec![1, 1, 3], vec![0, 1, 2, 3, 4]] {
        let expected: Vec<u8> = rows.iter().flat_map(|number| row(*number)).collect();
        assert!(feature.read_rows(&rows).await.unwrap() == expected, "{rows:?}");
    }
    for rows in [vec![5], vec![3, 1]] {
        let error = feature.read_rows(&rows).await.unwrap_err().to_string();
        assert!(error.starts_with("feature `x` has 5 rows, and not row "), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_block_fails_only_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    build(directory.path());
    let feature = open(&directory).await;
    let path = directory.path().join("g").join(&feature.feature().file.path);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(feature.read_rows(&[0, 1]).await.is_ok());
    let error = feature.read_rows(&[0, 4]).await.unwrap_err().to_string();
    assert!(error.contains("have the hash"), "{error}");
}
