//! Reads the rows of a group: whole blocks through the cache where rows are small, single rows where they are large.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use feedline_core::order::RowRef;
use feedline_sources::{BlockRead, BlockRows, SourceError};
use futures::{StreamExt, TryStreamExt};

use super::blocks::BlockKey;
use super::cpu::CpuTimed;
use super::job::JobContext;

/// Blocks of one group that are read at the same time.
const CONCURRENT_READS: usize = 16;

/// A group's encoded rows.
pub(crate) struct EncodedRows {
    /// The batches that hold the rows.
    pub(crate) batches: Vec<RecordBatch>,
    /// For each row of the group, its batch and its place in it.
    pub(crate) places: Vec<(usize, usize)>,
    /// Rows that could not be read: place in the group, byte offset in the shard, reason.
    pub(crate) failures: Vec<(usize, u64, String)>,
}

/// Rows of one block that a group needs.
struct Need {
    key: BlockKey,
    /// (row in the block, place in the group), ascending.
    rows: Vec<(u32, usize)>,
}

pub(crate) async fn read_rows(job: &JobContext, rows: &[RowRef]) -> Result<EncodedRows, SourceError> {
    let mut by_block: BTreeMap<BlockKey, Vec<(u32, usize)>> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        by_block.entry((row.shard, row.block)).or_default().push((row.row, place));
    }
    let needs = by_block.into_iter().map(|(key, mut rows)| {
        rows.sort_unstable();
        Need { key, rows }
    });
    let started = Instant::now();
    let reads = futures::stream::iter(needs.map(|need| read_need(job, need)));
    let timed = reads.buffered(CONCURRENT_READS).try_collect::<Vec<_>>();
    let (found, cpu) = CpuTimed::new(timed).await;
    job.source_counters.add_cpu(cpu);
    job.source_counters.add_wait(started.elapsed().saturating_sub(cpu));
    let found = found?;
    Ok(place_rows(job, rows.len(), found))
}

async fn read_need(job: &JobContext, need: Need) -> Result<(Need, Arc<BlockRows>, bool), SourceError> {
    let shard = &job.manifest.shards[need.key.0 as usize];
    let block = &shard.index.blocks[need.key.1 as usize];
    let mut wanted: Vec<u32> = need.rows.iter().map(|(row, _)| *row).collect();
    wanted.dedup();
    let single = !block.row_bytes.is_empty();
    let read = BlockRead {
        shard: &shard.object,
        block,
        schema: &job.read_schema,
        rows: (single && wanted.len() < block.rows as usize).then_some(wanted.as_slice()),
    };
    let partial = read.rows.is_some();
    // Large rows are read for this group alone, blocks of small rows serve their neighbours as well.
    let rows = if single || wanted.len() == block.rows as usize {
        Arc::new(job.dataset.read_block(&read).await?)
    } else {
        job.blocks.get_or_read(need.key, job.dataset.read_block(&read)).await?
    };
    Ok((need, rows, partial))
}

fn place_rows(job: &JobContext, count: usize, found: Vec<(Need, Arc<BlockRows>, bool)>) -> EncodedRows {
    let mut places = vec![(0, 0); count];
    let mut failures = Vec::new();
    let mut batches = Vec::with_capacity(found.len());
    let mut bytes = 0;
    for (number, (need, rows, partial)) in found.into_iter().enumerate() {
        let mut index = 0;
        let mut last = None;
        for (row, place) in need.rows {
            if partial && last.is_some_and(|last| last != row) {
                index += 1;
            }
            last = Some(row);
            let at = if partial { index } else { row as usize };
            places[place] = (number, at);
            if let Some(failure) = rows.failures.iter().find(|failure| failure.row as usize == at) {
                failures.push((place, failure.offset, failure.reason.clone()));
            }
        }
        bytes += rows.held_bytes;
        batches.push(rows.batch.clone());
    }
    job.source_counters.add_rows(count, count, bytes);
    EncodedRows { batches, places, failures }
}
