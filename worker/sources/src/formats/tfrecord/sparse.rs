//! Finds the features of a large record without reading its large values.

use super::example::read_entry;
use super::scan::{SchemaScan, ValueCount};
use crate::error::SourceError;
use crate::window::ReadWindow;

/// Maximum size of an entry of the feature map that is read completely.
const MAX_SMALL_ENTRY_BYTES: u64 = 64 << 10;
/// Maximum size of a varint, which is a tag or a length.
const MAX_VARINT_BYTES: u64 = 10;

/// A field of a protobuf message, as a range of the shard.
#[derive(Debug, Clone, Copy)]
struct FieldSpan {
    number: u64,
    is_message: bool,
    start: u64,
    end: u64,
}

/// Whether all features of the example in `start..end` are known, so that the record does not change the columns. Returns
/// `false` for a malformed record.
pub(super) async fn knows(
    window: &mut ReadWindow<'_>,
    start: u64,
    end: u64,
    scan: &mut SchemaScan<'_>,
) -> Result<bool, SourceError> {
    scan.begin_record();
    if !scan.has_examples() {
        return Ok(false);
    }
    let mut at = start;
    while at < end {
        let Some(features) = next_field(window, at, end).await? else { return Ok(false) };
        // The complete record is a SequenceExample, which is an error.
        if features.number == 2 {
            return Ok(false);
        }
        if features.number == 1 && features.is_message && !knows_features(window, features, scan).await? {
            return Ok(false);
        }
        at = features.end;
    }
    Ok(true)
}

async fn knows_features(
    window: &mut ReadWindow<'_>,
    features: FieldSpan,
    scan: &mut SchemaScan<'_>,
) -> Result<bool, SourceError> {
    let mut at = features.start;
    while at < features.end {
        let Some(entry) = next_field(window, at, features.end).await? else { return Ok(false) };
        at = entry.end;
        if entry.number != 1 || !entry.is_message {
            continue;
        }
        let bytes = entry.end - entry.start;
        let is_known = if bytes <= MAX_SMALL_ENTRY_BYTES {
            let entry = &window.read_from(entry.start, bytes).await?[..bytes as usize];
            read_entry(entry).is_ok_and(|(name, values)| scan.knows_feature(name, values))
        } else {
            knows_large_entry(window, entry, scan).await?
        };
        if !is_known {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn knows_large_entry(
    window: &mut ReadWindow<'_>,
    entry: FieldSpan,
    scan: &mut SchemaScan<'_>,
) -> Result<bool, SourceError> {
    let (mut name, mut values) = (Vec::new(), None);
    let mut at = entry.start;
    while at < entry.end {
        let Some(field) = next_field(window, at, entry.end).await? else { return Ok(false) };
        at = field.end;
        match (field.number, field.is_message) {
            (1, true) if field.end - field.start <= MAX_SMALL_ENTRY_BYTES => {
                let bytes = field.end - field.start;
                name = window.read_from(field.start, bytes).await?[..bytes as usize].to_vec();
            }
            (2, true) => {
                let Some(found) = large_values(window, field).await? else { return Ok(false) };
                values = Some(found);
            }
            _ => {}
        }
    }
    Ok(values.is_some_and(|(kind, count)| scan.knows_values(&name, kind, count)))
}

/// Returns the kind and number of the values of a large feature.
async fn large_values(
    window: &mut ReadWindow<'_>,
    feature: FieldSpan,
) -> Result<Option<(&'static str, ValueCount)>, SourceError> {
    let Some(list) = next_field(window, feature.start, feature.end).await? else { return Ok(None) };
    let kind = match list.number {
        // A list of numbers of this size has several values.
        2 => return Ok(Some(("float", ValueCount::Other))),
        3 => return Ok(Some(("int64", ValueCount::Other))),
        1 => "bytes",
        _ => return Ok(None),
    };
    let Some(value) = next_field(window, list.start, list.end).await? else { return Ok(None) };
    let count = if value.number == 1 && value.end == list.end { ValueCount::One } else { ValueCount::Other };
    Ok(Some((kind, count)))
}

/// Reads the tag and length of the field at `at`. Returns `None` if the field is malformed.
async fn next_field(
    window: &mut ReadWindow<'_>,
    at: u64,
    end: u64,
) -> Result<Option<FieldSpan>, SourceError> {
    let wanted = (2 * MAX_VARINT_BYTES).min(end - at);
    let bytes = window.read_from(at, wanted).await?;
    let bytes = &bytes[..bytes.len().min(wanted as usize)];
    let Some((tag, tag_bytes)) = varint(bytes) else { return Ok(None) };
    let value_start = at + tag_bytes;
    let rest = &bytes[tag_bytes as usize..];
    let (start, length) = match tag & 7 {
        0 => match varint(rest) {
            Some((_, bytes)) => (value_start, bytes),
            None => return Ok(None),
        },
        1 => (value_start, 8),
        2 => match varint(rest) {
            Some((length, bytes)) => (value_start + bytes, length),
            None => return Ok(None),
        },
        5 => (value_start, 4),
        _ => return Ok(None),
    };
    let field_end = start.checked_add(length).filter(|field_end| *field_end <= end);
    Ok(field_end.map(|field_end| FieldSpan {
        number: tag >> 3,
        is_message: tag & 7 == 2,
        start,
        end: field_end,
    }))
}

/// Returns the value and the size of the varint at the start of `bytes`.
fn varint(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(MAX_VARINT_BYTES as usize).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at as u64 + 1));
        }
    }
    None
}
