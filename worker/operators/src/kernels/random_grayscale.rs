//! `random_grayscale`: three equal channels, in place.

use std::sync::Arc;

use feedline_data::pipeline::RandomGrayscale;
use feedline_data::random::RowRandom;

use super::image_edit::edit_images;
use super::{KernelContext, KernelDefinition};
use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

/// Weights of red, green and blue in torchvision's `rgb_to_grayscale` of tensors (ITU-R BT.601).
const WEIGHTS: [f32; 3] = [0.2989, 0.587, 0.114];

impl KernelDefinition for RandomGrayscale {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        let (draws, seed) = (context.draws, context.seed);
        Ok(Arc::new(GrayscaleOperator { draws, seed, column: self.column.clone(), p: self.p }))
    }
}

/// Turns each row's image grey with a probability.
#[derive(Debug)]
struct GrayscaleOperator {
    /// The key of the random draws.
    draws: u32,
    seed: u64,
    column: String,
    p: f64,
}

impl OperatorKernel for GrayscaleOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let choose = |chunk: &Chunk, row: usize| {
            let mut random = RowRandom::new(self.seed, self.draws, chunk.passes[row], chunk.row_ids[row]);
            (random.next_f64() < self.p).then_some(())
        };
        edit_images(chunk, &self.column, choose, |image, ()| {
            for pixel in image.data.as_chunks_mut::<3>().0 {
                *pixel = [luminance(*pixel); 3];
            }
        })
    }
}

/// The weighted sum in 32-bit floats, rounded down, as torchvision computes it.
fn luminance([red, green, blue]: [u8; 3]) -> u8 {
    let [of_red, of_green, of_blue] = WEIGHTS;
    (of_red * f32::from(red) + of_green * f32::from(green) + of_blue * f32::from(blue)) as u8
}
