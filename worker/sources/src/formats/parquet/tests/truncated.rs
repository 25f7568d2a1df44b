//! Tests of Parquet files that end early, or whose data ends before the footer.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use feedline_data::manifest::Shard;
use feedline_data::pipeline::Format;
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::write;
use crate::testing::{fixture, lines};

/// Number of places at which each file is truncated.
const TRUNCATIONS: usize = 200;

/// Numbers, texts with and without a dictionary, and lists.
fn batch() -> RecordBatch {
    let texts = (0..600).map(|row| format!("text {}", row * row % 9973));
    let words = (0..600_usize).map(|row| ["a", "few", "words"][row % 3]);
    let lists = (0..600_i64).map(|row| (row % 7 > 0).then(|| (0..row % 5).map(Some)));
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(0..600)) as ArrayRef),
        ("text", Arc::new(StringArray::from_iter_values(texts))),
        ("word", Arc::new(StringArray::from_iter_values(words))),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
    ])
    .unwrap()
}

#[tokio::test]
async fn a_file_that_is_truncated_at_any_place_is_an_error_with_its_name() {
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ] {
        let properties =
            WriterProperties::builder().set_compression(codec).set_max_row_group_row_count(Some(300));
        let file = write(&batch(), properties.build());
        let whole = fixture(&file, Format::Parquet, &[]);
        let rows = whole.read_all().await.rows();
        assert_eq!((rows.len(), rows[100].as_str()), (600, "100|text 27|few|[]"), "{codec:?}");
        let indexed = whole.index().await.unwrap();
        assert_eq!(indexed.index.blocks.len(), 2, "{codec:?}");
        for place in 0..TRUNCATIONS {
            let end = (file.len() - 1) * (place + 1) / TRUNCATIONS;
            let context = format!("{codec:?}, {end} of {} bytes", file.len());
            let truncated = fixture(&file[..end], Format::Parquet, &[]);
            let object = truncated.shard().await;
            let error = truncated.index().await.unwrap_err().to_string();
            assert!(error.contains(&object.url), "{context}: {error}");
            // A stored index may have the rows of the whole file.
            let shard = Shard { object, ..indexed.clone() };
            for block in 0..shard.index.blocks.len() {
                let error = truncated.read(&shard, block, None).await.unwrap_err().to_string();
                assert!(error.contains(&shard.object.url), "{context}: {error}");
            }
        }
    }
}

/// A download into a file of the final size that stops early may leave zeros between the data and the footer.
#[tokio::test]
async fn zeros_in_place_of_the_last_pages_are_an_error_if_pages_have_checksums() {
    for name in ["pyarrow_checksums.parquet", "pyarrow_checksums_page_v2.parquet"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/columnar").join(name);
        let file = std::fs::read(path).unwrap();
        let whole = fixture(&file, Format::Parquet, &[]).read_all().await;
        let (rest, [l0, l1, l2, l3, ..]) = file.split_last_chunk::<8>().unwrap();
        let footer_start = rest.len() - u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        let mut errors = 0;
        for place in 0..TRUNCATIONS {
            let end = 4 + (footer_start - 4) * place / TRUNCATIONS;
            let mut damaged = file.clone();
            damaged[end..footer_start].fill(0);
            let damaged = fixture(&damaged, Format::Parquet, &[]);
            let shard = damaged.index().await.unwrap();
            for (at, expected) in whole.blocks.iter().enumerate() {
                match damaged.read(&shard, at, None).await {
                    Ok(read) => assert_eq!(lines(&read.batch), lines(&expected.batch), "{name}, byte {end}"),
                    Err(error) => {
                        errors += 1;
                        assert!(error.to_string().contains(&shard.object.url), "{name}, byte {end}: {error}");
                    }
                }
            }
        }
        assert!(errors >= TRUNCATIONS / 2, "{name}: only {errors} errors");
    }
}
