//! `random_erasing`: fills a random rectangle of an image, in place.

use std::sync::Arc;

use super::cast::float16::rounded_f16;
use feedline_data::pipeline::RandomErasing;
use feedline_data::random::RowRandom;
use feedline_data::schema::ScalarType;

use super::image_edit::{ImageMut, edit_images};
use super::{KernelContext, KernelDefinition};
use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

/// Maximum number of attempts to draw a rectangle before the image is left unchanged, as in torchvision's
/// `RandomErasing.get_params`.
const MAX_ATTEMPTS: usize = 10;

impl KernelDefinition for RandomErasing {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        let (draw_key, seed) = (context.draw_key, context.seed);
        Ok(Arc::new(ErasingOperator { draw_key, seed, parameters: self.clone() }))
    }

    fn tensor_column(&self) -> Option<&str> {
        Some(&self.column)
    }
}

/// Erases a rectangle in the image of each row with probability `p`.
#[derive(Debug)]
struct ErasingOperator {
    draw_key: u32,
    seed: u64,
    parameters: RandomErasing,
}

impl OperatorKernel for ErasingOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let RandomErasing { column, p, scale, ratio, value } = &self.parameters;
        let failed = chunk.failed_rows();
        let choose = |chunk: &Chunk, row: usize| {
            let mut random = RowRandom::new(self.seed, self.draw_key, chunk.passes[row], chunk.row_ids[row]);
            (random.next_f64() < *p && !failed.contains(row)).then_some(random)
        };
        edit_images(chunk, column, choose, |image, mut random| {
            let axes = ImageAxes::of(&image);
            if let Some(erased) = draw_rectangle(&mut random, axes.height, axes.width, *scale, *ratio) {
                let element = element_bytes(image.scalar, *value);
                axes.fill(image.data, &erased, &element);
            }
        })
    }
}

/// A part of an image, in pixels.
struct Rectangle {
    top: usize,
    left: usize,
    height: usize,
    width: usize,
}

/// Draws a rectangle like torchvision's `RandomErasing.get_params`. Draws again if a rectangle does not fit into the image.
fn draw_rectangle(
    random: &mut RowRandom,
    height: usize,
    width: usize,
    scale: [f64; 2],
    ratio: [f64; 2],
) -> Option<Rectangle> {
    let area = (height * width) as f64;
    for _ in 0..MAX_ATTEMPTS {
        let erased_area = area * random.uniform(scale[0], scale[1]);
        let aspect = random.uniform(ratio[0].ln(), ratio[1].ln()).exp();
        let erased_height = (erased_area * aspect).sqrt().round_ties_even() as usize;
        let erased_width = (erased_area / aspect).sqrt().round_ties_even() as usize;
        if erased_height < height && erased_width < width {
            let top = random.below((height - erased_height + 1) as u32) as usize;
            let left = random.below((width - erased_width + 1) as u32) as usize;
            return Some(Rectangle { top, left, height: erased_height, width: erased_width });
        }
    }
    None
}

/// The axes of an image. The last axis contains the channels if its extent is at most 4. Otherwise, the first axis contains the
/// channels.
struct ImageAxes {
    height: usize,
    width: usize,
    /// Number of elements per pixel in each plane.
    interleaved: usize,
    /// Number of planes.
    planes: usize,
}

impl ImageAxes {
    fn of(image: &ImageMut<'_>) -> Self {
        match image.shape {
            [height, width, channels] if channels <= 4 => {
                Self { height, width, interleaved: channels, planes: 1 }
            }
            [planes, height, width] => Self { height, width, interleaved: 1, planes },
        }
    }

    /// Sets the elements of a rectangle in every channel.
    fn fill(&self, data: &mut [u8], rectangle: &Rectangle, element: &[u8]) {
        let pixel_bytes = self.interleaved * element.len();
        for plane in 0..self.planes {
            for line in rectangle.top..rectangle.top + rectangle.height {
                let start = ((plane * self.height + line) * self.width + rectangle.left) * pixel_bytes;
                let erased = &mut data[start..start + rectangle.width * pixel_bytes];
                erased.chunks_exact_mut(element.len()).for_each(|out| out.copy_from_slice(element));
            }
        }
    }
}

/// Returns the bytes of a value. The operator accepts only tensors of these types.
fn element_bytes(scalar: ScalarType, value: f64) -> Vec<u8> {
    match scalar {
        ScalarType::Float16 => rounded_f16(value).to_ne_bytes().to_vec(),
        ScalarType::Float32 => (value as f32).to_ne_bytes().to_vec(),
        ScalarType::Float64 => value.to_ne_bytes().to_vec(),
        _ => vec![value as u8],
    }
}
