//! What the decoders of payloads with schemas share.

use arrow::array::ArrayRef;
use feedline_data::schema::ColumnType;

use super::registry::RegisteredSchema;
use crate::columns::null_column;
use crate::reader::RowFailure;
use crate::rows::{EncodedRow, RowSet};

/// The columns of some rows, and the rows that could not be decoded.
pub(super) type DecodedColumns = (Vec<ArrayRef>, Vec<RowFailure>);

/// What a decoder of one language needs.
pub(super) struct GroupDecoding<'a> {
    pub(super) reader: &'a RegisteredSchema,
    pub(super) writer: &'a RegisteredSchema,
    /// The name of the Protobuf message in the pipeline.
    pub(super) message: Option<&'a str>,
}

impl GroupDecoding<'_> {
    /// Explains why the writer's data does not fit the reader's schema.
    pub(super) fn mismatch(&self, reason: &str) -> String {
        format!(
            "schema {} of the writer cannot be read as schema {} of the reader: {reason}",
            self.writer.id, self.reader.id
        )
    }
}

/// The result for rows that all fail for the same reason.
pub(super) fn failed_group(rows: &RowSet, columns: &[(&str, &ColumnType)], reason: &str) -> DecodedColumns {
    let failure = |(index, row): (usize, &EncodedRow)| RowFailure {
        row: index as u32,
        offset: row.offset,
        reason: reason.to_owned(),
    };
    let failures = rows.rows.iter().enumerate().map(failure).collect();
    (columns.iter().map(|(_, column_type)| null_column(column_type, rows.rows.len())).collect(), failures)
}
