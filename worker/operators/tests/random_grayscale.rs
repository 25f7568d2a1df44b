//! `random_grayscale` against torchvision's `rgb_to_grayscale` under the same draws.

#[path = "common/images.rs"]
mod common;

use common::{SHAPE, applied, build, chunk, photo, pixels, testdata};
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_operators::{Chunk, Column, Image};
use serde_json::json;

#[test]
fn rows_equal_torchvisions_where_the_draw_is_below_p() {
    let operator = build(pixels(), json!({"random_grayscale": {"column": "image", "p": 0.4}})).unwrap();
    let out = applied(&operator, chunk(ScalarType::UInt8, &[16, 20, 3], &photo(), 0));
    assert!(out == testdata("random_grayscale.rgb"), "the pixels differ from torchvision's");
    let changed = |pass| {
        let photo = photo();
        let out = applied(&operator, chunk(ScalarType::UInt8, &[16, 20, 3], &photo, pass));
        let rows = out.chunks(960).zip(photo.chunks(960));
        rows.map(|(out, before)| out != before).collect::<Vec<bool>>()
    };
    assert_ne!(changed(0), changed(1), "each pass draws anew");
}

#[test]
fn decoded_images_become_gray_like_tensors() {
    let spec = json!({"random_grayscale": {"column": "image", "p": 1.0}});
    let as_tensors = build(pixels(), spec.clone()).unwrap();
    let tensors = applied(&as_tensors, chunk(ScalarType::UInt8, &[16, 20, 3], &photo(), 0));
    let image = Image { width: 20, height: 16, data: testdata("photo16.rgb").into() };
    let columns = vec![("image".to_owned(), Column::Images(vec![image; SHAPE[0]]))];
    let images = Chunk::new(columns, (0..SHAPE[0] as u64).collect(), vec![0; SHAPE[0]]);
    assert!(applied(&build(ColumnType::Image, spec).unwrap(), images) == tensors);
    assert!(tensors.as_chunks::<3>().0.iter().all(|[red, green, blue]| red == green && green == blue));
}

#[test]
fn wrong_parameters_and_columns_are_rejected() {
    let said = |column, operator| build(column, operator).unwrap_err().message;
    assert_eq!(
        said(pixels(), json!({"random_grayscale": {"column": "image", "p": 1.5}})),
        "operator 1 (random_grayscale): p is 1.5; expected a probability from 0 to 1"
    );
    let floats = ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![3, 16, 20] };
    assert_eq!(
        said(floats, json!({"random_grayscale": {"column": "image"}})),
        "operator 1 (random_grayscale): column `image` contains float32 tensors [3, 16, 20], but the operator needs images or \
         uint8 tensors [height, width, 3]; move random_grayscale before normalize and cast"
    );
}
