//! Builds the columns of a block: those of the payload, and those of the records.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::take;
use bytes::Bytes;
use feedline_data::pipeline::{KafkaOptions, OnTombstone};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_kafka::{KafkaRecord, RecordBlock, RecordParts, Span};

use super::partition::Partition;
use super::payload::PayloadDecoder;
use crate::columns::build_batch;
use crate::error::SourceError;
use crate::object::BufferSpan;
use crate::reader::{BlockRead, RowFailure};
use crate::rows::{EncodedRow, RowSet};
use crate::select::{ResolvedColumn, Selection};
use crate::views::Views;

/// The prefix of payload columns that have the name of a record column.
const PAYLOAD_PREFIX: &str = "value.";

/// A column that every record has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordColumn {
    Key,
    Headers,
    Timestamp,
    Partition,
    Offset,
}

impl RecordColumn {
    const ALL: [Self; 5] = [Self::Key, Self::Headers, Self::Timestamp, Self::Partition, Self::Offset];

    fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Headers => "headers",
            Self::Timestamp => "timestamp",
            Self::Partition => "partition",
            Self::Offset => "offset",
        }
    }

    fn column_type(self) -> ColumnType {
        match self {
            Self::Key => ColumnType::Binary,
            Self::Headers => ColumnType::Utf8,
            Self::Timestamp | Self::Offset => ColumnType::Scalar(ScalarType::Int64),
            Self::Partition => ColumnType::Scalar(ScalarType::Int32),
        }
    }

    fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.name() == name)
    }
}

/// Adds the columns of records to those of the payload.
pub(super) fn record_columns(payload: Vec<ResolvedColumn>) -> Vec<ResolvedColumn> {
    let rename = |(name, column_type): ResolvedColumn| (payload_column_name(name), column_type);
    let own = RecordColumn::ALL.map(|column| (column.name().to_owned(), Ok(column.column_type())));
    payload.into_iter().map(rename).chain(own).collect()
}

/// The name of a column of the payload.
pub(super) fn payload_column_name(name: String) -> String {
    match RecordColumn::find(&name) {
        Some(_) => format!("{PAYLOAD_PREFIX}{name}"),
        None => name,
    }
}

/// Where the values of a requested column come from.
enum ColumnSource<'a> {
    Record(RecordColumn),
    /// The name in the payload.
    Payload(&'a str),
}

/// The requested columns of a read.
pub(super) struct RequestedColumns<'a> {
    columns: Vec<(ColumnSource<'a>, &'a ColumnType)>,
}

impl<'a> RequestedColumns<'a> {
    pub(super) fn new(schema: &'a Schema, selection: &'a Selection) -> Self {
        let source = |name: &'a str| match RecordColumn::find(name) {
            Some(column) => ColumnSource::Record(column),
            None => {
                let payload =
                    name.strip_prefix(PAYLOAD_PREFIX).filter(|rest| RecordColumn::find(rest).is_some());
                ColumnSource::Payload(payload.unwrap_or(name))
            }
        };
        let names = selection.data_names(schema).into_iter().map(source);
        Self { columns: names.zip(schema.fields.iter().map(|field| &field.column_type)).collect() }
    }

    /// The parts of records that the columns need.
    pub(super) fn parts(&self) -> RecordParts {
        let has = |wanted| {
            self.columns
                .iter()
                .any(|(source, _)| matches!(source, ColumnSource::Record(column) if *column == wanted))
        };
        let value = self.columns.iter().any(|(source, _)| matches!(source, ColumnSource::Payload(_)));
        RecordParts { key: has(RecordColumn::Key), headers: has(RecordColumn::Headers), value }
    }

    fn payload_columns(&self) -> Vec<(&'a str, &'a ColumnType)> {
        let payload = self.columns.iter().filter_map(|(source, column_type)| match source {
            ColumnSource::Payload(name) => Some((*name, *column_type)),
            ColumnSource::Record(_) => None,
        });
        payload.collect()
    }
}

/// The rows of a block.
pub(super) struct KafkaRows {
    pub(super) batch: RecordBatch,
    pub(super) failures: Vec<RowFailure>,
    pub(super) absent: Vec<u32>,
    pub(super) held_bytes: usize,
}

/// Builds the rows of a block: one for each offset, with a placeholder for each offset without a record.
pub(super) async fn build_rows(
    block: RecordBlock,
    read: &BlockRead<'_>,
    columns: &RequestedColumns<'_>,
    partition: &Partition,
    options: &KafkaOptions,
    payload: &PayloadDecoder,
) -> Result<KafkaRows, SourceError> {
    let corrupt = |reason: String| SourceError::corrupt(read.shard, read.block.offset, reason);
    let RecordBlock { data, mut records, .. } = block;
    if options.on_tombstone == OnTombstone::Skip {
        records.retain(|record| !record.is_tombstone);
    }
    let slots = Slots::new(read, &records).map_err(corrupt)?;
    let buffers = [Bytes::from(data)];
    let (payloads, payload_slots) = payload_rows(&buffers, &records, &slots);
    let payload_columns = columns.payload_columns();
    let (decoded, mut failures) = if payload_columns.is_empty() {
        (Vec::new(), Vec::new())
    } else {
        let decoder = payload.for_block(&payloads, partition.range.schema_id).await?;
        decoder.decode(&payloads, &payload_columns).map_err(corrupt)?
    };
    for failure in &mut failures {
        failure.row = payload_slots.rows[failure.row as usize];
    }
    let mut decoded = decoded.into_iter();
    let mut arrays = Vec::with_capacity(columns.columns.len());
    for (source, _) in &columns.columns {
        arrays.push(match source {
            ColumnSource::Payload(_) => {
                let column =
                    decoded.next().ok_or_else(|| corrupt("a payload column is missing".to_owned()))?;
                payload_slots.spread(column).map_err(corrupt)?
            }
            ColumnSource::Record(column) => {
                slots.spread(record_column(*column, &buffers, &records, partition.number)).map_err(corrupt)?
            }
        });
    }
    let has_views = !payload_columns.is_empty() || columns.parts().key || columns.parts().headers;
    let batch = build_batch(read.schema, arrays, read.block.rows as usize).map_err(corrupt)?;
    let held_bytes = batch.get_array_memory_size().max(if has_views { buffers[0].len() } else { 0 });
    Ok(KafkaRows { batch, failures, absent: slots.absent(), held_bytes })
}

/// The places of records in a block.
struct Slots {
    /// The row of each record, ascending.
    rows: Vec<u32>,
    block_rows: u32,
}

impl Slots {
    fn new(read: &BlockRead<'_>, records: &[KafkaRecord]) -> Result<Self, String> {
        let block_rows = read.block.rows;
        let row = |record: &KafkaRecord| {
            let row = record.offset.checked_sub(read.block.offset).filter(|row| *row < u64::from(block_rows));
            row.map(|row| row as u32).ok_or_else(|| {
                format!("the brokers returned offset {}, which is outside of the block", record.offset)
            })
        };
        Ok(Self { rows: records.iter().map(row).collect::<Result<_, _>>()?, block_rows })
    }

    fn is_dense(&self) -> bool {
        self.rows.len() == self.block_rows as usize
    }

    /// Moves the values of a column to their rows. Rows without a record are null.
    fn spread(&self, column: ArrayRef) -> Result<ArrayRef, String> {
        if self.is_dense() {
            return Ok(column);
        }
        let mut indexes: Vec<Option<u32>> = vec![None; self.block_rows as usize];
        for (index, row) in (0..).zip(&self.rows) {
            indexes[*row as usize] = Some(index);
        }
        take(column.as_ref(), &UInt32Array::from(indexes), None).map_err(|error| error.to_string())
    }

    /// The rows without a record.
    fn absent(&self) -> Vec<u32> {
        if self.is_dense() {
            return Vec::new();
        }
        let mut rows = self.rows.iter().copied().peekable();
        (0..self.block_rows).filter(|row| rows.next_if_eq(row).is_none()).collect()
    }
}

/// Returns the payloads of the records that have one, and their places.
fn payload_rows(buffers: &[Bytes; 1], records: &[KafkaRecord], slots: &Slots) -> (RowSet, Slots) {
    let mut rows = Vec::with_capacity(records.len());
    let mut places = Vec::with_capacity(records.len());
    for (record, place) in records.iter().zip(&slots.rows) {
        if let Some(value) = record.value {
            rows.push(EncodedRow { span: buffer_span(value), offset: record.offset });
            places.push(*place);
        }
    }
    (RowSet { buffers: buffers.to_vec(), rows }, Slots { rows: places, block_rows: slots.block_rows })
}

fn buffer_span(span: Span) -> BufferSpan {
    BufferSpan { buffer: 0, start: span.start as usize, len: span.len as usize }
}

fn record_column(
    column: RecordColumn,
    buffers: &[Bytes; 1],
    records: &[KafkaRecord],
    partition: i32,
) -> ArrayRef {
    match column {
        RecordColumn::Key => part_column(Views::binary(buffers, records.len()), records, |record| record.key),
        RecordColumn::Headers => {
            part_column(Views::text(buffers, records.len()), records, |record| record.headers)
        }
        RecordColumn::Timestamp => {
            Arc::new(Int64Array::from_iter(records.iter().map(|record| record.timestamp_ms)))
        }
        RecordColumn::Offset => {
            Arc::new(Int64Array::from_iter_values(records.iter().map(|record| record.offset as i64)))
        }
        RecordColumn::Partition => Arc::new(Int32Array::from_value(partition, records.len())),
    }
}

fn part_column(
    mut views: Views,
    records: &[KafkaRecord],
    part: impl Fn(&KafkaRecord) -> Option<Span>,
) -> ArrayRef {
    for record in records {
        // Keys are bytes, and headers were written as text, so no value is rejected.
        if part(record).is_none_or(|span| views.append(buffer_span(span)).is_err()) {
            views.append_null();
        }
    }
    views.finish()
}

#[cfg(test)]
mod tests;
