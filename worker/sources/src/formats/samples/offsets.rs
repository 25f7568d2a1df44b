//! The table at the start of a file: the number of samples, and the byte offsets of the samples and of the end.

use std::ops::Range;

use bytes::Bytes;
use feedline_data::manifest::Block;

use super::super::decompress::off_runtime;
use super::u32_at;
use crate::blocks::BlockBuilder;
use crate::error::SourceError;
use crate::formats::lines::more_memory;
use crate::object::Object;
use crate::window::ReadWindow;

/// The table of a file in memory.
pub(crate) struct OffsetTable {
    offsets: Vec<u32>,
}

impl OffsetTable {
    /// Parses the table of a whole file.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, String> {
        let count = check_count(file, file.len() as u64)?;
        let table = &file[4..4 * (count as usize + 2)];
        let offsets: Vec<u32> = table.chunks_exact(4).map(u32_at).collect();
        let mut checks = OffsetChecks::new(count, file.len() as u64);
        offsets.iter().try_for_each(|&offset| checks.check(offset))?;
        Ok(Self { offsets })
    }

    /// The ranges of the samples.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }
}

/// Checks that offsets are in ascending order and within the file.
struct OffsetChecks {
    previous: u64,
    file_bytes: u64,
}

impl OffsetChecks {
    fn new(count: u64, file_bytes: u64) -> Self {
        Self { previous: 4 * (count + 2), file_bytes }
    }

    fn check(&mut self, offset: u32) -> Result<(), String> {
        let offset = u64::from(offset);
        if offset < self.previous || offset > self.file_bytes {
            return Err(format!(
                "the offset {offset} of a sample is not between {} and the end at {}: the file is corrupted or truncated",
                self.previous, self.file_bytes
            ));
        }
        self.previous = offset;
        Ok(())
    }
}

/// Returns the number of samples. The table fits into the file.
fn check_count(start: &[u8], file_bytes: u64) -> Result<u64, String> {
    let count = start.first_chunk().map(|bytes| u64::from(u32::from_le_bytes(*bytes)));
    match count {
        Some(count) if 4 * (count + 2) <= file_bytes => Ok(count),
        Some(count) => {
            Err(format!("the table of {count} samples exceeds the file: the file is corrupted or truncated"))
        }
        None => Err("the file is too short for the number of samples: write the dataset again".to_owned()),
    }
}

/// Decompresses a sample.
pub(crate) type DecompressSample = fn(&[u8]) -> Result<Vec<u8>, String>;

/// Reads the table of a file. Returns the blocks, and the bytes of the first sample if `wants_sample`. Samples that are compressed
/// one by one have smaller blocks.
pub(crate) async fn index_rows(
    object: &Object,
    expected_rows: u64,
    wants_sample: bool,
    decompress: Option<DecompressSample>,
) -> Result<(Vec<Block>, Bytes), SourceError> {
    let shard = object.shard();
    let corrupt = |at: u64, reason: String| SourceError::corrupt(shard, at, reason);
    let mut window = ReadWindow::new(object);
    let start = window.read_from(0, 8).await?;
    let count = check_count(start, shard.size_bytes).map_err(|reason| corrupt(0, reason))?;
    if count != expected_rows {
        let reason = format!(
            "the file has {count} samples, but the index expects {expected_rows}: copy the whole directory again"
        );
        return Err(corrupt(0, reason));
    }
    if count == 0 {
        return Ok((Vec::new(), Bytes::new()));
    }
    let (mut sample, mut ratio) = (Bytes::new(), 1);
    if let Some(decompress) = decompress {
        let table = window.read_from(4, 8).await?;
        let (start, end) = (u32_at(table), u32_at(&table[4..]));
        let mut checks = OffsetChecks::new(count, shard.size_bytes);
        checks.check(start).and_then(|()| checks.check(end)).map_err(|reason| corrupt(4, reason))?;
        (sample, ratio) = read_compressed_sample(object, start.into()..end.into(), decompress).await?;
    }
    let mut checks = OffsetChecks::new(count, shard.size_bytes);
    let mut builder = None;
    let mut first = 0..0;
    let (mut at, end) = (4, 4 * (count + 2));
    while at < end {
        let piece = window.read_from(at, 4).await?;
        let piece = &piece[..piece.len().min((end - at) as usize) / 4 * 4];
        for (place, bytes) in (at..).step_by(4).zip(piece.chunks_exact(4)) {
            let (previous, offset) = (checks.previous, u32_at(bytes));
            checks.check(offset).map_err(|reason| corrupt(place, reason))?;
            let offset = u64::from(offset);
            match &mut builder {
                None => builder = Some(BlockBuilder::new(offset).with_row_ratio(ratio)),
                Some(builder) => {
                    if first.end == 0 {
                        first = previous..offset;
                    }
                    builder.push(offset - previous).map_err(|reason| corrupt(place, reason))?;
                }
            }
        }
        at += piece.len() as u64;
    }
    let blocks = builder.map_or_else(Vec::new, BlockBuilder::finish);
    if wants_sample && decompress.is_none() {
        sample = read_sample(object, first).await?;
    }
    Ok((blocks, sample))
}

/// Returns the first sample after decompression, and how many times larger it is than the compressed sample.
async fn read_compressed_sample(
    object: &Object,
    range: Range<u64>,
    decompress: DecompressSample,
) -> Result<(Bytes, u64), SourceError> {
    let at = range.start;
    let stored = read_sample(object, range).await?;
    if stored.is_empty() {
        return Ok((Bytes::new(), 1));
    }
    let stored_bytes = stored.len() as u64;
    let decompressed = off_runtime(stored_bytes, move || decompress(&stored)).await.flatten();
    let sample = decompressed.map_err(|reason| SourceError::corrupt(object.shard(), at, reason))?;
    let ratio = sample.len() as u64 / stored_bytes;
    Ok((sample.into(), ratio))
}

async fn read_sample(object: &Object, range: Range<u64>) -> Result<Bytes, SourceError> {
    let bytes = range.end - range.start;
    let limit = object.decoders().sampled_row_limit();
    if bytes > limit {
        let reason = format!(
            "the first sample is {bytes} bytes long, more than the limit of {limit} bytes for inferring columns: split the sample{}",
            more_memory(object)
        );
        return Err(SourceError::corrupt(object.shard(), range.start, reason));
    }
    object.read(range).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_must_be_ascending_and_within_the_file() {
        let file = |offsets: &[u32], rest: usize| {
            let count = [offsets.len() as u32 - 1];
            let numbers = count.iter().chain(offsets).flat_map(|number| number.to_le_bytes());
            numbers.chain(std::iter::repeat_n(0, rest)).collect::<Vec<u8>>()
        };
        let good = file(&[16, 18, 19], 3);
        let ranges: Vec<_> = OffsetTable::parse(&good).unwrap().ranges().collect();
        assert_eq!(ranges, [16..18, 18..19]);
        for bad in [&[15, 18, 19], &[16, 15, 19], &[16, 18, 20]] {
            assert!(OffsetTable::parse(&file(bad, 3)).is_err(), "{bad:?}");
        }
        for length in 0..good.len() {
            assert!(OffsetTable::parse(&good[..length]).is_err(), "{length}");
        }
        assert_eq!(OffsetTable::parse(&file(&[8], 0)).unwrap().len(), 0);
    }
}
