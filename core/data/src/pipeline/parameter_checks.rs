//! Checks of single parameters that several operators share. An error is a sentence without its place.

use std::collections::BTreeSet;

use super::Size;
use super::limits::{MAX_COLUMN_NAME_BYTES, PAD_LENGTH_MAX};
use crate::schema::MAX_COLUMNS;

/// Largest image side in pixels.
pub(super) const SIDE_MAX: u32 = 16_384;
/// Largest batch in rows.
pub(super) const BATCH_ROWS_MAX: u32 = 1_000_000;
/// Longest time a `wait` or `burn` may spend on one row: beyond it a pipeline would seem to hang.
pub(super) const ROW_SECONDS_MAX: u64 = 60;

/// A column's name: not empty, not too long.
pub(super) fn check_column(field: &str, name: &str) -> Result<(), String> {
    column_name(field, name)?;
    named(field, name)
}

/// A list of different columns.
pub(super) fn check_columns(columns: &[String]) -> Result<(), String> {
    few("columns", columns.len(), MAX_COLUMNS, "leave some out")?;
    if columns.is_empty() {
        return Err("columns is empty; write at least one column".to_owned());
    }
    let mut seen = BTreeSet::new();
    for name in columns {
        check_column("a column", name)?;
        if !seen.insert(name) {
            return Err(format!("column `{name}` is listed twice; keep one"));
        }
    }
    Ok(())
}

pub(super) fn check_size([height, width]: Size) -> Result<(), String> {
    if [height, width].iter().all(|side| (1..=SIDE_MAX).contains(side)) {
        return Ok(());
    }
    Err(format!("size is [{height}, {width}]; write a height and a width from 1 to {SIDE_MAX}"))
}

/// Positive bounds, the smaller first.
pub(super) fn check_bounds(field: &str, [low, high]: [f64; 2]) -> Result<(), String> {
    if low > 0.0 && low <= high && high.is_finite() {
        return Ok(());
    }
    Err(format!("{field} is [{low}, {high}]; write two positive numbers, the smaller first"))
}

pub(super) fn check_probability(field: &str, value: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(format!("{field} is {value}; write a probability from 0 to 1"))
}

/// A number of elements that rows are padded or packed to.
pub(super) fn check_tensor_length(field: &str, length: u32) -> Result<(), String> {
    if length > PAD_LENGTH_MAX {
        return Err(format!("{field} is {length}; write at most {PAD_LENGTH_MAX}"));
    }
    Ok(())
}

/// Rows that are batched together.
pub(super) fn check_window(window: u64) -> Result<(), String> {
    if window >= 1 { Ok(()) } else { Err("window is 0; write at least 1, or leave it out".to_owned()) }
}

pub(super) fn named(field: &str, name: &str) -> Result<(), String> {
    written(field, name, "a column's name")
}

pub(super) fn written(field: &str, text: &str, what: &str) -> Result<(), String> {
    if text.trim().is_empty() { Err(format!("{field} is empty; write {what}")) } else { Ok(()) }
}

pub(super) fn within<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), String> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(format!("{field} is {value}; write a number from {least} to {most}"))
}

pub(super) fn at_least_one(field: &str, value: u32) -> Result<(), String> {
    if value >= 1 { Ok(()) } else { Err(format!("{field} is 0; write at least 1")) }
}

pub(super) fn column_name(what: &str, name: &str) -> Result<(), String> {
    short(what, name, MAX_COLUMN_NAME_BYTES)
}

pub(super) fn short(what: &str, text: &str, most: usize) -> Result<(), String> {
    if text.len() <= most {
        return Ok(());
    }
    let start: String = text.chars().take(24).collect();
    Err(format!("{what}, `{start}...`, has {} bytes; write at most {most}", text.len()))
}

pub(super) fn few(what: &str, count: usize, most: usize, fix: &str) -> Result<(), String> {
    if count <= most { Ok(()) } else { Err(format!("there are {count} {what}, more than {most}; {fix}")) }
}
