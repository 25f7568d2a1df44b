//! One schema for all shards of a dataset.

use feedline_core::manifest::ShardRef;
use feedline_core::schema::{ColumnType, ScalarType, Schema};

use crate::error::SourceError;

/// The schema that every shard's rows fit into. Columns that some shards lack are kept (their rows read as null),
/// whole numbers widen to floating point, and single values to lists; what cannot be joined names the shard that differs.
pub fn merge_schemas(shards: &[(&ShardRef, &Schema)]) -> Result<Schema, SourceError> {
    let mut merged = Schema::default();
    for (shard, schema) in shards {
        for field in &schema.fields {
            let Some(known) = merged.get(&field.name) else {
                merged.set(&field.name, field.column_type.clone());
                continue;
            };
            let joined = join(known, &field.column_type).ok_or_else(|| SourceError::SchemaMismatch {
                url: shard.url.clone(),
                reason: format!(
                    "its column `{}` is {} where others have {known}: read it as a dataset of its own, or leave \
                     the column out of `source.features`",
                    field.name, field.column_type
                ),
            })?;
            merged.set(&field.name, joined);
        }
    }
    Ok(merged)
}

fn join(a: &ColumnType, b: &ColumnType) -> Option<ColumnType> {
    use ColumnType::{Binary, List, Scalar};
    Some(match (a, b) {
        _ if a == b => a.clone(),
        (Scalar(a), Scalar(b)) => Scalar(join_scalars(*a, *b)?),
        (List(a), List(b)) => List(Box::new(join(a, b)?)),
        (List(items), single @ (Scalar(_) | Binary)) | (single @ (Scalar(_) | Binary), List(items)) => {
            List(Box::new(join(items, single)?))
        }
        _ => return None,
    })
}

fn join_scalars(a: ScalarType, b: ScalarType) -> Option<ScalarType> {
    use ScalarType::{Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    let rank = |scalar: ScalarType| match scalar {
        Int8 | UInt8 => Some((0, 1)),
        Int16 | UInt16 => Some((0, 2)),
        Int32 | UInt32 => Some((0, 4)),
        Int64 | UInt64 => Some((0, 8)),
        Float16 => Some((1, 2)),
        Float32 => Some((1, 4)),
        Float64 => Some((1, 8)),
        ScalarType::Bool => None,
    };
    let (low, high) = if rank(a)? <= rank(b)? { (a, b) } else { (b, a) };
    match (rank(low)?.0, rank(high)?.0) {
        (0, 1) if rank(low)?.1 >= 4 => Some(Float64),
        (0, 1) | (1, 1) => Some(high),
        // Signed and unsigned have no common type that keeps both exact.
        _ => (matches!(low, Int8 | Int16 | Int32 | Int64) == matches!(high, Int8 | Int16 | Int32 | Int64))
            .then_some(high),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(url: &str) -> ShardRef {
        ShardRef { url: url.to_owned(), size_bytes: 1, version: "v".to_owned() }
    }

    fn number(scalar: ScalarType) -> ColumnType {
        ColumnType::Scalar(scalar)
    }

    #[test]
    fn widens_and_keeps_columns_that_some_lack() {
        let (a, b) = (shard("a"), shard("b"));
        let one = Schema::new([("x", number(ScalarType::Int64)), ("y", ColumnType::Utf8)]);
        let list = ColumnType::List(Box::new(number(ScalarType::Int64)));
        let two = Schema::new([("x", number(ScalarType::Float64)), ("z", list.clone())]);
        let merged = merge_schemas(&[(&a, &one), (&b, &two)]).unwrap();
        let expected =
            Schema::new([("x", number(ScalarType::Float64)), ("y", ColumnType::Utf8), ("z", list.clone())]);
        assert_eq!(merged, expected);
        let single = Schema::new([("z", number(ScalarType::Int64))]);
        assert_eq!(merge_schemas(&[(&b, &two), (&a, &single)]).unwrap().get("z"), Some(&list));
    }

    #[test]
    fn names_the_shard_that_differs() {
        let (a, b) = (shard("a"), shard("b.csv"));
        let one = Schema::new([("x", ColumnType::Utf8)]);
        let two = Schema::new([("x", number(ScalarType::Int64))]);
        let error = merge_schemas(&[(&a, &one), (&b, &two)]).unwrap_err().to_string();
        assert!(error.contains("`b.csv`") && error.contains("`x`") && error.contains("int64"), "{error}");
    }

    #[test]
    fn numbers_join_without_loss_of_range() {
        use ScalarType::*;
        assert_eq!(join_scalars(Int8, Int32), Some(Int32));
        assert_eq!(join_scalars(Float32, Int64), Some(Float64));
        assert_eq!(join_scalars(UInt8, Float32), Some(Float32));
        assert_eq!(join_scalars(UInt8, Int16), None);
        assert_eq!(join_scalars(Bool, Int8), None);
    }
}
