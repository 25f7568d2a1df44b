//! Draws a JPEG that resembles a photograph: a smooth sky, texture at several scales, shaded shapes, and sensor noise.
//!
//! Decoding takes as long as decoding a photograph of about 500 x 375 pixels with quality 90 and 4:2:0 subsampling.
//! The size is usually 60 to 110 KB. All arithmetic uses integers, so that a seed generates the same bytes on every
//! machine.

use anyhow::Result;
use feedline_data::random::RowRandom;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

const JPEG_QUALITY: u8 = 90;
/// Number of fraction bits of colour levels.
const FRACTION_BITS: u32 = 8;
/// The octaves of the texture: cell size in pixels (as a power of two) and strength in grey levels.
const OCTAVES: [(u32, i32); 5] = [(7, 44), (5, 30), (3, 22), (2, 18), (1, 14)];

type Rgb = [i32; 3];

/// Draws the image of a row; `size` is height and width.
pub(crate) fn jpeg(seed: u64, row: u64, size: Option<[u16; 2]>) -> Result<Vec<u8>> {
    let mut random = RowRandom::new(seed, 0, 0, row);
    let [height, width] = size.unwrap_or_else(|| varied_size(&mut random));
    let pixels = draw(&mut random, usize::from(height), usize::from(width));
    let mut file = Vec::with_capacity(128 << 10);
    let mut encoder = Encoder::new(&mut file, JPEG_QUALITY);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode(&pixels, width, height, ColorType::Rgb)?;
    Ok(file)
}

/// Draws a random size. Two out of three images are in landscape format.
fn varied_size(random: &mut RowRandom) -> [u16; 2] {
    let shorter = [375, 375, 375, 333, 400][random.below(5) as usize];
    match random.below(3) {
        0 => [500, shorter],
        _ => [shorter, 500],
    }
}

/// Draws the pixels: height x width x RGB.
fn draw(random: &mut RowRandom, height: usize, width: usize) -> Vec<u8> {
    let corners: [Rgb; 4] = std::array::from_fn(|_| color(random, 40, 215));
    let contrast = random.below(90) as i32 + 80;
    let octaves: Vec<Octave> = OCTAVES
        .iter()
        .map(|&(cell_bits, levels)| Octave::new(random, height, width, cell_bits, levels * contrast / 100))
        .collect();
    let shapes: Vec<Shape> =
        (0..6 + random.below(8)).map(|_| Shape::new(random, height as i32, width as i32)).collect();
    let mut grain = Grain { state: random.next_u32() | 1, strength: 5 + random.below(9) as i32 };
    let mut line: Vec<Rgb> = vec![[0; 3]; width];
    let mut texture = vec![0; width];
    let mut pixels = vec![0; height * width * 3];
    for (y, row) in pixels.chunks_exact_mut(width * 3).enumerate() {
        fill_gradient(&mut line, &corners, y, height);
        for shape in &shapes {
            shape.add_to(&mut line, y as i32);
        }
        texture.fill(0);
        for octave in &octaves {
            octave.add_to(&mut texture, y);
        }
        for ((pixel, [red, green, blue]), level) in row.chunks_exact_mut(3).zip(&line).zip(&texture) {
            let level = level + grain.next();
            pixel[0] = to_byte(red + level);
            pixel[1] = to_byte(green + level);
            pixel[2] = to_byte(blue + level);
        }
    }
    pixels
}

#[inline]
fn to_byte(level: i32) -> u8 {
    (level >> FRACTION_BITS).clamp(0, 255) as u8
}

/// Sensor noise from a fast generator, because each pixel needs a number (Marsaglia: "Xorshift RNGs", 2003).
struct Grain {
    state: u32,
    /// Largest deviation in grey levels.
    strength: i32,
}

impl Grain {
    #[inline]
    fn next(&mut self) -> i32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        (((self.state >> 23) as i32) - 256) * self.strength
    }
}

/// Draws a random colour with levels between `low` and `high`, scaled by 2^[`FRACTION_BITS`].
fn color(random: &mut RowRandom, low: u32, high: u32) -> Rgb {
    std::array::from_fn(|_| ((low + random.below(high - low)) as i32) << FRACTION_BITS)
}

/// Fills a line with the colours interpolated between the four corners.
fn fill_gradient(line: &mut [Rgb], corners: &[Rgb; 4], y: usize, height: usize) {
    let mix = |from: i32, to: i32| from + (i64::from(to - from) * y as i64 / height as i64) as i32;
    let left: Rgb = std::array::from_fn(|channel| mix(corners[0][channel], corners[2][channel]));
    let right: Rgb = std::array::from_fn(|channel| mix(corners[1][channel], corners[3][channel]));
    // Eight more fraction bits keep the slope exact over a line of up to 8192 pixels.
    let step: Rgb =
        std::array::from_fn(|channel| ((right[channel] - left[channel]) << 8) / line.len() as i32);
    let [mut red, mut green, mut blue] = left.map(|level| level << 8);
    for pixel in line {
        *pixel = [red >> 8, green >> 8, blue >> 8];
        red += step[0];
        green += step[1];
        blue += step[2];
    }
}

/// Value noise: random levels on a grid with bilinear interpolation.
struct Octave {
    cell_bits: u32,
    columns: usize,
    levels: Vec<i32>,
}

impl Octave {
    fn new(random: &mut RowRandom, height: usize, width: usize, cell_bits: u32, strength: i32) -> Self {
        let columns = (width >> cell_bits) + 2;
        let rows = (height >> cell_bits) + 2;
        let span = (strength.max(1) as u32) << (FRACTION_BITS + 1);
        // Use 16 random bits per point, because drawing random numbers dominates the cost.
        let mut bits = 0;
        let mut levels = Vec::with_capacity(columns * rows);
        for index in 0..columns * rows {
            bits = if index % 2 == 0 { random.next_u32() } else { bits >> 16 };
            levels.push((((bits & 0xFFFF) * span) >> 16) as i32 - (span / 2) as i32);
        }
        Self { cell_bits, columns, levels }
    }

    fn add_to(&self, texture: &mut [i32], y: usize) {
        let cell = 1 << self.cell_bits;
        let below = (y & (cell - 1)) as i32;
        let first = (y >> self.cell_bits) * self.columns;
        let level = |column: usize| {
            let (upper, lower) = (self.levels[first + column], self.levels[first + self.columns + column]);
            (upper << self.cell_bits) + (lower - upper) * below
        };
        let mut left = level(0);
        for (column, run) in texture.chunks_mut(cell).enumerate() {
            let right = level(column + 1);
            let (mut sum, step) = (left << self.cell_bits, right - left);
            for level in run {
                *level += sum >> (2 * self.cell_bits);
                sum += step;
            }
            left = right;
        }
    }
}

/// An ellipse or a box that shifts the colour of the pixels below it, more strongly towards its right side.
struct Shape {
    is_ellipse: bool,
    center: [i64; 2],
    radius: [i64; 2],
    shift: Rgb,
}

impl Shape {
    fn new(random: &mut RowRandom, height: i32, width: i32) -> Self {
        let mut within =
            |low: i32, high: i32| i64::from(low + random.below((high - low).max(1) as u32) as i32);
        let center = [within(0, height), within(0, width)];
        let radius = [within(height / 24 + 1, height / 4 + 2), within(width / 24 + 1, width / 4 + 2)];
        let is_ellipse = random.below(3) > 0;
        let shift = color(random, 0, 180).map(|level| level - (90 << FRACTION_BITS));
        Self { is_ellipse, center, radius, shift }
    }

    fn add_to(&self, line: &mut [Rgb], y: i32) {
        let distance = (i64::from(y) - self.center[0]).abs();
        if distance >= self.radius[0] {
            return;
        }
        let half = if self.is_ellipse {
            let share = self.radius[0].pow(2) - distance.pow(2);
            self.radius[1] * share.isqrt() / self.radius[0]
        } else {
            self.radius[1]
        };
        let clip = |x: i64| x.clamp(0, line.len() as i64) as usize;
        let (start, end) = (clip(self.center[1] - half), clip(self.center[1] + half));
        let shade = 128 / (end - start).max(1) as i32;
        for (pixel, x) in line[start..end].iter_mut().zip(0..) {
            for (channel, shift) in pixel.iter_mut().zip(self.shift) {
                *channel += (shift >> 8) * (128 + shade * x);
            }
        }
    }
}
