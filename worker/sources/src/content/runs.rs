//! The state of a long run between two reads: the paused decoder, and content that it has decoded for later reads.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use feedline_data::compression::ShardCompression;
use feedline_data::manifest::ShardRef;

use super::content_reader::ContentReader;
use super::decoders::{DecoderMemory, Decoders};

/// Less content than in a block of a run: the end of the row before the first block.
const MIN_BLOCK_BYTES: u64 = 64 << 10;
/// Maximum number of cursors of a run.
const MAX_CURSORS: usize = 2;
/// [`Block::group`] of a block of a long run, except the last.
///
/// [`Block::group`]: feedline_data::manifest::Block::group
pub(super) const INNER_GROUP: u32 = 1;
/// The same of the last block of a long run.
pub(super) const LAST_GROUP: u32 = 2;
/// The bits of a group that state the part of a run.
const GROUP_MASK: u32 = 3;

/// Maximum distance of decoded content from the position of the decoder. Concurrent reads of a run may be out of order by
/// the blocks of several groups.
const MAX_LOOKBACK_BYTES: u64 = 64 << 20;
/// The same before the first read of a cursor, which begins in the middle of a run if the job resumes there: reads of earlier blocks are
/// only a few groups late.
pub(super) const NEW_LOOKBACK_BYTES: u64 = 8 << 20;

/// Identifies a run: the shard, and the index of its access point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunKey {
    shard: ShardRef,
    point: Option<usize>,
}

impl RunKey {
    /// Returns the run that contains an offset in the content.
    pub(super) fn of(shard: &ShardRef, compression: &ShardCompression, offset: u64) -> Self {
        Self { shard: shard.clone(), point: compression.point_before(offset) }
    }
}

/// The part of a long run that a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPart {
    /// The run has further blocks.
    Inner,
    /// The last block of the run.
    Last,
}

impl RunPart {
    /// The part that [`Block::group`] of a compressed shard states.
    ///
    /// [`Block::group`]: feedline_data::manifest::Block::group
    pub(super) fn of_group(group: u32) -> Option<Self> {
        match group & GROUP_MASK {
            INNER_GROUP => Some(Self::Inner),
            LAST_GROUP => Some(Self::Last),
            _ => None,
        }
    }
}

/// The [`Block::group`] of a part of a block, if the block is divided into several blocks. `group` is that of the block, without
/// other bits for its part of a run.
///
/// [`Block::group`]: feedline_data::manifest::Block::group
pub(crate) fn group_of_part(group: u32, is_last: bool) -> u32 {
    let part = if is_last && group & GROUP_MASK != INNER_GROUP { LAST_GROUP } else { INNER_GROUP };
    group & !GROUP_MASK | part
}

/// The state of a run between two reads. A job may read a run at two positions, when one pass ends and the next begins.
#[derive(Default)]
pub(super) struct RunState {
    /// The least recently used first.
    cursors: VecDeque<Cursor>,
}

/// A position in a run.
pub(super) struct Cursor {
    pub(super) reader: ContentReader,
    /// Whether no read has used the cursor.
    pub(super) is_new: bool,
    pub(super) decoded: DecodedContent,
}

impl RunState {
    /// Removes and returns a range that is already decoded.
    pub(super) fn take(&mut self, range: &Range<u64>) -> Option<Bytes> {
        self.cursors.iter_mut().find_map(|cursor| cursor.decoded.take(range))
    }

    /// Returns the last cursor at or before an offset. Creates one with `open` if there is none.
    pub(super) fn cursor<E>(
        &mut self,
        offset: u64,
        decoders: &Decoders,
        open: impl FnOnce() -> Result<ContentReader, E>,
    ) -> Result<&mut Cursor, E> {
        let positions = self.cursors.iter().map(|cursor| cursor.reader.position()).enumerate();
        let last =
            positions.filter(|(_, position)| *position <= offset).max_by_key(|(_, position)| *position);
        let cursor = match last.and_then(|(index, _)| self.cursors.remove(index)) {
            Some(cursor) => cursor,
            None => Cursor { reader: open()?, is_new: true, decoded: DecodedContent::new(decoders) },
        };
        if self.cursors.len() == MAX_CURSORS {
            self.cursors.pop_front();
        }
        self.cursors.push_back(cursor);
        Ok(self.cursors.back_mut().expect("a cursor was added"))
    }

    /// Removes the cursor that was used last, which is at the end of the run, unless a read may need its decoded content.
    pub(super) fn remove_used_up(&mut self) {
        self.cursors.pop_back_if(|cursor| cursor.decoded.bytes < MIN_BLOCK_BYTES);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cursors.is_empty()
    }

    /// Memory of the run in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.cursors.iter().map(|cursor| cursor.decoded.bytes + cursor.reader.memory_bytes()).sum()
    }
}

/// Content before the position of the decoder that no read has used yet, in ascending order.
pub(super) struct DecodedContent {
    pieces: VecDeque<(u64, Bytes)>,
    bytes: u64,
    memory: DecoderMemory,
}

impl DecodedContent {
    fn new(decoders: &Decoders) -> Self {
        Self { pieces: VecDeque::new(), bytes: 0, memory: DecoderMemory::new(decoders) }
    }

    /// Adds content after all other content. Does not release content from `needed_from` on.
    pub(super) fn push(&mut self, offset: u64, content: Bytes, needed_from: u64) {
        self.bytes += content.len() as u64;
        self.pieces.push_back((offset, content));
        self.release_before(offset.min(needed_from));
        self.memory.set(self.bytes);
    }

    fn release_before(&mut self, position: u64) {
        while let Some((offset, piece)) = self.pieces.front()
            && offset + piece.len() as u64 + MAX_LOOKBACK_BYTES < position
        {
            self.bytes -= piece.len() as u64;
            self.pieces.pop_front();
        }
    }

    /// Removes and returns a range, if all of it is available.
    pub(super) fn take(&mut self, range: &Range<u64>) -> Option<Bytes> {
        let first = self.pieces.partition_point(|(offset, _)| *offset <= range.start).checked_sub(1)?;
        let mut content = BytesMut::new();
        let mut position = range.start;
        let mut last = first;
        while position < range.end {
            let (offset, piece) = self.pieces.get(last)?;
            let start = usize::try_from(position.checked_sub(*offset)?).ok()?;
            let end = piece.len().min((range.end - offset) as usize);
            content.extend_from_slice(piece.get(start..end).filter(|part| !part.is_empty())?);
            position = offset + end as u64;
            last += 1;
        }
        let mut at = first;
        for _ in first..last {
            let (offset, piece) = &self.pieces[at];
            match *offset >= range.start && offset + piece.len() as u64 <= range.end {
                true => {
                    self.bytes -= piece.len() as u64;
                    self.pieces.remove(at);
                }
                false => at += 1,
            }
        }
        self.memory.set(self.bytes);
        Some(content.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_content_is_returned_once_and_only_if_it_is_complete() {
        let mut decoded = DecodedContent::new(&Decoders::default());
        for start in [0_u8, 10, 20, 40] {
            decoded.push(start.into(), (start..start + 10).collect(), u64::MAX);
        }
        assert_eq!(decoded.take(&(25..45)), None, "30..40 was requested before");
        assert_eq!(decoded.take(&(45..55)), None);
        assert_eq!(decoded.take(&(8..23)), Some((8..23).collect()));
        assert_eq!(decoded.bytes, 30, "only 10..20 is released");
        assert_eq!(decoded.take(&(8..23)), None);
        assert_eq!(decoded.take(&(23..30)), Some((23..30).collect()));
        assert_eq!(decoded.take(&(40..50)), Some((40..50).collect()));
        assert_eq!(decoded.bytes, 20);
        decoded.push(10 + MAX_LOOKBACK_BYTES, Bytes::from_static(&[1]), u64::MAX);
        assert_eq!(decoded.bytes, 21);
        decoded.push(100 + MAX_LOOKBACK_BYTES, Bytes::from_static(&[1]), u64::MAX);
        assert_eq!(decoded.bytes, 2);
    }
}
