//! `random_erasing` against torchvision's `erase` under the same drawn parameters.

#[path = "common/images.rs"]
mod common;

use common::{SHAPE, applied, build, chunk, photo, pixels, testdata};
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_operators::{Chunk, Column, Image};
use serde_json::json;

fn erasing() -> serde_json::Value {
    json!({"random_erasing": {"column": "image", "p": 0.6, "value": 7}})
}

#[test]
fn rows_equal_torchvisions_under_the_same_parameters() {
    let operator = build(pixels(), erasing()).unwrap();
    let out = applied(&operator, chunk(ScalarType::UInt8, &[16, 20, 3], &photo(), 0));
    assert!(out == testdata("random_erasing.rgb"), "the pixels differ from torchvision's");
    let again = applied(&operator, chunk(ScalarType::UInt8, &[16, 20, 3], &photo(), 1));
    assert!(out != again, "each pass draws anew");
}

#[test]
fn the_same_rectangles_are_erased_from_images_and_float_planes() {
    let golden = testdata("random_erasing.rgb");
    let image = Image { width: 20, height: 16, data: testdata("photo16.rgb").into() };
    let columns = vec![("image".to_owned(), Column::Images(vec![image; SHAPE[0]]))];
    let images = Chunk::new(columns, (0..SHAPE[0] as u64).collect(), vec![0; SHAPE[0]]);
    assert!(applied(&build(ColumnType::Image, erasing()).unwrap(), images) == golden);

    let planes = ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![3, 16, 20] };
    let empty = (-1.0_f32).to_ne_bytes().repeat(SHAPE.iter().product());
    let planes = build(planes, erasing()).unwrap();
    let out = applied(&planes, chunk(ScalarType::Float32, &[3, 16, 20], &empty, 0));
    let out: Vec<f32> = out.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
    let photo = photo();
    for (place, (after, before)) in golden.iter().zip(&photo).enumerate() {
        let (row, pixel, channel) = (place / 960, place % 960 / 3, place % 3);
        let value = out[row * 960 + channel * 320 + pixel];
        assert!(value == -1.0 || value == 7.0);
        if after != before {
            assert_eq!(value, 7.0, "row {row}, pixel {pixel}");
        } else {
            assert!(value == -1.0 || *after == 7, "row {row}, pixel {pixel}");
        }
    }
}

#[test]
fn rectangles_have_the_given_areas_and_reach_every_side() {
    let spec = json!({"random_erasing": {"column": "image", "p": 1.0, "scale": [0.1, 0.2], "value": 1}});
    let operator = build(pixels(), spec).unwrap();
    let (mut areas, mut corners) = (Vec::new(), [false; 2]);
    for pass in 0..50 {
        let out = applied(&operator, chunk(ScalarType::UInt8, &[16, 20, 3], &[0; 15_360], pass));
        for row in out.chunks(960) {
            areas.push(row.iter().filter(|&&value| value == 1).count() / 3);
            corners = [corners[0] || row[0] == 1, corners[1] || row[959] == 1];
        }
    }
    assert_eq!(areas.len(), 800);
    // Sides are rounded to whole pixels.
    assert!(areas.iter().all(|area| (24..=76).contains(area)), "{areas:?}");
    let mean = areas.iter().sum::<usize>() as f64 / 800.0;
    assert!((mean - 0.15 * 320.0).abs() < 2.0, "{mean}");
    assert_eq!(corners, [true; 2]);
}

#[test]
fn a_failed_row_stays_zero() {
    let operator =
        build(pixels(), json!({"random_erasing": {"column": "image", "p": 1.0, "value": 9}})).unwrap();
    let mut failed = chunk(ScalarType::UInt8, &[16, 20, 3], &[0; 15_360], 0);
    failed.fail(3, "damaged");
    let out = applied(&operator, failed);
    assert!(out.chunks(960).enumerate().all(|(row, pixels)| pixels.contains(&9) == (row != 3)));
}

#[test]
fn wrong_parameters_and_columns_are_rejected() {
    let said = |column, parameters: serde_json::Value| {
        let mut spec = json!({"column": "image"});
        let parameters = parameters.as_object().expect("parameters are a mapping").clone();
        spec.as_object_mut().expect("it is a mapping").extend(parameters);
        let message = build(column, json!({ "random_erasing": spec })).unwrap_err().message;
        message.trim_start_matches("operator 1 (random_erasing): ").to_owned()
    };
    assert_eq!(said(pixels(), json!({"p": -0.1})), "p is -0.1; expected a probability from 0 to 1");
    assert_eq!(
        said(pixels(), json!({"scale": [0.5, 2]})),
        "the larger scale is 2; expected a number from 0 to 1"
    );
    assert_eq!(
        said(pixels(), json!({"ratio": [3, 1]})),
        "ratio is [3, 1]; expected two positive numbers, the smaller one first"
    );
    assert_eq!(
        said(pixels(), json!({"value": 0.5})),
        "value 0.5 does not fit uint8, the element type of column `image`; write a whole number from 0 to 255"
    );
    assert!(
        said(ColumnType::Binary, json!({}))
            .ends_with("add decode_image, resize or random_resized_crop before random_erasing")
    );
}
