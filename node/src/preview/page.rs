//! A preview as an HTML page that needs no other files. All data is escaped, and the page runs no scripts.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::picture::EncodedPicture;
use super::rows::{GRAPH_NOTE, PreviewedRow, PreviewedRows};
use super::text::range_text;
use super::value::PreviewValue;
use crate::size::format_count;

/// Maximum number of characters of a text, and of tokens or elements, that the page contains.
const MAX_CHARS: usize = 4_000;
const MAX_ELEMENTS: usize = 256;
/// Maximum number of columns of rows that are shown beside each other.
const MAX_CARD_COLUMNS: usize = 8;
/// Rejects scripts and requests, even if the page had a mistake in its escaping.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// Formats the page.
pub(crate) fn render(previewed: &PreviewedRows) -> String {
    let name = escape(&previewed.pipeline);
    let stage = if previewed.is_raw { "before" } else { "after" };
    let rows = format_count(previewed.rows.len() as u64, "row");
    let longest = longest_of_columns(previewed);
    let cards: String = previewed
        .rows
        .iter()
        .enumerate()
        .map(|(number, row)| card(number, row, previewed, &longest))
        .collect();
    let wide = if previewed.names.len() > MAX_CARD_COLUMNS { " wide" } else { "" };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{name}: {rows}</title>\n<style>\n{css}</style>\n</head>\n<body>\n\
         <header><h1>{name}</h1><p class=\"muted\">{rows} {stage} the operators, in storage order</p></header>\n\
         <main>\n{failures}<h2>Pipeline</h2>\n<pre>{description}</pre>\n{note}{batch}<h2>Rows</h2>\n\
         <section class=\"rows{wide}\">\n{cards}</section>\n</main>\n</body>\n</html>\n",
        css = include_str!("page.css"),
        failures = failures(&previewed.failures),
        description = escape(previewed.description.trim_end()),
        note =
            if previewed.samples_graph { format!("<p>{}</p>\n", escape(GRAPH_NOTE)) } else { String::new() },
        batch = batch(previewed),
    )
}

/// Replaces the characters that have a meaning in HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\0' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns the largest length of each column's values.
fn longest_of_columns(previewed: &PreviewedRows) -> Vec<usize> {
    let longest = |column: usize| {
        let lengths = previewed.rows.iter().filter_map(|row| row.cells.get(column)?.length());
        lengths.max().unwrap_or(0)
    };
    (0..previewed.names.len()).map(longest).collect()
}

fn failures(sentences: &[String]) -> String {
    if sentences.is_empty() {
        return String::new();
    }
    let items: String = sentences.iter().map(|one| format!("<li>{}</li>", escape(one))).collect();
    format!("<h2>Failed rows</h2>\n<ul class=\"failures\">{items}</ul>\n")
}

fn batch(previewed: &PreviewedRows) -> String {
    let column = |column: &crate::lint::ColumnReport| {
        format!(
            "<tr><td><code>{}</code></td><td>{}</td></tr>",
            escape(&column.name),
            escape(&column.column_type)
        )
    };
    let columns: String = previewed.batch_columns.iter().map(column).collect();
    format!(
        "<h2>Batch of {}</h2>\n<table><tr><th>column</th><th>type of each row</th></tr>{columns}</table>\n",
        format_count(u64::from(previewed.batch_rows), "row")
    )
}

fn card(number: usize, row: &PreviewedRow, previewed: &PreviewedRows, longest: &[usize]) -> String {
    let columns = previewed.names.iter().zip(&row.cells).zip(longest);
    let values: String = columns.map(|((name, cell), longest)| value(name, cell, *longest)).collect();
    let place = escape(&format!("row {} of {}", row.index, row.url));
    format!(
        "<article><h3>{number}<span title=\"{place}\"><bdi>{place}</bdi></span></h3><dl>{values}</dl></article>\n"
    )
}

fn value(name: &str, cell: &PreviewValue, longest: usize) -> String {
    let (note, body) = match cell {
        PreviewValue::Null => (String::new(), "<span class=\"muted\">null</span>".to_owned()),
        PreviewValue::Scalar(text) => {
            (String::new(), format!("<span class=\"mono\">{}</span>", escape(text)))
        }
        PreviewValue::Text(text) => {
            let shown: String = text.chars().take(MAX_CHARS).collect();
            let count = format_count(text.chars().count() as u64, "character");
            (count, format!("<div class=\"text\">{}</div>", escape(&shown)))
        }
        PreviewValue::Bytes { length, start } => {
            let hex: Vec<String> = start.iter().map(|byte| format!("{byte:02x}")).collect();
            let body = format!("<span class=\"mono\">{}</span>", hex.join(" "));
            (format_count(*length as u64, "byte"), body)
        }
        PreviewValue::List { elements, length } => {
            (format_count(*length as u64, "element"), chips(elements.iter().map(|one| (one.as_str(), ""))))
        }
        PreviewValue::Tokens { tokens, length } => {
            let shown = tokens.iter().map(|(id, token)| match token.as_str() {
                "" => (id.as_str(), id.as_str()),
                token => (token, id.as_str()),
            });
            (format_count(*length as u64, "token"), chips(shown))
        }
        PreviewValue::Tensor { description, elements, range } => {
            let note = format!("{description}{}", range_text(*range));
            (note, chips(elements.iter().map(|one| (one.as_str(), ""))))
        }
        PreviewValue::Image { description, picture, range } => {
            let shown = if picture.is_denormalized { ", shown without normalize" } else { "" };
            (format!("{description}{}{shown}", range_text(*range)), figure(name, picture))
        }
    };
    let bar = cell.length().filter(|_| longest > 0).map(|length| bar(length, longest)).unwrap_or_default();
    format!("<dt>{}<span>{}</span></dt><dd>{body}{bar}</dd>", escape(name), escape(&note))
}

/// Shows values as chips, each with a tooltip.
fn chips<'a>(values: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let chip = |(text, title): (&str, &str)| {
        let title = if title.is_empty() { String::new() } else { format!(" title=\"{}\"", escape(title)) };
        format!("<span{title}>{}</span>", escape(&text.replace('\n', "\u{21b5}")))
    };
    let chips: String = values.take(MAX_ELEMENTS).map(chip).collect();
    format!("<div class=\"tokens\">{chips}</div>")
}

/// Shows a length relative to the largest length of the column.
fn bar(length: usize, longest: usize) -> String {
    let percent = (100 * length).div_ceil(longest);
    format!("<div class=\"bar\"><i style=\"width:{percent}%\"></i></div>")
}

fn figure(name: &str, picture: &EncodedPicture) -> String {
    format!(
        "<figure><img alt=\"{}\" src=\"data:{};base64,{}\"></figure>",
        escape(name),
        picture.media_type,
        BASE64_STANDARD.encode(&picture.bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::previewed;
    use super::*;

    #[test]
    fn the_page_is_escaped_and_needs_no_other_files() {
        let page = render(&previewed());
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quotes&quot;"));
        assert!(
            page.contains("<span title=\"2\">&lt;b&gt;</span>")
                && page.contains("src=\"data:image/png;base64,")
        );
        for absent in ["<script", "<b>", "<x>", "http://", "https://", "url(", "@import", "<link"] {
            assert!(!page.contains(absent), "{absent}");
        }
        assert_eq!(page.matches("<article>").count(), 1);
        assert!(page.contains("2 tokens") && page.contains("style=\"width:100%\""));
    }

    #[test]
    fn every_special_character_is_escaped() {
        assert_eq!(escape("a<b>&\"'\0"), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}");
    }
}
