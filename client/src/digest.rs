//! Digests of delivered batches. A [`StreamDigest`] depends on the batches and their order. A [`ContentDigest`] depends only on the
//! rows. The digests do not depend on how Arrow slices or stores the data.
//!
//! The hash of a column covers its concatenated values. The lengths of variable-length values precede the values. In a column with
//! nulls, a validity byte precedes each value.

use arrow::array::{Array, ArrayData, RecordBatch, make_array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

/// A digest of the batches of one stream in order. Each batch updates the digest `d` to `xxh3_128(d || hash of the batch)`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamDigest {
    state: u128,
}

impl StreamDigest {
    /// Adds the next batch.
    pub fn add(&mut self, batch: &RecordBatch) {
        let mut chained = [0; 32];
        chained[..16].copy_from_slice(&self.state.to_be_bytes());
        chained[16..].copy_from_slice(&batch_hash(batch).to_be_bytes());
        self.state = xxh3_128(&chained);
    }

    /// Returns the digest as 32 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        format!("{:032x}", self.state)
    }

    /// Restores a digest from [`Self::to_hex`].
    ///
    /// # Errors
    /// Returns a message for an invalid digest.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        Ok(Self { state: parse_hex(text)? })
    }
}

/// Combines the digests of several streams, given in the order of the streams.
pub fn combine<'a>(streams: impl IntoIterator<Item = &'a StreamDigest>) -> String {
    let mut hash = Xxh3::new();
    for stream in streams {
        hash.update(&stream.state.to_be_bytes());
    }
    format!("{:032x}", hash.digest128())
}

/// The sum of all row hashes. The digest depends on how often each row occurs, but not on the row order or on batch
/// boundaries. An indivisible batch is one row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContentDigest {
    sum: u128,
    rows: u64,
}

impl ContentDigest {
    /// Adds the rows of a batch.
    pub fn add(&mut self, batch: &RecordBatch) {
        let columns: Vec<ArrayData> = batch.columns().iter().map(|column| column.to_data()).collect();
        let mut hash = Xxh3::with_seed(schema_hash(batch));
        for row in 0..batch.num_rows() {
            hash.reset();
            for column in &columns {
                hash_values(column, row, 1, &mut hash);
            }
            self.sum = self.sum.wrapping_add(hash.digest128());
        }
        self.rows += batch.num_rows() as u64;
    }

    /// Returns the number of rows added so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds the rows of another digest, for example the digest of another consumer.
    pub fn merge(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.rows += other.rows;
    }

    /// Returns the digest as 48 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        format!("{:032x}{:016x}", self.sum, self.rows)
    }

    /// Restores a digest from [`Self::to_hex`].
    ///
    /// # Errors
    /// Returns a message for an invalid digest.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        let (sum, rows) = text.split_at_checked(32).ok_or_else(|| invalid_digest(text))?;
        let rows = u64::from_str_radix(rows, 16).ok().filter(|_| rows.len() == 16);
        Ok(Self { sum: parse_hex(sum)?, rows: rows.ok_or_else(|| invalid_digest(text))? })
    }
}

fn batch_hash(batch: &RecordBatch) -> u128 {
    if batch.num_rows() == 0 {
        // A batch without rows may have no columns, because `TakenBatch::join` may not know the schema.
        return 0;
    }
    let mut hash = Xxh3::with_seed(schema_hash(batch));
    hash.update(&(batch.num_rows() as u64).to_le_bytes());
    for column in batch.columns() {
        hash_values(&column.to_data(), 0, column.len(), &mut hash);
    }
    hash.digest128()
}

/// Hashes the names and types of the columns. The result seeds the hash of every row.
fn schema_hash(batch: &RecordBatch) -> u64 {
    let columns = batch.schema_ref().fields().iter();
    let text: Vec<String> =
        columns.map(|field| format!("{}\0{}\0", field.name(), field.data_type())).collect();
    xxh3_64(text.concat().as_bytes())
}

fn parse_hex(text: &str) -> Result<u128, String> {
    u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32).ok_or_else(|| invalid_digest(text))
}

fn invalid_digest(text: &str) -> String {
    format!("invalid digest `{text}`: expected 32 or 48 hexadecimal digits, as in a report")
}

/// Hashes `len` values, starting at index `start`.
fn hash_values(data: &ArrayData, start: usize, len: usize, hash: &mut Xxh3) {
    let nulls = data.nulls().filter(|nulls| nulls.slice(start, len).null_count() > 0);
    let Some(nulls) = nulls else {
        hash.update(&[0]);
        return hash_present(data, start, len, hash);
    };
    hash.update(&[1]);
    for row in start..start + len {
        let present = nulls.is_valid(row);
        hash.update(&[u8::from(present)]);
        if present {
            hash_present(data, row, 1, hash);
        }
    }
}

/// Hashes values without nulls.
fn hash_present(data: &ArrayData, start: usize, len: usize, hash: &mut Xxh3) {
    if len == 0 {
        return;
    }
    let first = data.offset() + start;
    match data.data_type() {
        DataType::Null => {}
        DataType::Boolean => {
            let bits = BooleanBuffer::new(data.buffers()[0].clone(), first, len);
            let bytes: Vec<u8> = bits.iter().map(u8::from).collect();
            hash.update(&bytes);
        }
        DataType::Utf8 | DataType::Binary => hash_bytes(data, lengths::<i32>(data, first, len, hash), hash),
        DataType::LargeUtf8 | DataType::LargeBinary => {
            hash_bytes(data, lengths::<i64>(data, first, len, hash), hash);
        }
        DataType::List(_) => hash_items(data, lengths::<i32>(data, first, len, hash), hash),
        DataType::LargeList(_) => hash_items(data, lengths::<i64>(data, first, len, hash), hash),
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or_default();
            hash_values(&data.child_data()[0], first * size, len * size, hash);
        }
        DataType::FixedSizeBinary(size) => {
            let size = usize::try_from(*size).unwrap_or_default();
            hash.update(&data.buffers()[0].as_slice()[first * size..(first + len) * size]);
        }
        DataType::Struct(_) => {
            data.child_data().iter().for_each(|child| hash_values(child, first, len, hash))
        }
        other => match other.primitive_width() {
            Some(width) => hash.update(&data.buffers()[0].as_slice()[first * width..(first + len) * width]),
            None => hash_text(data, start, len, hash),
        },
    }
}

/// Hashes the lengths of lists, texts or byte strings. Returns the range of their values.
fn lengths<O: ArrowNativeType>(
    data: &ArrayData,
    first: usize,
    len: usize,
    hash: &mut Xxh3,
) -> (usize, usize) {
    let offsets = &data.buffers()[0].typed_data::<O>()[first..=first + len];
    let mut bytes = Vec::with_capacity(8 * len);
    for pair in offsets.windows(2) {
        bytes.extend_from_slice(&((pair[1].as_usize() - pair[0].as_usize()) as u64).to_le_bytes());
    }
    hash.update(&bytes);
    (offsets[0].as_usize(), offsets[len].as_usize())
}

fn hash_bytes(data: &ArrayData, (start, end): (usize, usize), hash: &mut Xxh3) {
    hash.update(&data.buffers()[1].as_slice()[start..end]);
}

fn hash_items(data: &ArrayData, (start, end): (usize, usize), hash: &mut Xxh3) {
    hash_values(&data.child_data()[0], start, end - start, hash);
}

/// Hashes the text representation of values. This is a fallback for types that batches usually do not contain.
fn hash_text(data: &ArrayData, start: usize, len: usize, hash: &mut Xxh3) {
    let array = make_array(data.clone());
    let options = FormatOptions::new();
    for row in start..start + len {
        let text =
            ArrayFormatter::try_new(array.as_ref(), &options).map(|shown| shown.value(row).to_string());
        let text = text.unwrap_or_else(|error| error.to_string());
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
}

#[cfg(test)]
mod tests;
