//! NumPy `.npy` files: each index of the first axis is one row with the column `data`.
//!
//! A file consists of the magic, the version (two bytes), the header length (u16, or u32 since version 2), the header (a Python
//! dict), and the elements of the array in C order. Rows are therefore contiguous.

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

/// The column of the rows.
const DATA: &str = "data";
const MAGIC: &[u8] = b"\x93NUMPY";
/// The size of the first read. The header of an array of numbers has 118 bytes.
const FIRST_READ_BYTES: u64 = 4 << 10;
/// NumPy's own limit.
const MAX_HEADER_BYTES: u64 = 10_000;
/// The fix for arrays with elements that are not numbers.
const CONVERT: &str = "convert it before `np.save`, such as `array.astype('float32')`";

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
    /// The offset of the first row.
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
        let schema = selection.schema(shard, &[(DATA.to_owned(), Ok(header.column_type.clone()))])?;
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
            if name != DATA {
                columns.push(null_column(&field.column_type, rows.rows.len()));
                continue;
            }
            if field.column_type != header.column_type {
                let (found, wanted) = (&header.column_type, &field.column_type);
                let reason = format!("its rows are {found}, those of other shards {wanted}");
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
            "its header is truncated: write the file again",
        ));
    }
    let text = object.read(range.clone()).await?;
    let parsed = Literal::new(&String::from_utf8_lossy(&text)).header();
    let Some((descr, is_fortran, shape)) = parsed else {
        let reason = "its header is not one that `np.save` writes: write the file again";
        return Err(SourceError::corrupt(shard, range.start, reason));
    };
    build_header(shard, &descr, is_fortran, &shape, range.end)
}

/// The range of the header's dict, from the first bytes of the file.
fn header_range(start: &[u8]) -> Result<Range<u64>, String> {
    let not_npy = || "it is not a NumPy file: check the format".to_owned();
    let (version, rest) =
        start.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk).ok_or_else(not_npy)?;
    let (length, length_bytes) = match (version, rest) {
        ([1, 0], [a, b, ..]) => (u64::from(u16::from_le_bytes([*a, *b])), 2),
        ([2 | 3, 0], [a, b, c, d, ..]) => (u64::from(u32::from_le_bytes([*a, *b, *c, *d])), 4),
        ([1..=3, 0], _) => return Err("its header is truncated: write the file again".to_owned()),
        ([major, minor], _) => {
            return Err(format!(
                "its format version is {major}.{minor}, and this release reads 1.0, 2.0 and 3.0: write the file with an earlier \
                 version of NumPy"
            ));
        }
    };
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "its header has {length} bytes, more than {MAX_HEADER_BYTES}: write the file again"
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
    let (scalar, scalar_bytes) = scalar_of(descr).map_err(|reason| unsupported(&reason))?;
    let Some((&rows, row_shape)) = shape.split_first() else {
        return Err(unsupported("it holds one value and no rows: save an array with at least one axis"));
    };
    if is_fortran && !row_shape.is_empty() {
        return Err(unsupported(
            "it is in Fortran order: save it with `np.save(file, np.ascontiguousarray(array))`",
        ));
    }
    let extents: Option<Vec<u32>> = row_shape.iter().map(|&extent| extent.try_into().ok()).collect();
    let elements = row_shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent));
    let (Some(extents), Some(elements @ 1..=0x7fff_ffff)) = (extents, elements) else {
        return Err(unsupported(&format!(
            "a row of shape {row_shape:?} has no element, or too many: save other rows"
        )));
    };
    let row_bytes = elements * scalar_bytes;
    let (needed, present) = (rows.checked_mul(row_bytes), shard.size_bytes - data_start);
    if needed != Some(present) {
        let reason = format!(
            "{present} bytes follow its header, and an array of shape {shape:?} and dtype `{descr}` has {}: the file is truncated or \
             holds more than one array; write it again",
            needed.map_or("more than a file can hold".to_owned(), |needed| needed.to_string())
        );
        return Err(SourceError::corrupt(shard, data_start, reason));
    }
    let column_type = match extents.is_empty() {
        true => ColumnType::Scalar(scalar),
        false => ColumnType::Tensor { scalar, shape: extents },
    };
    Ok(NpyHeader { column_type, rows, row_bytes, data_start })
}

/// The element type of a dtype, and the size of an element in bytes.
fn scalar_of(descr: &str) -> Result<(ScalarType, u64), String> {
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
        _ if descr == "|O" => return Err(format!("its dtype is object: {CONVERT}")),
        _ => return Err(format!("its dtype `{descr}` is not a boolean, integer or float: {CONVERT}")),
    };
    match (order, scalar.1) {
        ("<", _) | ("|", 1) => Ok(scalar),
        _ => Err(format!(
            "its dtype `{descr}` is not little-endian: save it with `np.save(file, array.astype('<{kind}'))`"
        )),
    }
}

/// The rows as an Arrow array.
fn column(header: &NpyHeader, rows: &RowSet) -> Result<ArrayRef, String> {
    let bytes = contiguous(rows);
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
        (other, _) => Err(format!("{other} is not the type of an array's rows")),
    }
}

/// The bytes of all rows in one buffer. A block that was read completely is not copied.
fn contiguous(rows: &RowSet) -> Buffer {
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

/// Parses the header's Python dict of strings, booleans and tuples of numbers.
struct Literal<'a> {
    rest: Peekable<Chars<'a>>,
}

impl<'a> Literal<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.chars().peekable() }
    }

    /// The values of `descr`, `fortran_order` and `shape`. A `descr` that is not a string, as of records, is empty.
    fn header(mut self) -> Option<(String, bool, Vec<u64>)> {
        let (mut descr, mut is_fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while self.next_token()? != '}' {
            let key = self.string()?;
            self.expect(':')?;
            match key.as_str() {
                "descr" if self.next_token()? == '[' => return Some((String::new(), false, vec![0])),
                "descr" => descr = Some(self.string()?),
                "fortran_order" => is_fortran = Some(self.truth_value()?),
                "shape" => shape = Some(self.numbers()?),
                _ => return None,
            }
            if self.next_token()? == ',' {
                self.rest.next();
            }
        }
        Some((descr?, is_fortran?, shape?))
    }

    /// The next character that is not a space, which stays.
    fn next_token(&mut self) -> Option<char> {
        while self.rest.next_if(|next| next.is_whitespace()).is_some() {}
        self.rest.peek().copied()
    }

    fn expect(&mut self, token: char) -> Option<()> {
        (self.next_token()? == token).then(|| self.rest.next()).map(drop)
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.next_token().filter(|next| matches!(next, '\'' | '"'))?;
        self.rest.next();
        let text: String = std::iter::from_fn(|| self.rest.next_if(|&next| next != quote)).collect();
        self.expect(quote)?;
        Some(text)
    }

    fn word(&mut self) -> Option<String> {
        self.next_token()?;
        Some(std::iter::from_fn(|| self.rest.next_if(char::is_ascii_alphanumeric)).collect())
    }

    fn truth_value(&mut self) -> Option<bool> {
        match self.word()?.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }
    }

    fn numbers(&mut self) -> Option<Vec<u64>> {
        let mut numbers = Vec::new();
        self.expect('(')?;
        while self.next_token()? != ')' {
            // Python 2 wrote long numbers with an L.
            numbers.push(self.word()?.trim_end_matches('L').parse().ok()?);
            if self.next_token()? == ',' {
                self.rest.next();
            }
        }
        self.expect(')')?;
        Some(numbers)
    }
}

#[cfg(test)]
mod tests;
