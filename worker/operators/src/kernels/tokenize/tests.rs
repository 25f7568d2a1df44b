//! Tests of token ids with a small word-level tokenizer.

use arrow::array::{AsArray, StringViewArray};
use arrow::datatypes::Int32Type;
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use serde_json::json;

use crate::testing::{array, arrow, build, chunk, run, try_build};

/// A tokenizer that splits words at white space and puts the special token `[CLS]` first.
fn tokenizer_json() -> String {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}
        },
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "[CLS]": 1, "hello": 2, "world": 3}}
    })
    .to_string()
}

fn schema() -> Schema {
    Schema::new([("text", ColumnType::Utf8)])
}

fn tokenizer_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), tokenizer_json()).unwrap();
    file
}

#[test]
fn text_becomes_ids_and_null_fails_its_row() {
    let file = tokenizer_file();
    let operators = build(
        &schema(),
        vec![json!({"tokenize": {"column": "text", "tokenizer": file.path(), "output": "ids"}})],
    );
    assert_eq!(
        operators[0].schema.get("ids"),
        Some(&ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int32))))
    );
    let mut chunk = chunk([(
        "text",
        arrow(StringViewArray::from(vec![Some("Hello world"), None, Some(""), Some("a hello")])),
    )]);
    run(&operators, &mut chunk);
    let ids: Vec<Option<Vec<i32>>> = array(&chunk, "ids")
        .as_list::<i32>()
        .iter()
        .map(|row| row.map(|row| row.as_primitive::<Int32Type>().values().to_vec()))
        .collect();
    assert_eq!(ids, [Some(vec![1, 2, 3]), None, Some(vec![1]), Some(vec![1, 0, 2])]);
    assert_eq!(chunk.failures, [(1, "column `text` is null".to_owned())]);
    assert_eq!(chunk.columns.len(), 2);
}

#[test]
fn special_tokens_can_be_omitted_and_the_text_replaced() {
    let file = tokenizer_file();
    let spec = json!({"tokenize": {"column": "text", "tokenizer": file.path(), "add_special_tokens": false}});
    let mut chunk = chunk([("text", arrow(StringViewArray::from(vec!["hello"])))]);
    run(&build(&schema(), vec![spec]), &mut chunk);
    assert_eq!(array(&chunk, "text").as_list::<i32>().value(0).as_primitive::<Int32Type>().values()[..], [2]);
}

#[test]
fn the_error_names_a_file_that_is_not_a_tokenizer() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{}").unwrap();
    let spec = json!({"tokenize": {"column": "text", "tokenizer": file.path()}});
    let message = try_build(&schema(), vec![spec]).unwrap_err().message;
    assert!(
        message.starts_with("operator 1 (tokenize): `")
            && message.contains("is not a valid Hugging Face tokenizer.json"),
        "{message}"
    );
    // The library panics on this file.
    std::fs::write(file.path(), tokenizer_json().replace("\"decoder\":null", "\"decoder\":{\"type\":}"))
        .unwrap();
    let spec = json!({"tokenize": {"column": "text", "tokenizer": file.path()}});
    let message = try_build(&schema(), vec![spec]).unwrap_err().message;
    assert!(
        message.ends_with("is not a valid Hugging Face tokenizer.json: the file is corrupted"),
        "{message}"
    );
    let missing = json!({"tokenize": {"column": "text", "tokenizer": "/nowhere/tokenizer.json"}});
    assert!(try_build(&schema(), vec![missing]).unwrap_err().message.starts_with("operator 1 (tokenize): "));
}
