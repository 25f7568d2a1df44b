//! The features of a graph: the rows in memory, those that are read when batches need them, and copies of rows to batches.

use std::sync::Arc;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{ArrowNativeType, ToByteSlice};
use feedline_data::graph::description::{
    ArrayLayout, BlockHash, DescribedFile, GraphFeature, HASH_BLOCK_BYTES, StoredFile,
};
use feedline_data::schema::ScalarType;
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::cold_file::ColdFile;
use crate::cold_rows::{ColdRows, sorted_between};
use crate::copied_blocks::CopiedBlocks;
use crate::error::GraphError;
use crate::folder::GraphFolder;

/// Number of numbers that are converted together. They stay in the cache of the processor.
const CONVERTED_NUMBERS: usize = 256;

/// The numbers of rows of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCounts {
    /// The number of nodes of its type, or of edges of its relation.
    pub all: u64,
    /// The number of rows to hold in memory, from the first.
    pub hot: u64,
}

/// The first rows of a feature in memory. The others are read from its file.
#[derive(Debug)]
pub struct LoadedFeature {
    /// The rows in memory.
    data: Buffer,
    /// The file with the other rows. `None` if all rows are in memory.
    cold: Option<ColdFile>,
    dtype: ScalarType,
    /// The number of numbers in a row.
    row_elements: usize,
    /// The file of the feature.
    file: StoredFile,
}

/// The first rows of a feature as they are stored.
#[derive(Debug, Clone)]
pub struct StoredRows {
    /// The size of the file of the feature.
    pub file_bytes: u64,
    /// The hash of each block of the file.
    pub blocks: Vec<BlockHash>,
    /// The blocks that contain the rows.
    pub data: Buffer,
}

impl LoadedFeature {
    /// Reads the hot rows of a feature, and compares them with their hashes. The memory is that of these rows, and that of the
    /// blocks that are read concurrently. The other rows of a local file are compared with their hashes and not kept. Those of
    /// a file in a store are copied to the cache when they are needed first.
    ///
    /// # Errors
    /// Returns an error if the file is damaged, the store fails, or a file in a store has no cache for its other rows.
    pub async fn load(
        folder: &GraphFolder,
        feature: &GraphFeature,
        rows: RowCounts,
        cache: Option<&Arc<CopiedBlocks>>,
    ) -> Result<Self, GraphError> {
        let described =
            DescribedFile { file: &feature.file, array: Some(ArrayLayout::feature(feature, rows.all)) };
        let file = folder.open_file(&described).await?;
        // The check of the description limits the size of a row.
        let row_elements: usize = feature.shape.iter().map(|&extent| extent as usize).product();
        let loaded =
            |data, cold| Self { data, cold, dtype: feature.dtype, row_elements, file: feature.file.clone() };
        if rows.hot >= rows.all {
            return Ok(loaded(file.load().await?, None));
        }
        let row_bytes = (row_elements * feature.dtype.width_bytes()) as u64;
        let hot_bytes = row_bytes * rows.hot;
        let data = file.load_first(hot_bytes).await?;
        let cache = if file.is_local() {
            file.verify_from((hot_bytes / HASH_BLOCK_BYTES) as usize).await?;
            None
        } else {
            let reason = "a feature in a store that does not fit in memory needs a directory for its blocks: start workers with \
                          --graph-dir, or with a larger --graph-memory";
            Some(Arc::clone(cache.ok_or_else(|| GraphError::file(file.url(), reason))?))
        };
        let cold = ColdFile::new(file, feature.content_hash(), (rows.all, row_bytes), cache);
        Ok(loaded(data, Some(cold)))
    }

    /// Returns the blocks that contain the first `rows` rows as they are stored. Of a feature that is partly in memory, only blocks of
    /// which all bytes are in memory.
    pub fn stored_rows(&self, rows: u32) -> StoredRows {
        let block_bytes = usize::try_from(HASH_BLOCK_BYTES).unwrap_or(usize::MAX);
        let available = match self.cold {
            None => self.data.len(),
            // The hash of a block is that of all its bytes.
            Some(_) => self.data.len() / block_bytes * block_bytes,
        };
        let blocks = u64::from(rows).saturating_mul(self.row_bytes()).div_ceil(HASH_BLOCK_BYTES);
        let bytes = usize::try_from(blocks.saturating_mul(HASH_BLOCK_BYTES)).unwrap_or(usize::MAX);
        StoredRows {
            file_bytes: self.file.bytes,
            blocks: self.file.blocks.clone(),
            data: self.data.slice_with_length(0, bytes.min(available)),
        }
    }

    /// The form of a feature of which no rows are in memory, and whose rows are read elsewhere.
    pub fn without_rows(feature: &GraphFeature) -> Self {
        let row_elements = feature.shape.iter().map(|&extent| extent as usize).product();
        Self {
            data: MutableBuffer::new(0).into(),
            cold: None,
            dtype: feature.dtype,
            row_elements,
            file: feature.file.clone(),
        }
    }

    /// Returns the rows among `indexes` that are not in memory, ascending and without duplicates.
    pub fn missing_rows<I: Copy + Into<u64>>(&self, indexes: &[I]) -> Vec<u64> {
        let Some(cold) = &self.cold else { return Vec::new() };
        sorted_between(indexes, self.hot_rows(), cold.rows())
    }

    /// Reads rows that are not in memory. Their indexes exist, ascend, and have no duplicates.
    ///
    /// # Errors
    /// Returns an error if the rows are damaged or in memory, the file has changed, or a disk or the store fails.
    pub async fn read_rows(&self, indexes: Vec<u64>) -> Result<ColdRows, GraphError> {
        match &self.cold {
            Some(cold) => cold.read_rows(indexes).await,
            None => Err(GraphError::Setting(
                "all rows of the feature are in memory; please report this".to_owned(),
            )),
        }
    }

    /// Returns the memory that [`read_rows`](Self::read_rows) needs at most, in addition to the rows.
    pub fn reading_bytes(&self, rows: u64) -> u64 {
        self.cold.as_ref().map_or(0, |cold| cold.reading_bytes(rows))
    }

    /// Whether a read of rows has failed, for example because the file has changed. To load the feature again opens the file again.
    pub fn has_failed(&self) -> bool {
        self.cold.as_ref().is_some_and(ColdFile::has_failed)
    }

    /// The size of a row in the file, in bytes.
    pub fn row_bytes(&self) -> u64 {
        (self.row_elements * self.dtype.width_bytes()) as u64
    }

    /// The number of rows in memory.
    fn hot_rows(&self) -> u64 {
        (self.data.len() as u64).checked_div(self.row_bytes()).unwrap_or(0)
    }

    /// Copies rows to `out` in the order of `indexes`, and converts their numbers to `dtype`. `out` has exactly the size of the
    /// rows. Floating-point numbers can be converted to each other. float64 becomes float16 through float32, as in PyTorch, so that
    /// the result does not depend on the processor. `cold` has the rows that are not in memory.
    ///
    /// # Errors
    /// Returns a message if a row does not exist, or the numbers cannot be converted.
    pub fn copy_rows<I: Copy + Into<u64>>(
        &self,
        dtype: ScalarType,
        indexes: &[I],
        cold: Option<&ColdRows>,
        out: &mut [u8],
    ) -> Result<(), String> {
        use ScalarType::{Float16, Float32, Float64};
        let row_bytes = self.row_elements * dtype.width_bytes();
        if indexes.len().checked_mul(row_bytes) != Some(out.len()) {
            return Err(format!(
                "{} rows of {row_bytes} bytes do not fit exactly in {} bytes; please report this",
                indexes.len(),
                out.len()
            ));
        }
        let copied = match (self.dtype, dtype) {
            (from, to) if from == to => match cold {
                None => copy_rows(&self.data, row_bytes, indexes, out),
                Some(cold) => self.copy_mixed_rows(cold, row_bytes, indexes, out),
            },
            (Float16, Float32) => self.convert_rows::<f16, f32, I>(cold, indexes, out),
            (Float16, Float64) => self.convert_rows::<f16, f64, I>(cold, indexes, out),
            (Float32, Float16) => self.convert_rows::<f32, f16, I>(cold, indexes, out),
            (Float32, Float64) => self.convert_rows::<f32, f64, I>(cold, indexes, out),
            (Float64, Float16) => self.convert_rows::<f64, f16, I>(cold, indexes, out),
            (Float64, Float32) => self.convert_rows::<f64, f32, I>(cold, indexes, out),
            (from, to) => {
                return Err(format!(
                    "{} cannot be converted to {}; please report this",
                    from.name(),
                    to.name()
                ));
            }
        };
        copied.map_err(|MissingRow(index)| {
            format!("the feature has no row {index}; check the graph with `feedline graph check`")
        })
    }

    /// Copies rows of bytes, of which some are not in memory.
    fn copy_mixed_rows<I: Copy + Into<u64>>(
        &self,
        cold: &ColdRows,
        row_bytes: usize,
        indexes: &[I],
        out: &mut [u8],
    ) -> Result<(), MissingRow> {
        let (hot_rows, cold) = (self.hot_rows(), Some((cold, cold.data().as_slice())));
        for (target, &index) in out.chunks_exact_mut(row_bytes).zip(indexes) {
            target.copy_from_slice(mixed_row(
                self.data.as_slice(),
                cold,
                (row_bytes, hot_rows),
                index.into(),
            )?);
        }
        Ok(())
    }

    /// Copies rows, and converts their numbers in parts that fit on the stack.
    fn convert_rows<F, T, I>(
        &self,
        cold: Option<&ColdRows>,
        indexes: &[I],
        out: &mut [u8],
    ) -> Result<(), MissingRow>
    where
        F: ConvertTo<T>,
        T: ArrowNativeType,
        I: Copy + Into<u64>,
    {
        let table = self.data.typed_data::<F>();
        let cold = cold.map(|cold| (cold, cold.data().typed_data::<F>()));
        let hot_rows = self.hot_rows();
        let mut converted = [T::default(); CONVERTED_NUMBERS];
        let width = size_of::<T>();
        for (target, &index) in out.chunks_exact_mut(self.row_elements * width).zip(indexes) {
            let row = mixed_row(table, cold, (self.row_elements, hot_rows), index.into())?;
            let targets = target.chunks_mut(CONVERTED_NUMBERS * width);
            for (target, numbers) in targets.zip(row.chunks(CONVERTED_NUMBERS)) {
                let converted = &mut converted[..numbers.len()];
                F::convert(numbers, converted);
                target.copy_from_slice(converted.to_byte_slice());
            }
        }
        Ok(())
    }
}

/// The index of a row that does not exist.
#[derive(Debug, PartialEq, Eq)]
struct MissingRow(u64);

/// Copies rows of bytes. Short rows of common sizes are copied without a call.
fn copy_rows<I: Copy + Into<u64>>(
    table: &[u8],
    row_bytes: usize,
    indexes: &[I],
    out: &mut [u8],
) -> Result<(), MissingRow> {
    match row_bytes {
        1 => copy_fixed_rows::<1, I>(table, indexes, out),
        2 => copy_fixed_rows::<2, I>(table, indexes, out),
        4 => copy_fixed_rows::<4, I>(table, indexes, out),
        8 => copy_fixed_rows::<8, I>(table, indexes, out),
        16 => copy_fixed_rows::<16, I>(table, indexes, out),
        32 => copy_fixed_rows::<32, I>(table, indexes, out),
        64 => copy_fixed_rows::<64, I>(table, indexes, out),
        128 => copy_fixed_rows::<128, I>(table, indexes, out),
        _ => {
            for (target, &index) in out.chunks_exact_mut(row_bytes).zip(indexes) {
                target.copy_from_slice(row_of(table, row_bytes, index.into())?);
            }
            Ok(())
        }
    }
}

fn copy_fixed_rows<const N: usize, I: Copy + Into<u64>>(
    table: &[u8],
    indexes: &[I],
    out: &mut [u8],
) -> Result<(), MissingRow> {
    let (rows, _) = table.as_chunks::<N>();
    let (targets, _) = out.as_chunks_mut::<N>();
    for (target, &index) in targets.iter_mut().zip(indexes) {
        let index = index.into();
        let row = usize::try_from(index).ok().and_then(|index| rows.get(index));
        *target = *row.ok_or(MissingRow(index))?;
    }
    Ok(())
}

/// Returns a row of a table with `length` values per row.
#[inline]
fn row_of<T>(table: &[T], length: usize, index: u64) -> Result<&[T], MissingRow> {
    let start = usize::try_from(index).ok().and_then(|index| index.checked_mul(length));
    let row = start.and_then(|start| table.get(start..start.checked_add(length)?));
    row.ok_or(MissingRow(index))
}

/// Returns a row of the table in memory, or of the cold rows. `length` is the number of values per row.
#[inline]
fn mixed_row<'a, T>(
    table: &'a [T],
    cold: Option<(&ColdRows, &'a [T])>,
    (length, hot_rows): (usize, u64),
    index: u64,
) -> Result<&'a [T], MissingRow> {
    match cold {
        Some((cold, rows)) if index >= hot_rows => {
            let place = cold.place(index).ok_or(MissingRow(index))?;
            row_of(rows, length, place)
        }
        _ => row_of(table, length, index),
    }
}

/// Conversion of floating-point numbers.
trait ConvertTo<T>: ArrowNativeType {
    /// Converts all numbers. Both slices have the same length.
    fn convert(numbers: &[Self], out: &mut [T]);
}

impl ConvertTo<f32> for f16 {
    fn convert(numbers: &[Self], out: &mut [f32]) {
        numbers.convert_to_f32_slice(out);
    }
}

impl ConvertTo<f64> for f16 {
    fn convert(numbers: &[Self], out: &mut [f64]) {
        numbers.convert_to_f64_slice(out);
    }
}

impl ConvertTo<f16> for f32 {
    fn convert(numbers: &[Self], out: &mut [f16]) {
        out.convert_from_f32_slice(numbers);
    }
}

impl ConvertTo<f64> for f32 {
    fn convert(numbers: &[Self], out: &mut [f64]) {
        for (target, number) in out.iter_mut().zip(numbers) {
            *target = f64::from(*number);
        }
    }
}

impl ConvertTo<f16> for f64 {
    /// `half` converts directly on some processors, and through float32 on others.
    fn convert(numbers: &[Self], out: &mut [f16]) {
        let mut singles = [0.0; CONVERTED_NUMBERS];
        for (out, numbers) in out.chunks_mut(CONVERTED_NUMBERS).zip(numbers.chunks(CONVERTED_NUMBERS)) {
            let singles = &mut singles[..numbers.len()];
            <Self as ConvertTo<f32>>::convert(numbers, singles);
            out.convert_from_f32_slice(singles);
        }
    }
}

impl ConvertTo<f32> for f64 {
    fn convert(numbers: &[Self], out: &mut [f32]) {
        for (target, number) in out.iter_mut().zip(numbers) {
            *target = *number as f32;
        }
    }
}

#[cfg(test)]
mod tests;
