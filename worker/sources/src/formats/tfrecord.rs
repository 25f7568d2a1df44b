//! TFRecord files of `tf.train.Example`. A record is: length (u64), masked CRC-32C of the length, data, masked CRC-32C
//! of the data, all little-endian.

mod builders;
mod example;

use std::ops::Range;

use feedline_data::manifest::{Defect, ShardIndex};

use crate::blocks::BlockBuilder;
use crate::dataset::{BlockRead, DecodedBlock};
use crate::error::SourceError;
use crate::limits::MAX_SAMPLED_ROW_BYTES;
use crate::object::Object;
use crate::rows::{self, BadSplit};
use crate::select::Selection;
use crate::window::ReadWindow;

use example::SchemaScan;

const HEADER_BYTES: usize = 12;
const FRAME_BYTES: u64 = 16;
/// Records looked into to find the columns.
const EXAMINED_ROWS: u64 = 16;

pub(crate) async fn index(object: &Object, selection: &Selection) -> Result<ShardIndex, SourceError> {
    let shard = object.shard();
    let mut window = ReadWindow::new(object);
    let mut builder = BlockBuilder::new(0);
    let mut scan = SchemaScan::default();
    let mut defects = Vec::new();
    let mut rows = 0;
    while builder.end() < shard.size_bytes {
        let offset = builder.end();
        let framed =
            match next_record(window.at(offset, HEADER_BYTES as u64).await?, shard.size_bytes - offset) {
                Ok(framed) => framed,
                Err(reason) => {
                    refuse_compressed(object, window.at(offset, 4).await?, offset)?;
                    defects.push(Defect { offset, reason });
                    break;
                }
            };
        if let Err(reason) = builder.push(framed) {
            defects.push(Defect { offset, reason });
            break;
        }
        if rows < EXAMINED_ROWS && framed <= MAX_SAMPLED_ROW_BYTES {
            let record = &window.at(offset, framed).await?[..framed as usize];
            if let Ok(data) = data_of(record) {
                scan.add(data).map_err(|reason| SourceError::corrupt(shard, offset, reason))?;
            }
        }
        rows += 1;
    }
    let schema = match (rows, scan.found()) {
        (0, _) => None,
        (_, Some(found)) => Some(selection.schema(shard, &found)?),
        (_, None) => {
            let reason =
                "none of its first records is a tf.train.Example: check the format, and the file's checksums";
            return Err(SourceError::unsupported(shard, reason));
        }
    };
    Ok(ShardIndex { blocks: builder.finish(), schema, defects })
}

pub(crate) async fn read(
    object: &Object,
    read: &BlockRead<'_>,
    selection: &Selection,
) -> Result<DecodedBlock, SourceError> {
    let rows = rows::fetch(object, read, split).await?;
    builders::decode(&rows, read, selection)
}

/// The data of a framed record whose checksums are right.
fn data_of(record: &[u8]) -> Result<&[u8], String> {
    let framed = next_record(record, record.len() as u64)?;
    if framed != record.len() as u64 {
        return Err("the record is shorter than indexed: run `feedline index --rebuild`".to_owned());
    }
    let (data, crc) = record[HEADER_BYTES..].split_at((framed - FRAME_BYTES) as usize);
    if masked_crc(data).to_le_bytes() != crc {
        return Err("the checksum of the record's data is wrong: the file is damaged".to_owned());
    }
    Ok(data)
}

/// The size of the framed record that starts here, of which `left` bytes remain in the shard.
fn next_record(bytes: &[u8], left: u64) -> Result<u64, String> {
    let truncated = || "the last record is truncated: write the file again".to_owned();
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return Err(truncated()) };
    let Some(crc) = rest.first_chunk::<4>() else { return Err(truncated()) };
    if masked_crc(length).to_le_bytes() != *crc {
        return Err("the checksum of a record's length is wrong: this is no TFRecord file, or it is damaged"
            .to_owned());
    }
    let framed = u64::from_le_bytes(*length).saturating_add(FRAME_BYTES);
    if framed > left { Err(truncated()) } else { Ok(framed) }
}

fn split(bytes: &[u8]) -> Result<Vec<Range<usize>>, BadSplit> {
    let mut spans = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let framed =
            next_record(&bytes[at..], (bytes.len() - at) as u64).map_err(|reason| BadSplit { at, reason })?;
        spans.push(at..at + framed as usize);
        at += framed as usize;
    }
    Ok(spans)
}

/// TFRecord's masking, so that checksums of data that holds checksums stay apart.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn refuse_compressed(object: &Object, start: &[u8], offset: u64) -> Result<(), SourceError> {
    match super::lines::compression(start) {
        Some(name) if offset == 0 => Err(SourceError::unsupported(
            object.shard(),
            format!("it is compressed with {name}, which leaves no way to read a part of it: decompress it"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
