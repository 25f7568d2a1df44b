//! NumPy `.npy` files. Each index of the first axis is one row with the column `data`.
//!
//! A file consists of the magic bytes, the version (two bytes), the header length (u16, or u32 since version 2), the header (a
//! Python dict), and the elements of the array in C order. In this order, rows are contiguous.

use std::iter::Peekable;
use std::ops::Range;
use std::str::Chars;
use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BooleanArray, FixedSizeListArray, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::schema::{ColumnType, ScalarType};

use crate::blocks::BlockBuilder;
use crate::cache::ShardCache;
use crate::columns::{arrow_type, build_batch, null_column};
use crate::error::SourceError;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::rows::{self, RowSet};
use crate::select::Selection;

/// The only column.
const DATA_COLUMN: &str = "data";
const MAGIC: &[u8] = b"\x93NUMPY";
/// Size of the first read, which contains the headers of most files. A typical header is 118 bytes long.
const FIRST_READ_BYTES: u64 = 4 << 10;
/// Maximum size of a header. NumPy has the same limit.
const MAX_HEADER_BYTES: u64 = 10_000;
/// The part of error messages that explains how to convert an array with unsupported elements.
const CONVERSION_HINT: &str = "convert the array before `np.save`, such as with `array.astype('float32')`";

/// Reads NumPy files.
#[derive(Default)]
pub(super) struct NpyReader {
    headers: ShardCache<NpyHeader>,
}

/// The parsed header of a file.
#[derive(Debug, PartialEq)]
struct NpyHeader {
    column_type: ColumnType,
    rows: u64,
    row_bytes: u64,
    /// The byte offset of the first row.
    data_start: u64,
}

#[async_trait]
impl FormatReader for NpyReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let header = self.headers.get(shard, || read_header(object)).await?;
        let mut builder = BlockBuilder::new(header.data_start);
        for _ in 0..header.rows {
            builder.push(header.row_bytes).map_err(|reason| SourceError::unsupported(shard, reason))?;
        }
        let schema = selection.schema(shard, &[(DATA_COLUMN.to_owned(), Ok(header.column_type.clone()))])?;
        let blocks = builder.finish();
        let schema = (!blocks.is_empty()).then_some(schema);
        Ok(ShardIndex { blocks, schema, defects: Vec::new() })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let header = self.headers.get(read.shard, || read_header(object)).await?;
        let row_bytes = header.row_bytes as usize;
        let split =
            |bytes: &[u8]| Ok((0..bytes.len() / row_bytes).map(|row| row_range(row, row_bytes)).collect());
        let rows = rows::fetch(object, read, split).await?;
        let corrupt = |reason| SourceError::corrupt(read.shard, read.block.offset, reason);
        let mut columns = Vec::new();
        for (field, name) in read.schema.fields.iter().zip(selection.data_names(read.schema)) {
            if name != DATA_COLUMN {
                columns.push(null_column(&field.column_type, rows.rows.len()));
                continue;
            }
            if field.column_type != header.column_type {
                let (found, wanted) = (&header.column_type, &field.column_type);
                let reason = format!("its row type is {found}, but the row type of other shards is {wanted}");
                return Err(SourceError::SchemaMismatch { url: read.shard.url.clone(), reason });
            }
            columns.push(column(&header, &rows).map_err(corrupt)?);
        }
        let held_bytes = rows.held_bytes();
        let batch = build_batch(read.schema, columns, rows.rows.len()).map_err(corrupt)?;
        Ok(DecodedBlock { batch, failures: Vec::new(), held_bytes })
    }
}

fn row_range(row: usize, row_bytes: usize) -> Range<usize> {
    row * row_bytes..(row + 1) * row_bytes
}

async fn read_header(object: &Arc<Object>) -> Result<NpyHeader, SourceError> {
    let shard = object.shard();
    let start = object.read(0..object.size_bytes().min(FIRST_READ_BYTES)).await?;
    let range = header_range(&start).map_err(|reason| SourceError::corrupt(shard, 0, reason))?;
    if range.end > object.size_bytes() {
        return Err(SourceError::corrupt(
            shard,
            range.start,
            "the header is truncated: write the file again",
        ));
    }
    let text = object.read(range.clone()).await?;
    let parsed = HeaderParser::new(&String::from_utf8_lossy(&text)).parse_header();
    let Some((descr, is_fortran, shape)) = parsed else {
        let reason = "the header is invalid: write the file again with `np.save`";
        return Err(SourceError::corrupt(shard, range.start, reason));
    };
    build_header(shard, &descr, is_fortran, &shape, range.end)
}

/// Parses the first bytes of a file. Returns the range of the header's dict.
fn header_range(start: &[u8]) -> Result<Range<u64>, String> {
    let not_npy = || "the file is not a NumPy file: check `source.format`".to_owned();
    let (version, rest) =
        start.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk).ok_or_else(not_npy)?;
    let (length, length_bytes) = match (version, rest) {
        ([1, 0], [a, b, ..]) => (u64::from(u16::from_le_bytes([*a, *b])), 2),
        ([2 | 3, 0], [a, b, c, d, ..]) => (u64::from(u32::from_le_bytes([*a, *b, *c, *d])), 4),
        ([1..=3, 0], _) => return Err("the header is truncated: write the file again".to_owned()),
        ([major, minor], _) => {
            return Err(format!(
                "the file has format version {major}.{minor}, but this release reads versions 1.0, 2.0 and 3.0: write the file with \
                 an earlier version of NumPy"
            ));
        }
    };
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "the header is {length} bytes long; the limit is {MAX_HEADER_BYTES} bytes: write the file again"
        ));
    }
    let first = (MAGIC.len() + version.len()) as u64 + length_bytes;
    Ok(first..first + length)
}

fn build_header(
    shard: &ShardRef,
    descr: &str,
    is_fortran: bool,
    shape: &[u64],
    data_start: u64,
) -> Result<NpyHeader, SourceError> {
    let unsupported = |reason: &str| SourceError::unsupported(shard, reason);
    let (scalar, scalar_bytes) = parse_dtype(descr).map_err(|reason| unsupported(&reason))?;
    let Some((&rows, row_shape)) = shape.split_first() else {
        return Err(unsupported(
            "the array is zero-dimensional and has no rows: save an array with at least one axis",
        ));
    };
    if is_fortran && !row_shape.is_empty() {
        return Err(unsupported(
            "the array is in Fortran order: save it with `np.save(file, np.ascontiguousarray(array))`",
        ));
    }
    let extents: Option<Vec<u32>> = row_shape.iter().map(|&extent| extent.try_into().ok()).collect();
    let elements = row_shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent));
    let (Some(extents), Some(elements @ 1..=0x7fff_ffff)) = (extents, elements) else {
        return Err(unsupported(&format!(
            "unsupported row shape {row_shape:?}: rows must have from 1 to 2^31 - 1 elements"
        )));
    };
    let row_bytes = elements * scalar_bytes;
    let (needed, present) = (rows.checked_mul(row_bytes), shard.size_bytes - data_start);
    if needed != Some(present) {
        let reason = format!(
            "the file has {present} bytes after the header, but an array with shape {shape:?} and dtype `{descr}` has {}: the file is \
             truncated or contains more than one array; write the file again",
            needed.map_or("more than 2^64 bytes".to_owned(), |needed| format!("{needed} bytes"))
        );
        return Err(SourceError::corrupt(shard, data_start, reason));
    }
    let column_type = match extents.is_empty() {
        true => ColumnType::Scalar(scalar),
        false => ColumnType::Tensor { scalar, shape: extents },
    };
    Ok(NpyHeader { column_type, rows, row_bytes, data_start })
}

/// Parses a dtype. Returns the type and the size of an element.
fn parse_dtype(descr: &str) -> Result<(ScalarType, u64), String> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or_default();
    let scalar = match kind {
        "b1" => (ScalarType::Bool, 1),
        "i1" => (ScalarType::Int8, 1),
        "i2" => (ScalarType::Int16, 2),
        "i4" => (ScalarType::Int32, 4),
        "i8" => (ScalarType::Int64, 8),
        "u1" => (ScalarType::UInt8, 1),
        "u2" => (ScalarType::UInt16, 2),
        "u4" => (ScalarType::UInt32, 4),
        "u8" => (ScalarType::UInt64, 8),
        "f2" => (ScalarType::Float16, 2),
        "f4" => (ScalarType::Float32, 4),
        "f8" => (ScalarType::Float64, 8),
        _ if descr == "|O" => return Err(format!("the dtype of the array is object: {CONVERSION_HINT}")),
        _ => {
            return Err(format!(
                "the dtype `{descr}` of the array is not a boolean, integer or float: {CONVERSION_HINT}"
            ));
        }
    };
    match (order, scalar.1) {
        ("<", _) | ("|", 1) => Ok(scalar),
        _ => Err(format!(
            "the dtype `{descr}` of the array is not little-endian: save it with `np.save(file, array.astype('<{kind}'))`"
        )),
    }
}

/// Converts rows to an Arrow array.
fn column(header: &NpyHeader, rows: &RowSet) -> Result<ArrayRef, String> {
    let bytes = contiguous_bytes(rows);
    let elements = |scalar: ScalarType, count: usize| -> Result<ArrayRef, String> {
        if scalar == ScalarType::Bool {
            return Ok(Arc::new(bytes.iter().map(|&byte| Some(byte != 0)).collect::<BooleanArray>()));
        }
        let data_type = arrow_type(&ColumnType::Scalar(scalar));
        let data = ArrayData::builder(data_type).len(count).add_buffer(bytes.clone()).align_buffers(true);
        data.build().map(make_array).map_err(|error| error.to_string())
    };
    match (&header.column_type, arrow_type(&header.column_type)) {
        (ColumnType::Tensor { scalar, .. }, DataType::FixedSizeList(item, length)) => {
            let values = elements(*scalar, rows.rows.len() * length as usize)?;
            let list = FixedSizeListArray::try_new(item, length, values, None);
            list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| error.to_string())
        }
        (ColumnType::Scalar(scalar), _) => elements(*scalar, rows.rows.len()),
        (other, _) => Err(format!("unsupported NumPy dtype {other}")),
    }
}

/// Returns the bytes of all rows in one buffer. Copies them only if they are not contiguous.
fn contiguous_bytes(rows: &RowSet) -> Buffer {
    let row_bytes: usize = rows.rows.iter().map(|row| row.span.len).sum();
    match rows.buffers.as_slice() {
        [whole] if whole.len() == row_bytes => Buffer::from(whole.clone()),
        _ => {
            let mut bytes = Vec::with_capacity(row_bytes);
            (0..rows.rows.len()).for_each(|row| bytes.extend_from_slice(rows.bytes(row)));
            Buffer::from_vec(bytes)
        }
    }
}

/// Parses the header, which is a Python dict with strings, booleans and tuples of numbers.
struct HeaderParser<'a> {
    rest: Peekable<Chars<'a>>,
}

impl<'a> HeaderParser<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.chars().peekable() }
    }

    /// Returns the values of `descr`, `fortran_order` and `shape`. `descr` is empty for structured dtypes, which are lists.
    fn parse_header(mut self) -> Option<(String, bool, Vec<u64>)> {
        let (mut descr, mut is_fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while self.peek_token()? != '}' {
            let key = self.parse_string()?;
            self.expect(':')?;
            match key.as_str() {
                "descr" if self.peek_token()? == '[' => return Some((String::new(), false, vec![0])),
                "descr" => descr = Some(self.parse_string()?),
                "fortran_order" => is_fortran = Some(self.parse_bool()?),
                "shape" => shape = Some(self.parse_shape()?),
                _ => return None,
            }
            if self.peek_token()? == ',' {
                self.rest.next();
            }
        }
        Some((descr?, is_fortran?, shape?))
    }

    /// Skips whitespace. Returns the next character without consuming it.
    fn peek_token(&mut self) -> Option<char> {
        while self.rest.next_if(|next| next.is_whitespace()).is_some() {}
        self.rest.peek().copied()
    }

    fn expect(&mut self, token: char) -> Option<()> {
        (self.peek_token()? == token).then(|| self.rest.next()).map(drop)
    }

    fn parse_string(&mut self) -> Option<String> {
        let quote = self.peek_token().filter(|next| matches!(next, '\'' | '"'))?;
        self.rest.next();
        let text: String = std::iter::from_fn(|| self.rest.next_if(|&next| next != quote)).collect();
        self.expect(quote)?;
        Some(text)
    }

    fn parse_word(&mut self) -> Option<String> {
        self.peek_token()?;
        Some(std::iter::from_fn(|| self.rest.next_if(char::is_ascii_alphanumeric)).collect())
    }

    fn parse_bool(&mut self) -> Option<bool> {
        match self.parse_word()?.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }
    }

    fn parse_shape(&mut self) -> Option<Vec<u64>> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while self.peek_token()? != ')' {
            // Python 2 appends `L` to long integers.
            shape.push(self.parse_word()?.trim_end_matches('L').parse().ok()?);
            if self.peek_token()? == ',' {
                self.rest.next();
            }
        }
        self.expect(')')?;
        Some(shape)
    }
}

#[cfg(test)]
mod tests;
