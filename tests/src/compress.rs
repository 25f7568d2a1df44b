//! Compresses test data with each codec, and generates content that compresses like text.

use std::io::Write;
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

/// Size of a frame of zstd.
const FRAME_BYTES: usize = 700_000;
/// Size of a block of xz.
const XZ_BLOCK_BYTES: usize = 1 << 20;

/// Returns 40 MiB of lines of different lengths that compress like text. The tests of a process share them.
pub fn text() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(|| lines(40 << 20))
}

fn lines(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut text = Vec::with_capacity(bytes + 1000);
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = state >> 40;
        let end = if word.is_multiple_of(60) { "\n" } else { " " };
        write!(text, "{:x}{end}", word % 30_000).expect("memory is writable");
    }
    text.push(b'\n');
    text
}

/// Compresses content as one member of gzip.
pub fn gzip(content: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(content).expect("memory is writable");
    encoder.finish().expect("memory is writable")
}

/// Compresses content as one stream of zlib.
pub fn zlib(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(content).expect("memory is writable");
    encoder.finish().expect("memory is writable")
}

/// Compresses content as frames of zstd.
pub fn zstd_frames(content: &[u8]) -> Vec<u8> {
    content.chunks(FRAME_BYTES).flat_map(zstd_run).collect()
}

/// Compresses content as one frame of zstd.
pub fn zstd_run(content: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(content, 3).expect("memory suffices")
}

/// Compresses content as one stream of bzip2, whose blocks have 300 kB.
pub fn bzip2(content: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(3));
    encoder.write_all(content).expect("memory is writable");
    encoder.finish().expect("memory is writable")
}

/// Compresses content as one block of xz.
pub fn xz(content: &[u8]) -> Vec<u8> {
    xz_with_blocks(content, usize::MAX)
}

/// Compresses content as blocks of xz.
pub fn xz_blocks(content: &[u8]) -> Vec<u8> {
    xz_with_blocks(content, XZ_BLOCK_BYTES)
}

fn xz_with_blocks(content: &[u8], block_bytes: usize) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
    for block in content.chunks(block_bytes) {
        encoder.write_all(block).expect("memory is writable");
        // A flush ends the block.
        encoder.flush().expect("memory is writable");
    }
    encoder.finish().expect("memory is writable")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn xz_files_have_the_requested_number_of_blocks() {
        // Slightly more than three blocks.
        let content = lines(3 << 20);
        // Twelve bytes before the end, the footer begins with a checksum and the size of the index, in units of four bytes.
        let index_bytes = |file: &[u8]| {
            let size = &file[file.len() - 8..file.len() - 4];
            (u32::from_le_bytes(size.try_into().unwrap()) as usize + 1) * 4
        };
        for (file, blocks) in [(xz(&content), 1), (xz_blocks(&content), 4)] {
            let start = file.len() - 12 - index_bytes(&file);
            assert_eq!(file[start..start + 2], [0, blocks]);
            let mut decoded = Vec::new();
            liblzma::read::XzDecoder::new(file.as_slice()).read_to_end(&mut decoded).unwrap();
            assert!(decoded == content);
        }
    }
}
