//! Generated images: their columns, labels and names; [`super::photo`] draws them.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use arrow::array::{BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::photo;
use super::rows::Rows;

/// Classes of generated images.
const CLASSES: u64 = 10;
/// Images held at once: a few megabytes.
const BATCH_ROWS: u64 = 64;

/// The columns of image data sets.
pub(super) fn image_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("image", DataType::Binary, false),
        Field::new("label", DataType::Int64, false),
        Field::new("filename", DataType::Utf8, false),
    ]))
}

/// A batch of [`image_schema`].
pub(super) fn image_batch(
    images: &[Vec<u8>],
    labels: Vec<i64>,
    filenames: Vec<String>,
) -> Result<RecordBatch> {
    let images = BinaryArray::from_iter_values(images);
    let labels = Int64Array::from(labels);
    let filenames = StringArray::from(filenames);
    Ok(RecordBatch::try_new(image_schema(), vec![Arc::new(images), Arc::new(labels), Arc::new(filenames)])?)
}

/// Photograph-like JPEGs; each is a function of the seed and its row.
pub(super) struct GeneratedImages {
    rows: u64,
    seed: u64,
    size: Option<[u16; 2]>,
}

impl GeneratedImages {
    /// `size` is height and width; without it sizes vary.
    pub(super) fn new(rows: u64, seed: u64, size: Option<[u16; 2]>) -> Self {
        Self { rows, seed, size }
    }
}

impl Rows for GeneratedImages {
    fn schema(&self) -> SchemaRef {
        image_schema()
    }

    fn count(&self) -> u64 {
        self.rows
    }

    fn batch_rows(&self) -> u64 {
        BATCH_ROWS
    }

    fn read(&mut self, range: Range<u64>) -> Result<RecordBatch> {
        let (seed, size) = (self.seed, self.size);
        let images = in_parallel(range.clone(), |row| photo::jpeg(seed, row, size))?;
        let labels = range.clone().map(|row| (row % CLASSES) as i64).collect();
        let filenames = range.map(|row| format!("class{}_{row:06}.jpg", row % CLASSES)).collect();
        image_batch(&images, labels, filenames)
    }
}

/// Makes one value per row on all cores; the result is in row order.
fn in_parallel<T: Send>(rows: Range<u64>, make: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let share = (rows.end - rows.start).div_ceil(threads).max(1);
    thread::scope(|scope| {
        let mut parts = Vec::new();
        for start in rows.clone().step_by(share as usize) {
            let part = start..rows.end.min(start + share);
            parts.push(scope.spawn(|| part.map(&make).collect::<Result<Vec<T>>>()));
        }
        let mut made = Vec::new();
        for part in parts {
            made.extend(part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(made)
    })
}
