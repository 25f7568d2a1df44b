//! `random_grayscale`: converts images to grayscale with three equal channels, in place.

use std::sync::Arc;

use feedline_data::pipeline::RandomGrayscale;
use feedline_data::random::RowRandom;

use super::image_edit::edit_images;
use super::{KernelContext, KernelDefinition};
use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

/// Weights of red, green and blue in torchvision's `rgb_to_grayscale` for tensors (ITU-R BT.601).
const WEIGHTS: [f32; 3] = [0.2989, 0.587, 0.114];

impl KernelDefinition for RandomGrayscale {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        let (draw_key, seed) = (context.draw_key, context.seed);
        Ok(Arc::new(GrayscaleOperator { draw_key, seed, column: self.column.clone(), p: self.p }))
    }

    fn tensor_column(&self) -> Option<&str> {
        Some(&self.column)
    }
}

/// Converts the image of each row to grayscale with probability `p`.
#[derive(Debug)]
struct GrayscaleOperator {
    draw_key: u32,
    seed: u64,
    column: String,
    p: f64,
}

impl OperatorKernel for GrayscaleOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let choose = |chunk: &Chunk, row: usize| {
            let mut random = RowRandom::new(self.seed, self.draw_key, chunk.passes[row], chunk.row_ids[row]);
            (random.next_f64() < self.p).then_some(())
        };
        edit_images(chunk, &self.column, choose, |image, ()| {
            for pixel in image.data.as_chunks_mut::<3>().0 {
                *pixel = [luminance(*pixel); 3];
            }
        })
    }
}

/// Computes the weighted sum with 32-bit floats and rounds it down, as torchvision does.
fn luminance([red, green, blue]: [u8; 3]) -> u8 {
    let [red_weight, green_weight, blue_weight] = WEIGHTS;
    (red_weight * f32::from(red) + green_weight * f32::from(green) + blue_weight * f32::from(blue)) as u8
}
