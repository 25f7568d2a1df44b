//! Tensor columns of the output batch, and the operators that write them in place.

use std::collections::BTreeMap;

use feedline_data::pipeline::{OperatorKind, Pipeline};
use feedline_data::schema::{ColumnType, Field, Schema};
use feedline_operators::BuiltOperator;

/// A tensor column of the output batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FinalTensor {
    /// The column's name in the output.
    pub(crate) column: String,
    /// The operator that writes the column directly into the batch. `None` if assembly copies the column.
    pub(crate) writer: Option<TensorWriter>,
    pub(crate) row_bytes: usize,
    pub(crate) elements_per_row: u64,
}

/// The operator that writes a tensor column.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TensorWriter {
    /// The operator's index.
    pub(crate) operator: usize,
    /// The column's name when the operator writes it, before later operators rename it.
    pub(crate) column: String,
}

/// For each operator that renames columns, by index: a map from each new name to the old name.
type Renames<'a> = BTreeMap<usize, &'a BTreeMap<String, String>>;

/// Returns the tensor columns of the output. Operators before `first` write to a cache and not to the batch.
pub(super) fn final_tensors(
    pipeline: &Pipeline,
    operators: &[BuiltOperator],
    first: usize,
    output: &Schema,
) -> Vec<FinalTensor> {
    let renames = renames(pipeline);
    let tensor = |field: &Field| {
        let ColumnType::Tensor { shape, .. } = &field.column_type else { return None };
        Some(FinalTensor {
            column: field.name.clone(),
            writer: find_writer(operators, first, &field.name, &renames),
            row_bytes: field.column_type.fixed_row_bytes().unwrap_or_default(),
            elements_per_row: shape.iter().map(|&extent| u64::from(extent)).product(),
        })
    };
    output.fields.iter().filter_map(tensor).collect()
}

fn renames(pipeline: &Pipeline) -> Renames<'_> {
    let kinds =
        pipeline.operators.iter().map(|operator| &operator.kind).filter(|kind| !kind.is_engine_operator());
    let renamed = kinds.enumerate().filter_map(|(index, kind)| match kind {
        OperatorKind::Rename(rename) => Some((index, &rename.columns)),
        _ => None,
    });
    renamed.collect()
}

/// Finds the operator that writes a column, searching backwards from the output.
fn find_writer(
    operators: &[BuiltOperator],
    first: usize,
    column: &str,
    renames: &Renames<'_>,
) -> Option<TensorWriter> {
    let mut column = column.to_owned();
    for (index, operator) in operators.iter().enumerate().skip(first).rev() {
        if let Some(earlier) = renames.get(&index).and_then(|names| names.get(&column)) {
            column.clone_from(earlier);
        } else if operator.changes_rows {
            // Rows may move after the column is written, so assembly copies the column.
            return None;
        } else if operator.is_writer_of(&column) {
            return Some(TensorWriter { operator: index, column });
        }
    }
    None
}

/// Whether any of the source's largest columns reaches the output unchanged. The largest columns are the binary
/// columns, or the columns of varying size if the source has no binary column.
pub(super) fn has_bulk_column(source: &Schema, output: &Schema) -> bool {
    let is_binary = |field: &&Field| matches!(field.column_type, ColumnType::Binary | ColumnType::Image);
    let varies = |field: &&Field| field.column_type.fixed_row_bytes().is_none();
    let has_binary = source.fields.iter().any(|field| is_binary(&field));
    let is_bulk = |field: &&Field| if has_binary { is_binary(field) } else { varies(field) };
    source.fields.iter().filter(is_bulk).any(|field| output.fields.contains(field))
}

#[cfg(test)]
mod tests {
    use feedline_operators::build_operators;

    use super::*;

    const HEAD: &str = "name: test\nsource: { url: x, format: tfrecord, features: { image: image/encoded } }\noperators:\n  - resize: { column: image, size: [4, 6] }\n";

    fn tensors(operators: &str, first: usize) -> Vec<FinalTensor> {
        let yaml = format!("{HEAD}{operators}  - batch: {{ size: 2 }}\n");
        let pipeline = Pipeline::from_yaml(&yaml, "test.yaml").expect("a valid pipeline");
        let schema = Schema::new([("image", ColumnType::Binary)]);
        let operators = build_operators(&pipeline, &schema, &|_| Err("no file is read".to_owned())).unwrap();
        let output = &operators.last().expect("there are operators").schema;
        final_tensors(&pipeline, &operators, first, output)
    }

    fn writer(operator: usize, column: &str) -> Option<TensorWriter> {
        Some(TensorWriter { operator, column: column.to_owned() })
    }

    #[test]
    fn the_last_writer_of_a_column_writes_into_the_batch() {
        let found = tensors("", 0);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].row_bytes, found[0].elements_per_row), (4 * 6 * 3, 4 * 6 * 3));
        assert_eq!(found[0].writer, writer(0, "image"));
        assert_eq!(tensors("", 1)[0].writer, None, "the operator is before the cache point");
    }

    #[test]
    fn a_renamed_column_is_written_under_its_old_name() {
        let found = tensors("  - rename: { columns: { pixels: image } }\n", 0);
        assert_eq!((found[0].column.as_str(), &found[0].writer), ("pixels", &writer(0, "image")));
    }

    #[test]
    fn a_column_before_a_filter_is_copied() {
        assert_eq!(tensors("  - filter: { where: \"1 = 1\" }\n", 0)[0].writer, None);
    }

    #[test]
    fn the_output_has_a_bulk_column_if_it_contains_a_large_source_column() {
        let (image, text) = (("image", ColumnType::Binary), ("text", ColumnType::Utf8));
        let [both, images, texts] =
            [vec![image.clone(), text.clone()], vec![image], vec![text]].map(Schema::new);
        assert!(has_bulk_column(&both, &images));
        assert!(!has_bulk_column(&both, &texts), "the images have most of the bytes");
        assert!(has_bulk_column(&texts, &texts));
    }
}
