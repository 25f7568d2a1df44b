//! Decodes WebDataset samples to columns.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, StringViewBuilder};
use bytes::Bytes;
use feedline_data::schema::{ColumnType, ScalarType};

use super::tar;
use crate::columns::build_batch;
use crate::error::SourceError;
use crate::limits::MAX_SAMPLE_MEMBERS;
use crate::object::BufferSpan;
use crate::reader::{BlockRead, DecodedBlock, RowFailure};
use crate::rows::RowSet;
use crate::select::Selection;
use crate::views::Views;

/// Name of the column with the keys of the samples.
pub(super) const KEY: &str = "__key__";

/// Decodes samples to the requested columns. A missing member is null.
pub(super) fn decode(
    rows: &RowSet,
    read: &BlockRead<'_>,
    selection: &Selection,
) -> Result<DecodedBlock, SourceError> {
    let names = selection.data_names(read.schema);
    let mut columns = Vec::with_capacity(names.len());
    for (field, name) in read.schema.fields.iter().zip(&names) {
        let column = Column::new(name, &field.column_type, &rows.buffers, rows.rows.len());
        columns.push(column.ok_or_else(|| SourceError::SchemaMismatch {
            url: read.shard.url.clone(),
            reason: format!(
                "column `{}` has type {}, which members do not support",
                field.name, field.column_type
            ),
        })?);
    }
    let mut failures = Vec::new();
    for (index, row) in rows.rows.iter().enumerate() {
        let failed = match Sample::parse(rows.bytes(index)) {
            Ok(sample) => append_row(&mut columns, &names, &sample, rows, index),
            Err(reason) => {
                columns.iter_mut().for_each(Column::append_null);
                Some(reason)
            }
        };
        failures.extend(failed.map(|reason| RowFailure { row: index as u32, offset: row.offset, reason }));
    }
    let has_views = columns.iter().any(|column| matches!(column, Column::Views(_)));
    let columns: Vec<ArrayRef> = columns.into_iter().map(Column::finish).collect();
    let held_bytes = columns.len() * rows.rows.len() * 17 + if has_views { rows.held_bytes() } else { 0 };
    let batch = build_batch(read.schema, columns, rows.rows.len())
        .map_err(|reason| SourceError::corrupt(read.shard, read.block.offset, reason))?;
    Ok(DecodedBlock { batch, failures, held_bytes })
}

/// Appends one row. A value that cannot be parsed becomes null. Returns the first error.
fn append_row(
    columns: &mut [Column],
    names: &[&str],
    sample: &Sample,
    rows: &RowSet,
    index: usize,
) -> Option<String> {
    let mut first_error = None;
    for (column, name) in columns.iter_mut().zip(names) {
        let appended = match (&mut *column, sample.body(name)) {
            (Column::Key(builder), _) => {
                builder.append_value(&sample.key);
                Ok(())
            }
            (column, None) => {
                column.append_null();
                Ok(())
            }
            (Column::Views(views), Some(body)) => {
                let span = rows.rows[index].span;
                views.append(BufferSpan { start: span.start + body.start, len: body.len(), ..span })
            }
            (Column::Int(builder), Some(body)) => {
                parse_int(&rows.bytes(index)[body]).map(|value| builder.append_value(value))
            }
        };
        if let Err(reason) = appended {
            column.append_null();
            first_error.get_or_insert_with(|| format!("member `{}.{name}`: {reason}", sample.key));
        }
    }
    first_error
}

fn parse_int(text: &[u8]) -> Result<i64, String> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| "the content is not an integer".to_owned())
}

struct Sample {
    key: String,
    members: Vec<(String, Range<usize>)>,
}

impl Sample {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut sample = Self { key: String::new(), members: Vec::new() };
        let (mut duplicate, mut has_too_many) = (None, false);
        tar::each_member(bytes, |member| {
            let Some((key, extension)) = key_and_extension(&member.name) else { return };
            sample.key = key.to_owned();
            if sample.members.len() == MAX_SAMPLE_MEMBERS {
                has_too_many = true;
                return;
            }
            let extension = extension.to_lowercase();
            if sample.body(&extension).is_some() {
                duplicate = Some(member.name.clone());
            }
            sample.members.push((extension, member.body));
        })
        .map_err(|bad| bad.reason)?;
        if has_too_many {
            return Err(too_many_members(&sample.key));
        }
        match duplicate {
            Some(name) => Err(format!("the sample has two members with the name `{name}`")),
            None => Ok(sample),
        }
    }

    fn body(&self, extension: &str) -> Option<Range<usize>> {
        self.members.iter().find(|(known, _)| known == extension).map(|(_, body)| body.clone())
    }
}

enum Column {
    Key(StringViewBuilder),
    Views(Views),
    Int(Int64Builder),
}

impl Column {
    fn new(name: &str, column_type: &ColumnType, buffers: &[Bytes], rows: usize) -> Option<Self> {
        Some(match column_type {
            ColumnType::Utf8 if name == KEY => Self::Key(StringViewBuilder::with_capacity(rows)),
            ColumnType::Utf8 => Self::Views(Views::text(buffers, rows)),
            ColumnType::Binary => Self::Views(Views::binary(buffers, rows)),
            ColumnType::Scalar(ScalarType::Int64) => Self::Int(Int64Builder::with_capacity(rows)),
            _ => return None,
        })
    }

    fn append_null(&mut self) {
        match self {
            Self::Key(builder) => builder.append_null(),
            Self::Views(views) => views.append_null(),
            Self::Int(builder) => builder.append_null(),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Key(mut builder) => Arc::new(builder.finish()),
            Self::Views(views) => views.finish(),
            Self::Int(mut builder) => Arc::new(builder.finish()),
        }
    }
}

/// The error message for a sample with too many members.
pub(super) fn too_many_members(key: &str) -> String {
    format!("sample `{key}` exceeds the limit of {MAX_SAMPLE_MEMBERS} members: check the member names")
}

/// Splits the name of a member at the first dot of the last path component. Returns the key and the extension.
pub(super) fn key_and_extension(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].find('.')?;
    let (key, extension) = (&name[..dot], &name[dot + 1..]);
    (dot > base && !extension.is_empty()).then_some((key, extension))
}
