//! Computes the region of an image that a crop reads, and the position of the crop in the output.

use feedline_data::pipeline::Size;
use feedline_data::random::RowRandom;
use feedline_jpeg::Region;

/// Maximum number of attempts to draw a crop before a center crop is used, as in torchvision's `RandomResizedCrop.get_params`.
const MAX_ATTEMPTS: usize = 10;

/// Minimum downscaling factor for both axes at which a crop is decoded at half the size. With 3.5, the pixels of the test
/// photographs (0 to 255) differ by 0.8 on average from those decoded at full size. With 3 they differ by 1.1, and with 2 by
/// 2.5.
const MIN_FACTOR_FOR_HALF: f64 = 3.5;

/// A crop of an image and its position in the output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CropPlan {
    /// The pixels of the image that the resize filter may read.
    pub(crate) region: Region,
    /// The rectangle that is resized to `target`, in pixels relative to the corner of `region`. The bounds may be fractional.
    pub(crate) source: SourceBox,
    /// The rectangle of the output that contains the resized crop. The rest of the output is black.
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
    /// Returns a plan that resizes a region to the whole output.
    pub(crate) fn resized(region: Region, [height, width]: Size) -> Self {
        let (source_width, source_height) = (f64::from(region.width), f64::from(region.height));
        Self {
            region,
            source: SourceBox { left: 0.0, top: 0.0, width: source_width, height: source_height },
            target: Region { x: 0, y: 0, width, height },
        }
    }

    /// Whether the crop may be decoded at half the size, because the resize shrinks it by at least [`MIN_FACTOR_FOR_HALF`].
    pub(crate) fn may_be_halved(&self) -> bool {
        let shrinks = |from: f64, to: u32| from >= MIN_FACTOR_FOR_HALF * f64::from(to);
        shrinks(self.source.width, self.target.width) && shrinks(self.source.height, self.target.height)
    }

    /// Returns the plan for the image at half the size.
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

    /// Returns a plan that resizes the whole image.
    pub(crate) fn whole(width: u32, height: u32, size: Size) -> Self {
        Self::resized(Region { x: 0, y: 0, width, height }, size)
    }

    /// Returns the plan of torchvision's `CenterCrop(size)` after `Resize(resize)`.
    ///
    /// The result equals that of resizing the whole image and then cropping. The source box is the crop in the coordinates of the
    /// original image. The region contains every pixel that the resize filter reads. The filter is a triangle whose width is
    /// proportional to the scale.
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

/// Returns the size after torchvision's `Resize(side)`. The shorter side becomes `side`. The longer side is rounded down.
fn resized_extents(width: u32, height: u32, side: Option<u32>) -> (u32, u32) {
    let Some(side) = side else { return (width, height) };
    let longer =
        |long: u32, short: u32| ((f64::from(side) * f64::from(long) / f64::from(short)) as u32).max(1);
    if width <= height { (side, longer(height, width)) } else { (longer(width, height), side) }
}

/// One axis of a center crop.
struct Axis {
    /// The first pixel of the region.
    start: u32,
    /// Number of pixels in the region.
    extent: u32,
    /// The start of the source box in pixels, relative to `start`.
    left: f64,
    /// The width of the source box in pixels.
    width: f64,
    /// The first pixel in the output.
    target: u32,
    /// Number of pixels in the output.
    target_extent: u32,
}

impl Axis {
    /// Returns the middle `size` pixels of an axis that is resized from `original` to `resized` pixels.
    fn centered(original: u32, resized: u32, size: u32) -> Self {
        let scale = f64::from(original) / f64::from(resized);
        // As in torchvision, pad smaller images with the odd pixel at the end, and round half to even.
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

/// Draws a crop like torchvision's `RandomResizedCrop.get_params`.
pub(crate) fn random_crop(
    random: &mut RowRandom,
    width: u32,
    height: u32,
    scale: [f64; 2],
    ratio: [f64; 2],
) -> Region {
    let area = f64::from(width) * f64::from(height);
    let log_ratio = [ratio[0].ln(), ratio[1].ln()];
    for _ in 0..MAX_ATTEMPTS {
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
