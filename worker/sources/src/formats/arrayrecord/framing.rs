//! The framing of Riegeli files: chunks with a header, interrupted by a block header at every multiple of 64 KiB.

use highway::{HighwayHash, HighwayHasher, Key};

/// Distance between two block headers.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;
const BLOCK_HEADER_BYTES: u64 = 24;
const USABLE_BLOCK_BYTES: u64 = BLOCK_BYTES - BLOCK_HEADER_BYTES;
const CHUNK_HEADER_BYTES: u64 = 40;
/// The key of all hashes: `Riegeli/`, `records\n`, and the same again.
const HASH_KEY: [u64; 4] =
    [0x2f69_6c65_6765_6952, 0x0a73_6472_6f63_6572, 0x2f69_6c65_6765_6952, 0x0a73_6472_6f63_6572];

/// Fuzzing does not verify the hashes, because changed bytes never have the right hash. cargo-fuzz sets this cfg, so that no other
/// build omits the check.
const VERIFIES_HASHES: bool = !cfg!(fuzzing);

/// A chunk with verified hashes.
pub(super) struct RecordChunk {
    pub(super) kind: u8,
    pub(super) records: u64,
    pub(super) decoded_bytes: u64,
    pub(super) data: Vec<u8>,
}

/// Reads the chunk at the offset `at` of the file. `bytes` begins at the offset `start`. Returns the chunk and its end.
pub(super) fn read_chunk(bytes: &[u8], start: u64, at: u64) -> Result<(RecordChunk, u64), String> {
    let mut reader = ChunkReader { bytes, start, at };
    let header = reader.take(CHUNK_HEADER_BYTES)?;
    let number =
        |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("the header has 40 bytes"));
    if VERIFIES_HASHES && hash(&header[8..]) != number(0) {
        return Err("the hash of a chunk header does not match: the file is corrupted".to_owned());
    }
    let (data_bytes, data_hash, decoded_bytes) = (number(8), number(16), number(32));
    let (kind, records) = (header[24], number(24) >> 8);
    let data = reader.take(data_bytes)?;
    if VERIFIES_HASHES && hash(&data) != data_hash {
        return Err("the hash of a chunk does not match: the file is corrupted".to_owned());
    }
    let padded = round_up_to_boundary(at.saturating_add(records));
    let end = with_overhead(at, CHUNK_HEADER_BYTES + data_bytes).max(padded);
    Ok((RecordChunk { kind, records, decoded_bytes, data }, end))
}

/// The hash of Riegeli.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    HighwayHasher::new(Key(HASH_KEY)).hash64(bytes)
}

/// The end of `size` bytes that begin at `at`, with the block headers between them.
fn with_overhead(at: u64, size: u64) -> u64 {
    let blocks = (size + (at + USABLE_BLOCK_BYTES - 1) % BLOCK_BYTES) / USABLE_BLOCK_BYTES;
    at + size + blocks * BLOCK_HEADER_BYTES
}

/// The next offset that is not in a block header or immediately after it.
fn round_up_to_boundary(at: u64) -> u64 {
    let remaining = at.wrapping_neg() % BLOCK_BYTES;
    at.saturating_add(remaining.saturating_sub(USABLE_BLOCK_BYTES - 1))
}

/// Reads bytes of a chunk without block headers.
struct ChunkReader<'a> {
    bytes: &'a [u8],
    start: u64,
    at: u64,
}

impl ChunkReader<'_> {
    fn take(&mut self, size: u64) -> Result<Vec<u8>, String> {
        let truncated = || "a chunk exceeds the file: the file is truncated or corrupted".to_owned();
        if size > self.bytes.len() as u64 {
            return Err(truncated());
        }
        let mut taken = Vec::with_capacity(size as usize);
        while (taken.len() as u64) < size {
            let in_block = self.at % BLOCK_BYTES;
            if in_block < BLOCK_HEADER_BYTES {
                self.at += BLOCK_HEADER_BYTES - in_block;
            }
            let left = BLOCK_BYTES - self.at % BLOCK_BYTES;
            let count = left.min(size - taken.len() as u64);
            let from = self.at.checked_sub(self.start).ok_or_else(truncated)? as usize;
            taken.extend_from_slice(self.bytes.get(from..from + count as usize).ok_or_else(truncated)?);
            self.at += count;
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_and_boundaries_are_those_of_the_specification() {
        // The header of the file signature.
        let header = [&[0; 8][..], &0xa9e1_8792_3cc2_ba91_u64.to_le_bytes()].concat();
        assert_eq!(hash(b""), 0x72c3_b1e9_c013_9fe1);
        assert_eq!(header.len(), 16);
        assert_eq!([0, 1, 25, 26, 64 << 10].map(round_up_to_boundary), [0, 25, 25, 26, 64 << 10]);
        assert_eq!(with_overhead(0, 40), 64);
        assert_eq!(with_overhead(100, USABLE_BLOCK_BYTES), 100 + BLOCK_BYTES);
    }
}
