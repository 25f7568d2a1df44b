//! Scans a JSON line for the keys of its object and the kinds of their values, without building values.
//!
//! The scanner accepts lines that the decoder rejects: commas may be missing, and it does not validate the contents of strings. The
//! caller decodes each line that adds something to the inferred columns.

use super::strict::has_bare_point;
use crate::exact_cast::{has_leading_zero, is_exact};
use crate::limits::MAX_JSON_DEPTH;

/// A set of kinds of values.
pub(super) type ValueKinds = u16;
pub(super) const NULL: ValueKinds = 1 << 0;
pub(super) const BOOL: ValueKinds = 1 << 1;
/// An integer below 0 that int64 can represent.
pub(super) const NEGATIVE: ValueKinds = 1 << 2;
/// An integer from 0 that int64 can represent.
pub(super) const POSITIVE: ValueKinds = 1 << 3;
/// An integer that uint64 can represent, but int64 cannot.
pub(super) const LARGE: ValueKinds = 1 << 4;
/// Set in addition for an integer that float64 cannot represent.
pub(super) const INEXACT: ValueKinds = 1 << 5;
/// A number with a fraction or an exponent, or an integer of more than 64 bits.
pub(super) const DECIMAL: ValueKinds = 1 << 6;
pub(super) const TEXT: ValueKinds = 1 << 7;
pub(super) const LIST: ValueKinds = 1 << 8;
pub(super) const OBJECT: ValueKinds = 1 << 9;

/// Number of decimal digits that float64 represents exactly in every integer.
pub(super) const EXACT_DIGITS: usize = 15;

/// The reason why a scan stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanStop {
    /// The line is not a JSON object.
    Malformed,
    /// The line contains a column or a kind that the sink does not have yet.
    NewColumns,
}

/// Receives the values of a line.
pub(super) trait KindSink {
    /// Identifies a column, or the elements of the lists in a column.
    type Node: Copy;

    /// Returns the column of a key, or `None` if the column is not needed. `key` is the text of the key without escapes.
    fn column(&mut self, key: &[u8]) -> Result<Option<Self::Node>, ScanStop>;

    /// Whether the sink has received a value of these kinds.
    fn has(&self, node: Self::Node, kinds: ValueKinds) -> bool;

    /// Receives the kinds of a value.
    fn value(&mut self, node: Self::Node, kinds: ValueKinds) -> Result<(), ScanStop>;

    /// Returns the node of the elements of a list.
    fn elements(&mut self, list: Self::Node) -> Result<Self::Node, ScanStop>;
}

/// Scans a line, which must contain one object.
pub(super) fn scan_line<S: KindSink>(line: &[u8], sink: &mut S) -> Result<(), ScanStop> {
    let mut scanner = Scanner { line, at: 0 };
    scanner.skip_whitespace();
    scanner.expect(b'{')?;
    loop {
        scanner.skip_separators();
        match scanner.next()? {
            b'}' => break,
            b'"' => {}
            _ => return Err(ScanStop::Malformed),
        }
        let key = scanner.string()?;
        let node = match key {
            Text::Plain(key) => sink.column(key)?,
            Text::Escaped(key) => sink.column(&unescape(key).ok_or(ScanStop::Malformed)?)?,
        };
        scanner.skip_whitespace();
        scanner.expect(b':')?;
        match node {
            Some(node) => scanner.value(node, sink, 1)?,
            None => scanner.skip_value()?,
        }
    }
    scanner.skip_whitespace();
    if scanner.at == line.len() { Ok(()) } else { Err(ScanStop::Malformed) }
}

/// Returns the kinds of a number, or 0 if the text is not a number.
pub(super) fn number_kinds(text: &[u8]) -> ValueKinds {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let sign = if is_negative && digits != b"0" { NEGATIVE } else { POSITIVE };
    if digits.is_empty() || has_leading_zero(digits) {
        return 0;
    }
    if !digits.iter().all(u8::is_ascii_digit) {
        let is_decimal = !has_bare_point(text) && parse::<f64>(text).is_some_and(f64::is_finite);
        return if is_decimal { DECIMAL } else { 0 };
    }
    if digits.len() <= EXACT_DIGITS {
        return sign;
    }
    if let Some(value) = parse::<i64>(text) {
        return sign | if is_exact(value.into()) { 0 } else { INEXACT };
    }
    match parse::<u64>(text) {
        Some(value) => LARGE | if is_exact(value.into()) { 0 } else { INEXACT },
        None if parse::<f64>(text).is_some_and(f64::is_finite) => DECIMAL,
        None => 0,
    }
}

fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The bytes of a string between the quotes.
enum Text<'a> {
    Plain(&'a [u8]),
    /// The string contains escapes.
    Escaped(&'a [u8]),
}

struct Scanner<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.line.get(self.at).copied()
    }

    fn next(&mut self) -> Result<u8, ScanStop> {
        let byte = self.peek().ok_or(ScanStop::Malformed)?;
        self.at += 1;
        Ok(byte)
    }

    fn expect(&mut self, expected: u8) -> Result<(), ScanStop> {
        if self.next()? == expected { Ok(()) } else { Err(ScanStop::Malformed) }
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn skip_separators(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r' | b',')) {
            self.at += 1;
        }
    }

    /// Reads a string after its opening quote.
    fn string(&mut self) -> Result<Text<'a>, ScanStop> {
        let start = self.at;
        let mut is_escaped = false;
        loop {
            let rest = &self.line[self.at..];
            let end = memchr::memchr2(b'"', b'\\', rest).ok_or(ScanStop::Malformed)?;
            self.at += end + 1;
            if rest[end] == b'"' {
                let text = &self.line[start..self.at - 1];
                return Ok(if is_escaped { Text::Escaped(text) } else { Text::Plain(text) });
            }
            is_escaped = true;
            self.next()?;
        }
    }

    fn number(&mut self) -> &'a [u8] {
        let rest = &self.line[self.at..];
        let is_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = rest.iter().position(|byte| !is_number(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn literal(&mut self, literal: &[u8]) -> Result<(), ScanStop> {
        if !self.line[self.at..].starts_with(literal) {
            return Err(ScanStop::Malformed);
        }
        self.at += literal.len();
        Ok(())
    }

    fn value<S: KindSink>(&mut self, node: S::Node, sink: &mut S, depth: usize) -> Result<(), ScanStop> {
        self.skip_whitespace();
        match self.peek().ok_or(ScanStop::Malformed)? {
            b'"' => {
                self.at += 1;
                self.string()?;
                sink.value(node, TEXT)
            }
            b'-' | b'0'..=b'9' => {
                let text = self.number();
                // Parsing a decimal number takes longer than the rest of the scan.
                if sink.has(node, DECIMAL) && text.contains(&b'.') {
                    return Ok(());
                }
                sink.value(node, number_kinds(text))
            }
            b'n' => self.literal(b"null").and_then(|()| sink.value(node, NULL)),
            b't' => self.literal(b"true").and_then(|()| sink.value(node, BOOL)),
            b'f' => self.literal(b"false").and_then(|()| sink.value(node, BOOL)),
            b'{' => {
                self.skip_container()?;
                sink.value(node, OBJECT)
            }
            b'[' if depth < MAX_JSON_DEPTH => {
                self.at += 1;
                sink.value(node, LIST)?;
                let elements = sink.elements(node)?;
                loop {
                    self.skip_separators();
                    if self.peek() == Some(b']') {
                        self.at += 1;
                        return Ok(());
                    }
                    self.value(elements, sink, depth + 1)?;
                }
            }
            _ => Err(ScanStop::Malformed),
        }
    }

    fn skip_value(&mut self) -> Result<(), ScanStop> {
        self.skip_whitespace();
        match self.peek().ok_or(ScanStop::Malformed)? {
            b'"' => {
                self.at += 1;
                self.string().map(drop)
            }
            b'-' | b'0'..=b'9' => {
                self.number();
                Ok(())
            }
            b'n' => self.literal(b"null"),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'{' | b'[' => self.skip_container(),
            _ => Err(ScanStop::Malformed),
        }
    }

    /// Skips an object or list. Does not check the order of its tokens.
    fn skip_container(&mut self) -> Result<(), ScanStop> {
        let mut depth = 0;
        loop {
            match self.next()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
    }
}

/// Replaces the escapes of a string. Returns `None` if an escape is invalid.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let (&escape, after) = rest[at + 1..].split_first()?;
        rest = after;
        let plain = match escape {
            b'"' | b'\\' | b'/' => escape,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut unit = code_unit(&mut rest)?;
                if let 0xd800..=0xdbff = unit {
                    rest = rest.strip_prefix(b"\\u")?;
                    let low = code_unit(&mut rest)?;
                    unit = 0x10000 + ((unit - 0xd800) << 10) + low.checked_sub(0xdc00)?;
                }
                let mut encoded = [0; 4];
                out.extend_from_slice(char::from_u32(unit)?.encode_utf8(&mut encoded).as_bytes());
                continue;
            }
            _ => return None,
        };
        out.push(plain);
    }
    out.extend_from_slice(rest);
    Some(out)
}

fn code_unit(rest: &mut &[u8]) -> Option<u32> {
    let (digits, after) = rest.split_at_checked(4)?;
    *rest = after;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}
