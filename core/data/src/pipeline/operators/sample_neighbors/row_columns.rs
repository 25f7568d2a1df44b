//! The columns of the rows: the seeds, and the columns that become lists with one value per seed.

use crate::pipeline::column_rules::require_column_type;
use crate::pipeline::join_names;
use crate::schema::{ColumnType, ScalarType, Schema};

/// The column with the id of a seed node.
const NODE_COLUMN: &str = "node";
/// The columns with the ids of the nodes of a link.
const LINK_COLUMNS: [&str; 2] = ["source", "target"];

/// Returns the columns with the ids of the seeds: `node`, or `source` and `target`.
pub(super) fn seed_columns(input: &Schema) -> &'static [&'static str] {
    if input.get(NODE_COLUMN).is_some() { &[NODE_COLUMN] } else { &LINK_COLUMNS }
}

/// Checks the columns with the seeds and their times. `link_parameter` is the name of a parameter that applies only to links.
pub(super) fn check_row_columns(
    input: &Schema,
    link_parameter: Option<&str>,
    time_column: Option<&str>,
) -> Result<(), String> {
    let is_present = |name: &str| input.get(name).is_some();
    let has_links = LINK_COLUMNS.iter().all(|name| is_present(name));
    if is_present(NODE_COLUMN) && has_links {
        return Err(
            "the rows have the columns `node`, `source` and `target`; drop `node`, or `source` and `target`, with select before sample_neighbors"
                .to_owned(),
        );
    }
    if !is_present(NODE_COLUMN) && !has_links {
        return Err(format!(
            "the rows have neither a column `node` nor the columns `source` and `target`; name the columns with the ids of the seeds with rename (available: {})",
            join_names(input.names())
        ));
    }
    for name in seed_columns(input) {
        require_column_type(input, name, "integers", is_integer, |_| "")?;
    }
    if let Some(parameter) = link_parameter.filter(|_| !has_links) {
        return Err(format!(
            "{parameter} applies to seeds with the columns `source` and `target`, but the rows have the column `node`; remove {parameter}"
        ));
    }
    match time_column {
        Some(time) => require_column_type(input, time, "integers", is_integer, |_| "").map(drop),
        None => Ok(()),
    }
}

/// Returns the columns other than the seeds, as lists with one value per seed.
pub(super) fn lists_of_rows(input: &Schema) -> Result<Schema, String> {
    let seeds = seed_columns(input);
    let mut output = Schema::default();
    for field in input.fields.iter().filter(|field| !seeds.contains(&field.name.as_str())) {
        if field.column_type == ColumnType::Image {
            return Err(format!(
                "column `{}` contains images of varying size, which cannot be batched; drop it with select before sample_neighbors",
                field.name
            ));
        }
        output.set(&field.name, ColumnType::List(Box::new(field.column_type.clone())));
    }
    Ok(output)
}

/// Whether a column contains integers.
pub(super) fn is_integer(column_type: &ColumnType) -> bool {
    use ScalarType::{Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    let ColumnType::Scalar(scalar) = column_type else { return false };
    matches!(scalar, Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64)
}
