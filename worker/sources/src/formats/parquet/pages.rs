//! Limits the decompressed size of pages before the Parquet crate decompresses them. Its decoders of gzip, Brotli and LZ4 frames
//! write any amount of data, and compare the size afterwards.

use std::io::Read;
use std::ops::Range;

use feedline_contained::contained;
use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;

use super::thrift::{Page, pages};

/// The message for a panic of the Parquet crate.
pub(super) const INVALID_DATA: &str = "the Parquet data is invalid: the file is corrupted";
const LZ4_FRAME_MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// Maximum memory for a page that is decompressed without a check. Deflate reaches a ratio of 1032, and LZ4 a ratio of 255.
const UNCHECKED_PAGE_BYTES: u64 = 1 << 20;
const MAX_DEFLATE_RATIO: u64 = 1_032;

/// A column chunk that is read.
#[derive(Debug, Clone)]
pub(super) struct ReadChunk {
    range: Range<u64>,
    /// The codec if the pages are checked.
    codec: Option<CheckedCodec>,
}

#[derive(Debug, Clone, Copy)]
enum CheckedCodec {
    Gzip,
    Brotli,
    Lz4,
}

impl ReadChunk {
    /// Fails if the footer contains a negative offset or size.
    pub(super) fn new(column: &ColumnChunkMetaData) -> Result<Self, String> {
        let codec = match column.compression() {
            Compression::GZIP(_) => Some(CheckedCodec::Gzip),
            Compression::BROTLI(_) => Some(CheckedCodec::Brotli),
            Compression::LZ4 => Some(CheckedCodec::Lz4),
            _ => None,
        };
        let (start, bytes) = contained(|| Ok(column.byte_range()), INVALID_DATA)?;
        Ok(Self { range: start..start.saturating_add(bytes), codec })
    }

    /// Whether the pages are checked.
    pub(super) fn is_checked(&self) -> bool {
        self.codec.is_some()
    }
}

/// Checks that the pages in `bytes`, which are at `offset` in the file, decompress to at most the sizes in their headers. Fails if
/// they are in none of the chunks, because the page index of a corrupted file may contain any range.
pub(super) fn check_pages(chunks: &[ReadChunk], offset: u64, bytes: &[u8]) -> Result<(), String> {
    let end = offset.saturating_add(bytes.len() as u64);
    let Some(chunk) = chunks.iter().find(|chunk| chunk.range.contains(&offset) && end <= chunk.range.end)
    else {
        return Err("the page index contains a page outside of its column: the file is corrupted".to_owned());
    };
    let Some(codec) = chunk.codec else { return Ok(()) };
    for Page { stored, decompressed_bytes } in pages(bytes) {
        let is_within = match codec {
            CheckedCodec::Gzip if stored.len() as u64 * MAX_DEFLATE_RATIO <= UNCHECKED_PAGE_BYTES => true,
            CheckedCodec::Gzip => is_within(flate2::read::MultiGzDecoder::new(stored), decompressed_bytes),
            CheckedCodec::Brotli => is_within(brotli::Decompressor::new(stored, 4096), decompressed_bytes),
            CheckedCodec::Lz4 if !stored.starts_with(&LZ4_FRAME_MAGIC) => true,
            CheckedCodec::Lz4 => is_within(lz4_flex::frame::FrameDecoder::new(stored), decompressed_bytes),
        };
        if !is_within {
            return Err(format!(
                "a page decompresses to more than the {decompressed_bytes} bytes in its header: the file is corrupted"
            ));
        }
    }
    Ok(())
}

/// Whether a decoder produces at most `limit` bytes. The Parquet crate reports errors of the decoder.
fn is_within(mut decoder: impl Read, limit: u64) -> bool {
    let mut scratch = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        match decoder.read(&mut scratch) {
            Ok(0) | Err(_) => return total <= limit,
            Ok(count) => total += count as u64,
        }
        if total > limit {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn compress(codec: CheckedCodec, content: &[u8]) -> Vec<u8> {
        match codec {
            CheckedCodec::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            }
            CheckedCodec::Brotli => {
                let mut out = Vec::new();
                brotli::CompressorWriter::new(&mut out, 4096, 1, 20).write_all(content).unwrap();
                out
            }
            CheckedCodec::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            }
        }
    }

    fn varint(out: &mut Vec<u8>, mut value: usize) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    /// A page with its sizes in the header: type, decompressed and stored size.
    fn page(stored: &[u8], decompressed: usize) -> Vec<u8> {
        let mut page = vec![0x15, 0, 0x15];
        varint(&mut page, 2 * decompressed);
        page.push(0x15);
        varint(&mut page, 2 * stored.len());
        page.push(0);
        page.extend_from_slice(stored);
        page
    }

    #[test]
    fn pages_that_decompress_to_more_than_their_header_declares_are_rejected() {
        let content = vec![7; 3_000_000];
        for codec in [CheckedCodec::Gzip, CheckedCodec::Brotli, CheckedCodec::Lz4] {
            let stored = compress(codec, &content);
            let chunks = [ReadChunk { range: 100..1_000_000, codec: Some(codec) }];
            let sound = page(&stored, content.len()).repeat(2);
            assert_eq!(check_pages(&chunks, 100, &sound), Ok(()), "{codec:?}");
            let bomb = [page(&stored, content.len()), page(&stored, 1_000)].concat();
            let error = check_pages(&chunks, 100, &bomb).unwrap_err();
            assert!(error.contains("more than the 1000 bytes"), "{error}");
            let outside = check_pages(&chunks, 99, &bomb).unwrap_err();
            assert!(outside.contains("outside of its column"), "{outside}");
            assert!(check_pages(&chunks, 1_000_000 - 10, &bomb).is_err());
            let unchecked = [ReadChunk { range: 0..1_000_000, codec: None }];
            assert_eq!(check_pages(&unchecked, 99, &bomb), Ok(()), "another codec");
            for end in 0..sound.len().min(300) {
                let _ = check_pages(&chunks, 100, &sound[..end]);
            }
        }
    }
}
