//! The header of a NumPy array: dtype, order and shape.

use std::iter::Peekable;
use std::ops::Range;
use std::str::Chars;

use feedline_data::schema::{ColumnType, ScalarType};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum size of a header. NumPy has the same limit.
const MAX_HEADER_BYTES: u64 = 10_000;
/// Size of the largest header with the magic bytes, the version and the length.
pub const MAX_HEADER_END: u64 = MAX_HEADER_BYTES + 12;
/// The part of error messages that explains how to convert an array with unsupported elements.
const CONVERSION_HINT: &str = "convert the array before `np.save`, such as with `array.astype('float32')`";

/// The header of an array of any shape.
#[derive(Debug, Clone, PartialEq)]
pub struct NpyArrayHeader {
    /// The dtype as written in the file, such as `<f4`.
    pub descr: String,
    /// The type of the elements.
    pub scalar: ScalarType,
    /// Whether elements are big-endian.
    pub is_big_endian: bool,
    /// Whether the first axis varies fastest.
    pub is_fortran: bool,
    /// The extent of each axis.
    pub shape: Vec<u64>,
    /// The byte offset of the first element.
    pub data_start: u64,
}

impl NpyArrayHeader {
    /// Parses the first bytes of a file, which contain at least the first [`MAX_HEADER_END`] bytes, or the whole file. Does not
    /// compare the size of the file with the shape.
    ///
    /// # Errors
    /// Returns an error if the header is damaged, or the elements are not numbers.
    pub fn parse(start: &[u8]) -> Result<Self, NpyHeaderError> {
        let range = header_range(start).map_err(|reason| NpyHeaderError::corrupt(0, reason))?;
        let Some(text) = start.get(range.start as usize..range.end as usize) else {
            return Err(NpyHeaderError::corrupt(
                range.start,
                "the header is truncated: write the file again",
            ));
        };
        let parsed = HeaderParser::new(&String::from_utf8_lossy(text)).parse_header();
        let Some((descr, is_fortran, shape)) = parsed else {
            let reason = "the header is invalid: write the file again with `np.save`";
            return Err(NpyHeaderError::corrupt(range.start, reason));
        };
        let (scalar, is_big_endian) = parse_dtype(&descr).map_err(NpyHeaderError::unsupported)?;
        Ok(Self { descr, scalar, is_big_endian, is_fortran, shape, data_start: range.end })
    }
}

/// The parsed header of an array whose first axis is the rows of a shard.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NpyHeader {
    pub(crate) column_type: ColumnType,
    pub(crate) scalar: ScalarType,
    pub(crate) rows: u64,
    /// The extents of the other axes.
    pub(crate) row_shape: Vec<u32>,
    pub(crate) row_bytes: u64,
    /// The byte offset of the first element.
    pub(crate) data_start: u64,
    pub(crate) is_big_endian: bool,
    /// Whether the first axis varies fastest, and the elements of a row are therefore not contiguous or not in C order.
    pub(crate) is_fortran: bool,
}

/// The reason why the header of a NumPy file cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub struct NpyHeaderError {
    /// The byte offset of the damage; `None` for an intact array that is not supported.
    pub offset: Option<u64>,
    /// The reason and the fix.
    pub reason: String,
}

impl NpyHeaderError {
    fn corrupt(offset: u64, reason: impl Into<String>) -> Self {
        Self { offset: Some(offset), reason: reason.into() }
    }

    fn unsupported(reason: impl Into<String>) -> Self {
        Self { offset: None, reason: reason.into() }
    }
}

impl NpyHeader {
    /// The number of elements of a row.
    pub(crate) fn row_elements(&self) -> u64 {
        self.row_bytes / self.scalar.width_bytes() as u64
    }

    /// Parses the header of an array of `file_bytes`. `start` contains at least the first [`MAX_HEADER_END`] bytes, or the
    /// whole file.
    pub(crate) fn parse(start: &[u8], file_bytes: u64) -> Result<Self, NpyHeaderError> {
        let NpyArrayHeader { descr, scalar, is_big_endian, is_fortran, shape, data_start } =
            NpyArrayHeader::parse(start)?;
        let Some((&rows, row_shape)) = shape.split_first() else {
            return Err(NpyHeaderError::unsupported(
                "the array is zero-dimensional and has no rows: save an array with at least one axis",
            ));
        };
        let extents: Option<Vec<u32>> = row_shape.iter().map(|&extent| extent.try_into().ok()).collect();
        let elements = row_shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent));
        let (Some(extents), Some(elements @ 1..=0x7fff_ffff)) = (extents, elements) else {
            return Err(NpyHeaderError::unsupported(format!(
                "unsupported row shape {row_shape:?}: rows must have from 1 to 2^31 - 1 elements"
            )));
        };
        let row_bytes = elements * scalar.width_bytes() as u64;
        let (needed, present) = (rows.checked_mul(row_bytes), file_bytes.saturating_sub(data_start));
        if needed != Some(present) {
            let reason = format!(
                "the file has {present} bytes after the header, but an array with shape {shape:?} and dtype `{descr}` has {}: the file \
                 is truncated or contains more than one array; write the file again",
                needed.map_or("more than 2^64 bytes".to_owned(), |needed| format!("{needed} bytes"))
            );
            return Err(NpyHeaderError::corrupt(data_start, reason));
        }
        let column_type = match extents.is_empty() {
            true => ColumnType::Scalar(scalar),
            false => ColumnType::Tensor { scalar, shape: extents.clone() },
        };
        let is_fortran = is_fortran && rows > 0 && !is_same_in_both_orders(&shape);
        Ok(Self {
            column_type,
            scalar,
            rows,
            row_shape: extents,
            row_bytes,
            data_start,
            is_big_endian,
            is_fortran,
        })
    }
}

/// Whether the elements of an array have the same places in C order and in Fortran order.
fn is_same_in_both_orders(shape: &[u64]) -> bool {
    shape.iter().filter(|&&extent| extent > 1).count() <= 1
}

/// Parses the first bytes of a file. Returns the range of the header's dict.
pub(super) fn header_range(start: &[u8]) -> Result<Range<u64>, String> {
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

/// Parses a dtype. Returns the type, and whether the elements are big-endian.
fn parse_dtype(descr: &str) -> Result<(ScalarType, bool), String> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or_default();
    let scalar = match kind {
        "b1" => ScalarType::Bool,
        "i1" => ScalarType::Int8,
        "i2" => ScalarType::Int16,
        "i4" => ScalarType::Int32,
        "i8" => ScalarType::Int64,
        "u1" => ScalarType::UInt8,
        "u2" => ScalarType::UInt16,
        "u4" => ScalarType::UInt32,
        "u8" => ScalarType::UInt64,
        "f2" => ScalarType::Float16,
        "f4" => ScalarType::Float32,
        "f8" => ScalarType::Float64,
        _ if descr == "|O" => {
            return Err(format!(
                "the dtype of the array is object, and Feedline never unpickles objects: {CONVERSION_HINT}"
            ));
        }
        _ => {
            return Err(format!(
                "the dtype `{descr}` of the array is not a boolean, integer or float: {CONVERSION_HINT}"
            ));
        }
    };
    match (order, scalar.width_bytes()) {
        ("<", _) | ("|" | ">", 1) => Ok((scalar, false)),
        (">", _) => Ok((scalar, true)),
        _ => Err(format!("the dtype `{descr}` of the array has an unknown byte order: {CONVERSION_HINT}")),
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
