//! Splits shards and blocks of line-based formats into rows.

use std::ops::Range;

use bytes::Bytes;
use feedline_data::compression::ShardCompression;
use feedline_data::manifest::{Block, Defect};
use memchr::memchr_iter;

use crate::content::{Content, ContentBlocks, ContentWindow, SMALL_BYTES};
use crate::error::SourceError;
use crate::limits::MAX_SAMPLED_ROW_BYTES;
use crate::object::Object;
use crate::rows::SplitError;

/// Maximum number of bytes that are sampled to infer the columns. A larger first block is sampled completely.
const MAX_SAMPLE_BYTES: u64 = 16 << 20;
/// The bytes before the first row of some UTF-8 files.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The rule that divides lines into rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineRule {
    /// Every line is a row, including empty lines.
    Text,
    /// Every line that is not blank is a row. Blank lines belong to the next row.
    Jsonl,
    /// Every record that is not empty is a row. A quoted field may contain line breaks.
    Csv,
    /// Every element of a JSON array is a row, which ends with a comma or with the bracket of the array. The first row begins after
    /// the bracket at the start of the array.
    JsonArray,
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
    json: JsonArrayState,
}

impl Splitter {
    pub(crate) fn new(rule: LineRule) -> Self {
        Self { rule, has_content: false, csv: CsvState::FieldStart, json: JsonArrayState::default() }
    }

    /// Processes the next piece of the shard. Calls `on_end` for each row that ends in the piece, with the offset of its end. Stops
    /// if `on_end` returns an error.
    pub(crate) fn feed<E>(
        &mut self,
        piece: &[u8],
        mut on_end: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.rule {
            LineRule::Csv => return self.feed_csv(piece, on_end),
            LineRule::JsonArray => return self.json.feed(piece, on_end),
            LineRule::Text | LineRule::Jsonl => {}
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
        self.json.check()?;
        Ok(self.has_content)
    }

    /// Checks that the rows are complete at the end of a shard.
    fn finish_shard(&self) -> Result<bool, String> {
        if self.rule == LineRule::JsonArray && !self.json.is_ended {
            return Err(TRUNCATED_ARRAY.to_owned());
        }
        self.finish()
    }

    fn contains_content(&self, line: &[u8]) -> bool {
        self.has_content
            || match self.rule {
                LineRule::Text => !line.is_empty(),
                LineRule::Jsonl | LineRule::Csv | LineRule::JsonArray => {
                    line.iter().any(|byte| !byte.is_ascii_whitespace())
                }
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

/// The state of a reader of an array's elements.
#[derive(Debug, Default)]
struct JsonArrayState {
    /// Number of open brackets in the current element.
    depth: usize,
    in_text: bool,
    is_escaped: bool,
    /// Whether the current element has content.
    has_content: bool,
    /// Whether the bracket at the end of the array was read.
    is_ended: bool,
    /// Whether the array is followed by other text.
    has_text_after: bool,
}

const TRUNCATED_ARRAY: &str = "the JSON array has no end: the file is truncated";

impl JsonArrayState {
    fn feed<E>(&mut self, piece: &[u8], mut on_end: impl FnMut(usize) -> Result<(), E>) -> Result<(), E> {
        for (at, &byte) in piece.iter().enumerate() {
            if self.is_ended {
                self.has_text_after |= !byte.is_ascii_whitespace();
                continue;
            }
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.in_text,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'[' | b'{' => self.depth += 1,
                b',' | b']' if self.depth == 0 => {
                    self.is_ended = byte == b']';
                    let has_content = std::mem::take(&mut self.has_content);
                    if has_content || byte == b',' {
                        on_end(at + 1)?;
                    }
                    continue;
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            self.has_content |= !byte.is_ascii_whitespace();
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.has_content {
            return Err(TRUNCATED_ARRAY.to_owned());
        }
        if self.has_text_after {
            return Err("the JSON array is followed by other text: write one array, or one object per line"
                .to_owned());
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

/// Receives the bytes of each row, in order.
pub(crate) type OnRow<'a> = dyn FnMut(&[u8]) + Send + 'a;

/// Passes rows to a function. A row may be divided among consecutive pieces of a shard.
struct RowCollector<'a> {
    on_row: &'a mut OnRow<'a>,
    /// The first part of a row that continues in the next piece.
    partial: Vec<u8>,
}

impl RowCollector<'_> {
    fn add_end(&mut self, end: &[u8]) {
        if self.partial.is_empty() {
            return (self.on_row)(end);
        }
        self.partial.extend_from_slice(end);
        (self.on_row)(&self.partial);
        self.partial = Vec::new();
    }
}

/// The rows of a shard.
pub(crate) struct IndexedLines {
    pub(crate) blocks: Vec<Block>,
    pub(crate) defects: Vec<Defect>,
    pub(crate) compression: Option<ShardCompression>,
}

/// Indexes a shard. `start` is the offset of the first row.
///
/// # Errors
/// Returns an error if a request fails, or if a row is too large for `on_row`.
pub(crate) async fn index(
    window: &mut ContentWindow<'_>,
    rule: LineRule,
    start: u64,
    on_row: Option<&mut OnRow<'_>>,
) -> Result<IndexedLines, SourceError> {
    let mut rows = on_row.map(|on_row| RowCollector { on_row, partial: Vec::new() });
    let object = window.content().object();
    let mut builder = ContentBlocks::new(window, start);
    let mut splitter = Splitter::new(rule);
    let mut defects = Vec::new();
    let mut at = start;
    while defects.is_empty() {
        window.fill(at, 1).await?;
        let piece = window.bytes(at);
        if piece.is_empty() {
            break;
        }
        let mut row_start = 0;
        let fed = splitter.feed(piece, |end| {
            if let Some(rows) = &mut rows {
                rows.add_end(&piece[row_start..end]);
                row_start = end;
            }
            let row = at + end as u64 - builder.end();
            builder.push(row, window)
        });
        if let Some(rows) = &mut rows {
            rows.partial.extend_from_slice(&piece[row_start..]);
            if rows.partial.len() as u64 > object.decoders().sampled_row_limit() {
                return Err(too_large_to_infer(object, builder.end(), rows.partial.len() as u64));
            }
        }
        at += piece.len() as u64;
        if let Some(rows) = &rows {
            // The row may grow up to the limit.
            let is_large = rows.partial.len() as u64 > SMALL_BYTES;
            window.hold_row(if is_large { object.decoders().sampled_row_limit() } else { 0 }).await;
        }
        // Inference needs more time than the read of a local file.
        tokio::task::yield_now().await;
        if let Err(reason) = fed {
            defects.push(Defect { offset: builder.end(), reason });
        }
    }
    let last = match (splitter.finish_shard(), window.error()) {
        _ if !defects.is_empty() => Ok(()),
        // The last row may be incomplete.
        (_, Some(reason)) => Err(reason),
        (Ok(true), None) => {
            if let Some(rows) = &mut rows {
                rows.add_end(&[]);
            }
            builder.push(at - builder.end(), window)
        }
        (Ok(false), None) => Ok(()),
        (Err(reason), None) => Err(reason),
    };
    if let Err(reason) = last {
        defects.push(Defect { offset: builder.end(), reason });
    }
    let (blocks, compression) = builder.finish(window);
    Ok(IndexedLines { blocks, defects, compression })
}

fn too_large_to_infer(object: &Object, offset: u64, bytes: u64) -> SourceError {
    let reason = format!(
        "the row is at least {bytes} bytes long, more than the limit of {} bytes for inferring columns: split the row{}",
        object.decoders().sampled_row_limit(),
        more_memory(object),
    );
    SourceError::corrupt(object.shard(), offset, reason)
}

/// The other fix for a row that is too large to determine the columns; empty if more memory would not raise the limit.
pub(crate) fn more_memory(object: &Object) -> &'static str {
    match object.decoders().sampled_row_limit() < MAX_SAMPLED_ROW_BYTES {
        true => ", or raise the workers' --memory",
        false => "",
    }
}

/// Returns the offset of the first row, after a byte order mark.
pub(crate) async fn first_row_offset(window: &mut ContentWindow<'_>) -> Result<u64, SourceError> {
    Ok(byte_order_mark_bytes(window.read_from(0, BYTE_ORDER_MARK.len() as u64).await?) as u64)
}

/// The size of the byte order mark at the start of a file.
pub(crate) fn byte_order_mark_bytes(start: &[u8]) -> usize {
    if start.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 }
}

/// Reads the blocks that contain the first `rows` rows.
pub(crate) async fn sample(content: &Content<'_>, blocks: &[Block], rows: u64) -> Result<Bytes, SourceError> {
    let Some(first) = blocks.first() else { return Ok(Bytes::new()) };
    // A block with several rows may be larger than the limit of a row.
    let is_too_large = first.bytes > content.object().decoders().sampled_row_limit();
    if is_too_large && (first.rows == 1 || first.bytes > MAX_SAMPLE_BYTES) {
        return Err(too_large_to_infer(content.object(), first.offset, first.bytes));
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
    content.read(first.offset..end).await
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
        let array = " {\"a\": \"],\\\"\"},\n[1, {}],2\n ] ";
        assert_eq!(rows(LineRule::JsonArray, array), [" {\"a\": \"],\\\"\"},", "\n[1, {}],", "2\n ]"]);
        assert_eq!(rows(LineRule::JsonArray, " ]\n"), [""; 0]);
        for bad in ["1, 2", "1] 2", "\"]"] {
            assert!(split(LineRule::JsonArray, bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[a,\" \r\n{}\\[\\]\\\\]{0,60}", cut in 0usize..60) {
            for rule in [LineRule::Text, LineRule::Jsonl, LineRule::Csv, LineRule::JsonArray] {
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
