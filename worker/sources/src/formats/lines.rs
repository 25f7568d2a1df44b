//! Splits shards and blocks of line-based formats into rows.

use std::ops::Range;

use bytes::Bytes;
use feedline_data::manifest::{Block, Defect};
use memchr::memchr_iter;

use crate::blocks::BlockBuilder;
use crate::error::SourceError;
use crate::limits::MAX_SAMPLED_ROW_BYTES;
use crate::object::Object;
use crate::rows::SplitError;
use crate::window::ReadWindow;

/// Maximum number of bytes that are sampled to infer the columns. A larger first block is sampled completely.
const MAX_SAMPLE_BYTES: u64 = 16 << 20;

/// The rule that divides lines into rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineRule {
    /// Every line is a row, including empty lines.
    Text,
    /// Every line that is not blank is a row. Blank lines belong to the next row.
    Jsonl,
    /// Every record that is not empty is a row. A quoted field may contain line breaks.
    Csv,
}

/// The state of a CSV reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CsvState {
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote in a quoted field. The quote ends the field, or is the first of two escaped quotes.
    QuoteInQuoted,
}

/// Finds the ends of rows in consecutive pieces of a shard.
#[derive(Debug)]
pub(crate) struct Splitter {
    rule: LineRule,
    /// Whether the current row has content.
    has_content: bool,
    csv: CsvState,
}

impl Splitter {
    pub(crate) fn new(rule: LineRule) -> Self {
        Self { rule, has_content: false, csv: CsvState::FieldStart }
    }

    /// Processes the next piece of the shard. Calls `on_end` for each row that ends in the piece, with the offset of its end. Stops
    /// if `on_end` returns an error.
    pub(crate) fn feed<E>(
        &mut self,
        piece: &[u8],
        mut on_end: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.rule == LineRule::Csv {
            return self.feed_csv(piece, on_end);
        }
        let mut start = 0;
        for newline in memchr_iter(b'\n', piece) {
            if self.contains_content(&piece[start..newline]) || self.rule == LineRule::Text {
                self.has_content = false;
                on_end(newline + 1)?;
            }
            start = newline + 1;
        }
        self.has_content = self.contains_content(&piece[start..]);
        Ok(())
    }

    /// Signals the end of the data. Returns whether the last row has no line break. Fails if the row is incomplete.
    pub(crate) fn finish(&self) -> Result<bool, String> {
        if self.csv == CsvState::Quoted {
            return Err("the file ends within a quoted field: add the closing quote".to_owned());
        }
        Ok(self.has_content)
    }

    fn contains_content(&self, line: &[u8]) -> bool {
        self.has_content
            || match self.rule {
                LineRule::Text => !line.is_empty(),
                LineRule::Jsonl | LineRule::Csv => line.iter().any(|byte| !byte.is_ascii_whitespace()),
            }
    }

    fn feed_csv<E>(&mut self, piece: &[u8], mut on_end: impl FnMut(usize) -> Result<(), E>) -> Result<(), E> {
        for (at, &byte) in piece.iter().enumerate() {
            self.csv = match (self.csv, byte) {
                (CsvState::Quoted, b'"') => CsvState::QuoteInQuoted,
                (CsvState::Quoted, _) => CsvState::Quoted,
                (CsvState::QuoteInQuoted | CsvState::FieldStart, b'"') => CsvState::Quoted,
                (_, b'\n') => {
                    if self.has_content {
                        on_end(at + 1)?;
                    }
                    self.has_content = false;
                    self.csv = CsvState::FieldStart;
                    continue;
                }
                (CsvState::FieldStart, b'\r') => CsvState::FieldStart,
                (_, b',') => CsvState::FieldStart,
                _ => CsvState::Unquoted,
            };
            self.has_content |= byte != b'\r';
        }
        Ok(())
    }
}

/// Returns the spans of all rows in a block.
pub(crate) fn split(rule: LineRule, bytes: &[u8]) -> Result<Vec<Range<usize>>, SplitError> {
    let mut splitter = Splitter::new(rule);
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    let fed: Result<(), std::convert::Infallible> = splitter.feed(bytes, |end| {
        spans.push(start..end);
        start = end;
        Ok(())
    });
    let Ok(()) = fed;
    if splitter.finish().map_err(|reason| SplitError { at: start, reason })? {
        spans.push(start..bytes.len());
    }
    Ok(spans)
}

/// Indexes a shard. `start` is the offset of the first row.
pub(crate) async fn index(
    object: &Object,
    rule: LineRule,
    start: u64,
) -> Result<(Vec<Block>, Vec<Defect>), SourceError> {
    let size = object.size_bytes();
    let mut window = ReadWindow::new(object);
    let mut builder = BlockBuilder::new(start);
    let mut splitter = Splitter::new(rule);
    let mut defects = Vec::new();
    let mut at = start;
    while at < size && defects.is_empty() {
        let piece = window.read_from(at, 1).await?;
        let fed = splitter.feed(piece, |end| {
            let row = at + end as u64 - builder.end();
            builder.push(row)
        });
        at += piece.len() as u64;
        if let Err(reason) = fed {
            defects.push(Defect { offset: builder.end(), reason });
        }
    }
    let last = match splitter.finish() {
        _ if !defects.is_empty() => Ok(()),
        Ok(true) => builder.push(size - builder.end()),
        Ok(false) => Ok(()),
        Err(reason) => Err(reason),
    };
    if let Err(reason) = last {
        defects.push(Defect { offset: builder.end(), reason });
    }
    Ok((builder.finish(), defects))
}

/// Returns the offset of the first row, after a byte order mark. Fails if the data is compressed.
pub(crate) async fn first_row_offset(object: &Object) -> Result<u64, SourceError> {
    let head = object.read(0..object.size_bytes().min(4)).await?;
    if let Some(name) = detect_compression(&head) {
        return Err(SourceError::unsupported(object.shard(), compression_error(name)));
    }
    Ok(if head.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 })
}

/// The error message for compressed data.
pub(crate) fn compression_error(name: &str) -> String {
    format!("the file is compressed with {name}, which does not support partial reads: decompress the file")
}

/// Detects the compression of data from its first bytes.
pub(crate) fn detect_compression(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
        [0xfd, b'7', b'z', b'X', ..] => Some("xz"),
        _ => None,
    }
}

/// Reads the blocks that contain the first `rows` rows.
pub(crate) async fn sample(object: &Object, blocks: &[Block], rows: u64) -> Result<Bytes, SourceError> {
    let Some(first) = blocks.first() else { return Ok(Bytes::new()) };
    if first.bytes > MAX_SAMPLED_ROW_BYTES {
        let reason = format!(
            "the first row is {} bytes long, more than the limit of {MAX_SAMPLED_ROW_BYTES} bytes for inferring columns: split the row",
            first.bytes
        );
        return Err(SourceError::corrupt(object.shard(), first.offset, reason));
    }
    let mut end = first.offset;
    let mut sampled = 0;
    for block in blocks {
        let next_end = block.offset + block.bytes;
        if sampled >= rows || sampled > 0 && next_end - first.offset > MAX_SAMPLE_BYTES {
            break;
        }
        sampled += u64::from(block.rows);
        end = next_end;
    }
    object.read(first.offset..end).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(rule: LineRule, text: &str) -> Vec<&str> {
        split(rule, text.as_bytes()).ok().unwrap().into_iter().map(|span| &text[span]).collect()
    }

    #[test]
    fn each_rule_has_its_rows() {
        assert_eq!(rows(LineRule::Text, "a\n\nb\r\nc"), ["a\n", "\n", "b\r\n", "c"]);
        assert_eq!(rows(LineRule::Jsonl, "\n{}\n \n\n[]\n\n"), ["\n{}\n", " \n\n[]\n"]);
        assert_eq!(rows(LineRule::Csv, "a,\"x\ny\"\r\n\r\nb,5\" z\n"), ["a,\"x\ny\"\r\n", "\r\nb,5\" z\n"]);
        assert_eq!(rows(LineRule::Csv, "\"say \"\"hi\n\"\"\",1\n2,3"), ["\"say \"\"hi\n\"\"\",1\n", "2,3"]);
        assert!(split(LineRule::Csv, b"a,\"b\nc").is_err());
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[a,\" \r\n{}]{0,60}", cut in 0usize..60) {
            for rule in [LineRule::Text, LineRule::Jsonl, LineRule::Csv] {
                let cut = cut.min(text.len());
                let mut whole = Vec::new();
                let mut splitter = Splitter::new(rule);
                let _: Result<(), ()> = splitter.feed(text.as_bytes(), |end| { whole.push(end); Ok(()) });
                let mut pieces = Vec::new();
                let mut other = Splitter::new(rule);
                let _: Result<(), ()> = other.feed(&text.as_bytes()[..cut], |end| { pieces.push(end); Ok(()) });
                let _: Result<(), ()> = other.feed(&text.as_bytes()[cut..], |end| { pieces.push(cut + end); Ok(()) });
                prop_assert_eq!(whole, pieces);
                prop_assert_eq!(splitter.finish(), other.finish());
            }
        }
    }
}
