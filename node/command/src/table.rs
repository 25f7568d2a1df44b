//! Text tables. Each column is as wide as its widest cell.

/// Renders rows of cells as lines. Left-aligns the columns in `left`, and right-aligns all others.
pub fn render(rows: &[Vec<String>], left: &[usize]) -> String {
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

/// Renders a table with a header row. Left-aligns the columns in `left`, and right-aligns all others.
pub fn render_with_header<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = Vec<String>>,
    left: &[usize],
) -> String {
    let header = header.map(str::to_owned).to_vec();
    render(&[header].into_iter().chain(rows).collect::<Vec<_>>(), left)
}
