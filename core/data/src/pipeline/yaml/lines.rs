//! Finds the line of a key or a list entry in block-style YAML, counted from 1. In other styles no line is found, and error
//! messages contain only the field.

/// Returns the line of a key in the top-level mapping.
pub(super) fn line_of_key(text: &str, key: &str) -> Option<usize> {
    text.lines().position(|line| is_key(line, key)).map(|index| index + 1)
}

/// Returns the line of `key` in the mapping under the top-level key `parent`, or the line of `parent` if `key` is missing.
pub(super) fn line_of_nested_key(text: &str, parent: &str, key: &str) -> Option<usize> {
    let start = line_of_key(text, parent)?;
    let nested = lines_below_key(text, start).find(|(_, line)| is_key(line.trim_start(), key));
    Some(nested.map_or(start, |(number, _)| number))
}

/// Returns the line of an entry in the list under the top-level key; `None` unless the list has exactly `count` entries.
pub(super) fn line_of_entry(text: &str, key: &str, index: usize, count: usize) -> Option<usize> {
    let start = line_of_key(text, key)?;
    let mut entries: Vec<usize> = Vec::new();
    let mut entry_indent = None;
    for (number, line) in lines_below_key(text, start) {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if is_entry(content) && *entry_indent.get_or_insert(indent) == indent {
            entries.push(number);
        }
    }
    if entries.len() == count { entries.get(index).copied() } else { None }
}

/// Returns the second line with `key`, counted from line `from`.
pub(super) fn second_line_of_key(text: &str, from: usize, key: &str) -> Option<usize> {
    let numbered = text.lines().enumerate().skip(from.saturating_sub(1));
    let mut matching = numbered.filter(|(_, line)| is_key(line.trim_start_matches([' ', '-']), key));
    matching.nth(1).map(|(index, _)| index + 1)
}

/// Returns the first line that is neither blank, a comment nor `---`.
pub(super) fn first_content_line(text: &str) -> Option<usize> {
    text.lines().position(|line| !is_blank(line) && line.trim() != "---").map(|index| index + 1)
}

/// Returns `line` or the previous line, if one of them is indented with a tab. The parser may report the error one line
/// late.
pub(super) fn line_indented_with_tab(text: &str, line: usize) -> Option<usize> {
    let has_tab = |number: &usize| {
        let content = text.lines().nth(number.wrapping_sub(1));
        content.is_some_and(|content| content[..content.len() - content.trim_start().len()].contains('\t'))
    };
    [line, line.wrapping_sub(1)].into_iter().find(has_tab)
}

/// Returns the numbered lines between a top-level key and the next top-level key.
fn lines_below_key(text: &str, start: usize) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line)).skip(start);
    let inside = |line: &str| line.starts_with(' ') || is_entry(line);
    numbered.filter(|(_, line)| !is_blank(line)).take_while(move |(_, line)| inside(line))
}

fn is_entry(content: &str) -> bool {
    content == "-" || content.starts_with("- ")
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with('#')
}

/// Whether the line starts with this key.
fn is_key(line: &str, key: &str) -> bool {
    let unquoted = line.trim_start_matches(['"', '\'']);
    let Some(rest) = unquoted.strip_prefix(key) else { return false };
    rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':')
}
