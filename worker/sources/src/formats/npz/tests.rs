//! Tests of archives. `make_npz.py` wrote `testdata/npz` with NumPy, and the rows that NumPy reads.

use feedline_data::pipeline::{Format, Source};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::testing::{
    Fixture, JsonRows, dataset, expected_json, fixture, path, read_json, testdata, write_settled,
};
use crate::{Dataset, Stores};

async fn committed(name: &str, features: &[(&str, &str)]) -> Result<JsonRows, String> {
    let format = if name.ends_with(".npy") { Format::Npy } else { Format::Npz };
    let file = testdata(&format!("npz/{name}"));
    let found = read_json(&dataset(&[file.to_str().unwrap()], format, features)).await;
    found.map_err(|error| error.to_string())
}

fn shard(bytes: &[u8]) -> Fixture {
    fixture(bytes, Format::Npz, &[])
}

#[tokio::test]
async fn archives_have_the_rows_that_numpy_reads() {
    let expected = expected_json("npz/expected.json");
    for (name, key) in [
        ("every.npz", "every"),
        ("stored.npz", "stored"),
        ("deflated.npz", "stored"),
        ("zip64.npz", "stored"),
        ("fortran.npy", "fortran"),
    ] {
        let found = committed(name, &[]).await.unwrap();
        assert_eq!(Value::Array(found.rows), expected[key], "{name}");
    }
    let columns = committed("stored.npz", &[]).await.unwrap().columns;
    assert_eq!(columns, "i8: int64, f4_c: float32 tensor [2, 3], u2_big_c: uint16 tensor [2, 3], bool: bool");
}

#[tokio::test]
async fn arrays_that_cannot_be_rows_are_one_sentence_if_they_are_selected() {
    for (column, reason) in [
        ("object", "never unpickles objects"),
        ("structured", "is not a boolean, integer or float"),
        ("text", "is not a boolean, integer or float"),
        ("scalar", "zero-dimensional"),
        ("short", "the array `short` has 2 rows, but the array `good` has 3"),
        ("other", "no column `other`"),
    ] {
        let error = committed("mixed.npz", &[("a", "good"), (column, column)]).await.err().unwrap();
        assert!(error.contains(reason) && !error.contains('\n'), "{error}");
    }
    let found = committed("mixed.npz", &[("a", "good")]).await.unwrap();
    assert_eq!((found.rows.len(), found.columns.as_str()), (3, "a: int64"));
}

#[tokio::test]
async fn truncation_at_every_byte_is_detected() {
    for name in ["stored.npz", "zip64.npz"] {
        let whole = std::fs::read(testdata(&format!("npz/{name}"))).unwrap();
        for length in 0..whole.len() {
            let error = shard(&whole[..length]).index().await.unwrap_err().to_string();
            assert!(error.contains("not a complete zip archive"), "{length}: {error}");
        }
    }
}

#[tokio::test]
async fn a_damaged_array_fails_its_checksum() {
    let mut whole = std::fs::read(testdata("npz/stored.npz")).unwrap();
    let at =
        whole.windows(4).position(|bytes| bytes == b"\0\0\x20\x40").expect("the archive has the number 2.5");
    whole[at] ^= 1;
    let fixture = shard(&whole);
    let indexed = fixture.index().await.unwrap();
    let error = fixture.read(&indexed, 0, None).await.unwrap_err().to_string();
    assert!(error.contains("the checksum of an array does not match"), "{error}");
}

#[tokio::test]
async fn rows_of_large_stored_arrays_are_read_separately() {
    use super::super::npy::header::NpyHeader;
    let header = |rows: u64| NpyHeader {
        column_type: feedline_data::schema::ColumnType::Scalar(feedline_data::schema::ScalarType::Int64),
        scalar: feedline_data::schema::ScalarType::Int64,
        rows,
        row_shape: Vec::new(),
        row_bytes: 8,
        data_start: 128,
        is_big_endian: false,
        is_fortran: false,
    };
    let array = |is_deflated, rows| super::NpzArray {
        name: "a".to_owned(),
        member: super::ZipMember { is_deflated, ..super::ZipMember::default() },
        header: Ok(header(rows)),
    };
    let blocks = |is_deflated, rows| {
        let (array, header) = (array(is_deflated, rows), header(rows));
        super::blocks(&[(&array, &header)])
    };
    assert_eq!(blocks(false, 10_000).unwrap().len(), 3);
    assert_eq!(blocks(true, 10_000).unwrap().len(), 1);
    assert!(blocks(true, 1 << 27).unwrap_err().contains("save them with `np.savez`"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn damage_never_panics(flips in prop::collection::vec((0_usize..4_000, any::<u8>()), 1..6), is_deflated: bool) {
        let name = if is_deflated { "npz/deflated.npz" } else { "npz/zip64.npz" };
        let mut bytes = std::fs::read(testdata(name)).unwrap();
        let length = bytes.len();
        flips.iter().for_each(|(at, mask)| bytes[at % length] ^= mask);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fixture = shard(&bytes);
            if let Ok(indexed) = fixture.index().await {
                for block in 0..indexed.index.blocks.len() {
                    drop(fixture.read(&indexed, block, None).await);
                }
            }
        });
    }
}

#[tokio::test]
async fn an_archive_without_the_selected_arrays_has_all_its_rows() {
    let bytes = std::fs::read(testdata("npz/stored.npz")).unwrap();
    let rows = committed("stored.npz", &[]).await.unwrap().rows.len();
    let directory = tempfile::tempdir().unwrap();
    write_settled(&directory.path().join("shard"), &bytes);
    let source = Source::new(Format::Npz, path(directory.path(), "shard")).optional_feature("x", "absent");
    let found = read_json(&Dataset::new(source, Stores::new(Vec::new())).unwrap()).await.unwrap();
    // A column that no shard has is not in the schema of the blocks.
    assert_eq!(found.rows, vec![json!({}); rows]);
}
