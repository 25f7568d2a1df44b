//! Tests of rows that are read from a file.

use std::path::Path;

use feedline_data::graph::description::{ArrayLayout, BlockHash, DescribedFile};
use feedline_data::schema::ScalarType;
use feedline_data::tenants::TenantReads;
use feedline_sources::Stores;
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::build::{BuildSettings, ColumnRef, FeatureSpec, GraphSpec, NodeSpec, SeedSpec, build_graph};
use crate::features::{LoadedFeature, RowCounts};
use crate::folder::{GraphAccess, GraphFolder};
use crate::hashed_file::ArrayWriter;

/// The rows have 4000 bytes, so that rows are on both sides of a border of blocks.
const ROWS: u64 = 2_500;
const ROW_ELEMENTS: u64 = 1_000;

/// Builds a graph in the directory `g` with a feature of the numbers 0, 1, 2 and so on.
async fn build(folder: &Path) -> GraphFolder {
    let mut writer =
        ArrayWriter::create(folder, "x.npy".to_owned(), ScalarType::UInt32, &[ROW_ELEMENTS as u32]).unwrap();
    writer.write_numbers(&(0..(ROWS * ROW_ELEMENTS) as u32).collect::<Vec<u32>>()).unwrap();
    writer.finish().unwrap();
    let (edges, graph) = (folder.join("e.csv"), folder.join("g"));
    let lines: String = (0..ROWS).map(|node| format!("{node},{}\n", (node + 1) % ROWS)).collect();
    std::fs::write(&edges, lines).unwrap();
    let mut nodes = NodeSpec::default();
    let x = ColumnRef::from(folder.join("x.npy").to_str().unwrap().to_owned());
    nodes.features.insert("x".to_owned(), FeatureSpec { from: x, dtype: None });
    let all = ColumnRef { path: "all".to_owned(), column: None };
    nodes.seeds.insert("all".to_owned(), SeedSpec { from: all, label: None, time: None });
    let spec = GraphSpec::homogeneous(nodes, vec![edges.to_str().unwrap().to_owned()]);
    build_graph(&spec, &graph, &BuildSettings::new(1 << 26, 1)).unwrap();
    let access =
        GraphAccess { stores: Stores::new(Vec::new()), credentials: None, tenant: TenantReads::default() };
    GraphFolder::open(access, graph.to_str().unwrap()).await.unwrap()
}

async fn open(graph: &GraphFolder, cache: Option<Arc<CopiedBlocks>>) -> ColdFile {
    let feature = &graph.description().nodes[0].features[0];
    let array = Some(ArrayLayout::feature(feature, ROWS));
    let file = graph.open_file(&DescribedFile { file: &feature.file, array }).await.unwrap();
    ColdFile::new(file, feature.content_hash(), (ROWS, ROW_ELEMENTS * 4), cache)
}

fn check(rows: &ColdRows, indexes: &[u64]) {
    assert_eq!(rows.rows(), indexes.len() as u64);
    let numbers = rows.data().typed_data::<u32>();
    for (row, &index) in numbers.chunks(ROW_ELEMENTS as usize).zip(indexes) {
        let first = (index * ROW_ELEMENTS) as u32;
        assert!(row.iter().copied().eq(first..first + ROW_ELEMENTS as u32), "row {index}");
    }
}

#[tokio::test]
async fn rows_of_a_local_file_and_of_copied_blocks_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let graph = build(folder.path()).await;
    // The first block ends in row 2097.
    let indexes: Vec<u64> = vec![0, 1, 5, 700, 2_096, 2_097, 2_098, 2_499];
    let local = open(&graph, None).await;
    let rows = local.read_rows(indexes.clone()).await.unwrap();
    check(&rows, &indexes);
    assert_eq!(rows.store_rows(), 0);
    assert_eq!([1, 40].map(|rows| local.reading_bytes(rows)), [1 << 20, 32 << 20]);
    // One block fits on the disk.
    for limit in [100 << 20, 9 << 20, 0] {
        let cache = CopiedBlocks::create(&folder.path().join("blocks"), limit).unwrap();
        let copied = open(&graph, Some(cache)).await;
        assert_eq!(copied.reading_bytes(40), 8 * (17 << 20));
        for _ in 0..2 {
            let rows = copied.read_rows(indexes.clone()).await.unwrap();
            check(&rows, &indexes);
        }
        let again = copied.read_rows(vec![700]).await.unwrap();
        check(&again, &[700]);
        if limit == 100 << 20 {
            assert_eq!(again.store_rows(), 0, "both blocks are on the disk");
        }
    }
}

#[tokio::test]
async fn a_damaged_block_is_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let graph = build(folder.path()).await;
    let path = folder.path().join("g/nodes/node.x.npy");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let cache = CopiedBlocks::create(&folder.path().join("blocks"), 100 << 20).unwrap();
    let file = open(&graph, Some(cache)).await;
    check(&file.read_rows(vec![3]).await.unwrap(), &[3]);
    for _ in 0..2 {
        let error = file.read_rows(vec![2_400]).await.unwrap_err().to_string();
        assert!(
            error.contains("node.x.npy` at byte 8388736: the ") && error.contains("build the graph"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn stored_rows_are_whole_blocks_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let graph = build(folder.path()).await;
    let feature = &graph.description().nodes[0].features[0];
    let block_bytes = HASH_BLOCK_BYTES as usize;
    let all_bytes = (ROWS * ROW_ELEMENTS * 4) as usize;
    // The first block ends in row 2097.
    for (hot, rows, bytes) in [
        (2_097, 2_500, 0),
        (2_098, 2_500, block_bytes),
        (2_098, 1, block_bytes),
        (ROWS, 1, block_bytes),
        (ROWS, 2_500, all_bytes),
        (ROWS, u32::MAX, all_bytes),
    ] {
        let counts = RowCounts { all: ROWS, hot };
        let loaded = LoadedFeature::load(&graph, feature, counts, None).await.unwrap();
        let stored = loaded.stored_rows(rows);
        assert_eq!((stored.data.len(), stored.file_bytes), (bytes, feature.file.bytes), "{hot} rows");
        let hashes = stored.data.chunks(block_bytes).map(|block| BlockHash(xxh3_64(block)));
        assert!(hashes.zip(&feature.file.blocks).all(|(hash, expected)| hash == *expected));
    }
    let stored = LoadedFeature::without_rows(feature).stored_rows(2_500);
    assert_eq!((stored.data.len(), &stored.blocks), (0, &feature.file.blocks));
}
