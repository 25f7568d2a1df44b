//! Results of indexing about columns, in addition to their names and types.

use serde::{Deserialize, Serialize};

use crate::schema::ColumnType;

/// Additional results of indexing about the columns of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnNotes {
    /// Columns of the schema whose values are all null or empty lists. The type in the schema is a placeholder, in which
    /// elements are text. Other shards determine the type.
    pub untyped: Vec<String>,
    /// Columns in which values of different types have a common type.
    pub widened: Vec<WidenedColumn>,
    /// Names of columns in the data that `source.features` does not contain.
    pub ignored: Vec<String>,
    /// Columns whose values are rounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounded: Vec<RoundedColumn>,
    /// What the numbers of columns mean, if the file states it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<ColumnKind>,
    /// Whether all rows have the same columns. Other columns of the dataset must then be optional.
    pub is_fixed: bool,
}

/// What the numbers of a column mean. Numbers of different kinds have no common type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnKind {
    /// Name of the column in the pipeline.
    pub column: String,
    /// The kind in the plural, such as `numbers` or `dates`.
    pub kind: String,
}

impl ColumnKind {
    /// The kind of timestamps of which the file does not state whether they have a time zone. They may have the same column as
    /// timestamps of which other files state it.
    pub const TIMESTAMPS: &str = "timestamps";

    /// Returns the kind of a column that has these kinds in two shards. `None` if its numbers mean different things.
    pub(super) fn common<'a>(a: &'a str, b: &'a str) -> Option<&'a str> {
        let is_zoned = |kind: &str| kind.starts_with("timestamps ");
        match (a, b) {
            _ if a == b => Some(a),
            (Self::TIMESTAMPS, zoned) | (zoned, Self::TIMESTAMPS) if is_zoned(zoned) => Some(zoned),
            _ => None,
        }
    }
}

/// A column whose values are rounded, because its type in the data is more precise than any type of a column.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RoundedColumn {
    /// Name of the column in the pipeline.
    pub column: String,
    /// How its values are rounded, as a sentence without a period.
    pub reason: String,
}

/// A column whose values were converted without loss to a wider type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WidenedColumn {
    /// Name of the column in the pipeline.
    pub column: String,
    /// A type of values in the data.
    pub from: ColumnType,
    /// The type of the column.
    pub to: ColumnType,
}
