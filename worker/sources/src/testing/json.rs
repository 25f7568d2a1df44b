//! Rows as JSON, for comparisons with what a reference library reads.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use feedline_data::manifest::Shard;
use serde_json::{Map, Value, json};

use crate::{BlockRead, Dataset, RowFailure, SourceError};

/// All rows of a dataset: each row as an object, and bytes as hexadecimal digits.
pub(crate) struct JsonRows {
    pub(crate) columns: String,
    pub(crate) rows: Vec<Value>,
    pub(crate) failures: Vec<RowFailure>,
}

/// Lists, indexes and reads a dataset. The schema of the first shard is used for all shards.
pub(crate) async fn read_json(dataset: &Dataset) -> Result<JsonRows, SourceError> {
    let mut shards = Vec::new();
    for object in dataset.list().await? {
        let indexed = dataset.index_shard(&object).await?;
        shards.push(Shard { object, index: indexed.index, digest: indexed.digest });
    }
    let schema = shards.iter().find_map(|shard| shard.index.schema.clone()).unwrap_or_default();
    let columns: Vec<String> =
        schema.fields.iter().map(|field| format!("{}: {}", field.name, field.column_type)).collect();
    let mut found = JsonRows { columns: columns.join(", "), rows: Vec::new(), failures: Vec::new() };
    for shard in &shards {
        for block in &shard.index.blocks {
            let read = BlockRead { shard: &shard.object, block, schema: &schema, rows: None, index: None };
            let rows = dataset.read_block(&read).await?;
            found.failures.extend(rows.failures);
            found.rows.extend(json_rows(&rows.batch));
            if block.row_bytes.is_empty() {
                continue;
            }
            // Rows that are read one by one equal the rows of the block.
            for row in 0..block.rows {
                let one = BlockRead { rows: Some(&[row]), ..read };
                let one = json_rows(&dataset.read_block(&one).await?.batch);
                assert_eq!(one[0], found.rows[found.rows.len() - (block.rows - row) as usize]);
            }
        }
    }
    Ok(found)
}

pub(crate) fn json_rows(batch: &RecordBatch) -> Vec<Value> {
    let schema = batch.schema();
    let row = |row| {
        let values = schema.fields().iter().zip(batch.columns());
        let values = values.map(|(field, column)| (field.name().clone(), json_value(column, row)));
        Value::Object(values.collect::<Map<_, _>>())
    };
    (0..batch.num_rows()).map(row).collect()
}

fn json_value(column: &dyn Array, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    let list =
        |items: &dyn Array| Value::Array((0..items.len()).map(|item| json_value(items, item)).collect());
    let widened = |wide| cast(&column.slice(row, 1), &wide).expect("numbers can be widened");
    match column.data_type() {
        DataType::Utf8View => json!(column.as_string_view().value(row)),
        DataType::BinaryView => json!(hex(column.as_binary_view().value(row))),
        DataType::Boolean => json!(column.as_boolean().value(row)),
        DataType::List(_) => list(&column.as_list::<i32>().value(row)),
        DataType::FixedSizeList(..) => list(&column.as_fixed_size_list().value(row)),
        DataType::UInt64 => json!(column.as_primitive::<UInt64Type>().value(row)),
        other if other.is_integer() => json!(widened(DataType::Int64).as_primitive::<Int64Type>().value(0)),
        _ => json!(widened(DataType::Float64).as_primitive::<Float64Type>().value(0)),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("the text has hexadecimal digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// The pixels of a PNG file without filters, as Pillow stores them.
pub(crate) fn png_pixels(png: &[u8]) -> Vec<u8> {
    use std::io::Read;
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes")) as usize;
    let (width, bits) = (number(16), png[24]);
    let channels = [1, 0, 3, 0, 2, 0, 4][png[25] as usize];
    let row_bytes = (width * usize::from(bits) * channels).div_ceil(8);
    let data = &png[41..41 + number(33)];
    let mut filtered = Vec::new();
    flate2::read::ZlibDecoder::new(data).read_to_end(&mut filtered).expect("the zlib stream is valid");
    let rows = filtered.chunks(row_bytes + 1);
    let mut pixels: Vec<u8> = rows.flat_map(|row| row[1..].iter().copied()).collect();
    if bits == 16 {
        pixels.chunks_exact_mut(2).for_each(|sample| sample.swap(0, 1));
    }
    pixels
}
