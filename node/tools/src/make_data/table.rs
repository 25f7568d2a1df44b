//! Generates a table with the columns id, label, value, group and payload.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use feedline_data::random::RowRandom;

use super::rows::RowSource;

/// Number of rows in memory at a time.
const BATCH_ROWS: u64 = 8192;
/// Number of distinct values of `label`.
const LABELS: u32 = 10;
/// Number of distinct values of `group`.
const GROUPS: u32 = 16;
/// Maximum number of characters in `payload`.
const PAYLOAD_LENGTH_MAX: u32 = 128;

/// A generated table. Each row is a function of the seed and the row index, which is its `id`.
pub(super) struct GeneratedTable {
    rows: u64,
    seed: u64,
}

impl GeneratedTable {
    pub(super) fn new(rows: u64, seed: u64) -> Self {
        Self { rows, seed }
    }
}

impl RowSource for GeneratedTable {
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int64, false),
            Field::new("label", DataType::Int64, false),
            Field::new("value", DataType::Float64, false),
            Field::new("group", DataType::Utf8, false),
            Field::new("payload", DataType::Utf8, false),
        ]))
    }

    fn count(&self) -> u64 {
        self.rows
    }

    fn batch_rows(&self) -> u64 {
        BATCH_ROWS
    }

    fn read(&mut self, range: Range<u64>) -> Result<RecordBatch> {
        let ids: Vec<i64> = range.clone().map(|row| row as i64).collect();
        let (mut labels, mut values, mut groups, mut payloads) = (vec![], vec![], vec![], vec![]);
        for row in range {
            let mut random = RowRandom::new(self.seed, 2, 0, row);
            labels.push(i64::from(random.below(LABELS)));
            values.push(random.uniform(-1.0, 1.0));
            groups.push(format!("group-{:02}", random.below(GROUPS)));
            payloads.push(payload(&mut random));
        }
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(ids)),
            Arc::new(Int64Array::from(labels)),
            Arc::new(Float64Array::from(values)),
            Arc::new(StringArray::from(groups)),
            Arc::new(StringArray::from(payloads)),
        ];
        Ok(RecordBatch::try_new(self.schema(), columns)?)
    }
}

/// Draws 16 to [`PAYLOAD_LENGTH_MAX`] hexadecimal digits.
fn payload(random: &mut RowRandom) -> String {
    let length = 16 + random.below(PAYLOAD_LENGTH_MAX - 16 + 1) as usize;
    let mut payload = String::with_capacity(length + 8);
    while payload.len() < length {
        payload.push_str(&format!("{:08x}", random.next_u32()));
    }
    payload.truncate(length);
    payload
}
