//! Rows that no worker computes any more, because each worker that tried to compute their split was lost, the last of them at
//! these rows.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{Field, Schema as ArrowSchema};
use feedline_data::messages::MAX_LOST_WORKERS;
use feedline_data::order::RowRef;
use feedline_data::schema::Schema;
use feedline_data::urls::is_kafka;
use feedline_sources::arrow_field;

use super::failures::NamedRows;

/// The reason that is listed for each row under `on_error: skip` and `replace`.
pub(super) const GIVEN_UP_REASON: &str = "the row was not computed, because at least 3 workers were lost one after another while they computed it or a row beside it";
/// Maximum number of blocks that the error message names.
const MAX_NAMED_BLOCKS: usize = 3;

/// A block of given-up rows.
struct NamedBlock<'a> {
    /// A row of the block.
    row: &'a RowRef,
    /// The lowest id of the rows.
    first: u64,
    /// The highest id of the rows.
    last: u64,
}

/// A row of nulls.
pub(super) fn unread_row(schema: &Schema) -> RecordBatch {
    let fields: Vec<Field> =
        schema.fields.iter().map(|field| arrow_field(&field.name, &field.column_type)).collect();
    let columns = fields.iter().map(|field| new_null_array(field.data_type(), 1)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    RecordBatch::try_new_with_options(Arc::new(ArrowSchema::new(fields)), columns, &options)
        .expect("all fields of a source are nullable")
}

/// Returns the error under `on_error: fail`. It names the blocks of the rows.
pub(super) fn given_up_message(named: &NamedRows<'_>) -> String {
    let mut blocks: Vec<NamedBlock<'_>> = Vec::new();
    for row in named.rows {
        let is_same =
            |block: &&mut NamedBlock<'_>| (block.row.shard, block.row.block) == (row.shard, row.block);
        match blocks.iter_mut().find(is_same) {
            Some(block) => {
                block.first = block.first.min(row.row_id);
                block.last = block.last.max(row.row_id);
            }
            None => blocks.push(NamedBlock { row, first: row.row_id, last: row.row_id }),
        }
    }
    let describe = |named_block: &NamedBlock<'_>| {
        let (shard, block) = named.blocks.block(named_block.row);
        let unit = if is_kafka(&shard.url) { "offset" } else { "byte" };
        let NamedBlock { first, last, .. } = named_block;
        format!("{}, block at {unit} {}, rows {first} to {last}", shard.url, block.offset)
    };
    let mut places: Vec<String> = blocks.iter().take(MAX_NAMED_BLOCKS).map(describe).collect();
    if blocks.len() > MAX_NAMED_BLOCKS {
        places.push(format!("and {} more blocks", blocks.len() - MAX_NAMED_BLOCKS));
    }
    format!(
        "at least {MAX_LOST_WORKERS} workers were lost one after another while they computed {}; look for the reason in the logs and exit statuses of the workers, such as too little memory, then repair the rows or the pipeline, or set `on_error: skip`",
        places.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use feedline_data::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
    use feedline_data::schema::{ColumnType, ScalarType};

    use super::super::job::GroupBlocks;
    use super::*;

    #[test]
    fn the_message_names_the_first_blocks() {
        let block = |offset| Block { rows: 4, offset, bytes: 10, group: 0, row_bytes: Vec::new() };
        let index = ShardIndex {
            blocks: (0..5).map(|block_number| block(10 * block_number)).collect(),
            schema: None,
            ..ShardIndex::default()
        };
        let url = "file:///d/a".to_owned();
        let object = ShardRef { url, size_bytes: 50, ..ShardRef::default() };
        let manifest = Manifest { schema: Schema::default(), shards: vec![Shard::new(object, index)] };
        let blocks = GroupBlocks::Manifest(Arc::new(manifest));
        let row = |row_id: u64| RowRef {
            row_id,
            shard: 0,
            block: (row_id / 4) as u32,
            row: (row_id % 4) as u32,
            pass: 0,
        };
        let message = |rows: &[u64]| {
            let rows: Vec<RowRef> = rows.iter().map(|id| row(*id)).collect();
            given_up_message(&NamedRows { blocks: &blocks, rows: &rows })
        };
        let one = message(&[6, 4, 5]);
        assert!(
            one.contains("while they computed file:///d/a, block at byte 10, rows 4 to 6; look"),
            "{one}"
        );
        let many = message(&[0, 5, 9, 12, 17]);
        assert!(many.contains("block at byte 20, rows 9 to 9; and 2 more blocks; look"), "{many}");
    }

    #[test]
    fn a_row_of_nulls_has_all_columns() {
        let mut schema = Schema::default();
        schema.set("a", ColumnType::Scalar(ScalarType::Int64));
        schema.set("b", ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![2, 3] });
        let row = unread_row(&schema);
        assert_eq!((row.num_rows(), row.num_columns()), (1, 2));
        assert_eq!(unread_row(&Schema::default()).num_rows(), 1);
        assert!(GIVEN_UP_REASON.contains(&format!("{MAX_LOST_WORKERS} workers")));
    }
}
