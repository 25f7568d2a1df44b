//! Reads pages, and decompresses each of them once to the size in its header.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::page_codec::PageCodec;
use super::page_parts::{PageParts, Parts};
use super::thrift::{PageHeader, PageKind, page_header};

/// Returns a reader of parts of a column chunk. No page decompresses to more than the size in its header.
pub(super) fn page_reader(parts: &PageParts, chunk: &ColumnChunkMetaData) -> Result<Box<dyn PageReader>> {
    let invalid =
        || ParquetError::General("the size of a column is invalid: the file is corrupted".to_owned());
    let chunk = parts.describe(chunk).ok_or_else(invalid)?;
    let Some(codec) = PageCodec::of(chunk.compression()) else {
        return Ok(Box::new(SerializedPageReader::new(parts.reader(), &chunk, 0, None)?));
    };
    // The pages of a column without a codec are not decompressed.
    let chunk = chunk.into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
    let stored_pages = SerializedPageReader::new(parts.reader(), &chunk, 0, None)?;
    let parts = parts.reader();
    Ok(Box::new(BoundedPages { stored_pages, codec, parts, offset: 0, skipped_dictionary: None }))
}

/// Decompresses the pages of a column chunk with a codec whose decoder in the Parquet crate has no limit.
struct BoundedPages {
    /// The Parquet crate reads the headers and verifies the checksums, but does not decompress.
    stored_pages: SerializedPageReader<Parts>,
    codec: PageCodec,
    parts: Arc<Parts>,
    /// The offset of the next header in `parts`. A page of the Parquet crate does not contain its decompressed size.
    offset: u64,
    /// The header of a dictionary that was skipped, and may be read later.
    skipped_dictionary: Option<PageHeader>,
}

impl BoundedPages {
    /// Reads the next header.
    fn next_header(&mut self) -> Result<PageHeader> {
        let bytes = self.parts.bytes_from(self.offset)?;
        let (header, header_bytes) = page_header(&bytes).ok_or_else(invalid_header)?;
        self.offset = self.offset.saturating_add(header_bytes).saturating_add(header.stored_bytes);
        Ok(header)
    }

    fn decompress(&self, mut page: Page, header: PageHeader) -> Result<Page> {
        let level_bytes = match &page {
            Page::DataPageV2 { is_compressed: false, .. } => return Ok(page),
            Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
                *def_levels_byte_len as usize + *rep_levels_byte_len as usize
            }
            Page::DataPage { .. } | Page::DictionaryPage { .. } => 0,
        };
        let stored = page.buffer();
        if stored.len() as u64 != header.stored_bytes {
            return Err(invalid_header());
        }
        let page_bytes = i32::try_from(header.decompressed_bytes).map_err(|_| invalid_header())?;
        let decompressed = self.codec.decompress(stored, level_bytes, page_bytes as usize);
        let decompressed = decompressed.map_err(ParquetError::General)?;
        let (Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } | Page::DictionaryPage { buf, .. }) =
            &mut page;
        *buf = decompressed.into();
        Ok(page)
    }
}

fn invalid_header() -> ParquetError {
    ParquetError::General("the header of a page is invalid: the file is corrupted".to_owned())
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(page) = self.stored_pages.get_next_page()? else { return Ok(None) };
        let mut header = self.next_header()?;
        // The Parquet crate has skipped other pages.
        while header.kind == PageKind::Other {
            header = self.next_header()?;
        }
        self.decompress(page, header).map(Some)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.stored_pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.stored_pages.skip_next_page()?;
        let header = self.next_header()?;
        if header.kind == PageKind::Dictionary {
            self.skipped_dictionary = Some(header);
        }
        Ok(())
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.stored_pages.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        let Some(page) = self.stored_pages.take_deferred_dictionary()? else { return Ok(None) };
        let header = self.skipped_dictionary.take().ok_or_else(invalid_header)?;
        self.decompress(page, header).map(Some)
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.stored_pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
    use arrow::datatypes::Int64Type;
    use bytes::Bytes;
    use feedline_data::pipeline::Format;
    use parquet::basic::{BrotliLevel, GzipLevel};
    use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::super::tests::write;
    use super::*;
    use crate::testing::fixture;

    const VERSIONS: [WriterVersion; 2] = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];

    fn gzip() -> Compression {
        Compression::GZIP(GzipLevel::default())
    }

    fn brotli() -> Compression {
        Compression::BROTLI(BrotliLevel::default())
    }

    /// Numbers that cannot be compressed, texts of a dictionary, and lists, with nulls. The texts end with `padding`.
    fn batch(rows: i64, padding: &str) -> RecordBatch {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 1) as i64
        };
        let numbers: Vec<Option<i64>> = (0..rows).map(|row| (row % 5 != 2).then(&mut random)).collect();
        let word = |row: i64| format!("word {}{padding}", row % 50);
        let words: Vec<Option<String>> = (0..rows).map(|row| (row % 7 != 3).then(|| word(row))).collect();
        let items = |row: i64| (0..row % 6).map(move |at| (at != 2).then_some(row * 10 + at));
        let lists = (0..rows).map(|row| (row % 11 != 4).then(|| items(row)));
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
        RecordBatch::try_from_iter_with_nullable([
            ("number", Arc::new(Int64Array::from(numbers)) as ArrayRef, true),
            ("word", Arc::new(StringArray::from(words)), true),
            ("list", Arc::new(lists), true),
            ("null", Arc::new(Int64Array::from(vec![None; rows as usize])), true),
        ])
        .unwrap()
    }

    /// A file with five data pages per column.
    fn file(compression: Compression, version: WriterVersion, rows: i64) -> Bytes {
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_writer_version(version)
            .set_data_page_row_count_limit(rows as usize / 5)
            .set_write_batch_size(rows as usize / 10);
        write(&batch(rows, ""), properties.build()).into()
    }

    /// The column chunks of a file, and their bytes.
    fn chunks(file: &Bytes) -> Vec<(ColumnChunkMetaData, Bytes)> {
        let metadata = SerializedFileReader::new(file.clone()).unwrap().metadata().clone();
        let bytes = |chunk: &ColumnChunkMetaData| {
            let (start, length) = chunk.byte_range();
            file.slice(start as usize..(start + length) as usize)
        };
        metadata.row_group(0).columns().iter().map(|chunk| (chunk.clone(), bytes(chunk))).collect()
    }

    fn bounded(chunk: &ColumnChunkMetaData, bytes: Bytes) -> Box<dyn PageReader> {
        assert!(PageCodec::of(chunk.compression()).is_some(), "{}", chunk.compression());
        page_reader(&PageParts::new([bytes]), chunk).unwrap()
    }

    fn unbounded(chunk: &ColumnChunkMetaData, file: &Bytes) -> Box<dyn PageReader> {
        Box::new(SerializedPageReader::new(Arc::new(file.clone()), chunk, 0, None).unwrap())
    }

    /// Returns the pages and their descriptions as text. Skips the dictionary first, and every `skipped`th page.
    fn read(mut reader: Box<dyn PageReader>, skipped: usize) -> Vec<String> {
        let mut read = Vec::new();
        for at in 1.. {
            let Some(metadata) = reader.peek_next_page().unwrap() else { break };
            let PageMetadata { num_rows, num_levels, is_dict } = metadata;
            let is_boundary = reader.at_record_boundary().unwrap();
            read.push(format!("{num_rows:?} {num_levels:?} {is_dict} {is_boundary}"));
            if is_dict || at % skipped == 0 {
                reader.skip_next_page().unwrap();
            } else {
                read.push(format!("{:?}", reader.get_next_page().unwrap()));
            }
        }
        read.push(format!("{:?}", reader.take_deferred_dictionary().unwrap()));
        read
    }

    #[test]
    fn pages_are_those_of_the_parquet_crate() {
        for compression in [gzip(), brotli(), Compression::LZ4] {
            for version in VERSIONS {
                let file = file(compression, version, 900);
                let (mut dictionaries, mut data_pages) = (0, 0);
                for (chunk, bytes) in chunks(&file) {
                    let name = format!("{compression} {version:?} {}", chunk.column_path());
                    let pages: Vec<Page> = bounded(&chunk, bytes.clone()).map(Result::unwrap).collect();
                    let expected: Vec<Page> = unbounded(&chunk, &file).map(Result::unwrap).collect();
                    assert_eq!(format!("{pages:?}"), format!("{expected:?}"), "{name}");
                    dictionaries += pages.iter().filter(|page| page.is_dictionary_page()).count();
                    data_pages += pages.iter().filter(|page| page.is_data_page()).count();
                    for skipped in 2..5 {
                        let pages = read(bounded(&chunk, bytes.clone()), skipped);
                        assert_eq!(pages, read(unbounded(&chunk, &file), skipped), "{name}");
                    }
                }
                assert!(dictionaries >= 2 && data_pages >= 12, "{dictionaries} and {data_pages} pages");
            }
        }
    }

    #[test]
    fn a_truncated_chunk_has_the_pages_before_its_end() {
        for version in VERSIONS {
            for (chunk, bytes) in chunks(&file(gzip(), version, 200)) {
                let pages_before = |end: usize| -> Vec<Bytes> {
                    let pages = bounded(&chunk, bytes.slice(..end)).map_while(Result::ok);
                    pages.map(|page| page.buffer().clone()).collect()
                };
                let whole = pages_before(bytes.len());
                for end in 0..bytes.len() {
                    let pages = pages_before(end);
                    let is_start = pages.len() < whole.len() && pages == whole[..pages.len()];
                    assert!(is_start, "{}, {end} of {} bytes", chunk.column_path(), bytes.len());
                }
            }
        }
    }

    fn push_varint(out: &mut Vec<u8>, mut value: usize) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    /// A page of the first version with these values in its header. Numbers are doubled because the lowest bit is the sign.
    fn page(stored: &[u8], page_bytes: usize, checksum: Option<u32>) -> Vec<u8> {
        let mut page = vec![0x15, 0, 0x15];
        push_varint(&mut page, 2 * page_bytes);
        page.push(0x15);
        push_varint(&mut page, 2 * stored.len());
        if let Some(checksum) = checksum {
            let checksum = checksum as i32;
            page.push(0x15);
            push_varint(&mut page, ((checksum << 1) ^ (checksum >> 31)) as u32 as usize);
        }
        // `DataPageHeader`: one value, plain encoding, and levels in runs.
        page.push(if checksum.is_some() { 0x1c } else { 0x2c });
        page.extend([0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0]);
        page.extend_from_slice(stored);
        page
    }

    #[test]
    fn pages_of_another_size_or_checksum_are_errors() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let content = vec![7_u8; 3_000_000];
        encoder.write_all(&content).unwrap();
        let stored = encoder.finish().unwrap();
        let checksum = crc32fast::hash(&stored);
        let (chunk, _) = chunks(&file(gzip(), WriterVersion::PARQUET_1_0, 100)).remove(0);
        let second = |second: Vec<u8>| {
            let first = page(&stored, 3_000_000, Some(checksum));
            // In two parts.
            let parts = PageParts::new([first.into(), second.into()]);
            let mut reader = page_reader(&parts, &chunk).unwrap();
            assert_eq!(reader.get_next_page().unwrap().unwrap().buffer().len(), 3_000_000);
            match reader.get_next_page() {
                Ok(page) => Ok(page.unwrap().buffer().len()),
                Err(error) => Err(error.to_string()),
            }
        };
        assert_eq!(second(page(&stored, 3_000_000, None)), Ok(3_000_000));
        for (page, reason) in [
            (page(&stored, 1_000, None), "more than the 1000 bytes in its header"),
            (page(&stored, 2_999_999, Some(checksum)), "more than the 2999999 bytes in its header"),
            (page(&stored, 3_000_001, None), "to 3000000 bytes, fewer than the 3000001 bytes in its header"),
            (page(&stored[..stored.len() - 1], 3_000_000, None), "cannot be decompressed"),
            (page(&stored, 3_000_000, Some(checksum ^ 1)), "checksum"),
        ] {
            let error = second(page).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[tokio::test]
    async fn blocks_have_the_rows_of_files_without_compression() {
        let batch = batch(20_000, &"x".repeat(1_000));
        let rows = |properties: WriterProperties| {
            let bytes = write(&batch, properties);
            async move {
                let all = fixture(&bytes, Format::Parquet, &[]).read_all().await;
                (all.index.blocks.len(), all.rows())
            }
        };
        let plain = WriterProperties::builder().set_dictionary_enabled(false).build();
        let (blocks, expected) = rows(plain).await;
        assert!(blocks >= 3, "{blocks} blocks");
        let [first, second] = VERSIONS;
        for (compression, version, is_indexed) in [
            (gzip(), first, false),
            (gzip(), second, true),
            (brotli(), first, true),
            (brotli(), second, false),
            (Compression::LZ4, first, false),
        ] {
            let mut properties = WriterProperties::builder()
                .set_compression(compression)
                .set_writer_version(version)
                .set_column_dictionary_enabled("word".into(), false)
                .set_data_page_row_count_limit(1_000)
                .set_write_batch_size(100);
            if !is_indexed {
                properties = properties.set_statistics_enabled(EnabledStatistics::Chunk);
                properties = properties.set_offset_index_disabled(true);
            }
            let (blocks, rows) = rows(properties.build()).await;
            assert!(blocks >= 3, "{compression} {version:?}: {blocks} blocks");
            assert!(rows == expected, "{compression} {version:?}");
        }
    }
}
