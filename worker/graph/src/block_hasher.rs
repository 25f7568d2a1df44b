//! Hashes of the blocks of a file that is written or read in order.

use feedline_data::graph::description::{BlockHash, HASH_BLOCK_BYTES};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Hashes each block of [`HASH_BLOCK_BYTES`].
pub(crate) struct BlockHasher {
    state: Xxh3,
    /// The number of bytes of the current block.
    block_bytes: u64,
    blocks: Vec<BlockHash>,
}

impl BlockHasher {
    pub(crate) fn new() -> Self {
        Self { state: Xxh3::new(), block_bytes: 0, blocks: Vec::new() }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let length = (HASH_BLOCK_BYTES - self.block_bytes).min(bytes.len() as u64) as usize;
            let (head, tail) = bytes.split_at(length);
            self.state.update(head);
            self.block_bytes += length as u64;
            if self.block_bytes == HASH_BLOCK_BYTES {
                self.finish_block();
            }
            bytes = tail;
        }
    }

    fn finish_block(&mut self) {
        self.blocks.push(BlockHash(self.state.digest()));
        self.state.reset();
        self.block_bytes = 0;
    }

    pub(crate) fn finish(mut self) -> Vec<BlockHash> {
        if self.block_bytes > 0 {
            self.finish_block();
        }
        self.blocks
    }
}

/// Hashes one block.
pub(crate) fn hash_block(bytes: &[u8]) -> BlockHash {
    BlockHash(xxh3_64(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_hashed_for_any_division_of_the_input() {
        let bytes: Vec<u8> = (0..HASH_BLOCK_BYTES * 2 + 5).map(|index| (index * 7 % 251) as u8).collect();
        let expected: Vec<BlockHash> = bytes.chunks(HASH_BLOCK_BYTES as usize).map(hash_block).collect();
        for length in [1 << 16, 3_000_001, bytes.len()] {
            let mut hasher = BlockHasher::new();
            bytes.chunks(length).for_each(|chunk| hasher.update(chunk));
            assert_eq!(hasher.finish(), expected);
        }
        assert_eq!(BlockHasher::new().finish(), []);
    }
}
