//! `select` and `rename`: select, reorder and rename columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedline_data::pipeline::{Rename, Select};

use super::{KernelContext, KernelDefinition};
use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

impl KernelDefinition for Select {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(SelectOperator { columns: self.columns.clone() }))
    }
}

impl KernelDefinition for Rename {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(RenameOperator { columns: self.columns.clone() }))
    }
}

/// Selects columns, in the given order.
#[derive(Debug)]
pub(crate) struct SelectOperator {
    pub(crate) columns: Vec<String>,
}

impl OperatorKernel for SelectOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let mut kept = Vec::with_capacity(self.columns.len());
        for name in &self.columns {
            kept.push(chunk.columns.remove(chunk.column_index(name)?));
        }
        chunk.columns = kept;
        Ok(())
    }
}

/// Renames columns. Two columns may swap names.
#[derive(Debug)]
pub(crate) struct RenameOperator {
    /// Maps new names to current names.
    pub(crate) columns: BTreeMap<String, String>,
}

impl OperatorKernel for RenameOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let mut indexes = Vec::with_capacity(self.columns.len());
        for (new, current) in &self.columns {
            indexes.push((chunk.column_index(current)?, new));
        }
        for (index, new) in indexes {
            chunk.columns[index].0.clone_from(new);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Column, Image};

    fn chunk() -> Chunk {
        let column = |width| Column::Images(vec![Image { width, height: 1, data: Bytes::new() }]);
        Chunk::new(vec![("a".to_owned(), column(1)), ("b".to_owned(), column(2))], vec![0], vec![0])
    }

    fn names(chunk: &Chunk) -> Vec<(&str, u32)> {
        let width = |column: &Column| match column {
            Column::Images(images) => images[0].width,
            _ => unreachable!("the chunk is made of images"),
        };
        chunk.columns.iter().map(|(name, column)| (name.as_str(), width(column))).collect()
    }

    #[test]
    fn select_orders_and_drops() {
        let mut chunk = chunk();
        SelectOperator { columns: vec!["b".to_owned()] }
            .apply(&mut chunk, &mut OutputBuffers::new())
            .unwrap();
        assert_eq!(names(&chunk), [("b", 2)]);
    }

    #[test]
    fn rename_swaps_names() {
        let mut chunk = chunk();
        let columns = BTreeMap::from([("a".to_owned(), "b".to_owned()), ("b".to_owned(), "a".to_owned())]);
        RenameOperator { columns }.apply(&mut chunk, &mut OutputBuffers::new()).unwrap();
        assert_eq!(names(&chunk), [("b", 1), ("a", 2)]);
    }

    #[test]
    fn the_error_names_the_missing_column() {
        let error =
            SelectOperator { columns: vec!["c".to_owned()] }.apply(&mut chunk(), &mut OutputBuffers::new());
        assert_eq!(error.unwrap_err().message, "the chunk has no column `c`, only a, b");
    }
}
