//! Entry point of the fuzzer of Parquet pages: a column chunk, and the data of one page.

use std::sync::Arc;

use bytes::Bytes;
use feedline_contained::contained;
use parquet::basic::{BrotliLevel, Compression, GzipLevel, Type as PhysicalType};
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::{ColumnDescriptor, ColumnPath, Type};

use super::bounded_pages::page_reader;
use super::page_codec::PageCodec;
use super::page_parts::PageParts;
use super::row_reads::INVALID_DATA;
use super::thrift::decompressed_bytes;

/// Maximum size of the decompressed pages of a chunk, which reads limit too.
const MAX_CHUNK_BYTES: u64 = 16 << 20;

/// Reads data as the pages of a column chunk, and as one page. The input is the number of the codec (1 byte), the size of the levels of
/// the page (1), the size of the page (3, little-endian), and the data. Returns the number of decompressed bytes.
pub fn read_parquet_pages(input: &[u8]) -> u64 {
    let Some(([codec, level_bytes, s0, s1, s2], data)) = input.split_first_chunk::<5>() else { return 0 };
    let compression = match codec % 3 {
        0 => Compression::GZIP(GzipLevel::default()),
        1 => Compression::BROTLI(BrotliLevel::default()),
        _ => Compression::LZ4,
    };
    let page_bytes = u32::from_le_bytes([*s0, *s1, *s2, 0]) as usize;
    decompress_page(compression, data, usize::from(*level_bytes), page_bytes) + read_chunk(compression, data)
}

fn decompress_page(compression: Compression, stored: &[u8], level_bytes: usize, page_bytes: usize) -> u64 {
    let codec = PageCodec::of(compression).expect("the decoder of the Parquet crate has no limit");
    let page = contained(|| codec.decompress(stored, level_bytes, page_bytes), INVALID_DATA);
    let Ok(page) = page else { return 0 };
    assert_eq!(page.len(), page_bytes);
    page_bytes as u64
}

fn read_chunk(compression: Compression, data: &[u8]) -> u64 {
    let stated_bytes = decompressed_bytes(data);
    if stated_bytes > MAX_CHUNK_BYTES {
        return 0;
    }
    let mut all_bytes = 0;
    for skips in [false, true] {
        let read = || read_pages(compression, data, skips).map_err(|error| error.to_string());
        // Errors are expected; only hangs, and pages of other sizes, are failures.
        let Ok(read_bytes) = contained(read, INVALID_DATA) else { continue };
        // A page may also be stored without compression.
        let max_bytes = stated_bytes + data.len() as u64;
        assert!(read_bytes <= max_bytes, "{read_bytes} bytes, at most {max_bytes} expected");
        all_bytes += read_bytes;
    }
    all_bytes
}

/// Reads all pages of a chunk, or skips every second one. Returns the number of their bytes.
fn read_pages(compression: Compression, data: &[u8], skips: bool) -> Result<u64> {
    let parts = PageParts::new([Bytes::copy_from_slice(data)]);
    let mut reader = page_reader(&parts, &column_chunk(compression)?)?;
    let (mut read_bytes, mut is_skipped) = (0, skips);
    while reader.peek_next_page()?.is_some() {
        if is_skipped {
            reader.skip_next_page()?;
        } else if let Some(page) = reader.get_next_page()? {
            read_bytes += page.buffer().len() as u64;
        } else {
            break;
        }
        is_skipped = skips && !is_skipped;
    }
    if let Some(dictionary) = reader.take_deferred_dictionary()? {
        read_bytes += dictionary.buffer().len() as u64;
    }
    Ok(read_bytes)
}

/// The description of an optional column of texts.
fn column_chunk(compression: Compression) -> Result<ColumnChunkMetaData> {
    let texts = Type::primitive_type_builder("texts", PhysicalType::BYTE_ARRAY).build()?;
    let column = ColumnDescriptor::new(Arc::new(texts), 1, 0, ColumnPath::new(vec!["texts".to_owned()]));
    ColumnChunkMetaData::builder(Arc::new(column)).set_compression(compression).build()
}
