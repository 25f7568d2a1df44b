//! The prose in Rust sources: comments and message strings.

use std::ops::Range;

use proc_macro2::{TokenStream, TokenTree};

/// The comments and strings of a file, in order.
#[derive(Debug, Default)]
pub struct Prose {
    /// Comment blocks: neighbouring comment lines are one.
    pub comments: Vec<Comment>,
    /// String literals.
    pub strings: Vec<StringLiteral>,
}

/// A block of comment lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    /// The first and the last line, counted from 1.
    pub first_line: usize,
    /// The last line.
    pub last_line: usize,
    /// `//`, `///` or `//!`.
    pub mark: &'static str,
    /// The text without comment marks, with the same line breaks.
    pub text: String,
}

/// A string literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StringLiteral {
    /// The first line, counted from 1.
    pub line: usize,
    /// Its value.
    pub text: String,
    /// The function, macro or attribute whose argument it is.
    pub callee: Option<String>,
}

/// Reads the comments and strings of a Rust file.
pub fn prose(text: &str) -> Result<Prose, String> {
    let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
        let at = error.span().start();
        format!("{}:{}: {error}", at.line, at.column + 1)
    })?;
    let mut reader = Reader { text, line_starts: line_starts(text), position: 0, prose: Prose::default() };
    reader.read(tokens, None);
    reader.add_gap(text.len());
    Ok(reader.prose)
}

struct Reader<'a> {
    text: &'a str,
    line_starts: Vec<usize>,
    /// Position up to which all tokens have been read.
    position: usize,
    prose: Prose,
}

impl Reader<'_> {
    fn read(&mut self, tokens: TokenStream, callee: Option<&str>) {
        let mut before: Vec<String> = Vec::new();
        for token in tokens {
            match &token {
                TokenTree::Group(group) => {
                    self.advance(group.span_open().byte_range());
                    let called = before.iter().rev().find(|word| *word != "!").cloned();
                    let is_call = group.delimiter() == proc_macro2::Delimiter::Parenthesis
                        && before.last().is_some_and(|word| word == "!" || is_name(word));
                    let is_attribute = before.last().is_some_and(|word| word == "#");
                    let inner = if is_call { called.as_deref() } else { callee };
                    self.read(group.stream(), if is_attribute { None } else { inner });
                    self.advance(group.span_close().byte_range());
                }
                TokenTree::Literal(literal) => {
                    let range = literal.span().byte_range();
                    if !self.text[range.clone()].starts_with('/') {
                        self.add_string(&literal.to_string(), range.start, callee);
                    }
                    self.advance(range);
                }
                other => self.advance(other.span().byte_range()),
            }
            before.push(token.to_string());
        }
    }

    /// Records the comments before a token. Doc comments are tokens at the position of the comment.
    fn advance(&mut self, range: Range<usize>) {
        if range.start < self.position {
            return;
        }
        self.add_gap(range.start);
        if self.text[range.clone()].starts_with('/') && range.len() > 1 {
            let text = self.text;
            self.add_lines(&text[range.clone()], range.start);
        }
        self.position = range.end;
    }

    fn add_gap(&mut self, end: usize) {
        let text = self.text;
        if let Some(gap) = text.get(self.position..end) {
            self.add_lines(gap, self.position);
        }
    }

    fn add_lines(&mut self, part: &str, start: usize) {
        let mut at = start;
        for line in part.split_inclusive('\n') {
            if let Some(offset) = line.find("//") {
                self.add_comment_line(line[offset..].trim_end(), at + offset);
            }
            at += line.len();
        }
    }

    fn add_comment_line(&mut self, comment: &str, start: usize) {
        let marks = ["//!", "///", "//"];
        let mark = marks.into_iter().find(|mark| comment.starts_with(mark)).unwrap_or("//");
        let text = comment[mark.len()..].trim();
        let line = self.line(start);
        let is_alone = self.text[self.line_starts[line - 1]..start].trim().is_empty();
        match self.prose.comments.last_mut() {
            Some(last) if is_alone && last.mark == mark && last.last_line + 1 == line => {
                last.last_line = line;
                last.text = format!("{}\n{text}", last.text);
            }
            _ => self.prose.comments.push(Comment {
                first_line: line,
                last_line: line,
                mark,
                text: text.into(),
            }),
        }
    }

    fn add_string(&mut self, literal: &str, start: usize, callee: Option<&str>) {
        if let Ok(syn::Lit::Str(value)) = syn::parse_str(literal) {
            let (line, callee) = (self.line(start), callee.map(str::to_owned));
            self.prose.strings.push(StringLiteral { line, text: value.value(), callee });
        }
    }

    fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= at)
    }
}

fn is_name(word: &str) -> bool {
    word.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

fn line_starts(text: &str) -> Vec<usize> {
    let ends = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_blocks_and_strings_know_their_callee() {
        let text = "//! Owns x.\n//! And y.\n\n/// Does.\nfn f() { // why\n    // a\n    // b\n    warn!(\"url {} // no comment\", g(\"z\"));\n    let s = r#\"raw\"#;\n}\n#[error(\"bad é thing\")]\nstruct E; // end\n";
        let prose = prose(text).unwrap();
        let comments: Vec<_> =
            prose.comments.iter().map(|block| (block.first_line, block.mark, &*block.text)).collect();
        assert_eq!(
            comments,
            [(1, "//!", "Owns x.\nAnd y."), (4, "///", "Does."), (5, "//", "why\na\nb"), (12, "//", "end")]
        );
        let strings: Vec<_> = prose
            .strings
            .iter()
            .map(|string| (string.line, &*string.text, string.callee.as_deref()))
            .collect();
        assert_eq!(
            strings,
            [
                (8, "url {} // no comment", Some("warn")),
                (8, "z", Some("g")),
                (9, "raw", None),
                (11, "bad é thing", Some("error"))
            ]
        );
    }
}
