//! Tests of TFRecord indexing and reading.

use std::sync::Arc;

use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use proptest::prelude::*;

use super::TfRecordReader;
use crate::BlockRead;
use crate::local::LocalFile;
use crate::object::Object;
use crate::reader::FormatReader;
use crate::select::Selection;
use crate::testing::{Feature, Fixture, example, fixture, lines, tfrecord};

fn records(sizes: &[usize]) -> Vec<Vec<u8>> {
    let record = |(row, &size): (usize, &usize)| {
        let image = vec![b'a' + (row % 26) as u8; size];
        example(&[
            ("image", Feature::Bytes(&[&image])),
            ("label", Feature::Ints(&[row as i64 - 1])),
            ("boxes", Feature::Floats(&vec![0.5; row % 3])),
        ])
    };
    sizes.iter().enumerate().map(record).collect()
}

fn shard(bytes: &[u8]) -> Fixture {
    fixture(bytes, Format::TfRecord, &[])
}

#[tokio::test]
async fn every_type_of_feature_is_read() {
    let all = shard(&tfrecord(&records(&[3, 20, 0, 1]))).read_all().await;
    assert_eq!(all.columns(), "boxes: list of float32, image: bytes, label: int64");
    let long = "b".repeat(20);
    assert_eq!(all.rows(), ["[]|aaa|-1", &format!("[0.5]|{long}|0"), "[0.5,0.5]||1", "[]|d|2"]);
    assert_eq!(all.failures(), []);
    assert!(all.blocks[0].held_bytes > 0 && all.blocks[0].store_requests == 1);
}

#[tokio::test]
async fn features_are_selected_and_renamed() {
    let bytes = tfrecord(&records(&[3]));
    let all = fixture(&bytes, Format::TfRecord, &[("y", "label")]).read_all().await;
    assert_eq!((all.columns().as_str(), all.rows()), ("y: int64", vec!["-1".to_owned()]));
    // The coordinator checks that a column is in any shard.
    let wrong = fixture(&bytes, Format::TfRecord, &[("y", "lable")]).index().await.unwrap().index;
    assert!(wrong.schema.unwrap().fields.is_empty());
    assert_eq!(wrong.columns.ignored, ["boxes", "image", "label"]);
}

/// An `Example` with one feature. `lists` are the bytes of its fields.
fn one_feature(name: &[u8], lists: &[u8]) -> Vec<u8> {
    let message = |tag: u8, bytes: &[u8]| [&[tag, bytes.len() as u8], bytes].concat();
    let entry = [message(0x0a, name), message(0x12, lists)].concat();
    message(0x0a, &message(0x0a, &entry))
}

#[tokio::test]
async fn a_feature_has_one_list_and_a_readable_name() {
    let five = [0x1a, 3, 0x0a, 1, 5];
    let all = shard(&tfrecord(&[one_feature(b"a", &five)])).read_all().await;
    assert_eq!((all.columns().as_str(), all.rows()), ("a: int64", vec!["5".to_owned()]));
    let merged = one_feature(b"a", &[five, five].concat());
    let all = shard(&tfrecord(&[one_feature(b"a", &five), merged])).read_all().await;
    let reasons: Vec<String> = all.failures().iter().map(|failure| format!("{failure:?}")).collect();
    assert!(reasons.len() == 1 && reasons[0].contains("a feature has two lists of values"), "{reasons:?}");
    let error = shard(&tfrecord(&[one_feature(b"\xff", &five)])).index().await.unwrap_err().to_string();
    assert!(error.contains("is not UTF-8: list the features"), "{error}");
    let selected = fixture(&tfrecord(&[one_feature(b"\xff", &five)]), Format::TfRecord, &[("a", "a")]);
    assert!(selected.index().await.unwrap().index.schema.unwrap().fields.is_empty());
}

#[tokio::test]
async fn features_of_all_records_are_columns() {
    let mut all = records(&[2; 40]);
    all.push(example(&[("label", Feature::Ints(&[1, 2])), ("late", Feature::Bytes(&[b"x"]))]));
    let read = shard(&tfrecord(&all)).read_all().await;
    assert_eq!(read.columns(), "boxes: list of float32, image: bytes, label: list of int64, late: bytes");
    assert_eq!(read.rows()[40], "[]|null|[1,2]|x");
    assert_eq!(read.rows()[0], "[]|aa|[-1]|null");
    assert_eq!(read.failures(), []);
}

#[tokio::test]
async fn a_missing_feature_is_null_or_empty() {
    let mut all = records(&[2; 3]);
    all.push(example(&[("label", Feature::Ints(&[5]))]));
    let read = shard(&tfrecord(&all)).read_all().await;
    assert_eq!(read.columns(), "boxes: list of float32, image: bytes, label: int64");
    assert_eq!(read.rows()[3], "[]|null|5");
    assert_eq!(read.failures(), []);
}

#[tokio::test]
async fn a_feature_of_another_type_fails_its_row() {
    let mut all = records(&[2; 17]);
    all.push(example(&[("label", Feature::Floats(&[1.0])), ("image", Feature::Bytes(&[b"x"]))]));
    let read = shard(&tfrecord(&all)).read_all().await;
    let reasons: Vec<(u32, String)> = read.failures().into_iter().map(|it| (it.row, it.reason)).collect();
    assert_eq!(reasons.len(), 1);
    assert!(reasons[0].0 == 17 && reasons[0].1.contains("`label` has values of type float"), "{reasons:?}");
    assert_eq!(read.rows()[17], "[]|x|null");
}

/// Reads all rows of a shard with the given columns.
async fn read_as(records: &[Vec<u8>], schema: &Schema) -> (Vec<String>, Vec<String>) {
    let fixture = shard(&tfrecord(records));
    let indexed = fixture.index().await.unwrap();
    let read = BlockRead {
        shard: &indexed.object,
        block: &indexed.index.blocks[0],
        index: None,
        schema,
        rows: None,
    };
    let rows = fixture.dataset.read_block(&read).await.unwrap();
    (lines(&rows.batch), rows.failures.into_iter().map(|failure| failure.reason).collect())
}

#[tokio::test]
async fn numbers_are_widened_exactly_or_fail_their_row() {
    let double = || ColumnType::Scalar(ScalarType::Float64);
    let integer = |value: i64| example(&[("x", Feature::Ints(&[value])), ("y", Feature::Ints(&[value, 1]))]);
    let schema =
        Schema::new([("x", double()), ("y", ColumnType::List(Box::new(double()))), ("z", ColumnType::Image)]);
    let (rows, reasons) = read_as(&[integer(7), integer((1 << 53) + 1)], &schema).await;
    assert_eq!(rows, ["7|[7,1]|null", "null|null|null"]);
    assert_eq!(
        reasons,
        ["feature `x` has the value 9007199254740993, which float64 does not represent exactly"]
    );
    let float = example(&[("x", Feature::Floats(&[0.5]))]);
    assert_eq!(read_as(&[float], &schema).await.0, ["0.5|[]|null"]);
}

#[tokio::test]
async fn features_of_large_records_are_found_without_reading_their_data() {
    let image = vec![b'x'; 1 << 20];
    let record = |late: bool, label: &[i64]| {
        let images = [image.as_slice()];
        let mut features = vec![("image", Feature::Bytes(&images)), ("label", Feature::Ints(label))];
        if late {
            features.push(("late", Feature::Ints(&[5])));
        }
        example(&features)
    };
    let mut all = vec![record(false, &[1]); 30];
    all.push(record(true, &[1]));
    all.extend(vec![record(false, &[1]); 9]);
    let late = shard(&tfrecord(&all)).index().await.unwrap();
    let schema = late.index.schema.unwrap();
    assert_eq!(schema.names().collect::<Vec<_>>(), ["image", "label", "late"]);
    assert_eq!(schema.get("late"), Some(&ColumnType::Scalar(ScalarType::Int64)));
    all[35] = record(false, &[1, 2]);
    let list = shard(&tfrecord(&all)).index().await.unwrap().index.schema.unwrap();
    assert_eq!(list.get("label"), Some(&ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int64)))));
    // Two large values in one feature.
    all[36] = example(&[("image", Feature::Bytes(&[image.as_slice(), image.as_slice()]))]);
    let list = shard(&tfrecord(&all)).index().await.unwrap().index.schema.unwrap();
    assert_eq!(list.get("image"), Some(&ColumnType::List(Box::new(ColumnType::Binary))));
    // A damaged record does not change the columns.
    let mut bytes = tfrecord(&[record(false, &[1]), record(true, &[1])]);
    let end = bytes.len() - 1;
    bytes[end] ^= 1;
    let damaged = shard(&bytes).index().await.unwrap().index.schema.unwrap();
    assert_eq!(damaged.names().collect::<Vec<_>>(), ["image", "label"]);
}

#[tokio::test]
async fn a_wrong_data_checksum_fails_its_row_and_a_wrong_length_checksum_ends_the_shard() {
    let records = records(&[5, 5, 5]);
    let first = records[0].len() as u64 + 16;
    let mut bytes = tfrecord(&records);
    bytes[first as usize + 20] ^= 1;
    let all = shard(&bytes).read_all().await;
    assert_eq!(all.index.defects, []);
    assert_eq!(all.failures().len(), 1);
    assert_eq!((all.failures()[0].row, all.failures()[0].offset), (1, first));
    assert_eq!(all.rows()[1], "null|null|null");

    let mut bytes = tfrecord(&records);
    bytes[first as usize + 9] ^= 1;
    let all = shard(&bytes).read_all().await;
    assert_eq!((all.rows().len(), all.index.defects.len(), all.index.defects[0].offset), (1, 1, first));
}

#[tokio::test]
async fn truncation_at_every_byte_preserves_complete_rows() {
    let records = records(&[2, 3, 4]);
    let bytes = tfrecord(&records);
    let mut ends = vec![0];
    for record in &records {
        ends.push(ends[ends.len() - 1] + record.len() + 16);
    }
    for length in 0..=bytes.len() {
        let all = shard(&bytes[..length]).read_all().await;
        let whole = ends.iter().filter(|&&end| end <= length).count() - 1;
        assert_eq!(all.rows().len(), whole, "{length}");
        let defects: Vec<u64> = all.index.defects.iter().map(|defect| defect.offset).collect();
        let expected = if ends.contains(&length) { vec![] } else { vec![ends[whole] as u64] };
        assert_eq!(defects, expected, "{length}");
    }
}

#[tokio::test]
async fn other_data_is_rejected() {
    let error = shard(&tfrecord(&[b"not an example".to_vec()])).index().await.unwrap_err().to_string();
    assert!(error.contains("tf.train.Example"), "{error}");
    assert_eq!(shard(b"").read_all().await.rows().len(), 0);
}

#[tokio::test]
async fn large_records_are_skipped_and_small_ones_read_in_large_pieces() {
    for (count, size, most_requests, most_bytes) in
        [(100, 1 << 20, 100, 28 << 20), (400, 50_000, 8, 24 << 20)]
    {
        let fixture = shard(&tfrecord(&records(&vec![size; count])));
        let listed = fixture.shard().await;
        let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
        let path = fixture.directory.path().join("shard");
        let key = Path::from_absolute_path(&path).unwrap();
        let object = Arc::new(Object::new(store, key, listed).with_file(Some(LocalFile::linked(path))));
        let index = TfRecordReader.index(&object, &Selection::default()).await.unwrap();
        let (bytes, requests, _) = object.traffic();
        assert_eq!(index.rows(), count as u64);
        assert!(requests <= most_requests && bytes <= most_bytes, "{requests} requests, {bytes} bytes");
    }
}

#[tokio::test]
async fn a_few_large_records_are_indexed_without_reading_their_data() {
    let fixture = shard(&tfrecord(&records(&[6 << 20; 20])));
    let shard = fixture.index().await.unwrap();
    assert_eq!(shard.index.rows(), 20);
    let rows = fixture.read(&shard, 7, Some(&[0])).await.unwrap();
    assert_eq!(rows.batch.num_rows(), 1);
    assert_eq!(rows.store_bytes, shard.index.blocks[7].bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn all_rows_come_once_in_order_and_chosen_rows_equal_them(
        sizes in proptest::collection::vec(0usize..120_000, 1..40),
        picks in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fixture = shard(&tfrecord(&records(&sizes)));
            let all = fixture.read_all().await;
            let labels: Vec<String> = all.rows().iter().map(|row| row.rsplit('|').next().unwrap().to_owned()).collect();
            let expected: Vec<String> = (0..sizes.len()).map(|row| (row as i64 - 1).to_string()).collect();
            assert_eq!(labels, expected);
            let shard = fixture.index().await.unwrap();
            for (at, block) in shard.index.blocks.iter().enumerate() {
                if block.row_bytes.is_empty() {
                    continue;
                }
                let rows: Vec<u32> = (0..block.rows).filter(|&row| picks[row as usize % 40]).collect();
                let some = fixture.read(&shard, at, Some(&rows)).await.unwrap();
                let whole = lines(&all.blocks[at].batch);
                let expected: Vec<&String> = rows.iter().map(|&row| &whole[row as usize]).collect();
                assert_eq!(lines(&some.batch).iter().collect::<Vec<_>>(), expected);
            }
        });
    }

    #[test]
    fn damage_never_panics(flips in proptest::collection::vec((0usize..400, any::<u8>()), 1..4)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut data = records(&[10, 40, 7]).remove(1);
        for (at, mask) in flips {
            let at = at % data.len();
            data[at] ^= mask;
        }
        // A corrupted example with correct checksums.
        runtime.block_on(async {
            let mut all = records(&[3, 3]);
            all.push(data);
            if let Ok(index) = shard(&tfrecord(&all)).index().await {
                assert_eq!(index.index.rows(), 3);
            }
        });
    }
}
