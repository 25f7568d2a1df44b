//! Decodes `tf.train.Example` records to columns.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, AsArray, BinaryViewBuilder, Float32Builder, Float64Builder, Int64Builder,
    ListBuilder, PrimitiveBuilder, UInt64Builder,
};
use bytes::Bytes;
use feedline_data::schema::{ColumnType, ScalarType};

use super::example::{FeatureValues, each_bytes, each_float, each_int, read_features};
use super::framing::verified_data;
use crate::columns::{build_batch, null_column};
use crate::error::SourceError;
use crate::exact_cast::is_exact;
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
    let (columns, failures) = decode_columns(rows, &wanted, example_of);
    let has_views = columns.iter().any(has_views);
    let own_bytes: usize = columns.iter().map(own_bytes).sum();
    let held_bytes = own_bytes + if has_views { rows.held_bytes() } else { 0 };
    let batch = build_batch(read.schema, columns, rows.rows.len())
        .map_err(|reason| SourceError::corrupt(read.shard, read.block.offset, reason))?;
    Ok(DecodedBlock { batch, failures, held_bytes })
}

/// Decodes the examples of messages to columns, which are given by the names of features and their types.
#[cfg(feature = "kafka")]
pub(crate) fn decode_payloads(
    rows: &RowSet,
    columns: &[(&str, &ColumnType)],
) -> (Vec<ArrayRef>, Vec<RowFailure>) {
    decode_columns(rows, columns, |record| Ok(record))
}

/// Decodes records to columns, which are given by the names of features and their types. `data_of` returns the example in a record.
fn decode_columns(
    rows: &RowSet,
    wanted: &[(&str, &ColumnType)],
    data_of: impl Fn(&[u8]) -> Result<&[u8], String>,
) -> (Vec<ArrayRef>, Vec<RowFailure>) {
    let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
    let mut columns = Vec::with_capacity(names.len());
    for (_, column_type) in wanted {
        columns.push(Column::new(column_type, &rows.buffers, rows.rows.len()));
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
    (columns.into_iter().map(Column::finish).collect(), failures)
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
    /// Integers, if other shards contain unsigned integers.
    UInt(UInt64Builder),
    UIntList(ListBuilder<UInt64Builder>),
    Float(Float32Builder),
    FloatList(ListBuilder<Float32Builder>),
    /// Floats or integers, if other shards contain other numbers.
    Double(Float64Builder),
    DoubleList(ListBuilder<Float64Builder>),
    /// A column of another dataset of a mix. Features cannot have this type. The field is the type and the number of rows.
    Absent(ColumnType, usize),
}

impl Column {
    fn new(column_type: &ColumnType, buffers: &[Bytes], rows: usize) -> Self {
        use ScalarType::{Float32, Float64, Int64, UInt64};
        match column_type {
            ColumnType::Binary => Self::Bytes(Views::binary(buffers, rows)),
            ColumnType::Utf8 => Self::Bytes(Views::text(buffers, rows)),
            ColumnType::Scalar(Int64) => Self::Int(Int64Builder::with_capacity(rows)),
            ColumnType::Scalar(UInt64) => Self::UInt(UInt64Builder::with_capacity(rows)),
            ColumnType::Scalar(Float32) => Self::Float(Float32Builder::with_capacity(rows)),
            ColumnType::Scalar(Float64) => Self::Double(Float64Builder::with_capacity(rows)),
            ColumnType::List(item) => match **item {
                ColumnType::Binary => Self::BytesList(ListBuilder::new(binary_builder(buffers, rows))),
                ColumnType::Scalar(Int64) => Self::IntList(ListBuilder::new(Int64Builder::new())),
                ColumnType::Scalar(UInt64) => Self::UIntList(ListBuilder::new(UInt64Builder::new())),
                ColumnType::Scalar(Float32) => Self::FloatList(ListBuilder::new(Float32Builder::new())),
                ColumnType::Scalar(Float64) => Self::DoubleList(ListBuilder::new(Float64Builder::new())),
                _ => Self::Absent(column_type.clone(), 0),
            },
            _ => Self::Absent(column_type.clone(), 0),
        }
    }

    /// Appends the values of a row. A missing feature is null, or an empty list. If the values do not match the type of the
    /// column, appends null and returns the reason.
    fn append(&mut self, values: FeatureValues<'_>, span: BufferSpan, record: &[u8]) -> Result<(), String> {
        use FeatureValues::{Floats, Ints, Unset};
        let appended = match (&mut *self, values) {
            (column, Unset) => {
                column.append_missing();
                return Ok(());
            }
            (Self::Bytes(views), FeatureValues::Bytes(list)) => {
                let mut single = SingleValue::default();
                each_bytes(list, |value| single.push(value))
                    .map_err(str::to_owned)
                    .and_then(|()| views.append(span_within(span, record, single.get()?)))
            }
            (Self::Int(builder), Ints(list)) => single_int(list).map(|value| builder.append_value(value)),
            (Self::UInt(builder), Ints(list)) => {
                single_int(list).and_then(to_unsigned).map(|value| builder.append_value(value))
            }
            (Self::Double(builder), Ints(list)) => {
                single_int(list).and_then(to_double).map(|value| builder.append_value(value))
            }
            (Self::Float(builder), Floats(list)) => {
                single_float(list).map(|value| builder.append_value(value))
            }
            (Self::Double(builder), Floats(list)) => {
                single_float(list).map(|value| builder.append_value(value.into()))
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
        use FeatureValues::{Floats, Ints};
        let mut inexact = Ok(());
        let appended = match (&mut *self, values) {
            (Self::BytesList(builder), FeatureValues::Bytes(list)) => each_bytes(list, |value| {
                let part = span_within(span, record, value);
                builder
                    .values()
                    .try_append_view(part.buffer as u32, part.start as u32, part.len as u32)
                    .expect("the span is within its buffer");
            }),
            (Self::IntList(builder), Ints(list)) => {
                each_int(list, |value| builder.values().append_value(value))
            }
            (Self::UIntList(builder), Ints(list)) => {
                each_int(list, |value| append_exact(builder.values(), to_unsigned(value), &mut inexact))
            }
            (Self::DoubleList(builder), Ints(list)) => {
                each_int(list, |value| append_exact(builder.values(), to_double(value), &mut inexact))
            }
            (Self::FloatList(builder), Floats(list)) => {
                each_float(list, |value| builder.values().append_value(value))
            }
            (Self::DoubleList(builder), Floats(list)) => {
                each_float(list, |value| builder.values().append_value(value.into()))
            }
            (_, other) => {
                self.append_null();
                return Err(format!(
                    "has values of type {}, but the first record with this feature has another type",
                    other.kind()
                ));
            }
        };
        let appended = appended.map_err(|reason| format!("cannot be read: {reason}")).and(inexact);
        self.close_list(appended.is_ok());
        appended
    }

    fn close_list(&mut self, is_valid: bool) {
        match self {
            Self::BytesList(builder) => builder.append(is_valid),
            Self::IntList(builder) => builder.append(is_valid),
            Self::UIntList(builder) => builder.append(is_valid),
            Self::FloatList(builder) => builder.append(is_valid),
            Self::DoubleList(builder) => builder.append(is_valid),
            _ => {}
        }
    }

    fn append_missing(&mut self) {
        match self {
            Self::BytesList(_)
            | Self::IntList(_)
            | Self::UIntList(_)
            | Self::FloatList(_)
            | Self::DoubleList(_) => self.close_list(true),
            _ => self.append_null(),
        }
    }

    fn append_null(&mut self) {
        match self {
            Self::Bytes(views) => views.append_null(),
            Self::Int(builder) => builder.append_null(),
            Self::UInt(builder) => builder.append_null(),
            Self::Float(builder) => builder.append_null(),
            Self::Double(builder) => builder.append_null(),
            Self::Absent(_, rows) => *rows += 1,
            _ => self.close_list(false),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Bytes(views) => views.finish(),
            Self::BytesList(mut builder) => Arc::new(builder.finish()),
            Self::Int(mut builder) => Arc::new(builder.finish()),
            Self::IntList(mut builder) => Arc::new(builder.finish()),
            Self::UInt(mut builder) => Arc::new(builder.finish()),
            Self::UIntList(mut builder) => Arc::new(builder.finish()),
            Self::Float(mut builder) => Arc::new(builder.finish()),
            Self::FloatList(mut builder) => Arc::new(builder.finish()),
            Self::Double(mut builder) => Arc::new(builder.finish()),
            Self::DoubleList(mut builder) => Arc::new(builder.finish()),
            Self::Absent(column_type, rows) => null_column(&column_type, rows),
        }
    }
}

/// Appends a value. Stores the first error in `inexact`.
fn append_exact<T: ArrowPrimitiveType>(
    builder: &mut PrimitiveBuilder<T>,
    value: Result<T::Native, String>,
    inexact: &mut Result<(), String>,
) {
    match value {
        Ok(value) => builder.append_value(value),
        Err(reason) => {
            builder.append_null();
            *inexact = std::mem::replace(inexact, Ok(())).and(Err(reason));
        }
    }
}

fn to_unsigned(value: i64) -> Result<u64, String> {
    u64::try_from(value).map_err(|_| format!("has the value {value}, which uint64 does not represent"))
}

fn to_double(value: i64) -> Result<f64, String> {
    match is_exact(value.into()) {
        true => Ok(value as f64),
        false => Err(format!("has the value {value}, which float64 does not represent exactly")),
    }
}

fn single_int(list: &[u8]) -> Result<i64, String> {
    let mut single = SingleValue::default();
    each_int(list, |value| single.push(value))?;
    single.get()
}

fn single_float(list: &[u8]) -> Result<f32, String> {
    let mut single = SingleValue::default();
    each_float(list, |value| single.push(value))?;
    single.get()
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
            _ => Err(format!("has {} values, but the other records have one", self.count)),
        }
    }
}
