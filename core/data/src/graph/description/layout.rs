//! The arrays that a description implies: their types and shapes.

use super::{GraphDescription, GraphFeature, StoredFile};
use crate::schema::ScalarType;

/// The type and the shape of an array in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayLayout {
    /// The type of the numbers.
    pub dtype: ScalarType,
    /// The extent of each axis.
    pub shape: Vec<u64>,
}

impl ArrayLayout {
    /// An array with one axis.
    pub fn flat(dtype: ScalarType, length: u64) -> Self {
        Self { dtype, shape: vec![length] }
    }

    /// The rows of a feature.
    pub fn feature(feature: &GraphFeature, rows: u64) -> Self {
        let extents = feature.shape.iter().map(|&extent| u64::from(extent));
        Self { dtype: feature.dtype, shape: std::iter::once(rows).chain(extents).collect() }
    }

    /// Returns the size of all numbers, or `None` if it exceeds 64 bits.
    pub fn data_bytes(&self) -> Option<u64> {
        let elements = self.shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent))?;
        elements.checked_mul(self.dtype.width_bytes() as u64)
    }
}

/// A file of a graph with its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedFile<'a> {
    /// The file.
    pub file: &'a StoredFile,
    /// The array in a NumPy file; `None` for the Arrow file of a seed set.
    pub array: Option<ArrayLayout>,
}

impl DescribedFile<'_> {
    /// Returns the number of bytes before the first block that is hashed: the header of an array. `None` if the file is too
    /// small, or its size exceeds 64 bits.
    pub fn header_bytes(&self) -> Option<u64> {
        match &self.array {
            Some(array) => self.file.bytes.checked_sub(array.data_bytes()?),
            None => Some(0),
        }
    }
}

impl GraphDescription {
    /// Returns all files of the graph except `graph.json`.
    pub fn files(&self) -> Vec<DescribedFile<'_>> {
        let mut files = Vec::new();
        let mut push = |file, array| files.push(DescribedFile { file, array: Some(array) });
        for node_type in &self.nodes {
            let count = u64::from(node_type.count);
            if let Some(positions) = &node_type.positions {
                push(positions, ArrayLayout::flat(ScalarType::UInt32, count));
            }
            if let Some(names) = &node_type.names {
                push(&names.offsets, ArrayLayout::flat(ScalarType::UInt64, count + 1));
                push(&names.text, ArrayLayout::flat(ScalarType::UInt8, names.length_bytes));
            }
            for feature in &node_type.features {
                push(&feature.file, ArrayLayout::feature(feature, count));
            }
        }
        for relation in &self.relations {
            let target = self.node_type(&relation.target);
            let targets = target.map_or(0, |(_, node_type)| u64::from(node_type.count));
            push(&relation.offsets, ArrayLayout::flat(ScalarType::UInt64, targets + 1));
            push(&relation.sources, ArrayLayout::flat(ScalarType::UInt32, relation.edges));
            let optional = [
                (&relation.weights, ScalarType::UInt32),
                (&relation.times, ScalarType::Int64),
                (&relation.edge_ids, ScalarType::UInt64),
            ];
            for (file, dtype) in optional {
                if let Some(file) = file {
                    push(file, ArrayLayout::flat(dtype, relation.edges));
                }
            }
            for feature in &relation.features {
                push(&feature.file, ArrayLayout::feature(feature, relation.edges));
            }
        }
        files.extend(self.seeds.iter().map(|seeds| DescribedFile { file: &seeds.file, array: None }));
        files
    }
}
