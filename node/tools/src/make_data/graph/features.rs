//! Writes features: one row of numbers for each node or edge, as a NumPy array or a Parquet file.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use arrow::array::{ArrayRef, FixedSizeListArray, Float16Array, Float32Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use feedline_data::random::RowRandom;
use half::f16;
use parquet::arrow::ArrowWriter;

use super::super::output::{Output, Sink};
use super::feature_type::{FeatureDtype, FeatureFileFormat};
use super::npy_array::NpyArrayWriter;
use super::parallel::for_each_block;
use super::parquet_settings::plain_properties;

/// Numbers in memory at a time in each block.
const BLOCK_NUMBERS: u64 = 1 << 16;
/// Blocks in memory at a time.
const CHUNK_BLOCKS: usize = 64;
/// Size of a row group of Parquet, from which the next one begins.
const ROW_GROUP_BYTES: usize = 16 << 20;

/// A table of features.
#[derive(Debug, Clone, Copy)]
pub(super) struct GeneratedFeatures<'a> {
    /// The name of the file, without its extension.
    pub(super) name: &'a str,
    pub(super) rows: u64,
    /// Numbers of a row.
    pub(super) columns: u32,
    pub(super) feature_type: FeatureDtype,
    pub(super) format: FeatureFileFormat,
}

impl GeneratedFeatures<'_> {
    /// Writes the rows. `push_row` appends the numbers of a row.
    pub(super) fn write(
        &self,
        output: &mut Output,
        push_row: impl Fn(u64, &mut Vec<f32>) + Sync,
    ) -> Result<()> {
        let block_rows = (BLOCK_NUMBERS / u64::from(self.columns)).max(1);
        let values = |rows: Range<u64>| {
            let mut values = Vec::new();
            rows.for_each(|row| push_row(row, &mut values));
            values
        };
        match self.format {
            FeatureFileFormat::Npy => {
                let shape = [self.rows, u64::from(self.columns)];
                let name = format!("{}.npy", self.name);
                let mut file = NpyArrayWriter::create(output, &name, self.feature_type.descr(), &shape)?;
                let encode = |rows| self.feature_type.encode(&values(rows));
                for_each_block(self.rows, block_rows, CHUNK_BLOCKS, encode, |bytes| file.append(&bytes))
            }
            FeatureFileFormat::Parquet => {
                let name = format!("{}.parquet", self.name);
                let failed = || format!("cannot write {name}");
                let mut file = ParquetFeatures::create(output.create(&name)?, self).with_context(failed)?;
                for_each_block(self.rows, block_rows, CHUNK_BLOCKS, values, |values| {
                    file.append(values).with_context(failed)
                })?;
                file.finish().with_context(failed)
            }
        }
    }
}

impl FeatureDtype {
    fn descr(self) -> &'static str {
        match self {
            Self::Float16 => "<f2",
            Self::Float32 => "<f4",
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Self::Float16 => DataType::Float16,
            Self::Float32 => DataType::Float32,
        }
    }

    fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::Float16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
            Self::Float32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    fn array(self, values: Vec<f32>) -> ArrayRef {
        match self {
            Self::Float16 => Arc::new(Float16Array::from_iter_values(values.into_iter().map(f16::from_f32))),
            Self::Float32 => Arc::new(Float32Array::from(values)),
        }
    }
}

/// Draws a number from -1 to 1.
pub(super) fn noise(random: &mut RowRandom) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// A Parquet file with one column of lists of a fixed size.
struct ParquetFeatures {
    writer: ArrowWriter<Sink>,
    schema: SchemaRef,
    item: Arc<Field>,
    columns: i32,
    feature_type: FeatureDtype,
}

impl ParquetFeatures {
    fn create(sink: Sink, table: &GeneratedFeatures<'_>) -> Result<Self> {
        let item = Arc::new(Field::new("item", table.feature_type.data_type(), false));
        let columns = i32::try_from(table.columns)?;
        let list = DataType::FixedSizeList(Arc::clone(&item), columns);
        let schema = Arc::new(Schema::new(vec![Field::new(table.name, list, false)]));
        let writer = ArrowWriter::try_new(sink, Arc::clone(&schema), Some(plain_properties()))?;
        Ok(Self { writer, schema, item, columns, feature_type: table.feature_type })
    }

    fn append(&mut self, values: Vec<f32>) -> Result<()> {
        let values = self.feature_type.array(values);
        let lists = FixedSizeListArray::try_new(Arc::clone(&self.item), self.columns, values, None)?;
        self.writer.write(&RecordBatch::try_new(Arc::clone(&self.schema), vec![Arc::new(lists)])?)?;
        if self.writer.in_progress_size() >= ROW_GROUP_BYTES {
            self.writer.flush()?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.writer.finish()?;
        Ok(self.writer.inner_mut().flush()?)
    }
}
