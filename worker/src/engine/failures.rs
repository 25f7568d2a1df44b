//! Failed rows of a group. Under `on_error: fail`, the first failed row becomes the error of the group. Otherwise
//! failed rows are reported with the piece.

use std::collections::BTreeMap;

use feedline_data::order::RowRef;
use feedline_data::pipeline::OnError;
use feedline_data::urls::is_kafka;
use feedline_proto::services::SkippedRow;

use super::chunk::WorkChunk;
use super::job::GroupBlocks;

/// The failure of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FailedRow {
    /// Byte offset in the shard. `None` if the row was read without errors and failed later.
    pub(super) offset: Option<u64>,
    pub(super) reason: String,
}

/// Failed rows by their index in the group.
pub(super) type GroupFailures = BTreeMap<usize, FailedRow>;

/// Returns all failed rows of these chunks. `read_failures` are the rows that could not be read.
pub(super) fn collect_failures(chunks: &[WorkChunk], read_failures: &GroupFailures) -> GroupFailures {
    let mut failed = GroupFailures::new();
    for work in chunks {
        for (origin, reason) in &work.chunk.failures {
            let index = work.start + *origin as usize;
            let offset = read_failures.get(&index).and_then(|failure| failure.offset);
            failed.insert(index, FailedRow { offset, reason: reason.clone() });
        }
    }
    failed
}

/// Identifies the rows of a group in messages.
#[derive(Clone, Copy)]
pub(super) struct NamedRows<'a> {
    pub(super) blocks: &'a GroupBlocks,
    pub(super) rows: &'a [RowRef],
}

impl NamedRows<'_> {
    /// Returns the first failed row as an error if the pipeline has `on_error: fail`.
    pub(super) fn check(&self, on_error: OnError, failed: &GroupFailures) -> Result<(), String> {
        match failed.first_key_value() {
            Some((index, failure)) if on_error == OnError::Fail => {
                let row = self.describe(*index, failure);
                let unit = if is_kafka(&row.shard) { "offset" } else { "byte" };
                Err(format!(
                    "{}, row {} at {unit} {}: {}; repair the row, or set `on_error: skip` or `replace`",
                    row.shard, row.row_id, row.offset, row.reason
                ))
            }
            _ => Ok(()),
        }
    }

    /// Describes all failed rows, in group order.
    pub(super) fn describe_all(&self, failed: &GroupFailures) -> Vec<SkippedRow> {
        failed.iter().map(|(index, failure)| self.describe(*index, failure)).collect()
    }

    fn describe(&self, index: usize, failure: &FailedRow) -> SkippedRow {
        let row = &self.rows[index];
        let (shard, block) = self.blocks.block(row);
        let bytes_before =
            || block.row_bytes.iter().take(row.row as usize).map(|&bytes| u64::from(bytes)).sum();
        let before: u64 = if is_kafka(&shard.url) { u64::from(row.row) } else { bytes_before() };
        SkippedRow {
            row_id: row.row_id,
            shard: shard.url.clone(),
            offset: failure.offset.unwrap_or(block.offset + before),
            reason: failure.reason.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use feedline_data::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
    use feedline_data::schema::Schema;

    use super::*;

    fn failed(index: usize, offset: Option<u64>) -> (usize, FailedRow) {
        (index, FailedRow { offset, reason: "not a JPEG".to_owned() })
    }

    #[test]
    fn a_failed_row_is_named_by_its_shard_and_byte() {
        let object = ShardRef {
            url: "file:///d/a".to_owned(),
            size_bytes: 100,
            version: String::new(),
            ..ShardRef::default()
        };
        let blocks = vec![Block { rows: 3, offset: 40, bytes: 60, group: 0, row_bytes: vec![10, 20, 30] }];
        let index = ShardIndex { blocks, schema: None, defects: Vec::new(), ..ShardIndex::default() };
        let manifest = Manifest { schema: Schema::default(), shards: vec![Shard::new(object, index)] };
        let row = |row| RowRef { row_id: 7 + u64::from(row), pass: 0, shard: 0, block: 0, row };
        let rows = [row(2), row(1)];
        let blocks = GroupBlocks::Manifest(Arc::new(manifest));
        let named = NamedRows { blocks: &blocks, rows: &rows };
        let failures: GroupFailures = [failed(0, None), failed(1, Some(5))].into();
        let described: Vec<(u64, u64)> =
            named.describe_all(&failures).iter().map(|row| (row.row_id, row.offset)).collect();
        assert_eq!(described, [(9, 70), (8, 5)], "the second offset was known");
        let error = named.check(OnError::Fail, &failures).unwrap_err();
        assert_eq!(
            error,
            "file:///d/a, row 9 at byte 70: not a JPEG; repair the row, or set `on_error: skip` or `replace`"
        );
        assert!(
            named.check(OnError::Skip, &failures).is_ok() && named.check(OnError::Replace, &failures).is_ok()
        );
        assert!(named.check(OnError::Fail, &GroupFailures::new()).is_ok());
    }
}
