//! Decompresses a page to exactly the size in its header. The decoders of the Parquet crate for these codecs write any amount of
//! data, and compare the size afterwards.

use std::io::{self, Read};

use parquet::basic::Compression;

const LZ4_FRAME_MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// Size of the buffer for compressed data of a Brotli decoder.
const BROTLI_BUFFER_BYTES: usize = 16 << 10;

/// A codec whose decoder in the Parquet crate has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageCodec {
    Gzip,
    Brotli,
    Lz4,
}

impl PageCodec {
    /// `None` if the decoder of the Parquet crate has a limit.
    pub(super) fn of(compression: Compression) -> Option<Self> {
        match compression {
            Compression::GZIP(_) => Some(Self::Gzip),
            Compression::BROTLI(_) => Some(Self::Brotli),
            Compression::LZ4 => Some(Self::Lz4),
            _ => None,
        }
    }

    /// Decompresses a page, which has `page_bytes` afterwards. It begins with `level_bytes` bytes that are not compressed.
    pub(super) fn decompress(
        self,
        stored: &[u8],
        level_bytes: usize,
        page_bytes: usize,
    ) -> Result<Vec<u8>, String> {
        let Some((levels, values)) =
            stored.split_at_checked(level_bytes).filter(|_| level_bytes <= page_bytes)
        else {
            return Err("the levels of a page are longer than the page: the file is corrupted".to_owned());
        };
        let mut page = Vec::with_capacity(page_bytes);
        page.extend_from_slice(levels);
        if level_bytes == page_bytes {
            // All values are null, so there may be no compressed data.
            return Ok(page);
        }
        match self {
            Self::Gzip => fill_page(flate2::bufread::MultiGzDecoder::new(values), &mut page, page_bytes)?,
            Self::Brotli => {
                fill_page(brotli::Decompressor::new(values, BROTLI_BUFFER_BYTES), &mut page, page_bytes)?;
            }
            Self::Lz4 => decompress_lz4(values, &mut page, page_bytes)?,
        }
        Ok(page)
    }
}

/// Appends the output of a decoder to a page, which must have `page_bytes` afterwards.
fn fill_page(mut decoder: impl Read, page: &mut Vec<u8>, page_bytes: usize) -> Result<(), String> {
    let corrupted = |error: io::Error| corrupted_error(&error.to_string());
    let missing_bytes = page_bytes - page.len();
    decoder.by_ref().take(missing_bytes as u64).read_to_end(page).map_err(corrupted)?;
    if page.len() < page_bytes {
        return Err(format!(
            "a page decompresses to {} bytes, fewer than the {page_bytes} bytes in its header: the file is corrupted",
            page.len()
        ));
    }
    // A checksum follows the last byte.
    if decoder.read(&mut [0]).map_err(corrupted)? > 0 {
        return Err(format!(
            "a page decompresses to more than the {page_bytes} bytes in its header: the file is corrupted"
        ));
    }
    Ok(())
}

/// Appends decompressed values to a page, which must have `page_bytes` afterwards. The values are blocks as Hadoop and current
/// writers store them, LZ4 frames of old versions of the Parquet crate, or a block of old versions of Arrow for C++.
fn decompress_lz4(stored: &[u8], page: &mut Vec<u8>, page_bytes: usize) -> Result<(), String> {
    let level_bytes = page.len();
    page.resize(page_bytes, 0);
    if decompress_hadoop_blocks(stored, &mut page[level_bytes..]).is_some() {
        return Ok(());
    }
    if stored.starts_with(&LZ4_FRAME_MAGIC) {
        page.truncate(level_bytes);
        return fill_page(lz4_flex::frame::FrameDecoder::new(stored), page, page_bytes);
    }
    match lz4_flex::block::decompress_into(stored, &mut page[level_bytes..]) {
        Ok(bytes) if level_bytes + bytes == page_bytes => Ok(()),
        Ok(_) => Err(corrupted_error("it is too short")),
        Err(error) => Err(corrupted_error(&error.to_string())),
    }
}

/// Decompresses blocks of Hadoop's `BlockCompressorStream`: the decompressed size of each block, and its parts, each after its stored
/// size. `None` if the data has another form.
fn decompress_hadoop_blocks(mut stored: &[u8], mut values: &mut [u8]) -> Option<()> {
    let next_size = |stored: &mut &[u8]| {
        let (size, rest) = stored.split_first_chunk::<4>()?;
        *stored = rest;
        Some(u32::from_be_bytes(*size) as usize)
    };
    while !stored.is_empty() {
        let decompressed_bytes = next_size(&mut stored)?;
        let mut block_values = values.split_off_mut(..decompressed_bytes)?;
        while !block_values.is_empty() {
            let stored_bytes = next_size(&mut stored)?;
            let part = stored.split_off(..stored_bytes)?;
            let bytes =
                lz4_flex::block::decompress_into(part, block_values).ok().filter(|bytes| *bytes > 0)?;
            block_values = std::mem::take(&mut block_values).get_mut(bytes..)?;
        }
    }
    values.is_empty().then_some(())
}

fn corrupted_error(reason: &str) -> String {
    format!("a page cannot be decompressed: {reason}: the file is corrupted")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Compresses with each codec, and with LZ4 in each form.
    fn compress(content: &[u8]) -> [(PageCodec, &'static str, Vec<u8>); 5] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(content).unwrap();
        let mut stream = Vec::new();
        brotli::CompressorWriter::new(&mut stream, 4096, 1, 20).write_all(content).unwrap();
        let mut frames = lz4_flex::frame::FrameEncoder::new(Vec::new());
        frames.write_all(content).unwrap();
        let mut hadoop = Vec::new();
        for block in content.chunks(content.len() / 3 + 1) {
            hadoop.extend((block.len() as u32).to_be_bytes());
            for part in block.chunks(block.len() / 2 + 1) {
                let part = lz4_flex::block::compress(part);
                hadoop.extend((part.len() as u32).to_be_bytes());
                hadoop.extend(part);
            }
        }
        [
            (PageCodec::Gzip, "gzip", gzip.finish().unwrap()),
            (PageCodec::Brotli, "Brotli", stream),
            (PageCodec::Lz4, "frames", frames.finish().unwrap()),
            (PageCodec::Lz4, "Hadoop", hadoop),
            (PageCodec::Lz4, "block", lz4_flex::block::compress(content)),
        ]
    }

    #[test]
    fn pages_have_the_size_in_their_header() {
        let content: Vec<u8> = (0..300_000).map(|at| (at / 1_000) as u8).collect();
        for (codec, form, stored) in compress(&content) {
            assert_eq!(codec.decompress(&stored, 0, content.len()).as_ref(), Ok(&content), "{form}");
            let page = [&b"levels"[..], &content].concat();
            let stored = [&b"levels"[..], &stored].concat();
            assert_eq!(codec.decompress(&stored, 6, page.len()), Ok(page.clone()), "{form}");
            // The decoder of blocks has its own errors.
            let is_block = form == "Hadoop" || form == "block";
            for page_bytes in [7, 1_000, page.len() - 1] {
                let error = codec.decompress(&stored, 6, page_bytes).unwrap_err();
                let reason = format!("more than the {page_bytes} bytes in its header");
                assert!(error.contains(&reason) || is_block, "{form}: {error}");
            }
            let error = codec.decompress(&stored, 6, page.len() + 1).unwrap_err();
            assert!(error.contains("fewer than") || is_block, "{form}: {error}");
            assert_eq!(codec.decompress(&stored, 6, 6), Ok(b"levels".to_vec()), "{form}: no values");
            assert_eq!(codec.decompress(b"levels", 6, 6), Ok(b"levels".to_vec()), "{form}: no values");
            for (level_bytes, page_bytes) in [(stored.len() + 1, 1 << 20), (6, 5)] {
                let error = codec.decompress(&stored, level_bytes, page_bytes).unwrap_err();
                assert!(error.contains("longer than the page"), "{form}: {error}");
            }
        }
    }

    #[test]
    fn truncated_pages_never_have_other_values() {
        let content: Vec<u8> = (0..2_000).map(|at| (at / 9) as u8).collect();
        for (codec, form, stored) in compress(&content) {
            for end in 0..stored.len() {
                let page = codec.decompress(&stored[..end], 0, content.len());
                // A frame may lack its end, which contains no values.
                let is_whole = form == "frames" && page.as_ref() == Ok(&content);
                assert!(page.is_err() || is_whole, "{form}, {end} of {} bytes", stored.len());
            }
        }
    }
}
