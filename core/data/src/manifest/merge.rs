//! Builds the manifest of a dataset. Merges the columns of its shards, and finds the columns that the merge changed.

use std::collections::{BTreeSet, HashMap};

use super::columns::{ColumnKind, RoundedColumn, WidenedColumn};
use super::{Manifest, Shard, no_rows_error};
use crate::schema::{ColumnType, MAX_COLUMNS, ScalarType, Schema};

impl Manifest {
    /// Builds the manifest of indexed shards.
    ///
    /// # Errors
    /// Returns a message that names the shard whose columns are incompatible with those of the other shards.
    pub fn build(shards: Vec<Shard>) -> Result<Self, String> {
        let mut merge = SchemaMerge::default();
        shards.iter().try_for_each(|shard| merge.add(shard))?;
        if merge.is_empty() && shards.iter().all(|shard| shard.index.schema.is_none()) {
            return Err(match shards.is_empty() {
                true => "the dataset has no shards".to_owned(),
                false => no_rows_error(&shards),
            });
        }
        let schema = merge.finish();
        Ok(Self { schema, shards })
    }

    /// Returns the columns that differ between a shard and the dataset, without repetitions, and at most [`MAX_COLUMNS`].
    pub(super) fn widened_columns(&self) -> Vec<WidenedColumn> {
        let schema = &self.schema;
        let types: HashMap<&str, &ColumnType> =
            schema.fields.iter().map(|field| (field.name.as_str(), &field.column_type)).collect();
        let mut widened = Vec::new();
        let mut add = |column: &str, from: &ColumnType| {
            let Some(&to) = types.get(column).filter(|to| **to != from) else { return };
            let is_known =
                widened.iter().any(|known: &WidenedColumn| known.column == column && known.from == *from);
            if !is_known && widened.len() < MAX_COLUMNS {
                widened.push(WidenedColumn { column: column.to_owned(), from: from.clone(), to: to.clone() });
            }
        };
        let mut last: Option<&Shard> = None;
        for shard in &self.shards {
            let Some(found) = &shard.index.schema else { continue };
            for noted in &shard.index.columns.widened {
                add(&noted.column, &noted.from);
            }
            let is_equal = |last: &Shard| {
                last.index.schema == shard.index.schema
                    && last.index.columns.untyped == shard.index.columns.untyped
            };
            if found == schema || last.replace(shard).is_some_and(is_equal) {
                continue;
            }
            for field in &found.fields {
                if !shard.index.columns.untyped.contains(&field.name) {
                    add(&field.name, &field.column_type);
                }
            }
        }
        widened
    }

    /// Returns the rounded columns of all shards, in alphabetical order, and at most [`MAX_COLUMNS`].
    pub(super) fn rounded_columns(&self) -> Vec<RoundedColumn> {
        let columns: BTreeSet<&RoundedColumn> =
            self.shards.iter().flat_map(|shard| &shard.index.columns.rounded).collect();
        columns.into_iter().take(MAX_COLUMNS).cloned().collect()
    }

    /// Returns the names of ignored columns in all shards, in alphabetical order, and at most [`MAX_COLUMNS`].
    pub(super) fn ignored_columns(&self) -> Vec<String> {
        let names: BTreeSet<&String> =
            self.shards.iter().flat_map(|shard| &shard.index.columns.ignored).collect();
        names.into_iter().take(MAX_COLUMNS).cloned().collect()
    }
}

/// Merges the columns of shards, in the order of their first appearance.
#[derive(Default)]
struct SchemaMerge<'a> {
    columns: Vec<MergedColumn<'a>>,
    indexes: HashMap<&'a str, usize>,
    /// The last shard that was added.
    last: Option<&'a Shard>,
}

struct MergedColumn<'a> {
    name: &'a str,
    column_type: ColumnType,
    /// The first shard that determines the type. `None` if all values are null or empty lists.
    typed_by: Option<&'a Shard>,
    /// What its numbers mean, and the first shard that states it.
    kind: Option<(&'a str, &'a Shard)>,
}

impl<'a> SchemaMerge<'a> {
    /// Adds the columns of a shard. Numbers are widened, and single values become lists. A column may be missing from some
    /// shards.
    ///
    /// # Errors
    /// Returns a message that names a column without a common type, and its shards.
    fn add(&mut self, shard: &'a Shard) -> Result<(), String> {
        let Some(schema) = &shard.index.schema else { return Ok(()) };
        // Most shards have the same columns.
        let is_equal = |last: &Shard| {
            last.index.schema == shard.index.schema
                && last.index.columns.untyped == shard.index.columns.untyped
                && last.index.columns.kinds == shard.index.columns.kinds
        };
        if self.last.replace(shard).is_some_and(is_equal) {
            return Ok(());
        }
        let untyped: BTreeSet<&str> = shard.index.columns.untyped.iter().map(String::as_str).collect();
        let kinds = &shard.index.columns.kinds;
        let kinds: HashMap<&str, &str> =
            kinds.iter().map(|stated| (stated.column.as_str(), stated.kind.as_str())).collect();
        for field in &schema.fields {
            let is_typed = !untyped.contains(field.name.as_str());
            let kind = kinds.get(field.name.as_str()).filter(|_| is_typed).map(|&kind| (kind, shard));
            let Some(&index) = self.indexes.get(field.name.as_str()) else {
                if self.columns.len() == MAX_COLUMNS {
                    return Err(format!(
                        "shard {} brings the dataset above the limit of {MAX_COLUMNS} columns; list the required columns under `source.features`",
                        shard.object.url
                    ));
                }
                self.indexes.insert(&field.name, self.columns.len());
                self.columns.push(MergedColumn {
                    name: &field.name,
                    column_type: field.column_type.clone(),
                    typed_by: is_typed.then_some(shard),
                    kind,
                });
                continue;
            };
            let column = &mut self.columns[index];
            column.kind = match (column.kind, kind) {
                (Some((known, first)), Some((kind, _))) => {
                    let Some(common) = ColumnKind::common(known, kind) else {
                        return Err(format!(
                            "column `{}` contains {known} in {} but {kind} in {}; read the shards as two datasets, or remove the column from `source.features`",
                            field.name, first.object.url, shard.object.url
                        ));
                    };
                    Some((common, if common == known { first } else { shard }))
                }
                (known, kind) => known.or(kind),
            };
            let common = match (column.typed_by, is_typed) {
                (Some(_), true) => common_type(&column.column_type, &field.column_type),
                (Some(_), false) => fill_placeholder(&field.column_type, &column.column_type),
                (None, true) => fill_placeholder(&column.column_type, &field.column_type),
                (None, false) => fill_placeholder(&column.column_type, &field.column_type)
                    .or_else(|| fill_placeholder(&field.column_type, &column.column_type)),
            };
            let Some(common) = common else {
                let first = column.typed_by.map_or("earlier shards", |first| first.object.url.as_str());
                return Err(format!(
                    "column `{}` is {} in {first} but {} in {}; read the shards as two datasets, or remove the column from `source.features`",
                    field.name, column.column_type, field.column_type, shard.object.url
                ));
            };
            column.column_type = common;
            if is_typed {
                column.typed_by.get_or_insert(shard);
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    fn finish(self) -> Schema {
        Schema::new(self.columns.into_iter().map(|column| (column.name, column.column_type)))
    }
}

/// Returns the type of a column that has the type `typed` in one shard, and only nulls and empty lists in another shard.
fn fill_placeholder(placeholder: &ColumnType, typed: &ColumnType) -> Option<ColumnType> {
    use ColumnType::{Binary, List, Scalar, Tensor, Utf8};
    Some(match (placeholder, typed) {
        (List(placeholder), List(item)) => List(Box::new(fill_placeholder(placeholder, item)?)),
        (List(placeholder), single @ (Scalar(_) | Binary)) => {
            List(Box::new(fill_placeholder(placeholder, single)?))
        }
        // A row with an empty list fails, because it is not a tensor.
        (List(placeholder), Tensor { .. }) if **placeholder == Utf8 => typed.clone(),
        (Utf8, typed) => typed.clone(),
        _ => return None,
    })
}

/// Returns the narrowest type that represents the values of both types, or `None` if there is no such type. A conversion of
/// 64-bit integers to this type is checked for each value.
fn common_type(a: &ColumnType, b: &ColumnType) -> Option<ColumnType> {
    use ColumnType::{Binary, List, Scalar, Tensor};
    Some(match (a, b) {
        _ if a == b => a.clone(),
        (Scalar(a), Scalar(b)) => Scalar(common_scalar(*a, *b)?),
        (Tensor { scalar: a, shape }, Tensor { scalar: b, shape: other }) if shape == other => {
            Tensor { scalar: common_scalar(*a, *b)?, shape: shape.clone() }
        }
        (List(a), List(b)) => List(Box::new(common_item(a, b)?)),
        (List(items), single @ (Scalar(_) | Binary)) | (single @ (Scalar(_) | Binary), List(items)) => {
            List(Box::new(common_item(items, single)?))
        }
        _ => return None,
    })
}

/// Returns the common type of the items of two lists. A single value becomes a list only if it is the value of a row.
fn common_item(a: &ColumnType, b: &ColumnType) -> Option<ColumnType> {
    match (a, b) {
        (ColumnType::List(a), ColumnType::List(b)) => Some(ColumnType::List(Box::new(common_item(a, b)?))),
        (ColumnType::List(_), _) | (_, ColumnType::List(_)) => None,
        _ => common_type(a, b),
    }
}

/// Returns the narrowest type that represents the numbers of both types. No type represents all 64-bit integers and also
/// fractions, or all signed and unsigned 64-bit integers. The result is then `float64` or `uint64`, and readers reject each
/// value that the type cannot represent.
pub fn common_scalar(a: ScalarType, b: ScalarType) -> Option<ScalarType> {
    use ScalarType::{Bool, Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt64};
    if a == b {
        return Some(a);
    }
    if a == Bool || b == Bool {
        return None;
    }
    let is_float = |scalar: ScalarType| matches!(scalar, Float16 | Float32 | Float64);
    let is_signed = |scalar: ScalarType| matches!(scalar, Int8 | Int16 | Int32 | Int64);
    if is_float(a) || is_float(b) {
        let float_bytes = |scalar: ScalarType| match scalar.width_bytes() {
            bytes if is_float(scalar) => bytes,
            // A floating point number represents integers of half of its bits exactly: float16 has 11 bits of precision.
            bytes => (bytes * 2).min(8),
        };
        return Some(match float_bytes(a).max(float_bytes(b)) {
            2 => Float16,
            4 => Float32,
            _ => Float64,
        });
    }
    let (wide, narrow) = if a.width_bytes() >= b.width_bytes() { (a, b) } else { (b, a) };
    if is_signed(wide) == is_signed(narrow) {
        return Some(wide);
    }
    let (signed, unsigned) = if is_signed(a) { (a, b) } else { (b, a) };
    let bytes = signed.width_bytes().max(unsigned.width_bytes() * 2);
    Some(match bytes {
        2 => Int16,
        4 => Int32,
        8 => Int64,
        _ => UInt64,
    })
}
