//! Tests of flipped pixels, and of the frequency of flips.

use super::*;
use crate::testing::{chunk, pixels, tensor};
use crate::{Column, Image, Tensor};
use feedline_data::schema::ScalarType;

fn flip(p: f64) -> FlipOperator {
    FlipOperator { draw_key: 2, seed: 5, column: "image".to_owned(), p }
}

#[test]
fn the_pixels_of_a_line_are_reversed() {
    let mut mirrored = chunk([(
        "image",
        pixels(&[2, 3, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19]),
    )]);
    flip(1.0).apply(&mut mirrored, &mut OutputBuffers::new()).unwrap();
    assert_eq!(
        tensor(&mirrored, "image").row(0),
        [7, 8, 9, 4, 5, 6, 1, 2, 3, 17, 18, 19, 14, 15, 16, 11, 12, 13]
    );
    let mut still = chunk([("image", pixels(&[1, 2, 3], &[1, 2, 3, 4, 5, 6]))]);
    flip(0.0).apply(&mut still, &mut OutputBuffers::new()).unwrap();
    assert_eq!(tensor(&still, "image").row(0), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn images_of_every_pixel_size_are_flipped() {
    for (scalar, channels) in [
        (ScalarType::UInt8, 1),
        (ScalarType::UInt8, 4),
        (ScalarType::Float16, 3),
        (ScalarType::Float32, 3),
        (ScalarType::Float64, 2),
    ] {
        let pixel_bytes = scalar.width_bytes() * channels as usize;
        let data: Vec<u8> = (0..5 * pixel_bytes).map(|byte| byte as u8).collect();
        let column = Column::Tensor(Tensor {
            scalar,
            shape: vec![1, 5, channels],
            data: data.as_slice().into(),
            rows: 1,
        });
        let mut mirrored = chunk([("image", column)]);
        flip(1.0).apply(&mut mirrored, &mut OutputBuffers::new()).unwrap();
        let expected: Vec<u8> = data.chunks(pixel_bytes).rev().flatten().copied().collect();
        assert_eq!(tensor(&mirrored, "image").row(0), expected, "{scalar:?} {channels}");
    }
}

#[test]
fn images_are_flipped_and_placeholders_are_not() {
    let image = Image { width: 2, height: 1, data: vec![1, 2, 3, 4, 5, 6].into() };
    let mut mirrored = chunk([("image", Column::Images(vec![Image::default(), image]))]);
    flip(1.0).apply(&mut mirrored, &mut OutputBuffers::new()).unwrap();
    let Some(Column::Images(images)) = mirrored.column("image") else { panic!("images stay images") };
    assert_eq!((images[0].data.len(), &images[1].data[..]), (0, &[4, 5, 6, 1, 2, 3][..]));
}

#[test]
fn the_frequency_is_the_probability() {
    for p in [0.25, 0.5, 0.9] {
        let flipped = (0..20_000).filter(|&row| flip(p).is_flipped(0, row)).count();
        // The tolerance is four standard deviations.
        let margin = 4.0 * (p * (1.0 - p) / 20_000.0f64).sqrt();
        assert!((flipped as f64 / 20_000.0 - p).abs() < margin, "{flipped} of 20000 for {p}");
    }
}
