//! Tests of crops against torchvision's formulas.

use super::*;

/// A direct translation of torchvision's `get_params`, with an xorshift generator as its random numbers.
fn reference(
    state: &mut u64,
    width: u32,
    height: u32,
    scale: [f64; 2],
    ratio: [f64; 2],
) -> Option<(u32, u32)> {
    let mut uniform = |low: f64, high: f64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        low + (high - low) * (*state >> 11) as f64 / (1u64 << 53) as f64
    };
    let area = f64::from(width * height);
    for _ in 0..10 {
        let target_area = area * uniform(scale[0], scale[1]);
        let aspect_ratio = uniform(ratio[0].ln(), ratio[1].ln()).exp();
        let w = (target_area * aspect_ratio).sqrt().round() as u32;
        let h = (target_area / aspect_ratio).sqrt().round() as u32;
        if 0 < w && w <= width && 0 < h && h <= height {
            return Some((w, h));
        }
    }
    None
}

/// The greatest distance between two empirical distributions (Kolmogorov and Smirnov).
fn distance(mut a: Vec<f64>, mut b: Vec<f64>) -> f64 {
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    let (mut at_a, mut at_b, mut worst) = (0, 0, 0.0f64);
    while at_a < a.len() && at_b < b.len() {
        let value = a[at_a].min(b[at_b]);
        while at_a < a.len() && a[at_a] <= value {
            at_a += 1;
        }
        while at_b < b.len() && b[at_b] <= value {
            at_b += 1;
        }
        worst = worst.max((at_a as f64 / a.len() as f64 - at_b as f64 / b.len() as f64).abs());
    }
    worst
}

#[test]
fn random_crops_have_torchvisions_distribution() {
    const DRAWS: u64 = 20_000;
    let (scale, ratio) = ([0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0]);
    for (width, height) in [(500, 375), (375, 500), (1000, 200)] {
        let mut state = 88172645463325252;
        let (mut areas, mut log_ratios) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let mut add = |of: usize, w: u32, h: u32| {
            areas[of].push(f64::from(w) * f64::from(h));
            log_ratios[of].push((f64::from(w) / f64::from(h)).ln());
        };
        for row in 0..DRAWS {
            let crop = random_crop(&mut RowRandom::new(3, 0, 0, row), width, height, scale, ratio);
            assert!(
                crop.width > 0
                    && crop.x + crop.width <= width
                    && crop.height > 0
                    && crop.y + crop.height <= height
            );
            add(0, crop.width, crop.height);
            let (w, h) = reference(&mut state, width, height, scale, ratio)
                .unwrap_or_else(|| ((f64::from(height) * ratio[1]).round() as u32, height));
            add(1, w, h);
        }
        // With 20,000 draws each, samples of equal distributions exceed this distance with a probability of 1 in 10,000.
        let limit = 2.23 * (2.0 / DRAWS as f64).sqrt();
        let [ours, theirs] = areas;
        assert!(distance(ours, theirs) < limit, "areas in {width} x {height}");
        let [ours, theirs] = log_ratios;
        assert!(distance(ours, theirs) < limit, "ratios in {width} x {height}");
    }
}

#[test]
fn random_crops_are_uniform_over_the_image() {
    let mut left = 0;
    for row in 0..4000 {
        let crop = random_crop(&mut RowRandom::new(3, 0, 0, row), 100, 100, [0.25, 0.25], [1.0, 1.0]);
        assert_eq!((crop.width, crop.height), (50, 50));
        left += crop.x;
    }
    assert!((f64::from(left) / 4000.0 - 25.0).abs() < 1.0);
}

#[test]
fn an_image_too_narrow_for_any_crop_is_cropped_at_its_center() {
    let crop = |width, height| {
        random_crop(&mut RowRandom::new(1, 0, 0, 0), width, height, [0.9, 1.0], [0.75, 4.0 / 3.0])
    };
    assert_eq!(crop(10, 1000), Region { x: 0, y: 493, width: 10, height: 13 });
    assert_eq!(crop(1000, 10), Region { x: 493, y: 0, width: 13, height: 10 });
    assert_eq!(crop(1, 1), Region { x: 0, y: 0, width: 1, height: 1 });
}

#[test]
fn crops_of_the_same_row_depend_only_on_pass_and_operator() {
    let crop = |operator, pass| {
        random_crop(&mut RowRandom::new(1, operator, pass, 9), 500, 375, [0.08, 1.0], [0.75, 1.33])
    };
    assert_eq!(crop(0, 0), crop(0, 0));
    assert_ne!(crop(0, 0), crop(0, 1));
    assert_ne!(crop(0, 0), crop(1, 0));
}

#[test]
fn the_shorter_side_has_the_given_size_and_the_other_is_rounded_down() {
    assert_eq!(resized_extents(500, 375, Some(256)), (341, 256));
    assert_eq!(resized_extents(375, 500, Some(256)), (256, 341));
    assert_eq!(resized_extents(300, 300, Some(256)), (256, 256));
    assert_eq!(resized_extents(500, 375, None), (500, 375));
}

#[test]
fn half_offsets_round_to_even_as_in_python() {
    let offset = |original, size| CropPlan::centered(original, original, [size, size], None).region.x;
    assert_eq!([offset(225, 224), offset(227, 224), offset(229, 224)], [0, 2, 2]);
}

#[test]
fn a_center_crop_needs_a_small_region_of_a_large_image() {
    let cut = CropPlan::centered(4000, 3000, [224, 224], Some(256));
    assert!(cut.region.width < 2700 && cut.region.height < 2700, "{cut:?}");
    assert_eq!(cut.target, Region { x: 0, y: 0, width: 224, height: 224 });
    for (width, height) in [(1, 1), (1, 5000), (5000, 1), (2, 3), (223, 225)] {
        for resize in [None, Some(1), Some(256)] {
            let Region { x, y, width: w, height: h } =
                CropPlan::centered(width, height, [224, 224], resize).region;
            assert!(w > 0 && h > 0 && x + w <= width && y + h <= height, "{width} x {height} {resize:?}");
        }
    }
}

#[test]
fn a_crop_at_half_scale_is_the_same_region_of_the_image() {
    let region = Region { x: 101, y: 40, width: 1000, height: 903 };
    let cut = CropPlan::resized(region, [200, 224]);
    assert!(cut.may_be_halved());
    let half = cut.halved();
    assert_eq!(half.region, Region { x: 50, y: 20, width: 501, height: 452 });
    assert_eq!(half.source, SourceBox { left: 0.5, top: 0.0, width: 500.0, height: 451.5 });
    assert_eq!(half.target, cut.target);
    for size in [[259, 224], [200, 286]] {
        assert!(!CropPlan::resized(region, size).may_be_halved(), "{size:?}");
    }
}
