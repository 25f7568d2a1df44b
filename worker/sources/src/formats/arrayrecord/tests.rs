//! Tests of ArrayRecord. `make_arrayrecord.py` wrote `testdata/arrayrecord` with the library array_record, and the records
//! that the library reads.

use std::io::Read;

use arrow::array::{Array, AsArray};
use feedline_data::manifest::Manifest;
use feedline_data::pipeline::{Format, Partitions, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::testing::{Fixture, JsonRows, expected_json, fixture, hex, read_json, testdata, unhex};
use crate::{BlockRead, Dataset, Stores};

/// The contents of a committed file, which is compressed because of its padding.
fn contents(name: &str) -> Vec<u8> {
    let file = std::fs::File::open(testdata(&format!("arrayrecord/{name}.gz"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

fn shard(bytes: &[u8]) -> Fixture {
    fixture(bytes, Format::ArrayRecord, &[])
}

async fn committed(name: &str) -> JsonRows {
    read_json(&shard(&contents(name)).dataset).await.unwrap()
}

#[tokio::test]
async fn files_have_the_records_of_the_library() {
    let expected = expected_json("arrayrecord/expected.json");
    for (name, key) in [
        ("one", "small"),
        ("none", "small"),
        ("zstd", "small"),
        ("brotli", "small"),
        ("snappy", "small"),
        ("one_zstd", "small"),
        ("padded", "small"),
        ("mixed", "mixed"),
        ("large", "large"),
        ("large_groups", "large"),
    ] {
        let found = committed(name).await;
        assert_eq!((found.columns.as_str(), found.failures), ("record: bytes", vec![]), "{name}");
        let record = |row: &Value| {
            let text = row["record"].as_str().unwrap();
            json!(if text.len() < 200 { text.to_owned() } else { hex(&Sha256::digest(unhex(text))) })
        };
        assert_eq!(found.rows.iter().map(record).collect::<Value>(), expected[key], "{name}");
    }
}

#[tokio::test]
async fn features_of_examples_are_columns() {
    for name in ["examples", "transposed", "transposed_none"] {
        let found = committed(name).await;
        assert_eq!((found.columns.as_str(), found.rows.len()), ("id: int64, text: bytes", 30), "{name}");
        for (row, found) in found.rows.iter().enumerate() {
            assert_eq!(found, &json!({ "id": row, "text": hex(format!("row {row}").as_bytes()) }), "{name}");
        }
    }
}

#[tokio::test]
async fn records_are_read_without_their_columns() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("year=3")).unwrap();
    std::fs::write(directory.path().join("year=3/a"), contents("one")).unwrap();
    let url = format!("{}/", directory.path().to_str().unwrap());
    let source = Source::arrayrecord(url).partitions(Partitions::Hive).feature("year", "year");
    let found = read_json(&Dataset::new(source, Stores::new(Vec::new())).unwrap()).await.unwrap();
    let rows = committed("one").await.rows.len();
    assert_eq!((found.rows, found.failures), (vec![json!({ "year": 3 }); rows], vec![]));
}

#[tokio::test]
async fn examples_and_other_records_are_not_mixed() {
    let (examples, records) = (shard(&contents("examples")), shard(&contents("one")));
    let (of_examples, of_records) = (examples.index().await.unwrap(), records.index().await.unwrap());
    let all = Manifest::build(vec![of_examples.clone(), of_records.clone()]).unwrap().schema;
    for (fixture, indexed) in [(&examples, &of_examples), (&records, &of_records)] {
        let read = BlockRead {
            shard: &indexed.object,
            block: &indexed.index.blocks[0],
            schema: &all,
            rows: None,
            index: None,
        };
        let error = fixture.dataset.read_block(&read).await.unwrap_err().to_string();
        assert!(error.contains("two datasets of a mix"), "{error}");
        let only =
            Schema { fields: all.fields.iter().filter(|field| field.name == "record").cloned().collect() };
        let rows = fixture.dataset.read_block(&BlockRead { schema: &only, ..read }).await.unwrap();
        assert!(rows.failures.is_empty() && rows.batch.num_rows() > 0);
        assert_eq!(rows.batch.column(0).null_count(), 0, "no record is lost");
    }
}

#[tokio::test]
async fn records_that_compress_well_are_blocks_of_their_decompressed_size() {
    let index = shard(&contents("one_zstd")).index().await.unwrap().index;
    let decoded: usize =
        committed("one_zstd").await.rows.iter().map(|row| row["record"].as_str().unwrap().len() / 2).sum();
    let bytes: u64 = index.blocks.iter().map(|block| block.bytes).sum();
    assert!(bytes >= decoded as u64 / 2, "{bytes} of {decoded}");
}

#[tokio::test]
async fn large_records_are_read_one_by_one() {
    let index = shard(&contents("large")).index().await.unwrap().index;
    assert!(index.blocks.iter().all(|block| !block.row_bytes.is_empty()));
}

#[tokio::test]
async fn truncation_and_other_files_are_detected() {
    let whole = contents("zstd");
    for length in (0..whole.len()).step_by(997).chain(whole.len() - 300..whole.len()) {
        let error = shard(&whole[..length]).index().await.unwrap_err().to_string();
        assert!(error.contains("postscript of an ArrayRecord file"), "{length}: {error}");
    }
}

#[tokio::test]
async fn damage_is_detected_by_hashes() {
    for name in ["one", "zstd"] {
        let whole = contents(name);
        let end = whole.len() - (128 << 10) + 1_500;
        for at in (64..end).step_by(37) {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            let fixture = shard(&damaged);
            let found = read_json(&fixture.dataset).await;
            // Damage in the padding and in block headers does not affect records.
            match found {
                Ok(found) => assert_eq!(found.rows, committed(name).await.rows),
                Err(error) => assert!(error.to_string().contains("hash"), "{at}: {error}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn damage_never_panics(flips in prop::collection::vec((0_usize..131_072, any::<u8>()), 1..8), name in 0_usize..3) {
        let mut bytes = contents(["one", "mixed", "transposed_none"][name]);
        let length = bytes.len();
        // Most of the file is padding, so most flips are near the beginnings of the two blocks.
        flips.iter().for_each(|(at, mask)| bytes[if at % 3 == 0 { *at } else { at % 900 } % length] ^= mask);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        drop(runtime.block_on(read_json(&shard(&bytes).dataset)));
    }
}

#[tokio::test]
async fn records_in_a_mix_are_not_affected_by_columns_of_other_datasets() {
    let records = fixture(&contents("one"), Format::ArrayRecord, &[("image", "record")]);
    let indexed = records.index().await.unwrap();
    let read = async |image: ColumnType| {
        let schema = Schema::new([("image", image), ("label", ColumnType::Scalar(ScalarType::Int64))]);
        let (shard, block) = (&indexed.object, &indexed.index.blocks[0]);
        let read = BlockRead { shard, block, schema: &schema, rows: None, index: Some(&indexed.index) };
        records.dataset.read_block(&read).await.unwrap().batch
    };
    let single = read(ColumnType::Binary).await;
    assert_eq!((single.column(0).null_count(), single.column(1).null_count()), (0, single.num_rows()));
    let lists = read(ColumnType::List(Box::new(ColumnType::Binary))).await;
    let lists = lists.column(0).as_list::<i32>();
    assert!(single.num_rows() > 0 && lists.null_count() == 0 && lists.value_length(0) == 1);
    assert_eq!(lists.value(0).as_binary_view().value(0), single.column(0).as_binary_view().value(0));
}
