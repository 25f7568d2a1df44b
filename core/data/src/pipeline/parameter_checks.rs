//! Checks of individual parameters, shared by several operators. Errors are one sentence and do not name the operator.

use std::collections::BTreeSet;

use super::Size;
use crate::schema::MAX_COLUMNS;

/// Maximum length in bytes of a column name, and of a data field that `features` maps to a column.
pub const MAX_COLUMN_NAME_BYTES: usize = 1_024;
/// Maximum length of a padded or packed row, in elements.
pub(super) const MAX_TENSOR_LENGTH: u32 = 1 << 24;
/// Maximum height and width of an image in pixels.
pub(super) const MAX_IMAGE_SIDE: u32 = 16_384;
/// Maximum number of rows in a batch.
pub(super) const MAX_BATCH_ROWS: u32 = 1_000_000;
/// Maximum time in seconds that `wait` or `burn` may spend on one row. With a longer time, a pipeline would seem to hang.
pub(super) const MAX_ROW_SECONDS: u64 = 60;

/// Checks that a column name is neither empty nor too long.
pub(super) fn check_column(field: &str, name: &str) -> Result<(), String> {
    check_column_name_length(field, name)?;
    check_column_given(field, name)
}

/// Returns the first name that occurs earlier in the list.
pub(super) fn first_duplicate(names: &[String]) -> Option<&String> {
    let mut seen = BTreeSet::new();
    names.iter().find(|name| !seen.insert(name.as_str()))
}

/// Checks that a list of columns is not empty and has no duplicates.
pub(super) fn check_columns(columns: &[String]) -> Result<(), String> {
    check_count("columns", columns.len(), MAX_COLUMNS, "remove some")?;
    if columns.is_empty() {
        return Err("columns is empty; add at least one column".to_owned());
    }
    for name in columns {
        check_column("column", name)?;
    }
    match first_duplicate(columns) {
        Some(twice) => Err(format!("column `{twice}` is listed twice; remove one entry")),
        None => Ok(()),
    }
}

pub(super) fn check_size([height, width]: Size) -> Result<(), String> {
    if [height, width].iter().all(|side| (1..=MAX_IMAGE_SIDE).contains(side)) {
        return Ok(());
    }
    Err(format!("size is [{height}, {width}]; expected a height and a width from 1 to {MAX_IMAGE_SIDE}"))
}

/// Checks that both bounds are positive and in ascending order.
pub(super) fn check_bounds(field: &str, [low, high]: [f64; 2]) -> Result<(), String> {
    if low > 0.0 && low <= high && high.is_finite() {
        return Ok(());
    }
    Err(format!("{field} is [{low}, {high}]; expected two positive numbers, the smaller one first"))
}

pub(super) fn check_probability(field: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(format!("{field} is {value}; expected a probability from 0 to 1"))
}

/// Checks the length of padded or packed rows.
pub(super) fn check_tensor_length(field: &str, length: u32) -> Result<(), String> {
    if length > MAX_TENSOR_LENGTH {
        return Err(format!("{field} is {length}; the limit is {MAX_TENSOR_LENGTH}"));
    }
    Ok(())
}

/// Checks the number of rows that are batched together.
pub(super) fn check_window(window: u64) -> Result<(), String> {
    if window >= 1 { Ok(()) } else { Err("window is 0; set it to at least 1, or omit `window`".to_owned()) }
}

pub(super) fn check_column_given(field: &str, name: &str) -> Result<(), String> {
    check_given(field, name, "a column name")
}

pub(super) fn check_given(field: &str, text: &str, expected: &str) -> Result<(), String> {
    if text.trim().is_empty() { Err(format!("{field} is empty; write {expected}")) } else { Ok(()) }
}

pub(super) fn check_range<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: T,
    min: T,
    max: T,
) -> Result<(), String> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(format!("{field} is {value}; expected a number from {min} to {max}"))
}

pub(super) fn check_positive(field: &str, value: u32) -> Result<(), String> {
    if value >= 1 { Ok(()) } else { Err(format!("{field} is 0; expected at least 1")) }
}

pub(super) fn check_column_name_length(what: &str, name: &str) -> Result<(), String> {
    check_text_length(what, name, MAX_COLUMN_NAME_BYTES)
}

pub(super) fn check_text_length(what: &str, text: &str, max_bytes: usize) -> Result<(), String> {
    if text.len() <= max_bytes {
        return Ok(());
    }
    let start: String = text.chars().take(24).collect();
    Err(format!("{what} `{start}...` is {} bytes long; the limit is {max_bytes} bytes", text.len()))
}

pub(super) fn check_count(what: &str, count: usize, max: usize, fix: &str) -> Result<(), String> {
    if count <= max { Ok(()) } else { Err(format!("{count} {what} exceed the limit of {max}; {fix}")) }
}
