//! Generated images with labels and file names; [`super::photo`] draws the images.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use arrow::array::{BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::photo;
use super::rows::RowSource;

/// Number of classes of generated images.
const CLASSES: u64 = 10;
/// Number of images in memory at a time. They use a few megabytes.
const BATCH_ROWS: u64 = 64;

/// Returns the schema of image datasets.
pub(super) fn image_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("image", DataType::Binary, false),
        Field::new("label", DataType::Int64, false),
        Field::new("filename", DataType::Utf8, false),
    ]))
}

/// Builds a batch with the schema [`image_schema`].
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

/// Generated JPEGs that resemble photographs. Each image is a function of the seed and the row index.
pub(super) struct GeneratedImages {
    rows: u64,
    seed: u64,
    size: Option<[u16; 2]>,
}

impl GeneratedImages {
    /// Creates the source. `size` is height and width; without a size, sizes are random.
    pub(super) fn new(rows: u64, seed: u64, size: Option<[u16; 2]>) -> Self {
        Self { rows, seed, size }
    }
}

impl RowSource for GeneratedImages {
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

/// Computes one value per row on all cores, and returns the values in row order.
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

/// Returns the extension of an image file in lower case, with `jpg` for every JPEG.
pub(super) fn image_extension(filename: &str) -> String {
    let extension = Path::new(filename).extension().and_then(|ending| ending.to_str()).unwrap_or("jpg");
    match extension.to_ascii_lowercase().as_str() {
        "jpeg" => "jpg".into(),
        other => other.into(),
    }
}
