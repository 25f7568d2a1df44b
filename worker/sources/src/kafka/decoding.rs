//! What the decoders of payloads with schemas share.

use arrow::array::ArrayRef;
use feedline_data::schema::{ColumnType, ScalarType};

use super::registry::RegisteredSchema;
use crate::columns::{arrow_type, null_column};
use crate::exact_cast::{InexactRow, cast_exact};
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

/// Converts a column to its type in the dataset, which may be wider than the type of the reader's schema, because other topics have
/// other schemas. Rows with values that the wider type does not represent are null in the result, and listed.
///
/// # Errors
/// Returns a message if the type in the dataset is not wider.
pub(super) fn convert_column(
    column: &ArrayRef,
    own_type: &ColumnType,
    wanted: &ColumnType,
) -> Result<(ArrayRef, Vec<InexactRow>), String> {
    if !is_widening(own_type, wanted) {
        return Err(format!("the type is {own_type} in the schema, but {wanted} in the dataset"));
    }
    cast_exact(column, &arrow_type(wanted))
}

/// Whether the merge of the schemas of several topics may have replaced a type by another one.
fn is_widening(from: &ColumnType, to: &ColumnType) -> bool {
    use ColumnType::{Binary, List, Scalar};
    match (from, to) {
        _ if from == to => true,
        (Scalar(from), Scalar(to)) => *from != ScalarType::Bool && *to != ScalarType::Bool,
        (List(from), List(to)) => is_widening(from, to),
        (Scalar(_) | Binary, List(item)) => is_widening(from, item),
        _ => false,
    }
}

#[cfg(test)]
pub(super) mod testing {
    use bytes::Bytes;

    use super::*;
    use crate::object::BufferSpan;

    /// Payloads with consecutive offsets, of which the first is 50.
    pub(in super::super) fn payloads(bodies: &[&[u8]]) -> RowSet {
        let mut data = Vec::new();
        let mut rows = Vec::new();
        for (offset, body) in (50..).zip(bodies) {
            let span = BufferSpan { buffer: 0, start: data.len(), len: body.len() };
            rows.push(EncodedRow { span, offset });
            data.extend_from_slice(body);
        }
        RowSet { buffers: vec![Bytes::from(data)], rows }
    }

    /// The first column, and the row, offset and reason of each failure.
    pub(in super::super) fn first_column(
        (columns, failures): DecodedColumns,
    ) -> (ArrayRef, Vec<(u32, u64, String)>) {
        let failures = failures.into_iter().map(|failure| (failure.row, failure.offset, failure.reason));
        (columns[0].clone(), failures.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, AsArray, Int64Array, StringViewArray};
    use arrow::datatypes::Float64Type;

    use super::*;

    #[test]
    fn values_are_converted_exactly_or_listed() {
        let int64 = ColumnType::Scalar(ScalarType::Int64);
        let float64 = ColumnType::Scalar(ScalarType::Float64);
        let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some((1_i64 << 53) + 1), None]));
        let (numbers, inexact) = convert_column(&column, &int64, &float64).unwrap();
        let numbers = numbers.as_primitive::<Float64Type>();
        assert_eq!((numbers.value(0), numbers.is_null(1), numbers.is_null(2)), (1.0, true, true));
        let reason = "float64 does not represent 9007199254740993 exactly".to_owned();
        assert_eq!(inexact, [InexactRow { row: 1, reason }]);
        let list = ColumnType::List(Box::new(float64));
        let (lists, inexact) = convert_column(&column, &int64, &list).unwrap();
        assert_eq!(lists.as_list::<i32>().value(0).as_primitive::<Float64Type>().values()[..], [1.0]);
        assert_eq!(inexact.iter().map(|inexact| inexact.row).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn text_and_booleans_do_not_become_numbers() {
        let int64 = ColumnType::Scalar(ScalarType::Int64);
        let text: ArrayRef = Arc::new(StringViewArray::from(vec!["12"]));
        assert_eq!(
            convert_column(&text, &ColumnType::Utf8, &int64).unwrap_err(),
            "the type is text in the schema, but int64 in the dataset"
        );
        let texts = ColumnType::List(Box::new(ColumnType::Utf8));
        assert!(!is_widening(&texts, &ColumnType::Utf8) && !is_widening(&ColumnType::Utf8, &texts));
        assert!(!is_widening(&ColumnType::Scalar(ScalarType::Bool), &int64));
    }
}
