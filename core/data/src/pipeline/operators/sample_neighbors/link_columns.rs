//! The columns of links and their negatives, with the names and the order of PyG.

use super::graph_column::{GraphColumn, GraphColumnContent, numbers};
use super::negatives::NegativeSampling;
use super::row_columns::is_integer;
use crate::graph::NegativeMode;
use crate::schema::{ColumnType, ScalarType, Schema};

/// The column of the rows with the labels of links.
pub(super) const LABEL_COLUMN: &str = "label";

/// Returns the columns of links. `rows` are the columns of the rows, as lists.
///
/// # Errors
/// Returns a message if the links have labels that are not integers.
pub(super) fn link_columns(
    negatives: Option<&NegativeSampling>,
    rows: &Schema,
) -> Result<Vec<GraphColumn>, String> {
    let column =
        |name: &str, column_type, content| GraphColumn { name: name.to_owned(), column_type, content };
    let locals = || numbers(ScalarType::Int32);
    let ends = column("edge_label_index", locals(), GraphColumnContent::LinkNodes);
    let Some(negatives) = negatives else { return Ok(vec![ends]) };
    if negatives.mode == NegativeMode::Binary {
        let labels = column("edge_label", numbers(label_type(rows)?), GraphColumnContent::LinkLabels);
        return Ok(vec![ends, labels]);
    }
    let negative_targets = match negatives.amount {
        1 => locals(),
        amount => {
            ColumnType::List(Box::new(ColumnType::Tensor { scalar: ScalarType::Int32, shape: vec![amount] }))
        }
    };
    Ok(vec![
        column("src_index", locals(), GraphColumnContent::LinkSources),
        column("dst_pos_index", locals(), GraphColumnContent::LinkTargets),
        column("dst_neg_index", negative_targets, GraphColumnContent::LinkNegatives),
    ])
}

/// The type of the labels of links and negatives: that of a class, or of a probability if the links have no labels.
fn label_type(rows: &Schema) -> Result<ScalarType, String> {
    match rows.get(LABEL_COLUMN) {
        None => Ok(ScalarType::Float32),
        Some(ColumnType::List(item)) if is_integer(item) => Ok(ScalarType::Int64),
        Some(other) => Err(format!(
            "column `{LABEL_COLUMN}` becomes {other}, but binary negatives have the label 0 and need links with integers; drop or rename `{LABEL_COLUMN}` before sample_neighbors"
        )),
    }
}

impl GraphColumnContent {
    /// Returns the values of a column with local ids of links. `locals` are the local ids of the seeds, and each row has
    /// `seeds_per_row` of them: its source, its target, and the nodes of its negatives. Empty for other columns.
    pub fn link_locals(self, locals: &[u32], seeds_per_row: usize) -> Vec<u32> {
        let of_rows = |slot: usize| locals.iter().skip(slot).step_by(seeds_per_row.max(1)).copied();
        match self {
            Self::LinkNodes => {
                // PyG has first the links, then the first negative of each link, and so on.
                let sources = (0..seeds_per_row).step_by(2).flat_map(of_rows);
                let targets = (1..seeds_per_row).step_by(2).flat_map(of_rows);
                sources.chain(targets).collect()
            }
            Self::LinkSources => of_rows(0).collect(),
            Self::LinkTargets => of_rows(1).collect(),
            Self::LinkNegatives => locals
                .chunks(seeds_per_row.max(1))
                .filter_map(|row| row.get(2..))
                .flatten()
                .copied()
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// Returns the labels of links, and then those of their negatives, which are 0. The classes of links begin with 1 instead of 0.
/// `labels` are the classes of the links.
///
/// # Errors
/// Returns a message if a link has no class.
pub fn labels_with_negatives(
    labels: impl IntoIterator<Item = Option<i64>>,
    negatives: usize,
) -> Result<Vec<i64>, String> {
    let increment = |label: Option<i64>| label.and_then(|label| label.checked_add(1));
    let shifted: Option<Vec<i64>> = labels.into_iter().map(increment).collect();
    let mut labels = shifted
        .ok_or_else(|| format!("a link has no `{LABEL_COLUMN}`, which is required with binary negatives"))?;
    labels.resize(labels.len() + negatives, 0);
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_ids_have_the_order_of_pyg() {
        // Two links with two negatives of two nodes: source, target, source, target, source, target.
        let binary = [10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25];
        let nodes = GraphColumnContent::LinkNodes.link_locals(&binary, 6);
        assert_eq!(nodes, [10, 20, 12, 22, 14, 24, 11, 21, 13, 23, 15, 25]);
        let triplet = [10, 11, 12, 13, 20, 21, 22, 23];
        let values = |content: GraphColumnContent| content.link_locals(&triplet, 4);
        assert_eq!(values(GraphColumnContent::LinkSources), [10, 20]);
        assert_eq!(values(GraphColumnContent::LinkTargets), [11, 21]);
        assert_eq!(values(GraphColumnContent::LinkNegatives), [12, 13, 22, 23]);
        assert_eq!(GraphColumnContent::LinkNodes.link_locals(&[1, 2, 3, 4], 2), [1, 3, 2, 4]);
        assert_eq!(GraphColumnContent::LinkNodes.link_locals(&[], 2), [0_u32; 0]);
        assert_eq!(GraphColumnContent::RowColumn.link_locals(&binary, 6), [0_u32; 0]);
    }

    #[test]
    fn classes_of_links_begin_with_one() {
        assert_eq!(labels_with_negatives([Some(0), Some(4)], 3), Ok(vec![1, 5, 0, 0, 0]));
        assert!(labels_with_negatives([Some(0), None], 3).is_err());
        assert!(labels_with_negatives([Some(i64::MAX)], 0).is_err());
    }
}
