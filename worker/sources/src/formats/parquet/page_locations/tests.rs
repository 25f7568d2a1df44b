//! Tests of row groups without a page index.

use arrow::array::{ArrayRef, FixedSizeListArray, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::Float32Type;
use feedline_data::manifest::Shard;
use feedline_data::pipeline::Format;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion,
};

use super::super::tests::write;
use super::{PageLocation, page_range};
use crate::testing::{All, Fixture, fixture};
use crate::{BlockRead, SourceError};

const ROWS: usize = 25_000;

/// Properties of a file without a page index.
fn unindexed() -> WriterPropertiesBuilder {
    let builder = WriterProperties::builder().set_max_row_group_row_count(None);
    builder.set_statistics_enabled(EnabledStatistics::Chunk).set_offset_index_disabled(true)
}

/// Rows of 1 KiB, which no codec compresses much, and every seventh of which is null.
fn rows(rows: usize) -> RecordBatch {
    let mut state = 1_u64;
    let mut text = |row: usize| {
        let mut value = format!("{row:08}");
        while value.len() < 1000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            value.push_str(&format!("{:016x}", state));
        }
        value
    };
    let payload: Vec<Option<String>> = (0..rows).map(|row| (row % 7 != 3).then(|| text(row))).collect();
    let words: Vec<String> = (0..rows).map(|row| format!("word {}", row % 50)).collect();
    RecordBatch::try_from_iter(vec![
        ("id", std::sync::Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef),
        ("payload", std::sync::Arc::new(StringArray::from(payload))),
        ("word", std::sync::Arc::new(StringArray::from(words))),
    ])
    .unwrap()
}

/// Vectors of 256 numbers, as lists of a fixed length or of any length.
fn vectors(rows: usize, is_fixed: bool) -> RecordBatch {
    let vector = |row: usize| Some((0..256).map(move |at| Some((row * 256 + at) as f32)));
    let vectors = (0..rows).map(vector);
    let vectors: ArrayRef = match is_fixed {
        true => {
            std::sync::Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 256))
        }
        false => std::sync::Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(vectors)),
    };
    let ids = Int64Array::from_iter_values(0..rows as i64);
    RecordBatch::try_from_iter(vec![("id", std::sync::Arc::new(ids) as ArrayRef), ("vector", vectors)])
        .unwrap()
}

fn parquet(bytes: &[u8]) -> Fixture {
    fixture(bytes, Format::Parquet, &[])
}

async fn peak_bytes(fixture: &Fixture, shard: &Shard, block: usize) -> Result<u64, SourceError> {
    let schema = shard.index.schema.as_ref().unwrap();
    let (shard, block) = (&shard.object, &shard.index.blocks[block]);
    let read = BlockRead { shard, block, index: None, schema, rows: None };
    fixture.dataset.open_block(&read).await.map(|open| open.peak_bytes())
}

#[tokio::test]
async fn blocks_read_only_their_pages() {
    let batch = rows(ROWS);
    let expected = parquet(&write(&batch, WriterProperties::builder().build())).read_all().await.rows();
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap());
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, zstd] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let properties = unindexed().set_compression(compression).set_writer_version(version).build();
            let bytes = write(&batch, properties);
            let fixture = parquet(&bytes);
            let all = fixture.read_all().await;
            let blocks = &all.index.blocks;
            assert!(blocks.len() >= 3, "{compression}: {} blocks", blocks.len());
            assert!(all.rows() == expected, "{compression} {version:?}");
            let read: u64 = all.blocks.iter().map(|block| block.store_bytes).sum();
            assert!(read < bytes.len() as u64 * 11 / 10, "{compression}: {read} of {} bytes", bytes.len());
            let shard = fixture.index().await.unwrap();
            for (at, block) in blocks.iter().enumerate() {
                let peak = peak_bytes(&fixture, &shard, at).await.unwrap();
                assert!(peak > block.bytes / 2 && peak < 4 * block.bytes + (8 << 20), "{peak} for {block:?}");
            }
        }
    }
}

#[tokio::test]
async fn blocks_begin_at_pages_that_are_larger_than_a_block() {
    let properties = unindexed()
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(9 << 20)
        .set_data_page_row_count_limit(usize::MAX)
        .set_write_batch_size(64);
    let bytes = write(&rows(ROWS), properties.build());
    let all = parquet(&bytes).read_all().await;
    assert_eq!(all.index.blocks.len(), 3);
    let read: u64 = all.blocks.iter().map(|block| block.store_bytes).sum();
    assert!(read < bytes.len() as u64 * 11 / 10, "{read} of {} bytes", bytes.len());
}

fn joined(all: &All) -> RecordBatch {
    let batches: Vec<&RecordBatch> = all.blocks.iter().map(|block| &block.batch).collect();
    concat_batches(batches[0].schema_ref(), batches).unwrap()
}

/// The first version of pages does not contain the number of rows, which indexing counts. The Parquet crate writes whole rows to
/// each page; pyarrow does not.
#[tokio::test]
async fn blocks_read_only_their_pages_of_lists() {
    let (first, second) = (WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0);
    for (version, is_fixed, is_counted) in
        [(first, false, true), (first, true, false), (second, false, false), (second, true, false)]
    {
        let batch = vectors(ROWS, is_fixed);
        let expected = parquet(&write(&batch, WriterProperties::builder().build())).read_all().await;
        let properties = unindexed()
            .set_dictionary_enabled(false)
            .set_data_page_row_count_limit(1024)
            .set_writer_version(version)
            .build();
        let bytes = write(&batch, properties);
        let fixture = parquet(&bytes);
        let all = fixture.read_all().await;
        assert!(joined(&all) == joined(&expected), "{version:?}");
        let read: u64 = all.blocks.iter().map(|block| block.store_bytes).sum();
        assert!(read < bytes.len() as u64 * 11 / 10, "{version:?}: {read}");
        let mut shard = fixture.index().await.unwrap();
        assert_eq!(shard.index.list_pages.len(), usize::from(is_counted), "{version:?}");
        let peak = peak_bytes(&fixture, &shard, 0).await.unwrap();
        assert!(peak < bytes.len() as u64, "{version:?}: {peak}");
        // An earlier release has indexed the shard.
        shard.index.list_pages.clear();
        let fixture = parquet(&bytes);
        let peak = peak_bytes(&fixture, &shard, 0).await.unwrap();
        assert_eq!(peak > bytes.len() as u64, is_counted, "{version:?}: {peak}");
        let rows = fixture.read(&shard, 1, None).await.unwrap();
        assert!(rows.batch == all.blocks[1].batch, "{version:?}");
    }
}

#[test]
fn the_pages_of_rows_begin_and_end_with_whole_rows() {
    let location = |first_row_index| PageLocation { offset: 0, compressed_page_size: 1, first_row_index };
    let range = |pages: &[(i64, bool)], rows: std::ops::Range<u64>| {
        let locations: Vec<PageLocation> = pages.iter().map(|(row, _)| location(*row)).collect();
        let within: Vec<bool> = pages.iter().map(|(_, is_within)| *is_within).collect();
        let range = page_range((&locations, &within), &rows);
        (range.start, range.end)
    };
    // Row 2 continues in page 1, row 4 in the pages 2 to 4, and row 5 begins with page 5.
    let pages = [(0, false), (3, true), (5, true), (5, true), (5, true), (5, false), (9, false)];
    assert_eq!(range(&pages, 0..2), (0, 1));
    assert_eq!(range(&pages, 0..3), (0, 2));
    assert_eq!(range(&pages, 2..3), (0, 2));
    assert_eq!(range(&pages, 3..4), (1, 2));
    assert_eq!(range(&pages, 3..5), (1, 5));
    assert_eq!(range(&pages, 4..5), (1, 5));
    assert_eq!(range(&pages, 5..6), (5, 6));
    assert_eq!(range(&pages, 4..10), (1, 7));
    assert_eq!(range(&pages, 9..10), (6, 7));
    // Row 1 begins after the end of row 0, in page 2.
    let pages = [(0, false), (1, true), (1, true), (2, false)];
    assert_eq!(range(&pages, 0..1), (0, 3));
    assert_eq!(range(&pages, 1..2), (2, 3));
    // Without lists, all pages begin with rows.
    let locations = [location(0), location(3), location(5)];
    assert_eq!(page_range((&locations, &[]), &(0..3)), 0..1);
    assert_eq!(page_range((&locations, &[]), &(2..4)), 0..2);
}

/// The memory of a block is known before its pages are read, whatever the footer declares.
#[tokio::test]
async fn the_memory_of_a_block_follows_from_the_headers_of_its_pages() {
    let properties = unindexed().set_dictionary_enabled(false).set_compression(Compression::SNAPPY).build();
    let mut bytes = write(&rows(ROWS), properties);
    let sound = parquet(&bytes);
    let shard = sound.index().await.unwrap();
    let sound_peak = peak_bytes(&sound, &shard, 0).await.unwrap();
    // Type 0 of a data page, then the decompressed size as a number of four bytes. 1 MiB becomes 128 MiB.
    let is_header =
        |part: &[u8]| part[..3] == [0x15, 0, 0x15] && part[3..6].iter().all(|byte| byte & 0x80 != 0);
    let headers: Vec<usize> =
        (0..bytes.len() - 8).filter(|&at| is_header(&bytes[at..at + 8]) && bytes[at + 6] < 0x80).collect();
    assert!(headers.len() > 10, "{} headers", headers.len());
    for at in headers {
        bytes[at + 3..at + 7].copy_from_slice(&[0xFE, 0xFF, 0xFF, 0x7F]);
    }
    let damaged = parquet(&bytes);
    let shard = damaged.index().await.unwrap();
    let peak = peak_bytes(&damaged, &shard, 0).await.unwrap();
    assert!(sound_peak < 20 << 20 && peak > 256 << 20, "{sound_peak} {peak}");
}

#[tokio::test]
async fn damaged_headers_are_errors_and_never_other_rows() {
    let properties = unindexed().set_dictionary_enabled(false).build();
    let bytes = write(&rows(ROWS), properties);
    let expected = parquet(&bytes).read_all().await.rows();
    for at in (4..60).chain(1_000_000..1_000_040) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x11;
        let fixture = parquet(&damaged);
        let Ok(shard) = fixture.index().await else { continue };
        let mut read = Vec::new();
        for block in 0..shard.index.blocks.len() {
            match fixture.read(&shard, block, None).await {
                Ok(rows) => read.extend(crate::testing::lines(&rows.batch)),
                Err(error) => {
                    assert!(matches!(error, SourceError::Corrupt { .. }), "{error}");
                    read.clear();
                    break;
                }
            }
        }
        // A byte of a value may differ, because the file has no checksums.
        let differing = read.iter().zip(&expected).filter(|(read, expected)| read != expected).count();
        assert!(read.is_empty() || read.len() == expected.len() && differing <= 2, "byte {at}: {differing}");
    }
}

/// The values repeat the beginning of the value before them, so that their pages are small.
#[tokio::test]
async fn values_with_shared_prefixes_count_at_their_decoded_size() {
    let (rows, prefix) = (20_000_usize, "a prompt that all rows begin with ".repeat(90));
    let texts = StringArray::from_iter_values((0..rows).map(|row| format!("{prefix}{row}")));
    let batch = RecordBatch::try_from_iter([("text", std::sync::Arc::new(texts) as ArrayRef)]).unwrap();
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BYTE_ARRAY);
    let bytes = write(&batch, properties.build());
    let fixture = parquet(&bytes);
    let shard = fixture.index().await.unwrap();
    assert!(bytes.len() < 1 << 20 && shard.index.blocks.len() > 1, "{} bytes", bytes.len());
    for at in 0..shard.index.blocks.len() {
        let block = fixture.read(&shard, at, None).await.unwrap();
        let peak = peak_bytes(&fixture, &shard, at).await.unwrap();
        // Whole pages are decoded.
        assert!(peak as usize >= block.held_bytes * 2 / 3, "block {at}: {peak} of {}", block.held_bytes);
    }
}
