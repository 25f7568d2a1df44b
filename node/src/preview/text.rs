//! A preview as text.

use super::rows::{GRAPH_NOTE, PreviewedRows};
use super::value::{PreviewValue, format_number};
use crate::size::format_count;
use crate::table;

/// Maximum number of characters, elements or bytes of a value.
const MAX_CHARS: usize = 72;
const MAX_ELEMENTS: usize = 12;
const MAX_BYTES: usize = 16;

/// Formats the rows and the columns of a batch.
pub(crate) fn render(previewed: &PreviewedRows) -> String {
    let stage = if previewed.is_raw { "before" } else { "after" };
    let rows = format_count(previewed.rows.len() as u64, "row");
    let mut text = format!("{}: {rows} {stage} the operators\n", previewed.pipeline);
    for (number, row) in previewed.rows.iter().enumerate() {
        text.push_str(&format!("\nrow {number}: row {} of {}\n", row.index, row.url));
        let cells = previewed.names.iter().zip(&row.cells);
        let lines: Vec<Vec<String>> =
            cells.map(|(name, cell)| vec![format!("  {name}"), render_cell(cell)]).collect();
        text.push_str(&table::render(&lines, &[0, 1]));
    }
    for failure in &previewed.failures {
        text.push_str(&format!("\nfailed: {failure}\n"));
    }
    text.push_str(&format!("\nbatch of {}\n", format_count(u64::from(previewed.batch_rows), "row")));
    let columns = previewed.batch_columns.iter();
    let lines: Vec<Vec<String>> =
        columns.map(|column| vec![format!("  {}", column.name), column.column_type.clone()]).collect();
    text.push_str(&table::render(&lines, &[0, 1]));
    if previewed.samples_graph {
        text.push_str(&format!("\n{GRAPH_NOTE}\n"));
    }
    text
}

fn render_cell(cell: &PreviewValue) -> String {
    match cell {
        PreviewValue::Null => "null".to_owned(),
        PreviewValue::Scalar(text) => text.clone(),
        PreviewValue::Text(text) => {
            let count = text.chars().count();
            let shown: String = text.chars().take(MAX_CHARS).collect();
            let more = if count > MAX_CHARS { "..." } else { "" };
            format!("{shown:?}{more} ({})", format_count(count as u64, "character"))
        }
        PreviewValue::Bytes { length, start } => {
            let hex: Vec<String> = start.iter().take(MAX_BYTES).map(|byte| format!("{byte:02x}")).collect();
            let more = if *length > MAX_BYTES { " ..." } else { "" };
            format!("{}{more} ({})", hex.join(" "), format_count(*length as u64, "byte"))
        }
        PreviewValue::List { elements, length } => {
            format!("{} ({})", elements_text(elements, *length), format_count(*length as u64, "element"))
        }
        PreviewValue::Tokens { tokens, length } => {
            let ids: Vec<String> = tokens.iter().map(|(id, _)| id.clone()).collect();
            let words: Vec<&str> =
                tokens.iter().take(MAX_ELEMENTS).map(|(_, token)| token.as_str()).collect();
            let count = format_count(*length as u64, "token");
            format!("{} ({count}: {:?})", elements_text(&ids, *length), words.join("|"))
        }
        PreviewValue::Tensor { description, elements, range } => {
            let text = elements_text(elements, elements.len());
            format!("{description} {text}{}", range_text(*range))
        }
        PreviewValue::Image { description, range, .. } => format!("{description}{}", range_text(*range)),
    }
}

fn elements_text(elements: &[String], length: usize) -> String {
    let shown = elements.iter().take(MAX_ELEMENTS).cloned().collect::<Vec<_>>().join(", ");
    let more = if length > MAX_ELEMENTS { ", ..." } else { "" };
    format!("[{shown}{more}]")
}

/// Formats the range of the values of a tensor.
pub(crate) fn range_text(range: Option<(f64, f64)>) -> String {
    range.map_or_else(String::new, |(low, high)| {
        format!(", values from {} to {}", format_number(low), format_number(high))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use expect_test::expect;

    use super::super::picture;
    use super::super::rows::PreviewedRow;
    use super::*;
    use crate::lint::ColumnReport;

    /// Two rows with one value of each kind, and text that is not safe in HTML.
    pub(crate) fn previewed() -> PreviewedRows {
        let picture = picture::of_pixels(2, 2, &[200; 12]).unwrap();
        let column = |name: &str, column_type: &str| ColumnReport {
            name: name.to_owned(),
            column_type: column_type.to_owned(),
        };
        let row = |index, cells| PreviewedRow { url: "s3://b/<x>/a.tar".to_owned(), index, cells };
        let text = "<script>alert(1)</script> & \"quotes\"".to_owned();
        let tokens = vec![("1".to_owned(), "a".to_owned()), ("2".to_owned(), "<b>".to_owned())];
        PreviewedRows {
            pipeline: "photos".to_owned(),
            description: "pipeline photos\n".to_owned(),
            is_raw: false,
            names: ["image", "label", "text", "ids", "raw", "list", "none", "x"].map(str::to_owned).into(),
            rows: vec![row(
                0,
                vec![
                    PreviewValue::Image {
                        description: "float32 [3, 2, 2]".to_owned(),
                        picture,
                        range: Some((-2.1, 2.64)),
                    },
                    PreviewValue::Scalar("3".to_owned()),
                    PreviewValue::Text(text),
                    PreviewValue::Tokens { tokens, length: 2 },
                    PreviewValue::Bytes { length: 40, start: (0..32).collect() },
                    PreviewValue::List { elements: (0..20).map(|one| one.to_string()).collect(), length: 20 },
                    PreviewValue::Null,
                    PreviewValue::Tensor {
                        description: "float32 [2]".to_owned(),
                        elements: vec!["1.5".to_owned(), "-2".to_owned()],
                        range: Some((-2.0, 1.5)),
                    },
                ],
            )],
            batch_columns: vec![column("image", "float32 tensor [3, 2, 2]"), column("label", "int64")],
            batch_rows: 64,
            samples_graph: false,
            failures: vec!["row 4 of `s3://b/<x>/a.tar`, operator 1: cannot decode".to_owned()],
        }
    }

    #[test]
    fn a_preview_of_seeds_says_that_it_does_not_sample() {
        let seeds = PreviewedRows { samples_graph: true, ..previewed() };
        assert_eq!(render(&seeds), format!("{}\n{GRAPH_NOTE}\n", render(&previewed())));
    }

    #[test]
    fn each_kind_of_value_has_one_line() {
        expect![[r#"
            photos: 1 row after the operators

            row 0: row 0 of s3://b/<x>/a.tar
              image  float32 [3, 2, 2], values from -2.1 to 2.64
              label  3
              text   "<script>alert(1)</script> & \"quotes\"" (36 characters)
              ids    [1, 2] (2 tokens: "a|<b>")
              raw    00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f ... (40 bytes)
              list   [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...] (20 elements)
              none   null
              x      float32 [2] [1.5, -2], values from -2 to 1.5

            failed: row 4 of `s3://b/<x>/a.tar`, operator 1: cannot decode

            batch of 64 rows
              image  float32 tensor [3, 2, 2]
              label  int64
        "#]]
        .assert_eq(&render(&previewed()));
    }
}
