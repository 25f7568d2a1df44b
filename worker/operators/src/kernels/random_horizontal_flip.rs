//! `random_horizontal_flip`: mirrors images horizontally, in place.

use std::sync::Arc;

use feedline_data::pipeline::RandomHorizontalFlip;
use feedline_data::random::RowRandom;
use feedline_jpeg::mirror_rgb;

use super::image_edit::edit_images;
use super::{KernelContext, KernelDefinition};
use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

impl KernelDefinition for RandomHorizontalFlip {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        let (draw_key, seed) = (context.draw_key, context.seed);
        Ok(Arc::new(FlipOperator { draw_key, seed, column: self.column.clone(), p: self.p }))
    }

    fn tensor_column(&self) -> Option<&str> {
        Some(&self.column)
    }
}

/// Mirrors the image of each row with probability `p`.
#[derive(Debug)]
struct FlipOperator {
    draw_key: u32,
    seed: u64,
    column: String,
    p: f64,
}

impl FlipOperator {
    fn is_flipped(&self, pass: u32, row_id: u64) -> bool {
        RowRandom::new(self.seed, self.draw_key, pass, row_id).next_f64() < self.p
    }
}

impl OperatorKernel for FlipOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let choose =
            |chunk: &Chunk, row: usize| self.is_flipped(chunk.passes[row], chunk.row_ids[row]).then_some(());
        edit_images(chunk, &self.column, choose, |image, ()| {
            let [_, width, channels] = image.shape;
            let pixel_bytes = channels * image.scalar.width_bytes();
            mirror(image.data, width * pixel_bytes, pixel_bytes);
        })
    }
}

/// Reverses the pixels of each line.
fn mirror(pixels: &mut [u8], line_bytes: usize, pixel_bytes: usize) {
    if line_bytes == 0 {
        return;
    }
    for line in pixels.chunks_exact_mut(line_bytes) {
        match pixel_bytes {
            1 => line.reverse(),
            3 => mirror_rgb(line),
            6 => line.as_chunks_mut::<6>().0.reverse(),
            12 => line.as_chunks_mut::<12>().0.reverse(),
            _ => mirror_line(line, pixel_bytes),
        }
    }
}

fn mirror_line(line: &mut [u8], pixel_bytes: usize) {
    let (mut front, mut back) = (0, line.len() - pixel_bytes);
    while front < back {
        let (left, right) = line.split_at_mut(back);
        left[front..front + pixel_bytes].swap_with_slice(&mut right[..pixel_bytes]);
        front += pixel_bytes;
        back -= pixel_bytes;
    }
}

#[cfg(test)]
mod tests;
