//! Splits line-based formats into rows, for a whole shard and for a block.

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

/// Maximum number of bytes that are sampled to infer the columns, unless the first block is larger.
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
enum Csv {
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote within a quoted field, which ends the field or starts an escaped quote.
    QuoteInQuoted,
}

/// Finds the ends of rows in consecutive pieces of a shard.
#[derive(Debug)]
pub(crate) struct Splitter {
    rule: LineRule,
    /// Whether the current row has content.
    has_content: bool,
    csv: Csv,
}

impl Splitter {
    pub(crate) fn new(rule: LineRule) -> Self {
        Self { rule, has_content: false, csv: Csv::FieldStart }
    }

    /// Processes the next piece. Calls `on_end` with the offset after each row that ends in the piece. An error of `on_end` stops
    /// the processing.
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
            if self.holds_content(&piece[start..newline]) || self.rule == LineRule::Text {
                self.has_content = false;
                on_end(newline + 1)?;
            }
            start = newline + 1;
        }
        self.has_content = self.holds_content(&piece[start..]);
        Ok(())
    }

    /// Whether a row has begun that only the end of the data ends; an error if that row cannot end there.
    pub(crate) fn finish(&self) -> Result<bool, String> {
        if self.csv == Csv::Quoted {
            return Err("a quoted field is not closed before the end of the file".to_owned());
        }
        Ok(self.has_content)
    }

    fn holds_content(&self, line: &[u8]) -> bool {
        self.has_content
            || match self.rule {
                LineRule::Text => !line.is_empty(),
                LineRule::Jsonl | LineRule::Csv => line.iter().any(|byte| !byte.is_ascii_whitespace()),
            }
    }

    fn feed_csv<E>(&mut self, piece: &[u8], mut on_end: impl FnMut(usize) -> Result<(), E>) -> Result<(), E> {
        for (at, &byte) in piece.iter().enumerate() {
            self.csv = match (self.csv, byte) {
                (Csv::Quoted, b'"') => Csv::QuoteInQuoted,
                (Csv::Quoted, _) => Csv::Quoted,
                (Csv::QuoteInQuoted | Csv::FieldStart, b'"') => Csv::Quoted,
                (_, b'\n') => {
                    if self.has_content {
                        on_end(at + 1)?;
                    }
                    self.has_content = false;
                    self.csv = Csv::FieldStart;
                    continue;
                }
                (Csv::FieldStart, b'\r') => Csv::FieldStart,
                (_, b',') => Csv::FieldStart,
                _ => Csv::Unquoted,
            };
            self.has_content |= byte != b'\r';
        }
        Ok(())
    }
}

/// The spans of all rows in a block.
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

/// Indexes a shard with the first row at `start`.
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

/// The offset of the first row, after a byte order mark. Compressed data is rejected.
pub(crate) async fn start(object: &Object) -> Result<u64, SourceError> {
    let head = object.read(0..object.size_bytes().min(4)).await?;
    if let Some(name) = compression(&head) {
        return Err(SourceError::unsupported(
            object.shard(),
            format!("it is compressed with {name}, which leaves no way to read a part of it: decompress it"),
        ));
    }
    Ok(if head.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 })
}

/// Detects the compression of data from its first bytes.
pub(crate) fn compression(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
        [0xfd, b'7', b'z', b'X', ..] => Some("xz"),
        _ => None,
    }
}

/// The encoded bytes of about the first `rows` rows.
pub(crate) async fn sample(object: &Object, blocks: &[Block], rows: u64) -> Result<Bytes, SourceError> {
    let Some(first) = blocks.first() else { return Ok(Bytes::new()) };
    if first.bytes > MAX_SAMPLED_ROW_BYTES {
        let reason = format!(
            "its first row has {} bytes, more than the {MAX_SAMPLED_ROW_BYTES} that are looked into to find the columns: split it",
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
