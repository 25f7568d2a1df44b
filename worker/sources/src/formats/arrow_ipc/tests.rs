//! Tests of Arrow IPC files.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewArray, DictionaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int32Type;
use arrow::ipc::writer::{FileWriter, StreamWriter};
use feedline_data::pipeline::Format;

use crate::testing::fixture;

fn batch(from: i64, rows: i64) -> RecordBatch {
    let text: Vec<String> = (from..from + rows).map(|row| format!("text {row}")).collect();
    let bytes: Vec<&[u8]> = text.iter().map(String::as_bytes).collect();
    let words: DictionaryArray<Int32Type> =
        (0..rows).map(|row| if row % 2 == 0 { "even" } else { "odd" }).collect();
    RecordBatch::try_from_iter(vec![
        ("id", Arc::new(Int64Array::from_iter_values(from..from + rows)) as ArrayRef),
        ("text", Arc::new(StringArray::from(text.clone()))),
        ("bytes", Arc::new(BinaryViewArray::from(bytes))),
        ("word", Arc::new(words)),
    ])
    .unwrap()
}

fn file() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, &batch(0, 1).schema()).unwrap();
    // Slices of one batch, because a file has one dictionary per column.
    let whole = batch(0, 107);
    for (from, rows) in [(0, 100), (100, 0), (100, 7)] {
        writer.write(&whole.slice(from, rows)).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    bytes
}

#[tokio::test]
async fn record_batches_are_blocks() {
    let all = fixture(&file(), Format::Arrow, &[]).read_all().await;
    assert_eq!(all.columns(), "id: int64, text: text, bytes: bytes, word: text");
    let groups: Vec<(u32, u32)> = all.index.blocks.iter().map(|block| (block.group, block.rows)).collect();
    assert_eq!(groups, [(0, 100), (2, 7)]);
    assert_eq!(all.rows()[101], "101|text 101|text 101|odd");
    assert!(all.rows().iter().enumerate().all(|(at, row)| row.starts_with(&format!("{at}|"))));
}

#[tokio::test]
async fn columns_are_selected_and_renamed() {
    let all = fixture(&file(), Format::Arrow, &[("t", "text"), ("a", "id")]).read_all().await;
    assert_eq!(all.rows()[5], "5|text 5");
}

#[tokio::test]
async fn streams_truncated_files_and_other_data_are_rejected() {
    let mut stream = Vec::new();
    let mut writer = StreamWriter::try_new(&mut stream, &batch(0, 3).schema()).unwrap();
    writer.write(&batch(0, 3)).unwrap();
    writer.finish().unwrap();
    drop(writer);
    let file = file();
    for (bytes, reason) in [
        (stream.as_slice(), "stream format"),
        (&file[..file.len() - 3], "truncated"),
        (&[5; 100], "not an Arrow file"),
        (b"", "cannot be an Arrow file"),
    ] {
        let error = fixture(bytes, Format::Arrow, &[]).index().await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    // An inconsistent footer must not cause a panic.
    for at in (file.len() - 400..file.len() - 10).step_by(3) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x55;
        if let Ok(shard) = fixture(&damaged, Format::Arrow, &[]).index().await {
            drop(shard);
        }
    }
}
