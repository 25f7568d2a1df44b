//! Decodes `tf.train.Example` records to columns.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryViewBuilder, Float32Builder, Int64Builder, ListBuilder};
use bytes::Bytes;
use feedline_data::schema::{ColumnType, ScalarType};

use super::example::{FeatureValues, each_bytes, each_float, each_int, read_features};
use super::framing::verified_data;
use crate::columns::build_batch;
use crate::error::SourceError;
use crate::object::BufferSpan;
use crate::reader::{BlockRead, DecodedBlock, RowFailure};
use crate::rows::RowSet;
use crate::select::Selection;
use crate::views::{Views, binary_builder, span_within};

/// Decodes framed records to the requested columns.
pub(super) fn decode(
    rows: &RowSet,
    read: &BlockRead<'_>,
    selection: &Selection,
) -> Result<DecodedBlock, SourceError> {
    decode_with(rows, read, selection, verified_data)
}

/// Decodes examples without frames to the requested columns.
pub(crate) fn decode_examples(
    rows: &RowSet,
    read: &BlockRead<'_>,
    selection: &Selection,
) -> Result<DecodedBlock, SourceError> {
    decode_with(rows, read, selection, |record| Ok(record))
}

/// Decodes records to the requested columns. `example_of` returns the example of a record.
fn decode_with(
    rows: &RowSet,
    read: &BlockRead<'_>,
    selection: &Selection,
    example_of: fn(&[u8]) -> Result<&[u8], String>,
) -> Result<DecodedBlock, SourceError> {
    let types = read.schema.fields.iter().map(|field| &field.column_type);
    let wanted: Vec<(&str, &ColumnType)> = selection.data_names(read.schema).into_iter().zip(types).collect();
    let (columns, failures) = decode_columns(rows, &wanted, example_of).map_err(|name| {
        let field = read.schema.fields.iter().find(|field| selection.data_name(&field.name) == name);
        let shown =
            field.map_or(String::new(), |field| format!("`{}` has type {}", field.name, field.column_type));
        SourceError::SchemaMismatch {
            url: read.shard.url.clone(),
            reason: format!("column {shown}, which features do not support"),
        }
    })?;
    let has_views = columns.iter().any(has_views);
    let own_bytes: usize = columns.iter().map(own_bytes).sum();
    let held_bytes = own_bytes + if has_views { rows.held_bytes() } else { 0 };
    let batch = build_batch(read.schema, columns, rows.rows.len())
        .map_err(|reason| SourceError::corrupt(read.shard, read.block.offset, reason))?;
    Ok(DecodedBlock { batch, failures, held_bytes })
}

/// Decodes records to columns, which are given by the names of features and their types. `data_of` returns the example in a record.
///
/// # Errors
/// Returns the name of a feature whose type is not supported.
pub(super) fn decode_columns(
    rows: &RowSet,
    wanted: &[(&str, &ColumnType)],
    data_of: impl Fn(&[u8]) -> Result<&[u8], String>,
) -> Result<(Vec<ArrayRef>, Vec<RowFailure>), String> {
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    let mut columns = Vec::with_capacity(names.len());
    for (name, column_type) in wanted {
        let column = Column::new(column_type, &rows.buffers, rows.rows.len());
        columns.push(column.ok_or_else(|| (*name).to_owned())?);
    }
    let mut failures = Vec::new();
    let mut found = vec![FeatureValues::Unset; names.len()];
    for (index, row) in rows.rows.iter().enumerate() {
        let record = rows.bytes(index);
        found.fill(FeatureValues::Unset);
        let parsed = data_of(record).and_then(|data| {
            let find = |name: &[u8], values| {
                for (slot, wanted) in found.iter_mut().zip(&names) {
                    if wanted.as_bytes() == name {
                        *slot = values;
                    }
                }
            };
            read_features(data, find).map_err(|reason| format!("invalid tf.train.Example: {reason}"))
        });
        let failed = match parsed {
            Ok(()) => append_row(&mut columns, &names, &found, row.span, record).err(),
            Err(reason) => {
                columns.iter_mut().for_each(Column::append_null);
                Some(reason)
            }
        };
        failures.extend(failed.map(|reason| RowFailure { row: index as u32, offset: row.offset, reason }));
    }
    Ok((columns.into_iter().map(Column::finish).collect(), failures))
}

/// Whether a column references the read buffers.
fn has_views(column: &ArrayRef) -> bool {
    use arrow::datatypes::DataType;
    match column.data_type() {
        DataType::BinaryView | DataType::Utf8View => true,
        DataType::List(item) => item.data_type() == &DataType::BinaryView,
        _ => false,
    }
}

/// The memory of a column without the read buffers that it references.
fn own_bytes(column: &ArrayRef) -> usize {
    use arrow::datatypes::DataType;
    match column.data_type() {
        DataType::BinaryView | DataType::Utf8View => column.len() * 17,
        DataType::List(item) if item.data_type() == &DataType::BinaryView => {
            column.len() * 8 + column.as_list::<i32>().values().len() * 17
        }
        _ => column.get_array_memory_size(),
    }
}

/// Appends one row. A value whose type differs from the type of its column becomes null. Returns the first error.
fn append_row(
    columns: &mut [Column],
    names: &[&str],
    found: &[FeatureValues<'_>],
    span: BufferSpan,
    record: &[u8],
) -> Result<(), String> {
    let mut first_error = Ok(());
    for ((column, name), values) in columns.iter_mut().zip(names).zip(found) {
        if let Err(reason) = column.append(*values, span, record) {
            first_error = first_error.and(Err(format!("feature `{name}` {reason}")));
        }
    }
    first_error
}

enum Column {
    Bytes(Views),
    BytesList(ListBuilder<BinaryViewBuilder>),
    Int(Int64Builder),
    IntList(ListBuilder<Int64Builder>),
    Float(Float32Builder),
    FloatList(ListBuilder<Float32Builder>),
}

impl Column {
    fn new(column_type: &ColumnType, buffers: &[Bytes], rows: usize) -> Option<Self> {
        Some(match column_type {
            ColumnType::Binary => Self::Bytes(Views::binary(buffers, rows)),
            ColumnType::Utf8 => Self::Bytes(Views::text(buffers, rows)),
            ColumnType::Scalar(ScalarType::Int64) => Self::Int(Int64Builder::with_capacity(rows)),
            ColumnType::Scalar(ScalarType::Float32) => Self::Float(Float32Builder::with_capacity(rows)),
            ColumnType::List(item) => match **item {
                ColumnType::Binary => Self::BytesList(ListBuilder::new(binary_builder(buffers, rows))),
                ColumnType::Scalar(ScalarType::Int64) => Self::IntList(ListBuilder::new(Int64Builder::new())),
                ColumnType::Scalar(ScalarType::Float32) => {
                    Self::FloatList(ListBuilder::new(Float32Builder::new()))
                }
                _ => return None,
            },
            _ => return None,
        })
    }

    fn append(&mut self, values: FeatureValues<'_>, span: BufferSpan, record: &[u8]) -> Result<(), String> {
        let appended = match (&mut *self, values) {
            (Self::Bytes(views), FeatureValues::Bytes(list)) => {
                let mut single = SingleValue::default();
                each_bytes(list, |value| single.push(value))
                    .map_err(str::to_owned)
                    .and_then(|()| views.append(span_within(span, record, single.get()?)))
            }
            (Self::Int(builder), FeatureValues::Ints(list)) => {
                let mut single = SingleValue::default();
                each_int(list, |value| single.push(value))
                    .map_err(str::to_owned)
                    .and_then(|()| single.get())
                    .map(|value| builder.append_value(value))
            }
            (Self::Float(builder), FeatureValues::Floats(list)) => {
                let mut single = SingleValue::default();
                each_float(list, |value| single.push(value))
                    .map_err(str::to_owned)
                    .and_then(|()| single.get())
                    .map(|value| builder.append_value(value))
            }
            (_, values) => return self.append_list(values, span, record),
        };
        if appended.is_err() {
            self.append_null();
        }
        appended
    }

    fn append_list(
        &mut self,
        values: FeatureValues<'_>,
        span: BufferSpan,
        record: &[u8],
    ) -> Result<(), String> {
        let appended = match (&mut *self, values) {
            // A missing feature is an empty list.
            (Self::BytesList(_) | Self::IntList(_) | Self::FloatList(_), FeatureValues::Unset) => Ok(()),
            (Self::BytesList(builder), FeatureValues::Bytes(list)) => each_bytes(list, |value| {
                let part = span_within(span, record, value);
                builder
                    .values()
                    .try_append_view(part.buffer as u32, part.start as u32, part.len as u32)
                    .expect("the span is within its buffer");
            }),
            (Self::IntList(builder), FeatureValues::Ints(list)) => {
                each_int(list, |value| builder.values().append_value(value))
            }
            (Self::FloatList(builder), FeatureValues::Floats(list)) => {
                each_float(list, |value| builder.values().append_value(value))
            }
            (_, FeatureValues::Unset) => {
                self.append_null();
                return Err("is missing, but the first records have one value".to_owned());
            }
            (_, other) => {
                self.append_null();
                return Err(format!(
                    "has values of type {}, but the first records have another type",
                    other.kind()
                ));
            }
        };
        match appended {
            Ok(()) => self.close_list(true),
            Err(_) => self.close_list(false),
        }
        appended.map_err(|reason| format!("cannot be read: {reason}"))
    }

    fn close_list(&mut self, is_valid: bool) {
        match self {
            Self::BytesList(builder) => builder.append(is_valid),
            Self::IntList(builder) => builder.append(is_valid),
            Self::FloatList(builder) => builder.append(is_valid),
            Self::Bytes(_) | Self::Int(_) | Self::Float(_) => {}
        }
    }

    fn append_null(&mut self) {
        match self {
            Self::Bytes(views) => views.append_null(),
            Self::Int(builder) => builder.append_null(),
            Self::Float(builder) => builder.append_null(),
            Self::BytesList(_) | Self::IntList(_) | Self::FloatList(_) => self.close_list(false),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Bytes(views) => views.finish(),
            Self::BytesList(mut builder) => Arc::new(builder.finish()),
            Self::Int(mut builder) => Arc::new(builder.finish()),
            Self::IntList(mut builder) => Arc::new(builder.finish()),
            Self::Float(mut builder) => Arc::new(builder.finish()),
            Self::FloatList(mut builder) => Arc::new(builder.finish()),
        }
    }
}

/// Collects the value of a feature that must have exactly one value.
struct SingleValue<T> {
    value: Option<T>,
    count: usize,
}

impl<T> Default for SingleValue<T> {
    fn default() -> Self {
        Self { value: None, count: 0 }
    }
}

impl<T> SingleValue<T> {
    fn push(&mut self, value: T) {
        self.value = Some(value);
        self.count += 1;
    }

    fn get(self) -> Result<T, String> {
        match self.value {
            Some(value) if self.count == 1 => Ok(value),
            _ => Err(format!("has {} values, but the first records have one", self.count)),
        }
    }
}
