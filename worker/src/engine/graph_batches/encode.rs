//! Encodes a sampled graph in one buffer. The size of each column is known after sampling, so the buffer is allocated once, and
//! the rows of features are copied once, to their final place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, ListArray, new_empty_array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, SchemaRef, ToByteSlice};
use bytes::BytesMut;
use feedline_data::graph::{SampledEdges, SampledGraph, SampledNodes};
use feedline_data::pipeline::{GraphColumn, GraphColumnContent, labels_with_negatives};
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_proto::batch::{ALIGNMENT_BYTES, BatchEncoder, BatchLayout, ListInPlace};

use super::gathered_seeds::GatheredSeeds;
use crate::engine::graph_job::{GraphJob, too_large_batch};
use crate::engine::loaded_graph::FetchedRows;
use crate::engine::piece_features::PieceColumn;
use crate::engine::slab::{SlabPool, SlabReservation};

/// Maximum number of bytes that a column of the rows needs in addition to its values.
const COLUMN_OVERHEAD_BYTES: usize = 512;
/// Size of the two offsets of a list.
const OFFSETS_BYTES: usize = 8;

/// An encoded batch.
pub(super) struct EncodedGraph {
    pub(super) batch: BatchLayout,
    /// The batch, and then the positions of its nodes in stored order.
    pub(super) buffer: BytesMut,
    pub(super) reservation: SlabReservation,
    /// The columns with the features of nodes.
    pub(super) columns: Vec<PieceColumn>,
    /// The time that copying the rows of features took.
    pub(super) gather: Duration,
}

/// Encodes one sampled graph.
pub(super) struct GraphEncoder<'a> {
    pub(super) graph: &'a GraphJob,
    pub(super) sampled: &'a SampledGraph,
    pub(super) seeds: &'a GatheredSeeds,
    /// The rows of features that are not in memory.
    pub(super) fetched: Option<&'a FetchedRows>,
    /// Maximum size of the batch.
    pub(super) limit_bytes: u64,
}

/// The values of a list column in the buffer.
#[derive(Debug, Clone, Copy)]
struct ListPlace {
    offsets_at: usize,
    values_at: usize,
    values: usize,
    value_bytes: usize,
}

impl ListPlace {
    fn end(self) -> usize {
        self.values_at + self.values * self.value_bytes
    }
}

impl GraphEncoder<'_> {
    /// Encodes the graph in a buffer of the pool.
    ///
    /// # Errors
    /// Returns a message if the batch is larger than the limit, or the rows of a feature cannot be read.
    pub(super) fn encode(&self, slabs: &Arc<SlabPool>) -> Result<EncodedGraph, String> {
        let places = self.places()?;
        let graph_bytes = places.last().map_or(0, |place| place.end()).next_multiple_of(ALIGNMENT_BYTES);
        let lists = self.seeds.columns.iter().map(list_of).collect::<Result<Vec<ArrayRef>, String>>()?;
        let row_bytes: usize = lists.iter().map(array_bytes).sum();
        let mapped_types = self.mapped_types();
        let id_bytes = self.id_bytes(&mapped_types);
        self.check_size(graph_bytes + row_bytes + id_bytes)?;
        let (mut buffer, reservation) = slabs.take(graph_bytes + row_bytes + id_bytes);
        let mut encoder = BatchEncoder::new(1);
        let (mut written, mut gather) = (0, Duration::ZERO);
        for (column, place) in self.graph.plan.columns.iter().zip(&places) {
            // A reused buffer has old content between the columns.
            buffer[written..place.values_at].fill(0);
            let offsets = [0, place.values as i32];
            buffer[place.offsets_at..place.offsets_at + OFFSETS_BYTES]
                .copy_from_slice(offsets.to_byte_slice());
            let started = Instant::now();
            self.write(column, &mut buffer[place.values_at..place.end()])?;
            if is_feature(column) {
                gather += started.elapsed();
            }
            written = place.end();
            encoder.push_list_in_place(ListInPlace {
                offsets_at: place.offsets_at as u64,
                values_at: place.values_at as u64,
                values_bytes: (place.values * place.value_bytes) as u64,
                values: place.values as u64,
                elements_per_value: elements_per_value(column),
            });
        }
        buffer[written..graph_bytes].fill(0);
        buffer.truncate(graph_bytes);
        for list in &lists {
            encoder.push_array(list, &mut buffer)?;
        }
        let batch = encoder.finish(&mut buffer);
        let columns = self.push_stored_ids(&mapped_types, &places, &mut buffer)?;
        Ok(EncodedGraph { batch, buffer, reservation, columns, gather })
    }

    /// The node types that have features, and whose positions in the user's order differ from those in stored order.
    fn mapped_types(&self) -> Vec<usize> {
        let mut types = Vec::new();
        for column in self.graph_columns() {
            if let GraphColumnContent::NodeFeature { node_type, .. } = column.content
                && !types.contains(&node_type)
                && self.graph.graph.positions(node_type).is_some()
            {
                types.push(node_type);
            }
        }
        types
    }

    /// Size of the positions in stored order of the nodes of these types.
    fn id_bytes(&self, types: &[usize]) -> usize {
        let nodes = |node_type: &usize| self.nodes(*node_type).map_or(0, |nodes| nodes.ids.len());
        types.iter().map(nodes).sum::<usize>() * size_of::<u32>()
    }

    /// Appends the positions in stored order of the nodes of these types; of others, the column of node ids contains them. Returns the
    /// columns with features of nodes.
    fn push_stored_ids(
        &self,
        mapped_types: &[usize],
        places: &[ListPlace],
        buffer: &mut BytesMut,
    ) -> Result<Vec<PieceColumn>, String> {
        let mut ids_at = Vec::new();
        for node_type in mapped_types {
            ids_at.push((*node_type, buffer.len()));
            buffer.extend_from_slice(self.nodes(*node_type)?.ids.to_byte_slice());
        }
        for (column, place) in self.graph_columns().zip(places) {
            if let GraphColumnContent::NodeIds { node_type } = column.content {
                ids_at.push((node_type, place.values_at));
            }
        }
        let mut columns = Vec::new();
        for (column, (planned, place)) in self.graph_columns().zip(places).enumerate() {
            let GraphColumnContent::NodeFeature { node_type, .. } = planned.content else { continue };
            let ids_at = ids_at.iter().find(|(of, _)| *of == node_type);
            let (_, ids_at) = *ids_at.ok_or_else(|| missing("node ids of type", node_type))?;
            let ListPlace { values_at, values: rows, value_bytes: row_bytes, .. } = *place;
            columns.push(PieceColumn { column, values_at, row_bytes, rows, ids_at });
        }
        Ok(columns)
    }

    /// The columns of the graph. The columns of the rows follow them.
    fn graph_columns(&self) -> impl Iterator<Item = &GraphColumn> {
        let columns = self.graph.plan.columns.iter();
        columns.take_while(|column| column.content != GraphColumnContent::RowColumn)
    }

    /// Returns where each column of the graph is in the buffer.
    fn places(&self) -> Result<Vec<ListPlace>, String> {
        let mut places: Vec<ListPlace> = Vec::new();
        let too_large = || "a batch is larger than the address space; use a smaller batch".to_owned();
        for column in self.graph_columns() {
            let end = places.last().map_or(0, |place| place.end());
            let offsets_at = end.next_multiple_of(ALIGNMENT_BYTES);
            let (values, value_bytes) = (self.values(column)?, value_bytes(column)?);
            let place =
                ListPlace { offsets_at, values_at: offsets_at + ALIGNMENT_BYTES, values, value_bytes };
            let bytes = values.checked_mul(value_bytes).ok_or_else(too_large)?;
            place
                .values_at
                .checked_add(bytes)
                .and_then(|end| end.checked_add(1 << 20))
                .ok_or_else(too_large)?;
            if i32::try_from(values).is_err() {
                return Err(format!(
                    "column `{}` of a batch has {values} values; use smaller fanouts or a smaller batch",
                    column.name
                ));
            }
            places.push(place);
        }
        Ok(places)
    }

    fn nodes(&self, node_type: usize) -> Result<&SampledNodes, String> {
        self.sampled.nodes.get(node_type).ok_or_else(|| missing("node type", node_type))
    }

    fn edges(&self, relation: usize) -> Result<&SampledEdges, String> {
        self.sampled.edges.get(relation).ok_or_else(|| missing("relation", relation))
    }

    /// The number of values of a column.
    fn values(&self, column: &GraphColumn) -> Result<usize, String> {
        Ok(match column.content {
            GraphColumnContent::NodeIds { node_type } | GraphColumnContent::NodeFeature { node_type, .. } => {
                self.nodes(node_type)?.ids.len()
            }
            GraphColumnContent::NodeTrees { node_type } => self.nodes(node_type)?.trees.len(),
            GraphColumnContent::NodeCounts { node_type } => self.nodes(node_type)?.hop_counts.len(),
            GraphColumnContent::EdgeOffsets { relation } => self.edges(relation)?.ends.len() + 1,
            GraphColumnContent::EdgeSources { relation } => self.edges(relation)?.sources.len(),
            GraphColumnContent::EdgeIds { relation } | GraphColumnContent::EdgeFeature { relation, .. } => {
                self.edges(relation)?.positions.len()
            }
            GraphColumnContent::EdgeCounts { relation } => self.edges(relation)?.hop_counts.len(),
            GraphColumnContent::LinkNodes => self.sampled.seed_locals.len(),
            GraphColumnContent::LinkLabels => self.sampled.seed_locals.len() / 2,
            GraphColumnContent::LinkSources
            | GraphColumnContent::LinkTargets
            | GraphColumnContent::LinkNegatives => self.seeds.len(),
            GraphColumnContent::RowColumn => 0,
        })
    }

    /// Writes the values of a column. `out` has exactly their size.
    fn write(&self, column: &GraphColumn, out: &mut [u8]) -> Result<(), String> {
        let loaded = self.graph.graph.as_ref();
        match column.content {
            GraphColumnContent::NodeIds { node_type } => {
                let ids = &self.nodes(node_type)?.ids;
                match loaded.positions(node_type) {
                    None => out.copy_from_slice(ids.to_byte_slice()),
                    Some(positions) => write_mapped(out, ids.iter().map(|id| *id as usize), positions)?,
                }
            }
            GraphColumnContent::NodeTrees { node_type } => {
                let rows = self.nodes(node_type)?.tree_rows(self.graph.plan.seeds_per_row());
                out.copy_from_slice(rows.collect::<Vec<u32>>().to_byte_slice());
            }
            GraphColumnContent::NodeCounts { node_type } => {
                out.copy_from_slice(self.nodes(node_type)?.hop_counts.to_byte_slice());
            }
            GraphColumnContent::NodeFeature { node_type, feature } => {
                let ids = &self.nodes(node_type)?.ids;
                loaded.copy_node_rows(node_type, feature, scalar_type(column)?, ids, self.fetched, out)?;
            }
            GraphColumnContent::EdgeOffsets { relation } => {
                let (first, rest) = out.split_at_mut(size_of::<i32>());
                first.fill(0);
                rest.copy_from_slice(self.edges(relation)?.ends.to_byte_slice());
            }
            GraphColumnContent::EdgeSources { relation } => {
                out.copy_from_slice(self.edges(relation)?.sources.to_byte_slice());
            }
            GraphColumnContent::EdgeIds { relation } => {
                let positions = &self.edges(relation)?.positions;
                let ids =
                    loaded.edge_ids(relation).ok_or_else(|| missing("edge ids of relation", relation))?;
                write_mapped(out, positions.iter().map(|position| *position as usize), ids)?;
            }
            GraphColumnContent::EdgeCounts { relation } => {
                out.copy_from_slice(self.edges(relation)?.hop_counts.to_byte_slice());
            }
            GraphColumnContent::EdgeFeature { relation, feature } => {
                let positions = &self.edges(relation)?.positions;
                let dtype = scalar_type(column)?;
                loaded.copy_edge_rows(relation, feature, dtype, positions, self.fetched, out)?;
            }
            GraphColumnContent::LinkNodes
            | GraphColumnContent::LinkSources
            | GraphColumnContent::LinkTargets
            | GraphColumnContent::LinkNegatives => {
                let seeds_per_row = self.graph.plan.seeds_per_row() as usize;
                let values = column.content.link_locals(&self.sampled.seed_locals, seeds_per_row);
                out.copy_from_slice(values.to_byte_slice());
            }
            GraphColumnContent::LinkLabels => self.write_labels(out)?,
            GraphColumnContent::RowColumn => {}
        }
        Ok(())
    }

    /// Writes the labels of the links and of their negatives.
    fn write_labels(&self, out: &mut [u8]) -> Result<(), String> {
        let pairs = self.sampled.seed_locals.len() / 2;
        let negatives = pairs.saturating_sub(self.seeds.len());
        let Some(column) = self.graph.plan.label_column() else {
            let mut labels = vec![1.0_f32; pairs - negatives];
            labels.resize(pairs, 0.0);
            out.copy_from_slice(labels.to_byte_slice());
            return Ok(());
        };
        let labels = self.seeds.columns.get(column).ok_or_else(|| missing("column", column))?;
        // Numbers that do not fit become null.
        let labels = cast(labels, &DataType::Int64).map_err(|error| error.to_string())?;
        let labels = labels_with_negatives(labels.as_primitive::<Int64Type>(), negatives)?;
        out.copy_from_slice(labels.to_byte_slice());
        Ok(())
    }

    fn check_size(&self, bytes: usize) -> Result<(), String> {
        if bytes as u64 <= self.limit_bytes {
            return Ok(());
        }
        let needed = format!("{} MiB", (bytes as u64).div_ceil(1 << 20));
        Err(too_large_batch(self.seeds.len(), &needed, self.limit_bytes))
    }
}

/// Encodes a batch without seeds: a record without rows.
pub(super) fn encode_empty(schema: &SchemaRef, slabs: &Arc<SlabPool>) -> Result<EncodedGraph, String> {
    let (mut buffer, reservation) = slabs.take(schema.fields().len() * ALIGNMENT_BYTES);
    buffer.clear();
    let mut encoder = BatchEncoder::new(0);
    for field in schema.fields() {
        encoder.push_array(&new_empty_array(field.data_type()), &mut buffer)?;
    }
    let batch = encoder.finish(&mut buffer);
    Ok(EncodedGraph { batch, buffer, reservation, columns: Vec::new(), gather: Duration::ZERO })
}

/// Whether a column has the rows of a feature.
fn is_feature(column: &GraphColumn) -> bool {
    matches!(column.content, GraphColumnContent::NodeFeature { .. } | GraphColumnContent::EdgeFeature { .. })
}

/// Returns a column with one list, which has all values of an array.
fn list_of(values: &ArrayRef) -> Result<ArrayRef, String> {
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths([values.len()]);
    let list = ListArray::try_new(item, offsets, Arc::clone(values), None);
    Ok(Arc::new(list.map_err(|error| error.to_string())?))
}

/// Returns an upper bound of the size of a column of the rows.
fn array_bytes(array: &ArrayRef) -> usize {
    array.to_data().get_slice_memory_size().unwrap_or_default() + COLUMN_OVERHEAD_BYTES
}

/// Writes an entry of `table` for each index.
fn write_mapped<T: Copy>(
    out: &mut [u8],
    indexes: impl Iterator<Item = usize>,
    table: &[T],
) -> Result<(), String>
where
    [T]: ToByteSlice,
{
    let width = size_of::<T>();
    for (out, index) in out.chunks_exact_mut(width).zip(indexes) {
        let entry = table.get(index..index + 1).ok_or_else(|| {
            format!(
                "the graph has no position for the id {index}; check the graph with `feedline graph check`"
            )
        })?;
        out.copy_from_slice(entry.to_byte_slice());
    }
    Ok(())
}

fn missing(what: &str, index: usize) -> String {
    format!("the graph has no {what} {index}; please report this")
}

/// The type of one value of a list column.
fn value_type(column: &GraphColumn) -> Result<&ColumnType, String> {
    match &column.column_type {
        ColumnType::List(item) => Ok(item),
        other => {
            Err(format!("column `{}` contains {other} instead of lists; please report this", column.name))
        }
    }
}

/// The size of one value of a list column.
fn value_bytes(column: &GraphColumn) -> Result<usize, String> {
    let bytes = value_type(column)?.fixed_row_bytes();
    bytes.ok_or_else(|| {
        format!("column `{}` has values without a fixed size; please report this", column.name)
    })
}

/// The type of the numbers of a list column.
fn scalar_type(column: &GraphColumn) -> Result<ScalarType, String> {
    match value_type(column)? {
        ColumnType::Scalar(scalar) | ColumnType::Tensor { scalar, .. } => Ok(*scalar),
        other => {
            Err(format!("column `{}` contains {other} instead of numbers; please report this", column.name))
        }
    }
}

/// The number of elements of a value that is a tensor.
fn elements_per_value(column: &GraphColumn) -> Option<u64> {
    match &column.column_type {
        ColumnType::List(item) => match item.as_ref() {
            ColumnType::Tensor { shape, .. } => Some(shape.iter().map(|extent| u64::from(*extent)).product()),
            _ => None,
        },
        _ => None,
    }
}
