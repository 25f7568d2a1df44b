//! Decodes samples to columns.

use arrow::array::ArrayRef;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};

use super::values::ValueColumn;
use super::{SampleLayout, ValueEncoding};
use crate::columns::{build_batch, null_column};
use crate::error::SourceError;
use crate::exact_cast::{merge_failures, row_failures};
use crate::object::BufferSpan;
use crate::reader::{BlockRead, DecodedBlock, RowFailure};
use crate::rows::RowSet;
use crate::select::{InferenceNotes, ResolvedColumn, Selection};

/// Builds the index of a shard. `sample` is the first sample of the file if the layout needs one.
pub(crate) fn build_index(
    shard: &ShardRef,
    blocks: Vec<Block>,
    layout: &SampleLayout,
    sample: &[u8],
    selection: &Selection,
) -> Result<ShardIndex, SourceError> {
    let found = columns(layout, sample).map_err(|reason| SourceError::corrupt(shard, 0, reason))?;
    let (schema, columns) = selection.resolve_fixed(shard, &found, &InferenceNotes::default())?;
    let schema = (!blocks.is_empty()).then_some(schema);
    Ok(ShardIndex { blocks, schema, columns, ..ShardIndex::default() })
}

/// Returns the columns of a layout.
fn columns(layout: &SampleLayout, sample: &[u8]) -> Result<Vec<ResolvedColumn>, String> {
    let ranges = if layout.needs_sample() { layout.value_ranges(sample)? } else { Vec::new() };
    let column_type = |(index, column): (usize, &super::SampleColumn)| {
        let value = ranges.get(index).map_or(&[][..], |range| &sample[range.clone()]);
        let found = column.encoding.as_ref().map_err(Clone::clone);
        (column.name.clone(), found.and_then(|encoding| encoding.column_type(value)))
    };
    Ok(layout.columns.iter().enumerate().map(column_type).collect())
}

/// A requested column.
struct Target<'a> {
    name: &'a str,
    /// The index of the value in a sample.
    value: usize,
    encoding: &'a ValueEncoding,
    column: ValueColumn,
}

/// Decodes samples to the requested columns.
pub(crate) fn decode_rows(
    rows: &RowSet,
    layout: &SampleLayout,
    read: &BlockRead<'_>,
    selection: &Selection,
) -> Result<DecodedBlock, SourceError> {
    let count = rows.rows.len();
    let mut targets: Vec<Option<Target<'_>>> = Vec::new();
    for (field, name) in read.schema.fields.iter().zip(selection.data_names(read.schema)) {
        let found = layout.columns.iter().position(|column| column.name == name);
        let Some(value) = found else {
            targets.push(None);
            continue;
        };
        let encoding = layout.columns[value]
            .encoding
            .as_ref()
            .map_err(|reason| SourceError::unsupported(read.shard, format!("column `{name}`: {reason}")))?;
        let column = ValueColumn::new(encoding, &field.column_type, &rows.buffers, count);
        targets.push(Some(Target { name, value, encoding, column }));
    }
    let mut failures = Vec::new();
    for (index, row) in rows.rows.iter().enumerate() {
        let failed = append_row(&mut targets, layout, rows.bytes(index), row.span);
        failures.extend(failed.err().map(|reason| RowFailure {
            row: index as u32,
            offset: row.offset,
            reason,
        }));
    }
    let corrupt = |reason| SourceError::corrupt(read.shard, read.block.offset, reason);
    let has_views = targets.iter().flatten().any(|target| target.column.has_views());
    let mut held_bytes = if has_views { rows.held_bytes() } else { 0 };
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(targets.len());
    for (field, target) in read.schema.fields.iter().zip(targets) {
        let Some(target) = target else {
            columns.push(null_column(&field.column_type, count));
            continue;
        };
        // The type of the dataset may be wider than the type of the shard.
        let finished = target.column.finish(&field.column_type);
        let finished = finished.map_err(|reason| corrupt(format!("column `{}`: {reason}", field.name)))?;
        held_bytes += finished.bytes;
        failures.extend(row_failures(&field.name, finished.inexact, |row| rows.rows[row].offset));
        columns.push(finished.array);
    }
    merge_failures(&mut failures);
    let batch = build_batch(read.schema, columns, count).map_err(corrupt)?;
    Ok(DecodedBlock { batch, failures, held_bytes })
}

/// Appends the values of one sample. A value that cannot be read becomes null. Returns the first error.
fn append_row(
    targets: &mut [Option<Target<'_>>],
    layout: &SampleLayout,
    sample: &[u8],
    span: BufferSpan,
) -> Result<(), String> {
    let targets = targets.iter_mut().flatten();
    let ranges = match layout.value_ranges(sample) {
        Ok(ranges) if ranges.last().is_none_or(|last| last.end == sample.len()) => ranges,
        other => {
            targets.for_each(|target| target.column.append_null());
            other?;
            return Err("the sizes of the values do not match the sample: the file is corrupted".to_owned());
        }
    };
    let mut first_error = Ok(());
    for target in targets {
        let range = ranges[target.value].clone();
        let value_span = BufferSpan { start: span.start + range.start, len: range.len(), ..span };
        if let Err(reason) = target.column.append(target.encoding, &sample[range], value_span) {
            target.column.append_null();
            first_error = first_error.and(Err(format!("column `{}`: {reason}", target.name)));
        }
    }
    first_error
}
