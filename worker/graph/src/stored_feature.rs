//! A feature in the folder of its graph, of which only some rows are read.

use std::sync::Arc;

use feedline_data::graph::description::{ArrayLayout, DescribedFile, GraphFeature};
use feedline_data::schema::ScalarType;

use crate::error::GraphError;
use crate::folder::GraphFolder;

/// A feature in the folder of its graph.
#[derive(Debug, Clone)]
pub struct StoredFeature {
    folder: Arc<GraphFolder>,
    feature: GraphFeature,
    rows: u32,
    row_bytes: u32,
}

impl StoredFeature {
    /// Creates a feature with this number of rows.
    ///
    /// # Errors
    /// Returns an error if a row is too large.
    pub fn new(folder: Arc<GraphFolder>, feature: GraphFeature, rows: u32) -> Result<Self, GraphError> {
        let elements = feature.shape.iter().try_fold(1_u32, |product, extent| product.checked_mul(*extent));
        let row_bytes = elements
            .and_then(|elements| elements.checked_mul(u32::try_from(feature.dtype.width_bytes()).ok()?));
        let row_bytes = row_bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
            GraphError::Setting(format!("the rows of feature `{}` are empty or too large", feature.name))
        })?;
        Ok(Self { folder, feature, rows, row_bytes })
    }

    /// The description of the feature.
    pub fn feature(&self) -> &GraphFeature {
        &self.feature
    }

    /// The type of the numbers.
    pub fn dtype(&self) -> ScalarType {
        self.feature.dtype
    }

    /// The number of rows.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The size of a row in bytes.
    pub fn row_bytes(&self) -> u32 {
        self.row_bytes
    }

    /// Reads rows in the order of `rows`, which is ascending, without padding between them. Compares each block that contains a
    /// row with its hash.
    ///
    /// # Errors
    /// Returns an error if a row does not exist, the file is damaged, or the store fails.
    pub async fn read_rows(&self, rows: &[u32]) -> Result<Vec<u8>, GraphError> {
        let Some(last) = rows.last() else { return Ok(Vec::new()) };
        if *last >= self.rows || !rows.is_sorted() {
            let name = &self.feature.name;
            let reason =
                format!("feature `{name}` has {} rows, and not row {last}; please report this", self.rows);
            return Err(GraphError::Setting(reason));
        }
        let array = ArrayLayout::feature(&self.feature, u64::from(self.rows));
        let described = DescribedFile { file: &self.feature.file, array: Some(array) };
        self.folder.open_file(&described).await?.read_rows(u64::from(self.row_bytes), rows).await
    }
}

#[cfg(test)]
mod tests;
