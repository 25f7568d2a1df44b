//! Divides the rows of a shard into blocks.

use feedline_data::manifest::Block;

/// Maximum number of encoded bytes per block. A larger row has its own block.
const TARGET_BLOCK_BYTES: u64 = 1 << 20;
/// Maximum number of rows per block.
pub(crate) const MAX_BLOCK_ROWS: usize = 4096;
/// Minimum mean row size at which the index stores the size of each row, so that individual rows can be read.
const MIN_ROW_READ_BYTES: u64 = 4 << 10;
/// Maximum size of a row, because Arrow's views store the length of a value in 31 bits.
const MAX_ROW_BYTES: u64 = i32::MAX as u64;

/// Collects contiguous rows into blocks.
#[derive(Debug)]
pub(crate) struct BlockBuilder {
    blocks: Vec<Block>,
    offset: u64,
    bytes: u64,
    row_bytes: Vec<u32>,
    target_bytes: u64,
}

impl BlockBuilder {
    /// Creates a builder. The first row starts at byte `offset` of the shard.
    pub(crate) fn new(offset: u64) -> Self {
        let target_bytes = TARGET_BLOCK_BYTES;
        Self { blocks: Vec::new(), offset, bytes: 0, row_bytes: Vec::new(), target_bytes }
    }

    /// Makes the blocks smaller, because their rows are larger by this factor after decompression.
    pub(crate) fn with_row_ratio(self, ratio: u64) -> Self {
        let target_bytes = (TARGET_BLOCK_BYTES / ratio.max(1)).max(1);
        Self { target_bytes, ..self }
    }

    /// The byte offset of the next row.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Adds the next row. Rejects rows larger than 2 GiB.
    pub(crate) fn push(&mut self, row_bytes: u64) -> Result<(), String> {
        check_row_bytes(row_bytes)?;
        let is_full = self.row_bytes.len() == MAX_BLOCK_ROWS || self.bytes + row_bytes > self.target_bytes;
        if is_full && !self.row_bytes.is_empty() {
            self.close();
        }
        self.row_bytes.push(row_bytes as u32);
        self.bytes += row_bytes;
        Ok(())
    }

    /// Skips bytes that are not part of a row. The next row starts at byte `offset` of the shard.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        if !self.row_bytes.is_empty() {
            self.close();
        }
        self.offset = offset;
    }

    /// Returns the blocks in order.
    pub(crate) fn finish(mut self) -> Vec<Block> {
        if !self.row_bytes.is_empty() {
            self.close();
        }
        self.blocks
    }

    fn close(&mut self) {
        let rows = self.row_bytes.len();
        let has_large_rows = self.bytes / rows as u64 >= MIN_ROW_READ_BYTES;
        let row_bytes = if has_large_rows { self.row_bytes.as_slice().to_vec() } else { Vec::new() };
        self.blocks.push(Block {
            rows: rows as u32,
            offset: self.offset,
            bytes: self.bytes,
            group: 0,
            row_bytes,
        });
        self.offset += self.bytes;
        self.bytes = 0;
        self.row_bytes.clear();
    }
}

/// Rejects rows larger than 2 GiB.
pub(crate) fn check_row_bytes(row_bytes: u64) -> Result<(), String> {
    if row_bytes <= MAX_ROW_BYTES {
        return Ok(());
    }
    Err(format!("the row is {row_bytes} bytes long, more than the limit of 2 GiB: split the row"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_tile_the_rows(sizes in proptest::collection::vec(1u64..600_000, 0..60), start in 0u64..100) {
            let mut builder = BlockBuilder::new(start);
            for &size in &sizes {
                builder.push(size).unwrap();
            }
            prop_assert_eq!(builder.end(), start + sizes.iter().sum::<u64>());
            let mut offset = start;
            let mut rows = 0;
            for block in builder.finish() {
                prop_assert_eq!(block.offset, offset);
                prop_assert!(block.rows == 1 || block.bytes <= TARGET_BLOCK_BYTES);
                let expected = &sizes[rows..rows + block.rows as usize];
                prop_assert_eq!(block.bytes, expected.iter().sum::<u64>());
                if !block.row_bytes.is_empty() {
                    prop_assert!(block.row_bytes.iter().map(|&b| u64::from(b)).eq(expected.iter().copied()));
                }
                rows += block.rows as usize;
                offset += block.bytes;
            }
            prop_assert_eq!(rows, sizes.len());
        }
    }

    #[test]
    fn blocks_are_limited_by_row_count_and_huge_rows_are_rejected() {
        let mut builder = BlockBuilder::new(0);
        for _ in 0..MAX_BLOCK_ROWS + 1 {
            builder.push(10).unwrap();
        }
        assert!(builder.push(1 << 32).unwrap_err().contains("2 GiB"));
        let blocks = builder.finish();
        assert_eq!(blocks.iter().map(|block| block.rows).collect::<Vec<_>>(), [4096, 1]);
        assert!(blocks[0].row_bytes.is_empty());
    }
}
