//! Selects rows by the parts of a conjunction that need only some of the columns.

use arrow::array::ArrayRef;
use feedline_data::schema::Schema;
use sqlparser::ast::{BinaryOperator, Expr};

use super::filter::{FilterOperator, parse};
use crate::{Chunk, Column};

/// Returns for each row whether all parts of the predicate that read only these columns are true. The parts are the operands of
/// its outermost ANDs. A part that cannot be evaluated keeps all rows, because the filter itself reports its error.
pub fn select_by_columns(
    predicate: &str,
    schema: &Schema,
    columns: &[(String, ArrayRef)],
    rows: usize,
) -> Vec<bool> {
    let mut selected = vec![true; rows];
    let Ok(parsed) = parse(predicate) else { return selected };
    for part in conjuncts(&parsed) {
        let Ok(operator) = FilterOperator::new(&part.to_string(), schema) else { continue };
        let columns = columns.iter().map(|(name, array)| (name.clone(), Column::Arrow(array.clone())));
        let chunk = Chunk::new(columns.collect(), (0..rows as u64).collect(), vec![0; rows]);
        let Ok(of_part) = operator.select_rows(&chunk) else { continue };
        selected.iter_mut().zip(of_part).for_each(|(all, part)| *all &= part);
    }
    selected
}

/// The operands of the outermost ANDs. The loop limits the use of the stack.
fn conjuncts(expression: &Expr) -> Vec<&Expr> {
    let (mut open, mut parts) = (vec![expression], Vec::new());
    while let Some(next) = open.pop() {
        match next {
            Expr::Nested(inner) => open.push(inner),
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                open.extend([right.as_ref(), left.as_ref()])
            }
            other => parts.push(other),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int32Array, StringViewArray};
    use feedline_data::schema::{ColumnType, ScalarType};

    use super::*;

    fn selected(predicate: &str) -> Vec<u32> {
        let schema =
            Schema::new([("year", ColumnType::Scalar(ScalarType::Int32)), ("kind", ColumnType::Utf8)]);
        let years = Int32Array::from(vec![Some(2023), Some(2024), None]);
        let kinds = StringViewArray::from(vec![Some("a"), Some("b"), Some("a")]);
        let columns =
            [("year".to_owned(), Arc::new(years) as ArrayRef), ("kind".to_owned(), Arc::new(kinds))];
        let selected = select_by_columns(predicate, &schema, &columns, 3);
        (0..3).filter(|&row| selected[row as usize]).collect()
    }

    #[test]
    fn rows_are_selected_by_the_parts_that_can_be_evaluated() {
        for (predicate, rows) in [
            ("year = 2024", vec![1]),
            ("year >= 2023 AND kind = 'a'", vec![0]),
            ("length(text) > 5 AND (year = 2024 AND x)", vec![1]),
            ("year = 2024 OR length(text) > 5", vec![0, 1, 2]),
            ("NOT (year = 2024)", vec![0]),
            ("year IS NULL OR year < 2024", vec![0, 2]),
            ("false", vec![]),
            ("kind = 5 AND kind = 'b'", vec![1]),
            ("not sql at all", vec![0, 1, 2]),
        ] {
            assert_eq!(selected(predicate), rows, "{predicate}");
        }
    }
}
