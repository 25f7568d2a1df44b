//! Tests of building operators: names, positions in the pipeline, and properties that the engine uses.

use std::time::Duration;

use feedline_data::schema::ScalarType;
use serde_json::json;

use super::*;
use crate::testing::{build, image_schema, try_build};

#[test]
fn batch_and_repeat_are_omitted_and_kinds_are_numbered() {
    let operators = build(
        &image_schema(),
        vec![
            json!({"random_resized_crop": {"column": "image", "size": [32, 32], "parallelism": 2}}),
            json!({"repeat": {"count": 2}}),
            json!({"random_horizontal_flip": {"column": "image"}}),
            json!({"random_resized_crop": {"column": "image", "size": [16, 16]}}),
            json!({"wait": {"ms": 3}}),
            json!({"burn": {"cpu_us": 5}}),
        ],
    );
    let names: Vec<&str> = operators.iter().map(|built| built.name.as_str()).collect();
    assert_eq!(
        names,
        ["random_resized_crop", "random_horizontal_flip", "random_resized_crop#2", "wait", "burn"]
    );
    assert_eq!(operators[0].parallelism, Some(2));
    assert_eq!(operators[3].wait_per_row, Some(Duration::from_millis(3)));
    let written_column: Vec<Option<&str>> =
        operators.iter().map(|built| built.written_column.as_deref()).collect();
    assert_eq!(written_column, [Some("image"), None, Some("image"), None, None]);
    let shape = vec![16, 16, 3];
    assert_eq!(
        operators[4].schema.get("image"),
        Some(&ColumnType::Tensor { scalar: ScalarType::UInt8, shape })
    );
    assert!(operators.iter().all(|built| !built.changes_rows));
}

#[test]
fn only_filters_change_rows_and_only_tensors_are_written() {
    let schema = Schema::new([("label", ColumnType::Scalar(ScalarType::Int64))]);
    let operators = build(
        &schema,
        vec![
            json!({"filter": {"where": "label > 3"}}),
            json!({"cast": {"column": "label", "dtype": "int32"}}),
        ],
    );
    assert!(operators[0].changes_rows && !operators[1].changes_rows);
    assert_eq!(operators[1].written_column, None);
}

#[test]
fn an_invalid_filter_is_rejected_with_its_position() {
    let refused = try_build(
        &image_schema(),
        vec![json!({"burn": {"cpu_us": 1}}), json!({"filter": {"where": "lable = 1"}})],
    );
    assert_eq!(
        refused.unwrap_err().message,
        "operator 2 (filter): where: there is no column `lable`; the columns are image"
    );
}
