//! Decodes all rows of a block in one call. If decoding fails, bisection finds the rows that cause the failure.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;

use crate::reader::RowFailure;
use crate::rows::RowSet;

/// Maximum length of a decoder's error message. Longer messages are truncated.
const MAX_REASON_CHARS: usize = 240;

/// Decodes encoded rows into a batch.
pub(crate) type DecodeRows<'a> = dyn Fn(&[&[u8]]) -> Result<RecordBatch, String> + 'a;

/// Decodes all rows. `decode` must return one row per encoded row, or an error. Rows that cannot be decoded are replaced
/// with `null_row`.
pub(crate) fn decode_rows(
    rows: &RowSet,
    null_row: &RecordBatch,
    decode: &DecodeRows<'_>,
) -> Result<(RecordBatch, Vec<RowFailure>), String> {
    let encoded: Vec<&[u8]> = (0..rows.rows.len()).map(|row| rows.bytes(row)).collect();
    if encoded.is_empty() {
        return Ok((null_row.slice(0, 0), Vec::new()));
    }
    let mut batches = Vec::new();
    let mut failures = Vec::new();
    // A stack of the remaining ranges, with the first range on top.
    let mut ranges: Vec<std::ops::Range<usize>> = std::iter::once(0..encoded.len()).collect();
    while let Some(range) = ranges.pop() {
        match decode(&encoded[range.clone()]) {
            Ok(batch) => batches.push(batch),
            Err(reason) if range.len() == 1 => {
                let reason =
                    reason.chars().take(MAX_REASON_CHARS).collect::<String>().replace(['\n', '\r'], " ");
                failures.push(RowFailure {
                    row: range.start as u32,
                    offset: rows.rows[range.start].offset,
                    reason,
                });
                batches.push(null_row.clone());
            }
            Err(_) => {
                let middle = range.start + range.len() / 2;
                ranges.push(middle..range.end);
                ranges.push(range.start..middle);
            }
        }
    }
    if let [batch] = batches.as_slice() {
        return Ok((batch.clone(), failures));
    }
    let batch = concat_batches(null_row.schema_ref(), &batches).map_err(|error| error.to_string())?;
    Ok((batch, failures))
}
