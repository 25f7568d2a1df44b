//! Tests of columns that have one value in all rows of a shard.

use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::Format;

use super::*;
use crate::testing::{dataset, lines, path};
use crate::{BlockRead, Dataset};

async fn rows(dataset: &Dataset, shard: &ShardRef) -> (String, Vec<String>) {
    let index = dataset.index_shard(shard).await.unwrap().index;
    let schema = index.schema.unwrap();
    let columns: Vec<String> =
        schema.fields.iter().map(|field| format!("{} {}", field.name, field.column_type)).collect();
    let read = BlockRead { shard, block: &index.blocks[0], schema: &schema, rows: None, index: None };
    (columns.join(", "), lines(&dataset.read_block(&read).await.unwrap().batch))
}

#[tokio::test]
async fn values_are_columns_of_every_row() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("x"), "{\"a\": 1, \"y\": 5}\n{\"a\": 2, \"y\": 6}\n").unwrap();
    let url = path(directory.path(), "x");
    let all = dataset(&[&url], Format::Jsonl, &[]);
    let mut shard = all.list().await.unwrap().remove(0);
    shard.values = vec![
        ShardValue::text("kind", "a text of more than twelve bytes"),
        ShardValue::int64("y", -3),
        ShardValue { name: "none".to_owned(), integer: Some(ScalarType::Int64), text: None },
    ]
    .into();
    let (columns, lines) = rows(&all, &shard).await;
    assert_eq!(columns, "a int64, y int64, kind text, none int64");
    let text = "a text of more than twelve bytes";
    assert_eq!(lines, [format!("1|-3|{text}|null"), format!("2|-3|{text}|null")]);
    let some = dataset(&[&url], Format::Jsonl, &[("a", "y"), ("b", "a")]);
    assert_eq!(
        rows(&some, &shard).await,
        ("a int64, b int64".to_owned(), vec!["-3|1".into(), "-3|2".into()])
    );
    let only = dataset(&[&url], Format::Jsonl, &[("k", "y")]);
    assert_eq!(rows(&only, &shard).await.1, ["-3", "-3"]);
}

#[tokio::test]
async fn a_value_with_another_type_than_the_index_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("x"), "line\n").unwrap();
    let dataset = dataset(&[&path(directory.path(), "x")], Format::Text, &[]);
    let mut shard = dataset.list().await.unwrap().remove(0);
    shard.values = vec![ShardValue::int64("y", 1)].into();
    let index = dataset.index_shard(&shard).await.unwrap().index;
    let schema = index.schema.unwrap();
    for value in
        [ShardValue::text("y", "1"), ShardValue { text: Some("x".into()), ..shard.values[0].clone() }]
    {
        shard.values = vec![value].into();
        let read =
            BlockRead { shard: &shard, block: &index.blocks[0], schema: &schema, rows: None, index: None };
        let error = dataset.read_block(&read).await.unwrap_err().to_string();
        assert!(error.contains("`y`"), "{error}");
    }
}

#[tokio::test]
async fn values_have_the_wider_types_of_other_datasets() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("x"), "one\ntwo\n").unwrap();
    let dataset = dataset(&[&path(directory.path(), "x")], Format::Text, &[]);
    let mut shard = dataset.list().await.unwrap().remove(0);
    let index = dataset.index_shard(&shard).await.unwrap().index;
    let number = |scalar| ColumnType::Scalar(scalar);
    let large = (1_i64 << 53) + 1;
    for (value, column_type, expected, reason) in [
        (ShardValue::int64("y", 7), number(ScalarType::Float64), "7", None),
        (ShardValue::int64("y", 7), ColumnType::List(Box::new(number(ScalarType::Int64))), "[7]", None),
        (
            ShardValue { integer: Some(ScalarType::Int32), ..ShardValue::int64("y", -7) },
            number(ScalarType::Int64),
            "-7",
            None,
        ),
        (
            ShardValue::int64("y", large),
            number(ScalarType::Float64),
            "null",
            Some("column `y`: float64 does not represent 9007199254740993 exactly"),
        ),
    ] {
        shard.values = vec![value].into();
        let schema = Schema::new([("text", ColumnType::Utf8), ("y", column_type.clone())]);
        let read =
            BlockRead { shard: &shard, block: &index.blocks[0], schema: &schema, rows: None, index: None };
        let block = dataset.read_block(&read).await.unwrap();
        assert_eq!(
            lines(&block.batch),
            [format!("one|{expected}"), format!("two|{expected}")],
            "{column_type}"
        );
        let reasons: Vec<&str> = block.failures.iter().map(|failure| failure.reason.as_str()).collect();
        assert_eq!(reasons, reason.map_or(vec![], |reason| vec![reason; 2]), "{column_type}");
    }
}
