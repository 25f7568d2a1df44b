//! `normalize`: converts pixels to floats with `(x / 255 - mean) / std`.

use std::sync::Arc;

use feedline_data::pipeline::{Normalize, TensorLayout};
use feedline_data::schema::{ColumnType, ScalarType};
use half::f16;

use super::{KernelContext, KernelDefinition};
use crate::{Chunk, Column, OperatorError, OperatorKernel, OutputBuffers, Tensor};

impl KernelDefinition for Normalize {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        let channels = match context.input_type(&self.column)? {
            ColumnType::Tensor { shape, .. } if shape.len() == 3 => shape[2] as usize,
            other => {
                return Err(format!(
                    "column `{}` has type {other}, but must contain image tensors",
                    self.column
                ));
            }
        };
        let (_, shape) = context.output_tensor(&self.column)?;
        Ok(Arc::new(NormalizeOperator::new(context.index, self, channels, shape)))
    }

    fn written_column(&self) -> Option<&str> {
        Some(&self.column)
    }
}

/// Converts 8-bit tensors to float tensors with lookup tables of 256 values per channel. The tables are computed with the same 32-bit
/// operations as in torchvision, so that the results are bit-identical.
#[derive(Debug)]
pub(crate) struct NormalizeOperator {
    index: usize,
    column: String,
    shape: Vec<u32>,
    layout: TensorLayout,
    tables: Tables,
}

#[derive(Debug)]
enum Tables {
    Float32(Vec<[f32; 256]>),
    Float16(Vec<[f16; 256]>),
}

impl NormalizeOperator {
    /// Creates a kernel that converts tensors with `channels` channels to tensors of `shape`.
    pub(crate) fn new(index: usize, spec: &Normalize, channels: usize, shape: &[u32]) -> Self {
        let channel_value =
            |values: &[f64], channel: usize| values[if values.len() == 1 { 0 } else { channel }] as f32;
        let table = |channel: usize| -> [f32; 256] {
            let (mean, std) = (channel_value(&spec.mean, channel), channel_value(&spec.std, channel));
            std::array::from_fn(|value| (value as f32 / 255.0 - mean) / std)
        };
        let float32 = (0..channels).map(table);
        let tables = if spec.dtype == ScalarType::Float16 {
            Tables::Float16(float32.map(|table| table.map(f16::from_f32)).collect())
        } else {
            Tables::Float32(float32.collect())
        };
        Self { index, column: spec.column.clone(), shape: shape.to_vec(), layout: spec.layout, tables }
    }

    fn scalar(&self) -> ScalarType {
        match self.tables {
            Tables::Float32(_) => ScalarType::Float32,
            Tables::Float16(_) => ScalarType::Float16,
        }
    }

    fn write_row(&self, pixels: &[u8], out: &mut [u8]) {
        match (&self.tables, self.layout) {
            (Tables::Float32(tables), TensorLayout::Hwc) => {
                write_interleaved(tables, pixels, out, f32::to_ne_bytes)
            }
            (Tables::Float32(tables), TensorLayout::Chw) => {
                write_planar(tables, pixels, out, f32::to_ne_bytes)
            }
            (Tables::Float16(tables), TensorLayout::Hwc) => {
                write_interleaved(tables, pixels, out, f16::to_ne_bytes)
            }
            (Tables::Float16(tables), TensorLayout::Chw) => {
                write_planar(tables, pixels, out, f16::to_ne_bytes)
            }
        }
    }
}

impl OperatorKernel for NormalizeOperator {
    fn apply(&self, chunk: &mut Chunk, buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let column_index = chunk.column_index(&self.column)?;
        let rows = chunk.rows();
        let mut out = buffers.tensor(self.index, &self.column, (self.scalar(), &self.shape), rows)?;
        let pixels = pixels_of(
            &chunk.columns[column_index].1,
            &self.column,
            out.row_bytes() / self.scalar().width_bytes(),
        )?;
        let failed = chunk.failed_rows();
        for row in 0..rows {
            if failed.contains(row) {
                out.row_mut(row).fill(0);
            } else {
                self.write_row(pixels.row(row), out.row_mut(row));
            }
        }
        chunk.columns[column_index].1 = Column::Tensor(out);
        Ok(())
    }
}

fn pixels_of<'a>(column: &'a Column, name: &str, elements: usize) -> Result<&'a Tensor, OperatorError> {
    match column {
        Column::Tensor(tensor) if tensor.scalar == ScalarType::UInt8 && tensor.row_bytes() == elements => {
            Ok(tensor)
        }
        other => Err(OperatorError::new(format!(
            "column `{name}` contains {}, but must contain 8-bit image tensors",
            other.describe()
        ))),
    }
}

/// Writes the layout height, width, channel.
fn write_interleaved<T: Copy, const WIDTH: usize>(
    tables: &[[T; 256]],
    pixels: &[u8],
    out: &mut [u8],
    bytes: impl Fn(T) -> [u8; WIDTH],
) {
    let values = out.as_chunks_mut::<WIDTH>().0;
    if let [red, green, blue] = tables {
        for (pixel, out) in pixels.as_chunks::<3>().0.iter().zip(values.as_chunks_mut::<3>().0) {
            *out = [
                bytes(red[usize::from(pixel[0])]),
                bytes(green[usize::from(pixel[1])]),
                bytes(blue[usize::from(pixel[2])]),
            ];
        }
        return;
    }
    for (pixel, out) in pixels.chunks_exact(tables.len()).zip(values.chunks_exact_mut(tables.len())) {
        for ((value, out), table) in pixel.iter().zip(out).zip(tables) {
            *out = bytes(table[usize::from(*value)]);
        }
    }
}

/// Writes the layout channel, height, width.
fn write_planar<T: Copy, const WIDTH: usize>(
    tables: &[[T; 256]],
    pixels: &[u8],
    out: &mut [u8],
    bytes: impl Fn(T) -> [u8; WIDTH],
) {
    let channels = tables.len();
    let values = out.as_chunks_mut::<WIDTH>().0;
    let plane_pixels = pixels.len() / channels;
    if plane_pixels == 0 {
        return;
    }
    for (channel, (plane, table)) in values.chunks_exact_mut(plane_pixels).zip(tables).enumerate() {
        for (pixel, out) in pixels.chunks_exact(channels).zip(plane) {
            *out = bytes(table[usize::from(pixel[channel])]);
        }
    }
}

#[cfg(test)]
mod tests;
