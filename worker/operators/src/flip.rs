//! `random_horizontal_flip`: mirrors left and right, in place.

use bytes::BytesMut;
use feedline_data::random::RowRandom;
use feedline_jpeg::mirror_rgb;

use crate::{Chunk, Column, OperatorError, OperatorKernel, OutputBuffers};

/// Mirrors each row's image with a probability.
#[derive(Debug)]
pub(crate) struct FlipOperator {
    /// What the draws are keyed by: its place in the pipeline.
    pub(crate) draws: u32,
    pub(crate) seed: u64,
    pub(crate) column: String,
    pub(crate) p: f64,
}

impl FlipOperator {
    fn is_flipped(&self, pass: u32, row_id: u64) -> bool {
        RowRandom::new(self.seed, self.draws, pass, row_id).next_f64() < self.p
    }
}

impl OperatorKernel for FlipOperator {
    fn apply(&self, chunk: &mut Chunk, _slots: &mut OutputBuffers) -> Result<(), OperatorError> {
        let place = chunk.place_of(&self.column)?;
        let chosen: Vec<usize> =
            (0..chunk.rows()).filter(|&row| self.is_flipped(chunk.passes[row], chunk.row_ids[row])).collect();
        match &mut chunk.columns[place].1 {
            Column::Images(images) => {
                for row in chosen {
                    let image = &mut images[row];
                    // Copied only where somebody else holds it.
                    let mut pixels = BytesMut::from(std::mem::take(&mut image.data));
                    mirror(&mut pixels, image.width as usize * 3, 3);
                    image.data = pixels.freeze();
                }
            }
            Column::Tensor(tensor) if tensor.shape.len() == 3 => {
                let pixel_bytes = tensor.shape[2] as usize * tensor.scalar.width_bytes();
                let line_bytes = tensor.shape[1] as usize * pixel_bytes;
                for row in chosen {
                    mirror(tensor.row_mut(row), line_bytes, pixel_bytes);
                }
            }
            other => {
                let message = format!("column `{}` holds {}, not images", self.column, other.kind());
                return Err(OperatorError::new(message));
            }
        }
        Ok(())
    }
}

/// Turns every line's pixels round.
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
