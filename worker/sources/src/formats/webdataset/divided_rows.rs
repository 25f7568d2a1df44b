//! The blocks of parts of divided samples. Each part is the only row of its block, whose group contains the position of another
//! part of the sample.

use std::collections::BTreeMap;
use std::ops::Range;

use feedline_data::manifest::{Block, ShardIndex};

use super::tar::HEADER_BYTES;
use crate::content::group_of_part;

/// The bit of [`Block::group`] of a part of a divided sample. The bits below belong to compressed shards. The bits above are the
/// number of a header of another part, from 1, or 0 if the number is too large.
const DIVIDED_GROUP: u32 = 1 << 3;
const HEADER_SHIFT: u32 = 4;

/// A part of a sample whose members are not adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DividedRow {
    /// The bytes from the first header of the part to the next sample. The content may end earlier.
    pub(super) bytes: Range<u64>,
    /// The offset of another part.
    pub(super) other_part: u64,
}

/// The other part of a divided sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OtherPart {
    /// Its byte offset, if the index contains it.
    pub(super) offset: Option<u64>,
}

/// Returns the other part of the sample if the block is a part of a divided sample.
pub(super) fn part_of(block: &Block) -> Option<OtherPart> {
    let header = (block.group >> HEADER_SHIFT).checked_sub(1);
    let offset = header.map(|header| u64::from(header) * HEADER_BYTES as u64);
    (block.group & DIVIDED_GROUP != 0).then_some(OtherPart { offset })
}

/// Divides the blocks with parts of divided samples, so that each part is a block. `divided` are the parts by the number of their row
/// in the shard.
pub(super) fn separate(index: &mut ShardIndex, divided: &BTreeMap<u64, DividedRow>) {
    let is_compressed = index.compression.is_some();
    let mut first_row = 0;
    for block in std::mem::take(&mut index.blocks) {
        let (end, end_row) = (block.offset + block.bytes, first_row + u64::from(block.rows));
        let mut pieces = Vec::new();
        let mut at = (0, block.offset);
        for (row, part) in divided.range(first_row..end_row) {
            let row = (row - first_row) as usize;
            let (start, part_end) = ((row, part.bytes.start), (row + 1, part.bytes.end.min(end)));
            pieces.push(piece(&block, at, start, 0));
            pieces.push(piece(&block, start, part_end, group_of(part.other_part)));
            at = part_end;
        }
        pieces.push(piece(&block, at, (block.rows as usize, end), 0));
        pieces.retain(|piece| piece.rows > 0);
        if let (true, Some(last)) = (is_compressed, pieces.len().checked_sub(1).filter(|last| *last > 0)) {
            for (number, piece) in pieces.iter_mut().enumerate() {
                piece.group = group_of_part(piece.group, number == last);
            }
        }
        index.blocks.extend(pieces);
        first_row = end_row;
    }
}

/// The part of a block between two rows, which are given by their numbers in the block and their offsets.
fn piece(block: &Block, start: (usize, u64), end: (usize, u64), group: u32) -> Block {
    let row_bytes = block.row_bytes.get(start.0..end.0).unwrap_or_default().to_vec();
    let bytes = end.1.saturating_sub(start.1);
    Block { rows: (end.0 - start.0) as u32, offset: start.1, bytes, group: block.group | group, row_bytes }
}

fn group_of(other_part: u64) -> u32 {
    let number = u32::try_from(other_part / HEADER_BYTES as u64 + 1).ok();
    let number = number.filter(|number| *number <= u32::MAX >> HEADER_SHIFT).unwrap_or(0);
    DIVIDED_GROUP | number << HEADER_SHIFT
}

/// The error message for a part of a divided sample.
pub(super) fn divided_reason(key: &str, other_part: OtherPart) -> String {
    let place =
        other_part.offset.map_or_else(|| "elsewhere".to_owned(), |offset| format!("at byte {offset}"));
    format!(
        "the members of the sample `{key}` are not adjacent, and others are {place}: write the archive with `tar --sort=name`"
    )
}

#[cfg(test)]
mod tests {
    use feedline_data::compression::{Codec, ShardCompression};

    use super::*;

    fn block(rows: &[u32], offset: u64, group: u32) -> Block {
        let bytes = rows.iter().map(|&bytes| u64::from(bytes)).sum();
        Block { rows: rows.len() as u32, offset, bytes, group, row_bytes: rows.to_vec() }
    }

    fn divided(rows: &[(u64, Range<u64>)]) -> BTreeMap<u64, DividedRow> {
        rows.iter()
            .map(|(row, bytes)| (*row, DividedRow { bytes: bytes.clone(), other_part: 512 * 9 }))
            .collect()
    }

    #[test]
    fn each_part_is_a_block() {
        let blocks = vec![block(&[512, 1024, 512], 512, 0), block(&[512, 512], 5120, 0)];
        let mut index = ShardIndex { blocks, ..ShardIndex::default() };
        // The gap after the first block is not a part of a row.
        separate(&mut index, &divided(&[(1, 1024..2048), (2, 2048..5120), (4, 5632..u64::MAX)]));
        let group = DIVIDED_GROUP | 10 << HEADER_SHIFT;
        let expected = [
            block(&[512], 512, 0),
            block(&[1024], 1024, group),
            block(&[512], 2048, group),
            block(&[512], 5120, 0),
            block(&[512], 5632, group),
        ];
        assert_eq!(index.blocks, expected);
        let parts: Vec<Option<OtherPart>> = index.blocks.iter().map(part_of).collect();
        let part = Some(OtherPart { offset: Some(4608) });
        assert_eq!(parts, [None, part, part, None, part]);
        assert_eq!(part_of(&block(&[1], 0, group_of(1 << 50))), Some(OtherPart { offset: None }));
        assert_eq!(part_of(&block(&[1], 0, group_of(0))), Some(OtherPart { offset: Some(0) }));
    }

    #[test]
    fn the_pieces_of_compressed_blocks_are_a_run() {
        for (group, expected) in [(0, [1, 1, 2]), (1, [1, 1, 1]), (2, [1, 1, 2])] {
            let compression = ShardCompression {
                codec: Codec::Gzip,
                content_bytes: 9000,
                readable_bytes: 90,
                decoder_bytes: 0,
                points: Vec::new(),
            };
            let blocks = vec![Block { row_bytes: Vec::new(), ..block(&[512; 3], 0, group) }];
            let mut index = ShardIndex { blocks, compression: Some(compression), ..ShardIndex::default() };
            separate(&mut index, &divided(&[(1, 512..1024)]));
            let parts: Vec<u32> = index.blocks.iter().map(|block| block.group & 7).collect();
            assert_eq!(parts, expected);
            let marked: Vec<bool> = index.blocks.iter().map(|block| part_of(block).is_some()).collect();
            assert_eq!(marked, [false, true, false]);
        }
    }
}
