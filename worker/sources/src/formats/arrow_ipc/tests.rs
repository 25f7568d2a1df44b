//! Tests of Arrow IPC files.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewArray, DictionaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int32Type, Schema};
use arrow::ipc::convert::IpcSchemaEncoder;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow::ipc::{
    CompressionType, Endianness, FieldBuilder, FooterBuilder, IntBuilder, MessageBuilder, MessageHeader,
    MetadataVersion, SchemaBuilder, Type,
};
use feedline_data::manifest::Shard;
use feedline_data::pipeline::Format;

use crate::testing::{Fixture, fixture};
use crate::{BlockRead, BlockRows};

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
async fn truncated_files_and_other_data_are_rejected() {
    let file = file();
    for (bytes, reason) in [
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

/// A stream with the batches of [`file`].
fn stream() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &batch(0, 1).schema()).unwrap();
    let whole = batch(0, 107);
    for (from, rows) in [(0, 100), (100, 0), (100, 7)] {
        writer.write(&whole.slice(from, rows)).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    bytes
}

#[tokio::test]
async fn streams_have_the_rows_of_files() {
    let (of_stream, of_file) = (
        fixture(&stream(), Format::Arrow, &[]).read_all().await,
        fixture(&file(), Format::Arrow, &[]).read_all().await,
    );
    assert_eq!(of_stream.rows(), of_file.rows());
    assert_eq!(of_stream.columns(), of_file.columns());
    let rows =
        |all: &crate::testing::All| -> Vec<u32> { all.index.blocks.iter().map(|block| block.rows).collect() };
    assert_eq!(rows(&of_stream), rows(&of_file));
    let some = fixture(&stream(), Format::Arrow, &[("t", "text"), ("w", "word")]).read_all().await;
    assert_eq!(some.rows()[3], "text 3|odd");
}

#[tokio::test]
async fn blocks_of_compressed_streams_have_their_decompressed_size() {
    let zeros: ArrayRef = Arc::new(arrow::array::Int64Array::from(vec![7; 100_000]));
    let batch = RecordBatch::try_from_iter(vec![("n", zeros)]).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    assert!(bytes.len() < 10_000, "{}", bytes.len());
    let fixture = fixture(&bytes, Format::Arrow, &[]);
    let index = fixture.index().await.unwrap().index;
    for block in &index.blocks {
        assert!(block.bytes.abs_diff(800_000) < 50_000 && u64::from(block.group) < block.bytes, "{block:?}");
    }
    assert_eq!(fixture.read_all().await.rows().len(), 200_000);
}

/// The memory that a block needs according to the index, and according to its bytes. Then reads the block.
async fn memory_of_block(fixture: &Fixture, shard: &Shard, at: usize) -> (u64, u64, BlockRows) {
    let schema = shard.index.schema.as_ref().unwrap();
    let block = &shard.index.blocks[at];
    let read = BlockRead { shard: &shard.object, block, index: Some(&shard.index), schema, rows: None };
    let mut open = fixture.dataset.open_block(&read).await.unwrap();
    let estimated = open.peak_bytes();
    fixture.dataset.fetch_block(&read, &mut open).await.unwrap();
    let known = open.peak_bytes();
    (estimated, known, fixture.dataset.read_open_block(&read, open).await.unwrap())
}

#[tokio::test]
async fn the_memory_of_a_compressed_batch_is_known_before_it_is_decompressed() {
    let numbers = |numbers: Vec<i64>| {
        RecordBatch::try_from_iter(vec![("n", Arc::new(Int64Array::from(numbers)) as ArrayRef)]).unwrap()
    };
    // The first batch, from which the sizes are estimated, does not become smaller.
    let noise = (1..100_i64).map(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)).collect();
    let (first, second) = (numbers(noise), numbers(vec![7; 1_000_000]));
    for codec in [CompressionType::ZSTD, CompressionType::LZ4_FRAME] {
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
        let mut bytes = Vec::new();
        let mut writer = FileWriter::try_new_with_options(&mut bytes, &first.schema(), options).unwrap();
        writer.write(&first).unwrap();
        writer.write(&second).unwrap();
        writer.finish().unwrap();
        drop(writer);
        let fixture = fixture(&bytes, Format::Arrow, &[]);
        let shard = fixture.index().await.unwrap();
        let (estimated, known, _) = memory_of_block(&fixture, &shard, 0).await;
        assert!(estimated < 8_000 && known == estimated, "{codec:?}: {estimated} {known}");
        let (estimated, known, rows) = memory_of_block(&fixture, &shard, 1).await;
        assert!(estimated < 200_000, "{codec:?}: {estimated}");
        assert!((8_000_000..8_200_000).contains(&known), "{codec:?}: {known}");
        assert_eq!((rows.batch.num_rows(), rows.store_requests), (1_000_000, 1), "the block is read once");
    }
    let fixture = fixture(&file(), Format::Arrow, &[]);
    let shard = fixture.index().await.unwrap();
    let (estimated, known, rows) = memory_of_block(&fixture, &shard, 0).await;
    assert_eq!((known, rows.store_requests), (estimated, 1));
}

#[tokio::test]
async fn a_later_dictionary_applies_to_later_batches() {
    let words = |words: [&str; 2]| {
        let column: DictionaryArray<Int32Type> = words.into_iter().collect();
        RecordBatch::try_from_iter(vec![("word", Arc::new(column) as ArrayRef)]).unwrap()
    };
    let mut bytes = Vec::new();
    let first = words(["a", "b"]);
    let mut writer = StreamWriter::try_new(&mut bytes, &first.schema()).unwrap();
    for batch in [first, words(["c", "d"])] {
        writer.write(&batch).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    assert_eq!(fixture(&bytes, Format::Arrow, &[]).read_all().await.rows(), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn a_truncated_stream_keeps_its_whole_batches() {
    let stream = stream();
    let whole = fixture(&stream, Format::Arrow, &[]).index().await.unwrap().index;
    let ends: Vec<u64> = whole.blocks.iter().map(|block| block.offset + u64::from(block.group)).collect();
    for length in 0..stream.len() {
        // Without the header, the shard is an error. Later, only the last batch may be missing.
        let Ok(shard) = fixture(&stream[..length], Format::Arrow, &[]).index().await else { continue };
        let complete = ends.iter().filter(|end| **end <= length as u64).count();
        assert_eq!(shard.index.blocks[..], whole.blocks[..complete], "{length}");
    }
    let cut = fixture(&stream[..stream.len() - 40], Format::Arrow, &[]).index().await.unwrap().index;
    assert!(cut.defects[0].reason.contains("the stream is truncated"));
}

#[tokio::test]
async fn a_second_stream_in_the_file_is_a_defect() {
    let one = stream();
    let without_end = one.len() - 8;
    let whole = fixture(&one, Format::Arrow, &[]).index().await.unwrap().index;
    for first in [&one[..], &one[..without_end]] {
        let two = fixture(&[first, &one[..]].concat(), Format::Arrow, &[]).index().await.unwrap().index;
        assert_eq!(two.blocks, whole.blocks);
        assert_eq!(two.defects[0].offset, without_end as u64);
        assert!(two.defects[0].reason.contains("continues after the end of the stream"));
    }
}

#[tokio::test]
async fn corrupted_streams_do_not_panic() {
    let stream = stream();
    for at in (0..stream.len()).step_by(7) {
        let mut corrupted = stream.clone();
        corrupted[at] ^= 0x55;
        let fixture = fixture(&corrupted, Format::Arrow, &[]);
        let Ok(shard) = fixture.index().await else { continue };
        for block in 0..shard.index.blocks.len() {
            drop(fixture.read(&shard, block, None).await);
        }
    }
}

/// A file or stream without rows, whose schema says that its numbers are big-endian.
fn big_endian(is_stream: bool) -> Vec<u8> {
    let mut builder = IpcSchemaEncoder::new().schema_to_fb(&Schema::empty());
    builder.reset();
    let name = builder.create_string("n");
    let mut int = IntBuilder::new(&mut builder);
    int.add_bitWidth(32);
    int.add_is_signed(true);
    let int = int.finish();
    let mut field = FieldBuilder::new(&mut builder);
    field.add_name(name);
    field.add_type_type(Type::Int);
    field.add_type_(int.as_union_value());
    let field = field.finish();
    let fields = builder.create_vector(&[field]);
    let mut schema = SchemaBuilder::new(&mut builder);
    schema.add_endianness(Endianness::Big);
    schema.add_fields(fields);
    let schema = schema.finish();
    if is_stream {
        let mut message = MessageBuilder::new(&mut builder);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::Schema);
        message.add_header(schema.as_union_value());
        let message = message.finish();
        builder.finish(message, None);
    } else {
        let mut footer = FooterBuilder::new(&mut builder);
        footer.add_version(MetadataVersion::V5);
        footer.add_schema(schema);
        let footer = footer.finish();
        builder.finish(footer, None);
    }
    let header = builder.finished_data();
    let length = (header.len() as u32).to_le_bytes();
    match is_stream {
        true => [[0xff; 4].as_slice(), &length, header, &[0xff; 4], &[0; 4]].concat(),
        false => [b"ARROW1\0\0".as_slice(), header, &length, b"ARROW1"].concat(),
    }
}

#[tokio::test]
async fn files_and_streams_with_big_endian_numbers_are_refused() {
    for is_stream in [false, true] {
        let error = fixture(&big_endian(is_stream), Format::Arrow, &[]).index().await.unwrap_err();
        assert!(matches!(error, crate::SourceError::Unsupported { .. }), "{error:?}");
        let error = error.to_string();
        assert!(
            error.contains("/shard`") && error.contains("big-endian byte order: read it with pyarrow"),
            "{error}"
        );
    }
}
