//! Rows of a group that failed: under `on_error: fail` the first one is the error of the group, else they are reported
//! with the piece.

use std::collections::BTreeMap;

use feedline_data::order::RowRef;
use feedline_data::pipeline::OnError;
use feedline_proto::services::SkippedRow;

use super::chunk::WorkChunk;
use super::job::CompiledJob;

/// The failure of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FailedRow {
    /// Byte offset in the shard; `None` where the row was read without an error.
    pub(super) offset: Option<u64>,
    pub(super) reason: String,
}

/// Failed rows by their index in the group.
pub(super) type FailedRows = BTreeMap<usize, FailedRow>;

/// All rows that failed in these chunks. `read_failures` are the rows that could not be read.
pub(super) fn collect_failures(chunks: &[WorkChunk], read_failures: &FailedRows) -> FailedRows {
    let mut failed = FailedRows::new();
    for work in chunks {
        for (origin, reason) in &work.chunk.failures {
            let index = work.start + *origin as usize;
            let offset = read_failures.get(&index).and_then(|failure| failure.offset);
            failed.insert(index, FailedRow { offset, reason: reason.clone() });
        }
    }
    failed
}

/// Returns the first failed row as an error if the pipeline has `on_error: fail`.
pub(super) fn check_failures(job: &CompiledJob, rows: &[RowRef], failed: &FailedRows) -> Result<(), String> {
    match failed.first_key_value() {
        Some((index, failure)) if job.on_error() == OnError::Fail => {
            let row = describe_failure(job, &rows[*index], failure);
            Err(format!(
                "{}, row {} at byte {}: {}; repair the row, or set `on_error: skip` or `replace`",
                row.shard, row.row_id, row.offset, row.reason
            ))
        }
        _ => Ok(()),
    }
}

/// Descriptions of all failed rows, in the order of the group.
pub(super) fn describe_failures(job: &CompiledJob, rows: &[RowRef], failed: &FailedRows) -> Vec<SkippedRow> {
    failed.iter().map(|(index, failure)| describe_failure(job, &rows[*index], failure)).collect()
}

fn describe_failure(job: &CompiledJob, row: &RowRef, failure: &FailedRow) -> SkippedRow {
    let shard = &job.manifest.shards[row.shard as usize];
    let block = &shard.index.blocks[row.block as usize];
    let before: u64 = block.row_bytes.iter().take(row.row as usize).map(|&bytes| u64::from(bytes)).sum();
    SkippedRow {
        row_id: row.row_id,
        shard: shard.object.url.clone(),
        offset: failure.offset.unwrap_or(block.offset + before),
        reason: failure.reason.clone(),
    }
}
