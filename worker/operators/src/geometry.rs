//! Which pixels of an image an operator needs, and where they go. Pure arithmetic on sizes.

use feedline_data::pipeline::Size;
use feedline_data::random::RowRandom;
use feedline_jpeg::Region;

/// Attempts of torchvision's `RandomResizedCrop.get_params` before it falls back to the centre.
const ATTEMPTS: usize = 10;

/// A cut is decoded at half the size where it is resized to this part or less, on both axes. What that changes by mean
/// over the photographs of the tests is 0.8 of 255, at 2 and 3 it would be 2.5 and 1.1.
const HALVED_FROM: f64 = 3.5;

/// A part of an image and its place in the result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CropPlan {
    /// Pixels that take part, within the image. Those outside of it do not exist for the filter.
    pub(crate) region: Region,
    /// What is resized onto `target`, in pixels from the region's corner; may be fractional.
    pub(crate) source: SourceBox,
    /// Where it goes in the result; what lies outside of it is black.
    pub(crate) target: Region,
}

/// A rectangle with fractional bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SourceBox {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl CropPlan {
    /// The region, resized to the whole of a result of this size.
    pub(crate) fn resized(region: Region, [height, width]: Size) -> Self {
        let (source_width, source_height) = (f64::from(region.width), f64::from(region.height));
        Self {
            region,
            source: SourceBox { left: 0.0, top: 0.0, width: source_width, height: source_height },
            target: Region { x: 0, y: 0, width, height },
        }
    }

    /// Whether decoding at half the size leaves the pixels within what a decoder may differ by.
    pub(crate) fn may_be_halved(&self) -> bool {
        let shrinks = |from: f64, to: u32| from >= HALVED_FROM * f64::from(to);
        shrinks(self.source.width, self.target.width) && shrinks(self.source.height, self.target.height)
    }

    /// The same cut of the image at half the size.
    pub(crate) fn halved(&self) -> Self {
        let axis = |start: u32, extent: u32, left: f64| {
            let first = start / 2;
            let odd = f64::from(start) / 2.0 - f64::from(first);
            (first, (start + extent).div_ceil(2) - first, odd + left / 2.0)
        };
        let Self { region, source, target } = *self;
        let (x, width, left) = axis(region.x, region.width, source.left);
        let (y, height, top) = axis(region.y, region.height, source.top);
        let source = SourceBox { left, top, width: source.width / 2.0, height: source.height / 2.0 };
        Self { region: Region { x, y, width, height }, source, target }
    }

    /// The whole image, resized.
    pub(crate) fn whole(width: u32, height: u32, size: Size) -> Self {
        Self::resized(Region { x: 0, y: 0, width, height }, size)
    }

    /// torchvision's `CenterCrop(size)` after `Resize(resize)`.
    ///
    /// Equal to resizing the whole image and cutting then: the box is the crop in the whole image's coordinates, and
    /// the region holds every pixel that the filter (a triangle of the downscaling's width) reads for it.
    pub(crate) fn centered(width: u32, height: u32, size: Size, resize: Option<u32>) -> Self {
        let (resized_width, resized_height) = resized_extents(width, height, resize);
        let across = Axis::centered(width, resized_width, size[1]);
        let down = Axis::centered(height, resized_height, size[0]);
        Self {
            region: Region { x: across.start, y: down.start, width: across.extent, height: down.extent },
            source: SourceBox { left: across.left, top: down.left, width: across.width, height: down.width },
            target: Region {
                x: across.target,
                y: down.target,
                width: across.target_extent,
                height: down.target_extent,
            },
        }
    }
}

/// torchvision's `Resize(side)`: the shorter side becomes `side`, the other keeps the ratio, rounded down.
fn resized_extents(width: u32, height: u32, side: Option<u32>) -> (u32, u32) {
    let Some(side) = side else { return (width, height) };
    let longer =
        |long: u32, short: u32| ((f64::from(side) * f64::from(long) / f64::from(short)) as u32).max(1);
    if width <= height { (side, longer(height, width)) } else { (longer(width, height), side) }
}

/// One axis of a centred cut.
struct Axis {
    /// First pixel of the region and their number.
    start: u32,
    extent: u32,
    /// The box from `start`, in pixels.
    left: f64,
    width: f64,
    /// First pixel in the result and their number.
    target: u32,
    target_extent: u32,
}

impl Axis {
    /// The middle `size` pixels of an axis of `original` pixels that was resized to `resized`.
    fn centered(original: u32, resized: u32, size: u32) -> Self {
        let scale = f64::from(original) / f64::from(resized);
        // torchvision pads an image that is smaller, the odd pixel at the end, and rounds half to even, as Python.
        let (first, target, target_extent) = if size > resized {
            (0, (size - resized) / 2, resized)
        } else {
            ((f64::from(resized - size) / 2.0).round_ties_even() as u32, 0, size)
        };
        let (left, width) = (f64::from(first) * scale, f64::from(target_extent) * scale);
        if original == resized {
            return Self { start: first, extent: target_extent, left: 0.0, width, target, target_extent };
        }
        let support = scale.max(1.0);
        let start = (left - support).floor().max(0.0) as u32;
        let end = ((left + width + support).ceil() as u32 + 1).min(original);
        Self { start, extent: end - start, left: left - f64::from(start), width, target, target_extent }
    }
}

/// The rectangle of torchvision's `RandomResizedCrop.get_params` for an image of this size.
pub(crate) fn random_crop(
    random: &mut RowRandom,
    width: u32,
    height: u32,
    scale: [f64; 2],
    ratio: [f64; 2],
) -> Region {
    let area = f64::from(width) * f64::from(height);
    let log_ratio = [ratio[0].ln(), ratio[1].ln()];
    for _ in 0..ATTEMPTS {
        let target_area = area * random.uniform(scale[0], scale[1]);
        let aspect = random.uniform(log_ratio[0], log_ratio[1]).exp();
        let crop_width = (target_area * aspect).sqrt().round_ties_even() as u32;
        let crop_height = (target_area / aspect).sqrt().round_ties_even() as u32;
        if (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height) {
            let y = random.below(height - crop_height + 1);
            let x = random.below(width - crop_width + 1);
            return Region { x, y, width: crop_width, height: crop_height };
        }
    }
    let image_ratio = f64::from(width) / f64::from(height);
    let (crop_width, crop_height) = if image_ratio < ratio[0] {
        (width, (f64::from(width) / ratio[0]).round_ties_even() as u32)
    } else if image_ratio > ratio[1] {
        ((f64::from(height) * ratio[1]).round_ties_even() as u32, height)
    } else {
        (width, height)
    };
    let (crop_width, crop_height) = (crop_width.clamp(1, width), crop_height.clamp(1, height));
    Region {
        x: (width - crop_width) / 2,
        y: (height - crop_height) / 2,
        width: crop_width,
        height: crop_height,
    }
}

#[cfg(test)]
mod tests;
