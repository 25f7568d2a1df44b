//! Writes the edges with their attributes.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;

use super::super::format::FileFormat;
use super::super::output::{Output, Sink};
use super::features::{GeneratedFeatures, noise};
use super::generated::{GeneratedEdge, GeneratedGraph, RandomPurpose};
use super::npy_array::NpyArrayWriter;
use super::parallel::for_each_block;
use super::parquet_settings::plain_properties;

/// Edges of a block, which one thread generates.
const BLOCK_EDGES: u64 = 1 << 16;
/// Blocks in memory at a time. A row group of Parquet contains as many edges.
const CHUNK_BLOCKS: usize = 16;

/// Writes the edges as one Parquet file, or as one NumPy array for each attribute.
pub(super) fn write_edges(graph: &GeneratedGraph, format: FileFormat, output: &mut Output) -> Result<()> {
    let mut writer: Box<dyn EdgeFileWriter> = match format {
        FileFormat::Npy => Box::new(NpyEdges::create(graph, output)?),
        _ => Box::new(ParquetEdges::create(graph, output)?),
    };
    let generate = |edges: Range<u64>| EdgeBlock::new(edges.map(|index| graph.edge(index)));
    for_each_block(graph.edges(), BLOCK_EDGES, CHUNK_BLOCKS, generate, |block| writer.append(block))?;
    writer.finish()
}

/// Writes the features of the edges, in the order of the edges.
pub(super) fn write_edge_features(graph: &GeneratedGraph, output: &mut Output) -> Result<()> {
    let settings = &graph.settings;
    if settings.edge_features == 0 {
        return Ok(());
    }
    let table = GeneratedFeatures {
        name: "edge_x",
        rows: settings.edges,
        columns: settings.edge_features,
        feature_type: settings.feature_type,
        format: settings.feature_format,
    };
    table.write(output, |edge, values| {
        let mut random = graph.random(RandomPurpose::EdgeFeatures, edge);
        values.extend((0..settings.edge_features).map(|_| noise(&mut random)));
    })
}

/// The columns of consecutive edges.
struct EdgeBlock {
    sources: Vec<i64>,
    targets: Vec<i64>,
    weights: Vec<f32>,
    times: Vec<i64>,
}

impl EdgeBlock {
    fn new(edges: impl Iterator<Item = GeneratedEdge>) -> Self {
        let mut block =
            Self { sources: Vec::new(), targets: Vec::new(), weights: Vec::new(), times: Vec::new() };
        for edge in edges {
            block.sources.push(edge.source);
            block.targets.push(edge.target);
            block.weights.push(edge.weight);
            block.times.push(edge.time);
        }
        block
    }
}

/// Writes blocks of edges in order.
trait EdgeFileWriter {
    fn append(&mut self, block: EdgeBlock) -> Result<()>;
    /// Completes the file.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Arrays: the sources and targets in two rows, the weights, and the times.
struct NpyEdges {
    edges: NpyArrayWriter,
    weights: Option<NpyArrayWriter>,
    times: Option<NpyArrayWriter>,
    count: u64,
    written: u64,
}

impl NpyEdges {
    fn create(graph: &GeneratedGraph, output: &mut Output) -> Result<Self> {
        let count = graph.edges();
        let mut attribute = |is_wanted: bool, name: &str, descr: &str| {
            is_wanted.then(|| NpyArrayWriter::create(output, name, descr, &[count])).transpose()
        };
        let weights = attribute(graph.settings.has_weights, "weight.npy", "<f4")?;
        let times = attribute(graph.settings.has_times, "time.npy", "<i8")?;
        let edges = NpyArrayWriter::create(output, "edges.npy", "<i8", &[2, count])?;
        Ok(Self { edges, weights, times, count, written: 0 })
    }
}

impl EdgeFileWriter for NpyEdges {
    fn append(&mut self, block: EdgeBlock) -> Result<()> {
        const ID_BYTES: u64 = size_of::<i64>() as u64;
        self.edges.write_at(self.written * ID_BYTES, &le_bytes(&block.sources))?;
        self.edges.write_at((self.count + self.written) * ID_BYTES, &le_bytes(&block.targets))?;
        if let Some(weights) = &mut self.weights {
            let bytes: Vec<u8> = block.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
            weights.append(&bytes)?;
        }
        if let Some(times) = &mut self.times {
            times.append(&le_bytes(&block.times))?;
        }
        self.written += block.sources.len() as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// One file with the columns `src`, `dst`, and optionally `weight` and `time`.
struct ParquetEdges {
    writer: ArrowWriter<Sink>,
    schema: SchemaRef,
    has_weights: bool,
    has_times: bool,
}

impl ParquetEdges {
    fn create(graph: &GeneratedGraph, output: &mut Output) -> Result<Self> {
        let (has_weights, has_times) = (graph.settings.has_weights, graph.settings.has_times);
        let field = |name: &str, data_type: DataType| Field::new(name, data_type, false);
        let mut fields = vec![field("src", DataType::Int64), field("dst", DataType::Int64)];
        fields.extend(has_weights.then(|| field("weight", DataType::Float32)));
        fields.extend(has_times.then(|| field("time", DataType::Int64)));
        let schema = Arc::new(Schema::new(fields));
        let sink = output.create("edges.parquet")?;
        let writer = ArrowWriter::try_new(sink, Arc::clone(&schema), Some(plain_properties()))?;
        Ok(Self { writer, schema, has_weights, has_times })
    }
}

impl EdgeFileWriter for ParquetEdges {
    fn append(&mut self, block: EdgeBlock) -> Result<()> {
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(block.sources)), Arc::new(Int64Array::from(block.targets))];
        if self.has_weights {
            columns.push(Arc::new(Float32Array::from(block.weights)));
        }
        if self.has_times {
            columns.push(Arc::new(Int64Array::from(block.times)));
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        self.writer.write(&batch).context("cannot write edges.parquet")?;
        if self.writer.in_progress_rows() >= BLOCK_EDGES as usize * CHUNK_BLOCKS {
            self.writer.flush().context("cannot write edges.parquet")?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.writer.finish().context("cannot write edges.parquet")?;
        self.writer.inner_mut().flush().context("cannot write edges.parquet")
    }
}

fn le_bytes(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
