//! Tables for people: columns as wide as their widest cell.

/// Rows of cells as lines; the columns in `left` are aligned to the left, the others to the right.
pub(crate) fn render(rows: &[Vec<String>], left: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            if left.contains(&column) {
                line.push_str(&format!("{gap}{cell:<width$}"));
            } else {
                line.push_str(&format!("{gap}{cell:>width$}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
