//! Tests of Parquet indexing and reading.

mod truncated;

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, DictionaryArray, FixedSizeListArray, Float32Array,
    Int64Array, ListArray, NullArray, RecordBatch, StringArray, StructArray,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Int64Type};
use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::pipeline::{Format, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::thrift::page_header;
use crate::testing::{Fixture, fixture, lines};
use crate::{BlockRead, Dataset, RowFailure, SourceError, Stores};

pub(super) fn write(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    bytes
}

fn shard(columns: Vec<(&str, ArrayRef)>) -> Fixture {
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
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
async fn other_columns_are_not_read() {
    let fixture = large(5_000, WriterProperties::builder().set_dictionary_enabled(false).build());
    let shard = fixture.index().await.unwrap();
    let schema = Schema { fields: shard.index.schema.clone().unwrap().fields[..1].to_vec().into() };
    let read = BlockRead {
        shard: &shard.object,
        block: &shard.index.blocks[0],
        index: Some(&shard.index),
        schema: &schema,
        rows: None,
    };
    let rows = fixture.dataset.read_block(&read).await.unwrap();
    assert!(rows.store_bytes < 100_000 && rows.batch.num_columns() == 1, "{}", rows.store_bytes);
    let none = BlockRead { schema: &Schema::default(), ..read };
    assert_eq!(fixture.dataset.read_block(&none).await.unwrap().batch.num_rows(), 5_000);
    // The coordinator has checked that a column that the shard does not have is optional.
    let other = Schema::new([("gone", ColumnType::Utf8)]);
    let rows = fixture.dataset.read_block(&BlockRead { schema: &other, ..read }).await.unwrap();
    assert_eq!((rows.batch.num_rows(), rows.batch.column(0).null_count()), (5_000, 5_000));
}

#[tokio::test]
async fn integers_are_widened_exactly_or_fail_their_row() {
    let integers: ArrayRef =
        Arc::new(Int64Array::from(vec![Some(7), None, Some((1 << 53) + 1), Some(1 << 53)]));
    let fixture = shard(vec![("x", integers)]);
    let indexed = fixture.index().await.unwrap();
    let schema = Schema::new([("x", ColumnType::Scalar(ScalarType::Float64))]);
    let read = BlockRead {
        shard: &indexed.object,
        block: &indexed.index.blocks[0],
        index: None,
        schema: &schema,
        rows: None,
    };
    let rows = fixture.dataset.read_block(&read).await.unwrap();
    assert_eq!(lines(&rows.batch), ["7", "null", "null", "9007199254740992"]);
    let reason = "column `x`: float64 does not represent 9007199254740993 exactly".to_owned();
    assert_eq!(rows.failures, [RowFailure { row: 2, offset: 0, reason }]);
}

#[tokio::test]
async fn a_column_without_values_takes_the_type_of_other_shards() {
    let fixture = shard(vec![("x", Arc::new(NullArray::new(2)) as ArrayRef)]);
    let nulls = fixture.index().await.unwrap();
    assert_eq!(nulls.index.columns.untyped, ["x"]);
    assert_eq!(fixture.read_all().await.rows(), ["null", "null"]);
    let numbers = shard(vec![("x", Arc::new(Int64Array::from(vec![7])) as ArrayRef)]).index().await.unwrap();
    let schema = Manifest::build(vec![nulls.clone(), numbers]).unwrap().schema;
    assert_eq!(schema, Schema::new([("x", ColumnType::Scalar(ScalarType::Int64))]));
    let block = &nulls.index.blocks[0];
    let read = BlockRead { shard: &nulls.object, block, index: None, schema: &schema, rows: None };
    assert_eq!(lines(&fixture.dataset.read_block(&read).await.unwrap().batch), ["null", "null"]);
}

#[tokio::test]
async fn optional_columns_may_be_missing() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let fixture = shard(vec![("x", numbers)]);
    let url = fixture.shard().await.url;
    let index = async |optional: &[&str]| {
        let mut source = Source::parquet(&url).feature("x", "x").feature("v", "w");
        source.optional = optional.iter().map(|name| (*name).to_owned()).collect();
        let dataset = Dataset::new(source, Stores::new(Vec::new())).unwrap();
        dataset.index_shard(&fixture.shard().await).await
    };
    let error = index(&[]).await.unwrap_err().to_string();
    assert!(error.contains("declare `v: { name: w, optional: true }` under `source.features`"), "{error}");
    let schema = index(&["v"]).await.unwrap().index.schema.unwrap();
    assert_eq!(schema.names().collect::<Vec<_>>(), ["x"]);
}

#[tokio::test]
async fn an_optional_column_is_not_a_struct() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let field = Arc::new(Field::new("y", numbers.data_type().clone(), true));
    let fields: ArrayRef = Arc::new(StructArray::from(vec![(field, numbers)]));
    let fixture = shard(vec![("x", fields)]);
    let mut source = Source::parquet(&fixture.shard().await.url).feature("x", "x");
    source.optional = ["x".to_owned()].into_iter().collect();
    let dataset = Dataset::new(source, Stores::new(Vec::new())).unwrap();
    let error = dataset.index_shard(&fixture.shard().await).await.unwrap_err().to_string();
    assert!(
        error.contains("the optional column `x` is a struct, list or map with fields such as `x.y`"),
        "{error}"
    );
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

/// Columns `x`, `x`, `m.a`, and structs `m` with the fields `a` and `b`, and `c`.
fn ambiguous() -> RecordBatch {
    let ints = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value])) };
    let structure = |fields: &[(&str, i64)]| -> ArrayRef {
        let fields: Vec<(Arc<Field>, ArrayRef)> = fields
            .iter()
            .map(|(name, value)| (Arc::new(Field::new(*name, DataType::Int64, true)), ints(*value)))
            .collect();
        Arc::new(StructArray::from(fields))
    };
    let columns = [
        ("x", ints(1)),
        ("x", ints(2)),
        ("m.a", ints(3)),
        ("m", structure(&[("a", 4), ("b", 5)])),
        ("m", structure(&[("c", 6)])),
        ("m", ints(7)),
    ];
    let fields: Vec<Field> =
        columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), columns).unwrap()
}

#[tokio::test]
async fn columns_with_the_same_name_are_an_error_if_they_are_read() {
    let batch = ambiguous();
    let parquet = write(&batch, WriterProperties::default());
    let mut arrow = Vec::new();
    let mut writer = arrow::ipc::writer::FileWriter::try_new(&mut arrow, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    for (bytes, format) in [(parquet, Format::Parquet), (arrow, Format::Arrow)] {
        for (features, reason) in [
            (&[][..], "columns 1 and 2 have the same name `x`: rename one of them"),
            (&[("x", "x")], "have the same name `x`"),
            (&[("y", "m.a")], "columns 3 and 4 have the same name `m.a`"),
        ] {
            let error = fixture(&bytes, format, features).index().await.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let features = [("b", "m.b"), ("c", "m.c"), ("m", "m")];
        let all = fixture(&bytes, format, &features).read_all().await;
        assert_eq!(all.rows(), ["5|6|7"], "{format:?}");
    }
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
    let list: ArrayRef = Arc::new(list);
    let all = shard(vec![("items", list.clone())]).read_all().await;
    assert_eq!(all.columns(), "items.name: list of text, items.n: list of int64");
    assert_eq!(all.rows(), ["[a,null]|[1,2]", "null|null", "[c]|[3]"]);
    let batch = &all.blocks[0].batch;
    assert_eq!(batch.column(0).as_list::<i32>().values().len(), 3);
    let other = Arc::new(Int64Array::from(vec![7, 8, 9]));
    let error = shard(vec![("items", list), ("items.n", other)]).index().await.unwrap_err().to_string();
    assert!(error.contains("columns 2 and 3 have the same name `items.n`"), "{error}");
}

#[tokio::test]
async fn a_changed_byte_of_a_page_with_a_checksum_is_an_error() {
    for name in ["pyarrow_checksums.parquet", "pyarrow_checksums_page_v2.parquet"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/columnar").join(name);
        let sound = std::fs::read(path).unwrap();
        let metadata = SerializedFileReader::new(Bytes::from(sound.clone())).unwrap().metadata().clone();
        let chunks = metadata.row_group(0).columns().iter().map(ColumnChunkMetaData::byte_range);
        let mut places = Vec::new();
        for (start, length) in chunks {
            let (mut at, end) = (start as usize, (start + length) as usize);
            while at < end {
                let (header, header_bytes) = page_header(&sound[at..end]).unwrap();
                let content = at + header_bytes as usize;
                at = content + header.stored_bytes as usize;
                places.extend(content..at);
            }
        }
        assert!(places.len() > 100, "{name}: {places:?}");
        for at in places {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x5a;
            let fixture = fixture(&damaged, Format::Parquet, &[]);
            let shard = fixture.index().await.unwrap();
            let error = fixture.read(&shard, 0, None).await.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("checksum"), "{name}, byte {at}: {error}");
        }
    }
}
