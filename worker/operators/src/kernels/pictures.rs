//! `decode_image`, `resize`, `center_crop` and `random_resized_crop`: decode, crop and resize images.

use std::sync::Arc;

use feedline_data::pipeline::{CenterCrop, DecodeImage, RandomResizedCrop, Resize, Size};
use feedline_data::random::RowRandom;
use feedline_data::schema::ScalarType;

use super::{KernelContext, KernelDefinition};
use crate::arrow_types::encoded_bytes;
use crate::geometry::{CropPlan, random_crop};
use crate::render::{Picture, with_scratch};
use crate::{Chunk, Column, Image, OperatorError, OperatorKernel, OutputBuffers};

impl KernelDefinition for DecodeImage {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(DecodeImageOperator { column: self.column.clone() }))
    }
}

/// Decodes encoded bytes to images.
#[derive(Debug)]
pub(crate) struct DecodeImageOperator {
    pub(crate) column: String,
}

impl OperatorKernel for DecodeImageOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let encoded = chunk.arrow(&self.column)?.clone();
        let failed = chunk.failed_rows();
        let mut failures = Vec::new();
        let mut images = Vec::with_capacity(encoded.len());
        for row in 0..encoded.len() {
            let bytes = encoded_bytes(&encoded, row, &self.column)?;
            let image = match bytes {
                _ if failed.contains(row) => Image::default(),
                None => {
                    failures.push((row, format!("column `{}` is null", self.column)));
                    Image::default()
                }
                Some(bytes) => with_scratch(|scratch| scratch.decode(bytes)).unwrap_or_else(|reason| {
                    failures.push((row, format!("column `{}`: {reason}", self.column)));
                    Image::default()
                }),
            };
            images.push(image);
        }
        chunk.set(&self.column, Column::Images(images));
        chunk.fail_all(failures);
        Ok(())
    }
}

/// The part of an image that a kernel crops.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CropChoice {
    /// The whole image.
    Whole,
    /// The center, after the shorter side is resized to this length.
    Center(Option<u32>),
    /// A random rectangle.
    Random { scale: [f64; 2], ratio: [f64; 2] },
}

impl KernelDefinition for Resize {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(FixedSizeOperator::new(context, &self.column, self.size, CropChoice::Whole)))
    }

    fn decoded_column(&self) -> Option<(&str, Size)> {
        Some((&self.column, self.size))
    }
}

impl KernelDefinition for CenterCrop {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        let choice = CropChoice::Center(self.resize);
        Ok(Arc::new(FixedSizeOperator::new(context, &self.column, self.size, choice)))
    }

    fn decoded_column(&self) -> Option<(&str, Size)> {
        Some((&self.column, self.size.map(|extent| extent.min(self.resize.unwrap_or(extent)))))
    }
}

impl KernelDefinition for RandomResizedCrop {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        let choice = CropChoice::Random { scale: self.scale, ratio: self.ratio };
        Ok(Arc::new(FixedSizeOperator::new(context, &self.column, self.size, choice)))
    }

    fn decoded_column(&self) -> Option<(&str, Size)> {
        Some((&self.column, self.size))
    }
}

/// Crops each image and resizes the crop to one size.
#[derive(Debug)]
pub(crate) struct FixedSizeOperator {
    /// The key of the output buffers.
    pub(crate) index: usize,
    pub(crate) draw_key: u32,
    pub(crate) seed: u64,
    pub(crate) column: String,
    pub(crate) size: Size,
    pub(crate) choice: CropChoice,
}

impl FixedSizeOperator {
    fn new(context: &KernelContext<'_>, column: &str, size: Size, choice: CropChoice) -> Self {
        let KernelContext { index, draw_key, seed, .. } = *context;
        Self { index, draw_key, seed, column: column.to_owned(), size, choice }
    }

    fn plan_crop(&self, width: u32, height: u32, pass: u32, row_id: u64) -> CropPlan {
        match self.choice {
            CropChoice::Whole => CropPlan::whole(width, height, self.size),
            CropChoice::Center(resize) => CropPlan::centered(width, height, self.size, resize),
            CropChoice::Random { scale, ratio } => {
                let mut random = RowRandom::new(self.seed, self.draw_key, pass, row_id);
                CropPlan::resized(random_crop(&mut random, width, height, scale, ratio), self.size)
            }
        }
    }
}

impl OperatorKernel for FixedSizeOperator {
    fn apply(&self, chunk: &mut Chunk, buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let column_index = chunk.column_index(&self.column)?;
        let shape = [self.size[0], self.size[1], 3];
        let mut tensor =
            buffers.tensor(self.index, &self.column, (ScalarType::UInt8, &shape), chunk.rows())?;
        let failed = chunk.failed_rows();
        let column = &chunk.columns[column_index].1;
        let mut failures = Vec::new();
        with_scratch(|scratch| {
            for row in 0..chunk.rows() {
                let out = tensor.row_mut(row);
                let picture = match picture_at(column, row, &self.column)? {
                    _ if failed.contains(row) => None,
                    Ok(picture) => picture,
                    Err(reason) => {
                        failures.push((row, reason));
                        None
                    }
                };
                let Some(picture) = picture else {
                    out.fill(0);
                    continue;
                };
                let (pass, row_id) = (chunk.passes[row], chunk.row_ids[row]);
                let plan = |width, height| self.plan_crop(width, height, pass, row_id);
                if let Err(reason) = scratch.render(picture, plan, self.size, out) {
                    failures.push((row, format!("column `{}`: {reason}", self.column)));
                    out.fill(0);
                }
            }
            Ok::<(), OperatorError>(())
        })?;
        chunk.columns[column_index].1 = Column::Tensor(tensor);
        chunk.fail_all(failures);
        Ok(())
    }
}

/// Returns the picture of a row. `None` for the placeholder of a failed row. The inner error is the reason why the row fails.
#[allow(clippy::type_complexity)]
fn picture_at<'a>(
    column: &'a Column,
    row: usize,
    name: &str,
) -> Result<Result<Option<Picture<'a>>, String>, OperatorError> {
    Ok(match column {
        Column::Arrow(array) => match encoded_bytes(array, row, name)? {
            Some(bytes) => Ok(Some(Picture::Encoded(bytes))),
            None => Err(format!("column `{name}` is null")),
        },
        Column::Images(images) => {
            let Image { width, height, data } = &images[row];
            let is_placeholder = data.is_empty();
            Ok((!is_placeholder).then_some(Picture::Decoded { width: *width, height: *height, pixels: data }))
        }
        Column::Tensor(tensor) => match tensor.shape[..] {
            [height, width, 3] if tensor.scalar == ScalarType::UInt8 => {
                Ok(Some(Picture::Decoded { width, height, pixels: tensor.row(row) }))
            }
            _ => {
                return Err(OperatorError::new(format!(
                    "column `{name}` contains {}, but must contain images",
                    column.describe()
                )));
            }
        },
    })
}

#[cfg(test)]
mod tests;
