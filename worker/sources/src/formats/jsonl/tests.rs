//! Tests of JSON lines and of text.

mod inference;

use feedline_data::manifest::Manifest;
use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::BlockRead;
use crate::testing::{fixture, lines};

#[tokio::test]
async fn an_invalid_line_fails_only_its_row() {
    let text = "{\"a\":1,\"t\":\"x\",\"l\":[1,2]}\nnot json\n\n{\"a\":2}{\"a\":3}\n{\"a\":\n1}\n{\"a\":\"q\",\"t\":null}\n{\"a\":4}";
    let all = fixture(text.as_bytes(), Format::Jsonl, &[("n", "a"), ("t", "t")]).read_all().await;
    // The first value of a column determines its kind.
    assert_eq!(all.columns(), "n: int64, t: text");
    assert_eq!(
        all.rows(),
        ["1|x", "null|null", "null|null", "null|null", "null|null", "null|null", "4|null"]
    );
    let failed: Vec<(u32, u64)> = all.failures().iter().map(|it| (it.row, it.offset)).collect();
    assert_eq!(failed, [(1, 26), (2, 35), (3, 51), (4, 57), (5, 60)]);
    assert_eq!(
        all.failures()[4].reason,
        "column `a`: expected int64 as in the first rows with this column, but found \"q\""
    );
}

#[tokio::test]
async fn types_are_inferred_and_widened_between_shards() {
    let ints = fixture(b"{\"a\":1,\"b\":true}\n{\"a\":2}\n", Format::Jsonl, &[]);
    let floats = fixture(b"{\"a\":1.5,\"c\":[\"x\"]}\n", Format::Jsonl, &[]);
    let (a, b) = (ints.index().await.unwrap(), floats.index().await.unwrap());
    let schema = Manifest::build(vec![a.clone(), b]).unwrap().schema;
    let texts = ColumnType::List(Box::new(ColumnType::Utf8));
    let bool_type = ColumnType::Scalar(ScalarType::Bool);
    assert_eq!(
        schema,
        Schema::new([("a", ColumnType::Scalar(ScalarType::Float64)), ("b", bool_type), ("c", texts)])
    );
    let read = BlockRead {
        shard: &a.object,
        block: &a.index.blocks[0],
        index: Some(&a.index),
        schema: &schema,
        rows: None,
    };
    assert_eq!(lines(&ints.dataset.read_block(&read).await.unwrap().batch), ["1|true|null", "2|null|null"]);
}

#[tokio::test]
async fn nested_objects_are_rejected_by_name_unless_omitted() {
    let text = b"{\"a\":1,\"meta\":{\"x\":1}}\n";
    let error = fixture(text, Format::Jsonl, &[]).index().await.unwrap_err().to_string();
    assert!(error.contains("`meta`") && error.contains("source.features"), "{error}");
    assert_eq!(fixture(text, Format::Jsonl, &[("a", "a")]).read_all().await.rows(), ["1"]);
}

#[tokio::test]
async fn an_array_has_one_row_per_object() {
    let pretty = "\u{feff}\n[\n  {\n    \"a\": 1,\n    \"t\": \"],{\\\"\"\n  },\n  {\"a\": 2, \"l\": [1, 2]}, 5,\n{\"a\": 3}]\n";
    for text in [pretty.to_owned(), pretty.replace('\n', "")] {
        let all = fixture(text.as_bytes(), Format::Jsonl, &[("a", "a"), ("t", "t")]).read_all().await;
        assert_eq!(all.rows(), ["1|],{\"", "2|null", "null|null", "3|null"]);
        assert_eq!(all.failures().len(), 1);
        assert!(all.index.defects.is_empty());
    }
    assert!(fixture(b"[{}, {}]", Format::Jsonl, &[]).index().await.unwrap().index.schema.is_some());
    assert_eq!(fixture(b" [ ] \n", Format::Jsonl, &[]).index().await.unwrap().index.rows(), 0);
}

#[tokio::test]
async fn many_objects_of_an_array_are_read_in_blocks() {
    let objects: Vec<String> = (0..10_000).map(|row| format!("{{\"row\": {row}}}")).collect();
    let text = format!("[{}]", objects.join(", "));
    let all = fixture(text.as_bytes(), Format::Jsonl, &[]).read_all().await;
    assert_eq!(all.index.blocks.len(), 3);
    assert!(all.rows().iter().map(|row| row.parse::<usize>().unwrap()).eq(0..10_000));
    for (end, reason) in
        [(text.len() - 1, "has no end"), (text.len() - 5, "has no end"), (text.len() - 10, "has no end")]
    {
        let cut = fixture(&text.as_bytes()[..end], Format::Jsonl, &[]).index().await.unwrap().index;
        assert!(cut.rows() >= 9_998 && cut.defects[0].reason.contains(reason), "{end}: {:?}", cut.defects);
    }
    let two = fixture(format!("{text}\n{text}").as_bytes(), Format::Jsonl, &[]).index().await.unwrap().index;
    assert!(two.rows() == 10_000 && two.defects[0].reason.contains("followed by other text"));
}

#[tokio::test]
async fn each_of_many_lines_is_read_once_in_order() {
    let text: String = (0..10_000).map(|row| format!("{{\"row\":{row}}}\n")).collect();
    let all = fixture(text.as_bytes(), Format::Jsonl, &[]).read_all().await;
    assert_eq!(all.index.blocks.len(), 3);
    assert!(all.rows().iter().map(|row| row.parse::<usize>().unwrap()).eq(0..10_000));
}

#[tokio::test]
async fn text_lines_are_read_unchanged_and_invalid_ones_fail() {
    let all = fixture(b"one\r\n\ntwo\n\xff\xfe\nlast", Format::Text, &[]).read_all().await;
    assert_eq!(all.rows(), ["one", "", "two", "null", "last"]);
    assert_eq!(all.failures().len(), 1);
    assert_eq!((all.failures()[0].row, all.failures()[0].offset), (3, 10));
    assert_eq!(fixture(b"", Format::Text, &[]).read_all().await.rows().len(), 0);
    let bom = fixture(b"\xef\xbb\xbfx\n", Format::Text, &[("t", "text")]).read_all().await;
    assert_eq!(bom.rows(), ["x"]);
}

#[tokio::test]
async fn long_text_lines_are_read_one_by_one() {
    let text: String = (0..100).map(|row| format!("{row:05}{}\n", "x".repeat(9000))).collect();
    let fixture = fixture(text.as_bytes(), Format::Text, &[]);
    let shard = fixture.index().await.unwrap();
    let rows = fixture.read(&shard, 0, Some(&[1, 99])).await.unwrap();
    let starts: Vec<String> = lines(&rows.batch).iter().map(|line| line[..5].to_owned()).collect();
    assert_eq!((starts, rows.store_requests), (vec!["00001".to_owned(), "00099".to_owned()], 2));
}

#[tokio::test]
async fn the_memory_of_a_block_is_about_the_size_of_its_text() {
    let row =
        |row: usize| format!("{{\"t\":\"{}\",\"l\":[\"{}\"]}}\n", "x".repeat(500 + row), "y".repeat(300));
    let text: String = (0..400).map(row).collect();
    let fixture = fixture(text.as_bytes(), Format::Jsonl, &[]);
    let shard = fixture.index().await.unwrap();
    let schema = shard.index.schema.as_ref().unwrap();
    let block = &shard.index.blocks[0];
    let read = BlockRead { shard: &shard.object, block, index: None, schema, rows: None };
    let rows = fixture.dataset.read_block(&read).await.unwrap();
    assert_eq!(rows.batch.num_rows(), 400);
    assert!(rows.held_bytes < 2 * text.len(), "{} bytes for {} bytes of text", rows.held_bytes, text.len());
}
