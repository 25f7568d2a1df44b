//! Compares the Parquet and Arrow readers with the libraries that wrote the files in `testdata/columnar`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use feedline_data::manifest::ColumnNotes;
use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use serde_json::{Map, Value, json};

use crate::BlockRead;
use crate::testing::fixture;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/columnar")
}

fn expected() -> Map<String, Value> {
    let text = std::fs::read_to_string(directory().join("expected.json")).unwrap();
    let Value::Object(files) = serde_json::from_str(&text).unwrap() else { panic!("not an object") };
    files
}

fn columns_of<'a>(files: &'a Map<String, Value>, name: &str) -> &'a Map<String, Value> {
    let file = &files[name];
    match file.get("same_as") {
        Some(other) => columns_of(files, other.as_str().unwrap()),
        None => file["columns"].as_object().unwrap(),
    }
}

/// A value as `make_columnar.py` writes it.
fn value(array: &dyn Array, row: usize) -> Value {
    macro_rules! number {
        ($kind:ty) => {
            json!(array.as_primitive::<$kind>().value(row))
        };
    }
    let float = |value: f64| match value {
        value if value.is_finite() => json!(value),
        value => json!({ "float": value.to_string() }),
    };
    let list = |items: &dyn Array| Value::Array((0..items.len()).map(|at| self::value(items, at)).collect());
    if array.is_null(row) {
        return Value::Null;
    }
    match array.data_type() {
        DataType::Utf8View => json!(array.as_string_view().value(row)),
        DataType::BinaryView => {
            let digits = array.as_binary_view().value(row).iter().map(|byte| format!("{byte:02x}"));
            json!({ "hex": digits.collect::<String>() })
        }
        DataType::Boolean => json!(array.as_boolean().value(row)),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float16 => float(array.as_primitive::<Float16Type>().value(row).to_f64()),
        DataType::Float32 => float(array.as_primitive::<Float32Type>().value(row).into()),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(row)),
        DataType::List(_) => list(&array.as_list::<i32>().value(row)),
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(row)),
        other => panic!("{other} is not a type of a column"),
    }
}

/// Reads all columns of a file, and their types.
async fn read(name: &str) -> (Map<String, Value>, BTreeMap<String, String>) {
    let format = if name.ends_with(".arrow") { Format::Arrow } else { Format::Parquet };
    let bytes = std::fs::read(directory().join(name)).unwrap();
    let all = fixture(&bytes, format, &[]).read_all().await;
    let mut columns: Map<String, Value> = Map::new();
    for block in &all.blocks {
        for (field, column) in block.batch.schema().fields().iter().zip(block.batch.columns()) {
            let values = columns.entry(field.name().clone()).or_insert_with(|| Value::Array(Vec::new()));
            let values = values.as_array_mut().unwrap();
            values.extend((0..column.len()).map(|row| value(column, row)));
        }
    }
    let fields = all.index.schema.iter().flat_map(|schema| &schema.fields);
    (columns, fields.map(|field| (field.name.clone(), field.column_type.to_string())).collect())
}

#[tokio::test]
async fn files_of_every_library_have_the_values_that_the_library_reads() {
    let files = expected();
    let names: Vec<&String> = files.keys().filter(|name| *name != "versions").collect();
    assert!(names.len() >= 25, "{names:?}");
    for name in names {
        let wanted = columns_of(&files, name);
        let (columns, _) = read(name).await;
        for (column, values) in wanted {
            assert_eq!(columns.get(column), Some(values), "{name}: {column}");
        }
        assert_eq!(columns.len(), wanted.len(), "{name}");
    }
}

#[tokio::test]
async fn types_without_a_column_type_are_converted() {
    let (_, types) = read("pyarrow_types.arrow").await;
    let types: Vec<String> = types.iter().map(|(name, kind)| format!("{name}: {kind}")).collect();
    assert_eq!(
        types.join(", "),
        "blob_view: bytes, clock_ns: int64, clock_s: int64, day64: int32, day_word: int32, dec256: float64, dec32: float64, \
         dec64: float64, large_blob: bytes, large_list_view: list of text, large_text: text, list_view: list of int32, \
         runs: text, s: int64, span_ns: int64, span_s: int64, text_view: text, word8: text, words: list of text"
    );
    let (_, types) = read("spark_snappy_int96_legacy.parquet").await;
    assert_eq!(types["time"], "int64");
    assert_eq!(types["dec_big"], "float64");
    assert_eq!(types["chat.role"], "list of text");
    assert_eq!(types["map.value"], "list of int64");
}

#[tokio::test]
async fn rounded_columns_and_the_kinds_of_numbers_are_noted() {
    let notes = async |name: &str, format| {
        let bytes = std::fs::read(directory().join(name)).unwrap();
        fixture(&bytes, format, &[]).index().await.unwrap().index.columns
    };
    let legacy = notes("spark_snappy_int96_legacy.parquet", Format::Parquet).await;
    let rounded = |notes: &ColumnNotes| -> Vec<String> {
        notes.rounded.iter().map(|rounded| format!("{}: {}", rounded.column, rounded.reason)).collect()
    };
    assert!(rounded(&legacy).contains(&"time: nanoseconds are rounded down to microseconds".to_owned()));
    let kind = |notes: &ColumnNotes, column: &str| {
        notes.kinds.iter().find(|kind| kind.column == column).map(|kind| kind.kind.clone())
    };
    assert_eq!(kind(&legacy, "time").as_deref(), Some("timestamps"), "the file does not state a time zone");
    let types = notes("pyarrow_types.arrow", Format::Arrow).await;
    assert_eq!(
        rounded(&types),
        [
            "day64: times of day are dropped",
            "clock_ns: nanoseconds are rounded down to microseconds",
            "span_ns: nanoseconds are rounded down to microseconds",
            "dec256: decimals are rounded to 15 digits",
        ]
    );
    let kinds = ["clock_s", "span_s", "day64", "dec64", "list_view", "runs"].map(|name| kind(&types, name));
    assert_eq!(
        kinds.each_ref().map(Option::as_deref),
        [Some("times of day"), Some("durations"), Some("dates"), Some("numbers"), Some("numbers"), None]
    );
}

#[tokio::test]
async fn damaged_files_are_errors() {
    for name in expected().keys().filter(|name| *name != "versions") {
        let bytes = std::fs::read(directory().join(name)).unwrap();
        let format = if name.ends_with(".arrow") { Format::Arrow } else { Format::Parquet };
        for at in (0..bytes.len()).step_by(97) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x5a;
            let fixture = fixture(&damaged, format, &[]);
            let Ok(shard) = fixture.index().await else { continue };
            for block in 0..shard.index.blocks.len() {
                // Some damage changes only values.
                let _ = fixture.read(&shard, block, None).await;
            }
        }
    }
}

#[tokio::test]
async fn encrypted_files_are_rejected() {
    for name in ["encrypted_footer.parquet", "encrypted_columns.parquet"] {
        let bytes = std::fs::read(directory().join(name)).unwrap();
        let error = fixture(&bytes, Format::Parquet, &[]).index().await.unwrap_err().to_string();
        assert!(
            error.ends_with("the file is encrypted, which is not supported: write it without encryption"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn columns_without_a_type_have_the_type_of_other_files() {
    let bytes = std::fs::read(directory().join("pyarrow_plain.arrow")).unwrap();
    let fixture = fixture(&bytes, Format::Arrow, &[("a", "id"), ("b", "nothing")]);
    let shard = fixture.index().await.unwrap();
    assert_eq!(shard.index.schema.as_ref().unwrap().names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(shard.index.columns.untyped, ["b"]);
    let scalar = ColumnType::Scalar(ScalarType::Int64);
    for other in [scalar.clone(), ColumnType::Utf8, ColumnType::List(Box::new(scalar))] {
        let schema = Schema::new([("b", other)]);
        let read = BlockRead {
            shard: &shard.object,
            block: &shard.index.blocks[0],
            index: None,
            schema: &schema,
            rows: None,
        };
        let rows = fixture.dataset.read_block(&read).await.unwrap();
        assert_eq!(rows.batch.column(0).null_count(), rows.batch.num_rows());
    }
}
