//! Batches without the rows of features that the consumer has. The worker removes these rows from the buffer of a batch, and the
//! consumer inserts them again, so the complete buffers are equal byte by byte.
//!
//! The sent bytes are the row ids of each column, and then the buffer without the omitted rows. A row id is the position of the node in
//! stored order if the row is omitted, and [`SENT_ROW`] otherwise.

use std::ops::Range;

use bytes::BufMut;

/// The row id of rows that are not omitted. No node has this position.
const SENT_ROW: u32 = u32::MAX;
/// Size of a row id.
const ID_BYTES: usize = size_of::<u32>();

/// The rows of features that the chunks of a piece do not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OmittedRows {
    /// Number of bytes in the chunks of the piece.
    pub sent_bytes: u64,
    /// Columns with omitted rows, in the order of the buffer.
    pub columns: Vec<OmittedColumn>,
}

/// A column with omitted rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OmittedColumn {
    /// Index of the feature in the request.
    pub feature: u32,
    /// Offset of the first row in the buffer of the complete batch.
    pub values_at: u64,
    /// Number of rows of the complete column.
    pub rows: u64,
}

/// A column of a complete batch whose first nodes in stored order the consumer has.
#[derive(Debug, Clone, Copy)]
pub struct FeatureColumn<'a> {
    /// Index of the feature in the request.
    pub feature: u32,
    /// Offset of the first row in the buffer.
    pub values_at: usize,
    /// Size of a row.
    pub row_bytes: usize,
    /// The position in stored order of the node of each row, as little-endian `u32`.
    pub ids: &'a [u8],
    /// The consumer has the rows of nodes before this position.
    pub cached_rows: u32,
}

impl FeatureColumn<'_> {
    fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        row_ids(self.ids)
    }

    /// The part of the buffer that the column occupies. `None` if it exceeds the address space.
    fn range(&self) -> Option<Range<usize>> {
        let rows = self.ids.len() / ID_BYTES;
        Some(self.values_at..self.values_at.checked_add(rows.checked_mul(self.row_bytes)?)?)
    }
}

fn row_ids(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<ID_BYTES>().0.iter().map(|id| u32::from_le_bytes(*id))
}

/// Removes the rows that the consumer has from the buffer of a batch. `columns` are in the order of the buffer. `allocate` returns an
/// empty buffer for a number of bytes. Returns `None` if the bytes to send are not fewer than those of the batch.
pub fn omit_rows<B: BufMut>(
    batch: &[u8],
    columns: &[FeatureColumn<'_>],
    allocate: impl FnOnce(usize) -> B,
) -> Option<(OmittedRows, B)> {
    let mut sent_bytes = batch.len();
    let mut end = 0;
    for column in columns {
        let range = column.range().filter(|range| range.start >= end && range.end <= batch.len())?;
        end = range.end;
        let cached = column.ids().filter(|id| *id < column.cached_rows).count();
        sent_bytes = (sent_bytes + column.ids.len()).saturating_sub(cached * column.row_bytes);
    }
    if sent_bytes >= batch.len() {
        return None;
    }
    let mut out = allocate(sent_bytes);
    for column in columns {
        for id in column.ids() {
            out.put_u32_le(if id < column.cached_rows { id } else { SENT_ROW });
        }
    }
    let mut written = 0;
    for column in columns {
        let mut row_at = column.values_at;
        for id in column.ids() {
            if id < column.cached_rows {
                out.put_slice(&batch[written..row_at]);
                written = row_at + column.row_bytes;
            }
            row_at += column.row_bytes;
        }
    }
    out.put_slice(&batch[written..]);
    let omitted = |column: &FeatureColumn<'_>| OmittedColumn {
        feature: column.feature,
        values_at: column.values_at as u64,
        rows: (column.ids.len() / ID_BYTES) as u64,
    };
    let columns = columns.iter().map(omitted).collect();
    Some((OmittedRows { sent_bytes: sent_bytes as u64, columns }, out))
}

/// Completes a batch while its bytes arrive, so that each byte is copied once.
#[derive(Debug)]
pub struct BatchCompleter {
    columns: Vec<IncompleteColumn>,
    /// The received row ids of all columns.
    ids: Vec<u8>,
    ids_bytes: usize,
    /// Size of the complete batch.
    total_bytes: usize,
    /// Index of the current column, and of its next row.
    column: usize,
    row: usize,
    /// Offset in the complete batch of the next byte after the current run.
    position: usize,
    /// Number of missing bytes of the current run of received bytes.
    missing_bytes: usize,
}

#[derive(Debug)]
struct IncompleteColumn {
    feature: u32,
    values_at: usize,
    row_bytes: usize,
    rows: usize,
    /// Offset of the first row id.
    ids_at: usize,
}

/// The next bytes of a batch.
enum NextBytes {
    Received(usize),
    Cached { feature: u32, row: u32 },
    End,
}

impl BatchCompleter {
    /// Creates a completer for a batch of `total_bytes`. `row_bytes` returns the size of the rows of a feature, or `None` for an unknown
    /// feature.
    ///
    /// # Errors
    /// Returns a message if the columns do not fit the batch.
    pub fn new(
        omitted: &OmittedRows,
        total_bytes: u64,
        row_bytes: impl Fn(u32) -> Option<u32>,
    ) -> Result<Self, String> {
        let invalid = || "the piece omits rows of features that the consumer does not have".to_owned();
        let total_bytes = usize::try_from(total_bytes).map_err(|_| invalid())?;
        let (mut columns, mut ids_bytes, mut end) = (Vec::new(), 0_usize, 0_usize);
        for column in &omitted.columns {
            let row_bytes =
                row_bytes(column.feature).filter(|bytes| *bytes > 0).ok_or_else(invalid)? as usize;
            let rows = usize::try_from(column.rows).map_err(|_| invalid())?;
            let values_at = usize::try_from(column.values_at).map_err(|_| invalid())?;
            let column_end = rows.checked_mul(row_bytes).and_then(|bytes| values_at.checked_add(bytes));
            let column_end = column_end.filter(|end| *end <= total_bytes).ok_or_else(invalid)?;
            if values_at < end {
                return Err(invalid());
            }
            end = column_end;
            columns.push(IncompleteColumn {
                feature: column.feature,
                values_at,
                row_bytes,
                rows,
                ids_at: ids_bytes,
            });
            let column_ids = rows.checked_mul(ID_BYTES).ok_or_else(invalid)?;
            ids_bytes = ids_bytes.checked_add(column_ids).ok_or_else(invalid)?;
        }
        if omitted.sent_bytes < ids_bytes as u64 || omitted.sent_bytes == 0 {
            return Err(invalid());
        }
        Ok(Self {
            columns,
            ids: Vec::new(),
            ids_bytes,
            total_bytes,
            column: 0,
            row: 0,
            position: 0,
            missing_bytes: 0,
        })
    }

    /// Adds received bytes. Passes the bytes of the complete batch to `append`, in order. `cached_row` returns a row of a feature.
    /// Returns whether the batch is complete.
    ///
    /// # Errors
    /// Returns a message if a row does not exist, or there are more bytes than in the batch.
    pub fn push<'a>(
        &mut self,
        received: &[u8],
        cached_row: impl Fn(u32, u32) -> Option<&'a [u8]>,
        mut append: impl FnMut(&[u8]),
    ) -> Result<bool, String> {
        let missing_ids = self.ids_bytes - self.ids.len();
        let (ids, mut received) = received.split_at(missing_ids.min(received.len()));
        self.ids.extend_from_slice(ids);
        if self.ids.len() < self.ids_bytes {
            return Ok(false);
        }
        loop {
            if self.missing_bytes == 0 {
                match self.next_bytes() {
                    NextBytes::Received(bytes) => self.missing_bytes = bytes,
                    NextBytes::Cached { feature, row } => {
                        let bytes = cached_row(feature, row).ok_or_else(|| {
                            format!(
                                "the piece omits row {row} of a feature, which the consumer does not have"
                            )
                        })?;
                        append(bytes);
                    }
                    NextBytes::End if received.is_empty() => return Ok(true),
                    NextBytes::End => return Err("the chunks contain more bytes than the piece".to_owned()),
                }
                continue;
            }
            if received.is_empty() {
                return Ok(false);
            }
            let (run, rest) = received.split_at(self.missing_bytes.min(received.len()));
            append(run);
            self.missing_bytes -= run.len();
            received = rest;
        }
    }

    /// Advances to the next run of received bytes, or the next omitted row.
    fn next_bytes(&mut self) -> NextBytes {
        loop {
            let Some(column) = self.columns.get(self.column) else {
                let bytes = self.total_bytes - self.position;
                self.position = self.total_bytes;
                return if bytes > 0 { NextBytes::Received(bytes) } else { NextBytes::End };
            };
            if self.position < column.values_at {
                let bytes = column.values_at - self.position;
                self.position = column.values_at;
                return NextBytes::Received(bytes);
            }
            let ids = column.ids_at + self.row * ID_BYTES..column.ids_at + column.rows * ID_BYTES;
            let mut ids = row_ids(&self.ids[ids]);
            match ids.next() {
                None => {
                    self.column += 1;
                    self.row = 0;
                }
                Some(SENT_ROW) => {
                    let rows = 1 + ids.take_while(|id| *id == SENT_ROW).count();
                    self.row += rows;
                    self.position += rows * column.row_bytes;
                    return NextBytes::Received(rows * column.row_bytes);
                }
                Some(row) => {
                    self.row += 1;
                    self.position += column.row_bytes;
                    return NextBytes::Cached { feature: column.feature, row };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
