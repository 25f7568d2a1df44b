//! Tests of comma-separated values.

use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::BlockRead;
use crate::testing::{fixture, lines};

#[tokio::test]
async fn quoted_line_ends_are_part_of_the_field() {
    let text = "id,name,score\n1,\"two\nlines, and \"\"quotes\"\"\",0.5\r\n\n2,plain,3\n3,\"\",";
    let all = fixture(text.as_bytes(), Format::Csv, &[]).read_all().await;
    assert_eq!(all.columns(), "id: int64, name: text, score: float64");
    assert_eq!(all.rows()[..2], ["1|two\nlines, and \"quotes\"|0.5", "2|plain|3"]);
    assert_eq!((all.rows().len(), all.failures().len()), (3, 0));
}

#[tokio::test]
async fn invalid_rows_do_not_affect_others() {
    let mut text = "id,x\n".to_owned();
    for row in 0..1200 {
        text += &format!("{row},{}\n", row * 2);
    }
    text += "one,1\n5\n7,8,9\n10,11\n";
    let all = fixture(text.as_bytes(), Format::Csv, &[]).read_all().await;
    assert_eq!((all.columns().as_str(), all.rows().len()), ("id: int64, x: int64", 1204));
    let failed: Vec<u32> = all.failures().iter().map(|it| it.row).collect();
    assert_eq!(failed, [1200, 1201, 1202]);
    assert_eq!(all.rows()[1199..], ["1199|2398", "null|null", "null|null", "null|null", "10|11"]);
}

#[tokio::test]
async fn invalid_rows_do_not_affect_the_inferred_types() {
    let all = fixture(b"a,b\n1,2\n3\n4,5\n", Format::Csv, &[]).read_all().await;
    assert_eq!((all.columns().as_str(), all.failures().len()), ("a: int64, b: int64", 1));
    assert_eq!(all.rows(), ["1|2", "null|null", "4|5"]);
}

#[tokio::test]
async fn columns_are_selected_renamed_and_filled() {
    let fixture = fixture(b"\xef\xbb\xbfday,n,s\n2024-01-01,1,x\n", Format::Csv, &[("d", "day"), ("n", "n")]);
    let all = fixture.read_all().await;
    assert_eq!((all.columns().as_str(), all.rows()), ("d: text, n: int64", vec!["2024-01-01|1".to_owned()]));
    let shard = fixture.index().await.unwrap();
    let schema =
        Schema::new([("n", ColumnType::Scalar(ScalarType::Float64)), ("elsewhere", ColumnType::Utf8)]);
    let read = BlockRead {
        shard: &shard.object,
        block: &shard.index.blocks[0],
        compression: shard.index.compression.as_ref(),
        schema: &schema,
        rows: None,
    };
    assert_eq!(lines(&fixture.dataset.read_block(&read).await.unwrap().batch), ["1|null"]);
}

#[tokio::test]
async fn unclosed_quotes_fail_and_empty_shards_have_no_rows() {
    let index = fixture(b"a,b\n1,2\n3,\"x\n", Format::Csv, &[]).index().await.unwrap().index;
    assert_eq!((index.rows(), index.defects.len(), index.defects[0].offset), (1, 1, 8));
    assert_eq!(fixture(b"", Format::Csv, &[]).read_all().await.rows().len(), 0);
    assert_eq!(fixture(b"a,b\n", Format::Csv, &[]).read_all().await.rows().len(), 0);
}
