//! `select` and `rename`: which columns there are, and what they are called.

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

/// Keeps these columns, in this order.
#[derive(Debug)]
pub(crate) struct SelectOperator {
    pub(crate) columns: Vec<String>,
}

impl OperatorKernel for SelectOperator {
    fn apply(&self, chunk: &mut Chunk, _slots: &mut OutputBuffers) -> Result<(), OperatorError> {
        let mut kept = Vec::with_capacity(self.columns.len());
        for name in &self.columns {
            kept.push(chunk.columns.remove(chunk.place_of(name)?));
        }
        chunk.columns = kept;
        Ok(())
    }
}

/// Renames columns, all at once: names may be exchanged.
#[derive(Debug)]
pub(crate) struct RenameOperator {
    /// New name -> present name.
    pub(crate) columns: BTreeMap<String, String>,
}

impl OperatorKernel for RenameOperator {
    fn apply(&self, chunk: &mut Chunk, _slots: &mut OutputBuffers) -> Result<(), OperatorError> {
        let mut places = Vec::with_capacity(self.columns.len());
        for (new, present) in &self.columns {
            places.push((chunk.place_of(present)?, new));
        }
        for (place, new) in places {
            chunk.columns[place].0.clone_from(new);
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
    fn rename_exchanges_names() {
        let mut chunk = chunk();
        let columns = BTreeMap::from([("a".to_owned(), "b".to_owned()), ("b".to_owned(), "a".to_owned())]);
        RenameOperator { columns }.apply(&mut chunk, &mut OutputBuffers::new()).unwrap();
        assert_eq!(names(&chunk), [("b", 1), ("a", 2)]);
    }

    #[test]
    fn a_missing_column_is_named() {
        let error =
            SelectOperator { columns: vec!["c".to_owned()] }.apply(&mut chunk(), &mut OutputBuffers::new());
        assert_eq!(error.unwrap_err().message, "the chunk has no column `c`; it has a, b");
    }
}
