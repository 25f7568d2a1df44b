//! Tests of the image operators on chunks: buffers, failures and every type of input.

use arrow::array::BinaryArray;
use bytes::BytesMut;
use feedline_data::schema::{ColumnType, Schema};
use serde_json::json;

use crate::testing::{
    JPEG, array, arrow, build, bytes, chunk, image_schema, photo, pixels, run, tensor, testdata,
};
use crate::{Chunk, Column, OutputBuffers};

fn crop() -> serde_json::Value {
    json!({"random_resized_crop": {"column": "image", "size": [16, 20]}})
}

fn damaged() -> Vec<u8> {
    JPEG[..JPEG.len() / 3].to_vec()
}

#[test]
fn decode_image_reads_every_format() {
    let operators = build(&image_schema(), vec![json!({"decode_image": {"column": "image"}})]);
    assert_eq!(operators[0].schema.get("image"), Some(&ColumnType::Image));
    let mut chunk = chunk([("image", bytes(&[JPEG, &testdata("rgba.png"), &testdata("lossy.webp")]))]);
    run(&operators, &mut chunk);
    let Some(Column::Images(images)) = chunk.column("image") else { panic!("decoded images") };
    assert_eq!(
        images.iter().map(|image| (image.width, image.height)).collect::<Vec<_>>(),
        [(61, 45), (24, 16), (24, 16)]
    );
    assert!(images.iter().all(|image| image.data.len() == (image.width * image.height * 3) as usize));
    assert!(chunk.failures.is_empty());
}

#[test]
fn a_crop_fills_its_slot_and_nothing_else() {
    let operators = build(&image_schema(), vec![crop()]);
    assert_eq!(operators[0].written_column.as_deref(), Some("image"));
    let mut whole = BytesMut::from(&[0xEE; 3 * 16 * 20 * 3][..]);
    let mut slot = whole.split_off(16 * 20 * 3);
    let rest = slot.split_off(16 * 20 * 3);
    let mut buffers = OutputBuffers::new();
    let place = slot.as_ptr();
    buffers.insert(0, "image", slot);
    let mut chunk = chunk([("image", bytes(&[JPEG]))]);
    operators[0].operator.apply(&mut chunk, &mut buffers).unwrap();
    assert!(buffers.take(0, "image").is_none());
    let written = tensor(&chunk, "image");
    assert_eq!((written.data.as_ptr(), written.data.len(), written.rows), (place, 960, 1));
    assert!(written.row(0).iter().any(|&value| value != 0xEE));
    assert!(whole.iter().chain(&rest).all(|&value| value == 0xEE));
}

#[test]
fn a_slot_of_the_wrong_size_is_an_error() {
    let operators = build(&image_schema(), vec![crop()]);
    let mut buffers = OutputBuffers::new();
    buffers.insert(0, "image", BytesMut::zeroed(10));
    let error =
        operators[0].operator.apply(&mut chunk([("image", bytes(&[JPEG]))]), &mut buffers).unwrap_err();
    assert_eq!(error.message, "the output buffer of column `image` has 10 bytes, but 1 rows need 960");
}

#[test]
fn a_damaged_image_fails_only_its_row() {
    let operators = build(
        &image_schema(),
        vec![crop(), json!({"random_horizontal_flip": {"column": "image", "p": 1.0}})],
    );
    let good = |row: usize| {
        let mut chunk = chunk([("image", bytes(&[JPEG; 4]))]);
        run(&operators, &mut chunk);
        tensor(&chunk, "image").row(row).to_vec()
    };
    let column = BinaryArray::from(vec![Some(JPEG), Some(damaged().as_slice()), None, Some(b"GIF89a")]);
    let mut chunk = chunk([("image", arrow(column))]);
    let mut buffers = OutputBuffers::new();
    buffers.insert(0, "image", BytesMut::from(&[0xEE; 4 * 960][..]));
    for built in &operators {
        built.operator.apply(&mut chunk, &mut buffers).unwrap();
    }
    let out = tensor(&chunk, "image");
    assert_eq!(out.row(0), good(0));
    assert!((1..4).all(|row| out.row(row).iter().all(|&value| value == 0)), "failed rows are black");
    let reasons: Vec<&str> = chunk.failures.iter().map(|(_, reason)| reason.as_str()).collect();
    assert_eq!(chunk.failures.iter().map(|(origin, _)| *origin).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(reasons[1], "column `image` is null");
    assert!(reasons[0].starts_with("column `image`: ") && reasons[2].contains("GIF89a"), "{reasons:?}");
}

#[test]
fn a_row_that_failed_before_stays_failed_once() {
    let schema = image_schema();
    let decoded = build(&schema, vec![json!({"decode_image": {"column": "image"}}), crop()]);
    let mut chunk = chunk([("image", bytes(&[&damaged(), JPEG]))]);
    run(&decoded, &mut chunk);
    assert_eq!(chunk.failures.len(), 1);
    let normalized =
        build(&schema, vec![crop(), json!({"normalize": {"column": "image", "mean": [0.5], "std": [0.5]}})]);
    let mut again = crate::testing::chunk([("image", bytes(&[JPEG, &damaged()]))]);
    again.fail(1, "the source could not read it");
    run(&normalized, &mut again);
    assert_eq!(again.failures, [(1, "the source could not read it".to_owned())]);
    assert!(tensor(&again, "image").row(1).iter().all(|&value| value == 0), "a failed row is zeros, not -1");
}

#[test]
fn bytes_images_and_tensors_give_the_same_crop() {
    let (width, height, _) = photo();
    let size = json!([16, 20]);
    for operator in [
        json!({"resize": {"column": "image", "size": size}}),
        json!({"center_crop": {"column": "image", "size": size, "resize": 22}}),
        crop(),
    ] {
        let mut from_bytes = chunk([("image", bytes(&[JPEG]))]);
        run(&build(&image_schema(), vec![operator.clone()]), &mut from_bytes);
        let mut decoded = chunk([("image", bytes(&[JPEG]))]);
        run(&build(&image_schema(), vec![json!({"decode_image": {"column": "image"}})]), &mut decoded);
        let Some(Column::Images(images)) = decoded.column("image") else { panic!("decoded images") };
        let raw = images[0].data.clone();
        let image_column = Schema::new([("image", ColumnType::Image)]);
        let mut from_images = chunk([("image", Column::Images(images.clone()))]);
        run(&build(&image_column, vec![operator.clone()]), &mut from_images);
        let scalar = feedline_data::schema::ScalarType::UInt8;
        let tensors = Schema::new([("image", ColumnType::Tensor { scalar, shape: vec![height, width, 3] })]);
        let mut from_tensor = chunk([("image", pixels(&[height, width, 3], &raw))]);
        run(&build(&tensors, vec![operator]), &mut from_tensor);
        let row = |chunk: &Chunk| tensor(chunk, "image").row(0).to_vec();
        assert_eq!(row(&from_bytes), row(&from_images));
        assert_eq!(row(&from_bytes), row(&from_tensor));
    }
}

#[test]
fn the_same_row_gives_the_same_bytes_in_any_chunk() {
    let operators = build(&image_schema(), vec![crop()]);
    let row = |ids: Vec<u64>, pass: u32, place: usize| {
        let rows = ids.len();
        let columns = vec![("image".to_owned(), bytes(&vec![JPEG; rows]))];
        let mut chunk = Chunk::new(columns, ids, vec![pass; rows]);
        run(&operators, &mut chunk);
        tensor(&chunk, "image").row(place).to_vec()
    };
    assert_eq!(row(vec![4, 5, 6], 0, 1), row(vec![5], 0, 0));
    assert_ne!(row(vec![4, 5, 6], 0, 0), row(vec![5], 0, 0));
    assert_ne!(row(vec![5], 1, 0), row(vec![5], 0, 0));
}

#[test]
fn an_empty_chunk_is_processed() {
    let operators = build(&image_schema(), vec![json!({"decode_image": {"column": "image"}}), crop()]);
    let mut empty = chunk([("image", bytes(&[]))]);
    run(&operators, &mut empty);
    assert_eq!((empty.rows(), tensor(&empty, "image").rows), (0, 0));
}

#[test]
fn a_column_of_another_type_is_a_chunk_error() {
    let operators = build(&image_schema(), vec![crop()]);
    let mut wrong = chunk([("image", arrow(arrow::array::Int64Array::from(vec![1])))]);
    let error = operators[0].operator.apply(&mut wrong, &mut OutputBuffers::new()).unwrap_err();
    assert_eq!(error.message, "column `image` has type Int64, but must contain bytes");
    assert_eq!(array(&wrong, "image").len(), 1);
}

/// Whether a value is damaged depends on the value alone, and not on the operator or the random crop.
#[test]
fn all_operators_agree_on_damaged_images() {
    let operators = [
        json!({"decode_image": {"column": "image"}}),
        json!({"resize": {"column": "image", "size": [16, 16]}}),
        json!({"center_crop": {"column": "image", "size": [8, 8]}}),
        json!({"center_crop": {"column": "image", "size": [16, 16], "resize": 20}}),
        json!({"random_resized_crop": {"column": "image", "size": [8, 8], "scale": [0.02, 0.2]}}),
    ];
    let end = JPEG.len() - 2;
    let mut early_end = JPEG.to_vec();
    early_end[JPEG.len() / 2..][..2].copy_from_slice(&[0xFF, 0xD9]);
    let mut hole = JPEG.to_vec();
    hole[end - 300..end - 100].fill(0);
    let values: Vec<Vec<u8>> = (0..40)
        .map(|at| JPEG[..end - 1 - at * 37 % 900].to_vec())
        .chain([JPEG.to_vec(), JPEG[..end].to_vec(), [JPEG, b"more"].concat(), early_end, hole])
        .collect();
    let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    for operator in operators {
        let built = build(&image_schema(), vec![operator.clone()]);
        for pass in 0..10 {
            let mut chunk = chunk([("image", bytes(&values))]);
            chunk.passes.fill(pass);
            run(&built, &mut chunk);
            let failed = chunk.failed_rows();
            let delivered: Vec<usize> = (0..values.len()).filter(|row| !failed.contains(*row)).collect();
            assert_eq!(delivered, [40, 41, 42], "{operator} in pass {pass}");
        }
    }
}
