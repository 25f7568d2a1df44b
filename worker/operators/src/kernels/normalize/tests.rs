//! Tests of normalized values against torchvision's arithmetic, in both layouts and both float types.

use super::*;
use crate::testing::{build, chunk, pixels, tensor};
use feedline_data::schema::Schema;

const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const STD: [f64; 3] = [0.229, 0.224, 0.225];

fn normalized(dtype: &str, layout: &str, mean: &[f64], std: &[f64]) -> crate::Chunk {
    let shape = vec![2, 3, 3];
    let schema =
        Schema::new([("image", ColumnType::Tensor { scalar: ScalarType::UInt8, shape: shape.clone() })]);
    let spec = serde_json::json!({"normalize": {"column": "image", "mean": mean, "std": std, "dtype": dtype, "layout": layout}});
    let operators = build(&schema, vec![spec]);
    assert_eq!(operators[0].written_column.as_deref(), Some("image"));
    let values: Vec<u8> = (0..36).map(|value| value * 7).collect();
    let mut chunk = chunk([("image", pixels(&shape, &values))]);
    crate::testing::run(&operators, &mut chunk);
    chunk
}

fn expected(value: u8, mean: f64, std: f64) -> f32 {
    (f32::from(value) / 255.0 - mean as f32) / std as f32
}

#[test]
fn float32_values_are_bit_identical_to_torchvisions() {
    let chunk = normalized("float32", "hwc", &MEAN, &STD);
    let out = tensor(&chunk, "image");
    assert_eq!((out.scalar, &out.shape[..], out.rows), (ScalarType::Float32, &[2, 3, 3][..], 2));
    for (place, bytes) in out.row(1).as_chunks::<4>().0.iter().enumerate() {
        let value = (18 + place as u8) * 7;
        assert_eq!(f32::from_ne_bytes(*bytes), expected(value, MEAN[place % 3], STD[place % 3]));
    }
}

#[test]
fn channels_first_has_the_same_values_in_planes() {
    let chunk = normalized("float32", "chw", &MEAN, &STD);
    let out = tensor(&chunk, "image");
    assert_eq!(out.shape, [3, 2, 3]);
    for (place, bytes) in out.row(0).as_chunks::<4>().0.iter().enumerate() {
        let (channel, pixel) = (place / 6, place % 6);
        let value = (pixel * 3 + channel) as u8 * 7;
        assert_eq!(f32::from_ne_bytes(*bytes), expected(value, MEAN[channel], STD[channel]));
    }
}

#[test]
fn float16_rounds_the_float32_value_and_one_mean_applies_to_all_channels() {
    for layout in ["hwc", "chw"] {
        let chunk = normalized("float16", layout, &[0.5], &[0.25]);
        let out = tensor(&chunk, "image");
        assert_eq!((out.scalar, out.row_bytes()), (ScalarType::Float16, 36));
        let place = if layout == "hwc" { 4 } else { 7 };
        let bytes = out.row(0).as_chunks::<2>().0[place];
        assert_eq!(f16::from_ne_bytes(bytes), f16::from_f32(expected(4 * 7, 0.5, 0.25)), "{layout}");
    }
}

#[test]
fn images_of_other_channel_counts_are_normalized() {
    for channels in [1, 2, 4] {
        let schema = Schema::new([(
            "image",
            ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![1, 2, channels] },
        )]);
        let spec = serde_json::json!({"normalize": {"column": "image", "mean": [0.0], "std": [1.0]}});
        let values: Vec<u8> = (0..2 * channels as u8).collect();
        let mut chunk = chunk([("image", pixels(&[1, 2, channels], &values))]);
        crate::testing::run(&build(&schema, vec![spec]), &mut chunk);
        let last = *tensor(&chunk, "image").row(0).as_chunks::<4>().0.last().unwrap();
        assert_eq!(f32::from_ne_bytes(last), (2 * channels - 1) as f32 / 255.0);
    }
}
