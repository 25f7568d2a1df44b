//! Decodes WebDataset samples to columns.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, StringViewBuilder};
use bytes::Bytes;
use feedline_data::schema::{ColumnType, ScalarType};

use super::divided_rows::{OtherPart, divided_reason};
use super::member_types::UnreadableMember;
use super::tar;
use crate::columns::{arrow_type, build_batch, null_column};
use crate::error::SourceError;
use crate::exact_cast::{InexactRow, cast_exact};
use crate::limits::MAX_SAMPLE_MEMBERS;
use crate::object::BufferSpan;
use crate::reader::{BlockRead, DecodedBlock, RowFailure};
use crate::rows::RowSet;
use crate::select::Selection;
use crate::views::Views;

/// Name of the column with the keys of the samples.
pub(super) const KEY: &str = "__key__";

/// Decodes samples to the requested columns. A missing member is null. All rows fail if they are parts of divided samples.
pub(super) fn decode(
    rows: &RowSet,
    read: &BlockRead<'_>,
    selection: &Selection,
    other_part: Option<OtherPart>,
) -> Result<DecodedBlock, SourceError> {
    let names = selection.data_names(read.schema);
    let mut columns = Vec::with_capacity(names.len());
    for (field, name) in read.schema.fields.iter().zip(&names) {
        columns.push(Column::new(name, &field.column_type, &rows.buffers, rows.rows.len()));
    }
    let mut failures = Vec::new();
    for (index, row) in rows.rows.iter().enumerate() {
        let sample = Sample::parse(rows.bytes(index)).and_then(|sample| match other_part {
            Some(other_part) => Err(divided_reason(&sample.key, other_part)),
            None => Ok(sample),
        });
        let failed = match sample {
            Ok(sample) => append_row(&mut columns, &names, &sample, rows, index),
            Err(reason) => {
                columns.iter_mut().for_each(Column::append_null);
                Some(reason)
            }
        };
        failures.extend(failed.map(|reason| RowFailure { row: index as u32, offset: row.offset, reason }));
    }
    let has_views = columns.iter().any(|column| matches!(column, Column::Views(_)));
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(columns.len());
    for (column, (field, name)) in columns.into_iter().zip(read.schema.fields.iter().zip(&names)) {
        let (column, inexact) = cast_exact(&column.finish(), &arrow_type(&field.column_type))
            .map_err(|reason| SourceError::corrupt(read.shard, read.block.offset, reason))?;
        for InexactRow { row, reason } in inexact {
            let reason = format!("column `{name}`: {reason}");
            failures.push(RowFailure { row: row as u32, offset: rows.rows[row].offset, reason });
        }
        arrays.push(column);
    }
    failures.sort_by_key(|failure| failure.row);
    failures.dedup_by_key(|failure| failure.row);
    let columns = arrays;
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
        let appended = match (&mut *column, sample.member(name).map(|member| &member.body)) {
            (Column::Key(builder), _) => {
                builder.append_value(&sample.key);
                Ok(())
            }
            (column, None) => {
                column.append_null();
                Ok(())
            }
            (_, Some(Err(unreadable))) => Err(unreadable.to_string()),
            (Column::Views(views), Some(Ok(body))) => {
                let span = rows.rows[index].span;
                views.append(BufferSpan { start: span.start + body.start, len: body.len(), ..span })
            }
            (Column::Int(builder), Some(Ok(body))) => {
                parse_int(&rows.bytes(index)[body.clone()]).map(|value| builder.append_value(value))
            }
            (Column::Absent(column_type, _), Some(_)) => {
                Err(format!("the column has type {column_type}, which members do not support"))
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
    members: Vec<SampleMember>,
}

struct SampleMember {
    /// The extension in lower case, which is the name of the column.
    extension: String,
    name: String,
    /// The range of the body, or why it cannot be read.
    body: Result<Range<usize>, UnreadableMember>,
}

impl Sample {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut sample = Self { key: String::new(), members: Vec::new() };
        let (mut conflict, mut has_too_many) = (None, false);
        tar::each_member(bytes, |member| {
            let Some((key, extension)) = key_and_extension(&member.name) else { return };
            sample.key = key.to_owned();
            if sample.members.len() == MAX_SAMPLE_MEMBERS {
                has_too_many = true;
                return;
            }
            let extension = extension.to_lowercase();
            if let Some(other) = sample.member(&extension) {
                conflict = Some(if other.name == member.name {
                    format!("the sample has two members with the name `{}`", member.name)
                } else {
                    format!(
                        "the sample has two members for the column `{extension}`, `{}` and `{}`",
                        other.name, member.name
                    )
                });
            } else if extension == KEY {
                conflict =
                    Some(format!("the member `{}` has the name of the column with the keys", member.name));
            }
            if member.unreadable == Some(UnreadableMember::NameNotUtf8) {
                conflict = Some(format!("member `{}`: {}", member.name, UnreadableMember::NameNotUtf8));
            }
            let body = match member.unreadable {
                None => Ok(member.body),
                Some(unreadable) => sample.resolve_link(unreadable),
            };
            sample.members.push(SampleMember { extension, name: member.name, body });
        })
        .map_err(|bad| bad.reason)?;
        if has_too_many {
            return Err(too_many_members(&sample.key));
        }
        match conflict {
            Some(reason) => Err(reason),
            None => Ok(sample),
        }
    }

    /// Returns the body of the earlier member of the sample to which a hard link refers.
    fn resolve_link(&self, unreadable: UnreadableMember) -> Result<Range<usize>, UnreadableMember> {
        let target = match &unreadable {
            UnreadableMember::HardLink(target) => self.members.iter().find(|member| member.name == *target),
            _ => None,
        };
        target.and_then(|target| target.body.clone().ok()).ok_or(unreadable)
    }

    fn member(&self, extension: &str) -> Option<&SampleMember> {
        self.members.iter().find(|member| member.extension == extension)
    }
}

enum Column {
    Key(StringViewBuilder),
    Views(Views),
    Int(Int64Builder),
    /// A column of another dataset of a mix. Members cannot have this type. The field is the type and the number of rows.
    Absent(ColumnType, usize),
}

impl Column {
    fn new(name: &str, column_type: &ColumnType, buffers: &[Bytes], rows: usize) -> Self {
        match column_type {
            ColumnType::Utf8 if name == KEY => Self::Key(StringViewBuilder::with_capacity(rows)),
            ColumnType::Utf8 => Self::Views(Views::text(buffers, rows)),
            ColumnType::Binary => Self::Views(Views::binary(buffers, rows)),
            // The type of all shards may be wider than that of members.
            ColumnType::Scalar(ScalarType::Int64 | ScalarType::UInt64 | ScalarType::Float64) => {
                Self::Int(Int64Builder::with_capacity(rows))
            }
            // Other datasets of a mix contain lists. Members become lists of one value.
            ColumnType::List(item) if matches!(**item, ColumnType::Binary | ColumnType::Scalar(_)) => {
                Self::new(name, item, buffers, rows)
            }
            _ => Self::Absent(column_type.clone(), 0),
        }
    }

    fn append_null(&mut self) {
        match self {
            Self::Key(builder) => builder.append_null(),
            Self::Views(views) => views.append_null(),
            Self::Int(builder) => builder.append_null(),
            Self::Absent(_, rows) => *rows += 1,
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Key(mut builder) => Arc::new(builder.finish()),
            Self::Views(views) => views.finish(),
            Self::Int(mut builder) => Arc::new(builder.finish()),
            Self::Absent(column_type, rows) => null_column(&column_type, rows),
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
