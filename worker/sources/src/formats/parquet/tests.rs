//! Tests of Parquet indexing and reading.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, DictionaryArray, FixedSizeListArray, Float32Array,
    Int64Array, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Int64Type};
use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, Schema};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::testing::{Fixture, fixture};
use crate::{BlockRead, SourceError};

fn write(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    bytes
}

fn shard(columns: Vec<(&str, ArrayRef)>) -> Fixture {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    fixture(&write(&batch, WriterProperties::default()), Format::Parquet, &[])
}

fn many_kinds() -> Vec<(&'static str, ArrayRef)> {
    let floats = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        [Some([Some(1.0), Some(2.0)]), Some([Some(3.0), Some(4.0)])],
        2,
    );
    let ints =
        ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), Some(2)]), Some(vec![])]);
    let words: DictionaryArray<Int32Type> = ["p", "q"].into_iter().collect();
    let inner: Vec<(Arc<Field>, ArrayRef)> = vec![
        (
            Arc::new(Field::new("bytes", DataType::Binary, true)),
            Arc::new(BinaryArray::from_vec(vec![b"J1", b"J2"])),
        ),
        (
            Arc::new(Field::new("path", DataType::Utf8, true)),
            Arc::new(StringArray::from(vec![Some("x"), None])),
        ),
    ];
    vec![
        ("image", Arc::new(StructArray::from(inner))),
        ("label", Arc::new(Int64Array::from(vec![Some(7), None]))),
        ("ok", Arc::new(BooleanArray::from(vec![true, false]))),
        ("tensor", Arc::new(floats)),
        ("list", Arc::new(ints)),
        ("word", Arc::new(words)),
    ]
}

#[tokio::test]
async fn every_type_of_column_is_read() {
    let all = shard(many_kinds()).read_all().await;
    assert_eq!(
        all.columns(),
        "image.bytes: bytes, image.path: text, label: int64, ok: bool, tensor: float32 tensor [2], \
         list: list of int64, word: text"
    );
    assert_eq!(all.rows(), ["J1|x|7|true|[1,2]|[1,2]|p", "J2|null|null|false|[3,4]|[]|q"]);
}

#[tokio::test]
async fn fields_of_structs_are_selected_by_dotted_names() {
    let batch = RecordBatch::try_from_iter(many_kinds()).unwrap();
    let bytes = write(&batch, WriterProperties::default());
    let features = [("img", "image.bytes"), ("y", "label")];
    let all = fixture(&bytes, Format::Parquet, &features).read_all().await;
    assert_eq!(all.rows(), ["J1|7", "J2|null"]);
}

fn large(rows: usize, properties: WriterProperties) -> Fixture {
    let payload: Vec<String> = (0..rows).map(|row| format!("{row:08}{}", "x".repeat(1000))).collect();
    let batch = RecordBatch::try_from_iter(vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef),
        ("payload", Arc::new(StringArray::from(payload))),
    ])
    .unwrap();
    fixture(&write(&batch, properties), Format::Parquet, &[])
}

#[tokio::test]
async fn large_row_groups_are_read_in_parts() {
    let fixture = large(25_000, WriterProperties::builder().set_dictionary_enabled(false).build());
    let all = fixture.read_all().await;
    assert!(all.index.blocks.len() >= 6, "{}", all.index.blocks.len());
    assert!(all.index.blocks.iter().all(|block| block.rows <= 4096 && block.group == 0));
    let ids = all.rows().into_iter().map(|row| row[..row.find('|').unwrap()].parse::<usize>().unwrap());
    assert!(ids.eq(0..25_000));
    // With a page index, each part reads only its pages.
    let read: u64 = all.blocks.iter().map(|block| block.store_bytes).sum();
    assert!(read < 2 * fixture.shard().await.size_bytes, "{read}");
}

#[tokio::test]
async fn without_a_page_index_there_are_few_parts() {
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .build();
    let all = large(25_000, properties).read_all().await;
    assert_eq!(all.index.blocks.len(), 2);
    assert_eq!(all.rows().len(), 25_000);
}

#[tokio::test]
async fn other_columns_are_not_read() {
    let fixture = large(5_000, WriterProperties::builder().set_dictionary_enabled(false).build());
    let shard = fixture.index().await.unwrap();
    let schema = Schema { fields: shard.index.schema.clone().unwrap().fields[..1].to_vec().into() };
    let read = BlockRead {
        shard: &shard.object,
        block: &shard.index.blocks[0],
        compression: shard.index.compression.as_ref(),
        schema: &schema,
        rows: None,
    };
    let rows = fixture.dataset.read_block(&read).await.unwrap();
    assert!(rows.store_bytes < 100_000 && rows.batch.num_columns() == 1, "{}", rows.store_bytes);
    let none = BlockRead { schema: &Schema::default(), ..read };
    assert_eq!(fixture.dataset.read_block(&none).await.unwrap().batch.num_rows(), 5_000);
    let other = Schema::new([("gone", ColumnType::Utf8)]);
    let error = fixture.dataset.read_block(&BlockRead { schema: &other, ..read }).await.unwrap_err();
    assert!(matches!(error, SourceError::SchemaMismatch { .. }), "{error}");
}

#[tokio::test]
async fn errors_name_the_reason() {
    let interval: ArrayRef = Arc::new(arrow::array::IntervalDayTimeArray::from(vec![None]));
    let error = shard(vec![("span", interval)]).index().await.unwrap_err().to_string();
    assert!(error.contains("`span`") && error.contains("Interval"), "{error}");
    let halves: ArrayRef = Arc::new(Float32Array::from(vec![0.5]));
    assert_eq!(shard(vec![("x", halves)]).read_all().await.columns(), "x: float32");
    for bytes in [b"".as_slice(), b"PAR1", &[9; 500]] {
        let error = fixture(bytes, Format::Parquet, &[]).index().await.unwrap_err();
        assert!(matches!(error, SourceError::Corrupt { .. }), "{error}");
    }
}

/// The lowest bit of an encoded number is its sign. The library panics on negative offsets and sizes.
#[tokio::test]
async fn wrong_signs_in_the_footer_are_errors() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let bytes = write(&batch, WriterProperties::default());
    let end = bytes.len() - 8;
    let footer_bytes = u32::from_le_bytes(bytes[end..end + 4].try_into().unwrap()) as usize;
    let mut contained = 0;
    for at in end - footer_bytes..end {
        let mut corrupt = bytes.clone();
        corrupt[at] ^= 1;
        let fixture = fixture(&corrupt, Format::Parquet, &[]);
        let Ok(shard) = fixture.index().await else { continue };
        for block in 0..shard.index.blocks.len() {
            if let Err(error) = fixture.read(&shard, block, None).await {
                contained += usize::from(error.to_string().contains("the Parquet data is invalid"));
            }
        }
    }
    assert!(contained >= 2, "only {contained} errors are caused by negative offsets and sizes");
}

#[tokio::test]
async fn the_parquet_reader_detects_a_changed_shard() {
    let fixture = shard(many_kinds());
    let listed = fixture.index().await.unwrap();
    std::fs::write(fixture.directory.path().join("shard"), b"something else").unwrap();
    let error = fixture.read(&listed, 0, None).await.unwrap_err();
    assert!(matches!(error, SourceError::ShardChanged { .. }), "{error}");
}

/// A file of one column of zeros, and it as an object.
async fn zeros() -> (Vec<u8>, Arc<crate::object::Object>) {
    use object_store::ObjectStoreExt;
    let batch =
        RecordBatch::try_from_iter(vec![("x", Arc::new(Int64Array::from(vec![0; 100_000])) as ArrayRef)])
            .unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_compression(parquet::basic::Compression::SNAPPY)
        .build();
    let bytes = write(&batch, properties);
    let (store, path) = (object_store::memory::InMemory::new(), object_store::path::Path::from("x"));
    store.put(&path, bytes.clone().into()).await.unwrap();
    let meta = store.head(&path).await.unwrap();
    let version = crate::version::version_of(&meta);
    let shard = feedline_data::manifest::ShardRef {
        url: "mem://x".to_owned(),
        size_bytes: meta.size,
        version,
        ..feedline_data::manifest::ShardRef::default()
    };
    (bytes, Arc::new(crate::object::Object::new(Arc::new(store), path, shard)))
}

#[tokio::test]
async fn pages_that_claim_far_more_than_the_footer_are_not_decompressed() {
    use parquet::arrow::async_reader::AsyncFileReader;
    let (bytes, object) = zeros().await;
    let pages = 4..bytes.len() as u64 / 2;
    let mut roomy = super::ObjectReader::new(Arc::clone(&object)).with_page_limit(100_000 * 8 + 1_000);
    assert!(roomy.get_bytes(pages.clone()).await.is_ok());
    let mut tight = super::ObjectReader::new(object).with_page_limit(10_000);
    let refused = tight.get_byte_ranges(vec![pages]).await.unwrap_err();
    let refused = tight.error(&refused, 0).to_string();
    assert!(refused.contains("much more than the footer declares"), "{refused}");
}

#[tokio::test]
async fn rows_of_zero_encoded_bytes_are_in_blocks_of_bounded_size() {
    let nulls = Arc::new(Int64Array::from(vec![None; 3_000_000])) as ArrayRef;
    let columns: Vec<(String, ArrayRef)> = (0..8).map(|at| (format!("c{at}"), Arc::clone(&nulls))).collect();
    let columns = columns.iter().map(|(name, column)| (name.as_str(), Arc::clone(column))).collect();
    let index = shard(columns).index().await.unwrap().index;
    assert_eq!(index.rows(), 3_000_000);
    assert!(index.blocks.iter().all(|block| u64::from(block.rows) * 8 * 16 <= 256 << 20));
}

#[tokio::test]
async fn columns_with_lzo_are_rejected() {
    let batch = RecordBatch::try_from_iter(many_kinds()).unwrap();
    let properties = WriterProperties::builder().set_compression(parquet::basic::Compression::SNAPPY).build();
    let mut bytes = write(&batch, properties);
    // The codec follows the path of the column in the footer: 1 is Snappy, 3 is LZO.
    let path = [0x18, 5, b'l', b'a', b'b', b'e', b'l', 0x15, 2];
    let at = bytes.windows(path.len()).rposition(|window| window == path).unwrap();
    bytes[at + path.len() - 1] = 6;
    let error = fixture(&bytes, Format::Parquet, &[]).index().await.unwrap_err().to_string();
    assert!(error.contains("column `label` is compressed with LZO, which is not supported"), "{error}");
    assert!(fixture(&bytes, Format::Parquet, &[("ok", "ok")]).index().await.is_ok());
}

#[tokio::test]
async fn fields_of_structs_in_lists_are_lists() {
    use arrow::array::AsArray;
    let names = StringArray::from(vec![Some("a"), None, Some("c")]);
    let counts = Int64Array::from(vec![1, 2, 3]);
    let items = StructArray::from(vec![
        (Arc::new(Field::new("name", DataType::Utf8, true)), Arc::new(names) as ArrayRef),
        (Arc::new(Field::new("n", DataType::Int64, true)), Arc::new(counts)),
    ]);
    let item = Arc::new(Field::new("item", items.data_type().clone(), true));
    let offsets = arrow::buffer::OffsetBuffer::new(vec![0, 2, 2, 3].into());
    let nulls = Some(vec![true, false, true].into());
    let list = ListArray::new(item, offsets, Arc::new(items), nulls);
    let nested =
        shard(vec![("items", Arc::new(list)), ("items.n", Arc::new(Int64Array::from(vec![7, 8, 9])))]);
    let all = nested.read_all().await;
    assert_eq!(all.columns(), "items.name: list of text, items.n: int64");
    assert_eq!(all.rows(), ["[a,null]|7", "null|8", "[c]|9"], "the first column of a name");
    let batch = &all.blocks[0].batch;
    assert_eq!(batch.column(0).as_list::<i32>().values().len(), 3);
}
