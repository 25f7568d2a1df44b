//! What an unbounded job has recorded of its topics: the partitions, and the segments that are not delivered. The leader extends
//! this state while the job runs, and a position contains it, so that a job resumes on any cluster.

mod recorded;
mod undelivered;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::recorded::{RecordedSegments, SegmentTotals};
use crate::kafka_range::KafkaRange;
use crate::layout::{Layout, StreamPosition};
use crate::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
use crate::schema::Schema;
use crate::segments::{MAX_POSITION_BLOCKS, OffsetRange, Segment};

/// Maximum number of partitions of an unbounded job. Each record of the leader contains a range of every partition with new
/// records.
pub const MAX_PARTITIONS: usize = 10_000;
/// Maximum number of recorded rows in a position.
const MAX_ROWS: u64 = 1 << 60;
/// Estimated size of a record in bytes, if the topics had no record when the job opened.
const DEFAULT_ROW_BYTES: u32 = 1 << 10;
/// What a user can do about a topic that the job cannot continue with.
const NEW_JOB: &str = "open a new job without a position, which reads what the topics contain now";

/// A partition of an unbounded job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthPartition {
    /// The URL, such as `kafka://broker:9092/events/3`.
    pub url: String,
    /// The id of the topic. A topic that is deleted and created again has another id.
    #[serde(rename = "topic")]
    pub topic_id: String,
    /// The id of the reader's schema in the schema registry, if payloads have schemas.
    #[serde(rename = "schema", default, skip_serializing_if = "Option::is_none")]
    pub schema_id: Option<u32>,
    /// The offset after the last recorded one.
    pub next: u64,
    /// The estimated size of a record in bytes.
    #[serde(rename = "bytes")]
    pub row_bytes: u32,
}

impl GrowthPartition {
    /// Returns the shard by which workers identify the partition. It does not depend on the progress of the job.
    pub fn shard(&self) -> ShardRef {
        let (topic_id, schema_id) = (self.topic_id.clone(), self.schema_id);
        let range = KafkaRange { topic_id, from: 0, to: 0, leader_epoch: None, schema_id };
        ShardRef { url: self.url.clone(), size_bytes: 0, version: range.to_string(), ..ShardRef::default() }
    }

    fn topic_url(&self) -> &str {
        self.url.rsplit_once('/').map_or(self.url.as_str(), |(topic, _)| topic)
    }
}

/// The recorded partitions and segments of an unbounded job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// The partitions. Ranges refer to them by index.
    pub partitions: Vec<GrowthPartition>,
    /// The segments that are not delivered to all streams, in order.
    pub segments: RecordedSegments,
    /// The number of recorded rounds.
    pub rounds: u64,
    /// The number of recorded rows.
    pub rows: u64,
    /// The epoch of the last segment.
    pub epoch: u32,
    /// The row id of the first row of the epoch.
    #[serde(rename = "epoch_row")]
    pub epoch_first_row: u64,
    /// Milliseconds from the start of the epoch to the record of its last segment, by the clocks of the leaders.
    pub epoch_ms: u64,
}

/// The part of a job's growth that a consumer does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthUpdate {
    /// The state that the update extends; `None` if the update is complete.
    pub after: Option<KnownGrowth>,
    /// The new partitions and segments, and the totals.
    pub growth: Growth,
}

/// How much of a job's growth a consumer knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownGrowth {
    /// The number of recorded rounds.
    pub rounds: u64,
    /// The number of partitions.
    pub partitions: u32,
}

/// New partitions, and the present ends of all partitions, from a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListedGrowth {
    /// Partitions that the job has not recorded yet.
    pub partitions: Vec<GrowthPartition>,
    /// The index of each partition with new offsets, including new partitions, and its end.
    pub ends: Vec<(u32, u64)>,
    /// The index of the first partition that ends before its recorded offsets, and its end.
    pub behind: Option<(u32, u64)>,
}

impl ListedGrowth {
    /// The number of offsets that are not recorded yet. `growth` contains the new partitions.
    pub fn rows(&self, growth: &Growth) -> u64 {
        self.ends
            .iter()
            .map(|(partition, end)| growth.unrecorded(*partition, *end))
            .fold(0, u64::saturating_add)
    }
}

/// How the leader forms the next segment.
#[derive(Debug, Clone, Copy)]
pub struct SegmentPlan {
    /// The number of streams of the layout.
    pub streams: u32,
    /// The number of rows of a split.
    pub split_rows: u64,
    /// Maximum number of rows of the segment.
    pub max_rows: u64,
    /// Whether the segment is the first one of a new epoch.
    pub starts_epoch: bool,
}

impl Growth {
    /// Creates the growth of a new job from the index of its source. The first segment starts at the first offset of each
    /// partition.
    pub fn of_manifest(manifest: &Manifest) -> Self {
        let all = row_bytes(manifest.shards.iter().flat_map(|shard| &shard.index.blocks));
        let partitions = manifest.shards.iter().filter_map(|shard| {
            let own = row_bytes(shard.index.blocks.iter());
            let bytes = own.or(all).unwrap_or(DEFAULT_ROW_BYTES);
            Some(partition_of(&shard.object, shard.object.kafka_range()?, bytes))
        });
        Self { partitions: partitions.collect(), ..Self::default() }
    }

    /// How much of the growth this state contains.
    pub fn known(&self) -> KnownGrowth {
        KnownGrowth { rounds: self.rounds, partitions: self.partitions.len() as u32 }
    }

    /// Returns the segment that contains a round; `None` if the round is not recorded, or delivered to all streams.
    pub fn segment(&self, round: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.first_round <= round);
        self.segments.get(after.checked_sub(1)?).filter(|segment| round < segment.end_round())
    }

    fn unrecorded(&self, partition: u32, end: u64) -> u64 {
        self.partitions.get(partition as usize).map_or(0, |known| end.saturating_sub(known.next))
    }

    /// Compares a listing of the topics with the recorded partitions. The start of a listed shard matters only for a new
    /// partition. A partition whose end is before the recorded offsets has no new offsets. A new leader may not know its end yet, or
    /// has lost records. A shard without a range has no known end: it has no new offsets, and a new partition waits for its end.
    ///
    /// # Errors
    /// Returns a message if a topic was deleted, or deleted and created again, or if there are too many partitions.
    pub fn compare(&self, listed: &[ShardRef]) -> Result<ListedGrowth, String> {
        let known: BTreeMap<&str, usize> =
            self.partitions.iter().enumerate().map(|(index, known)| (known.url.as_str(), index)).collect();
        let mut is_listed = vec![false; self.partitions.len()];
        let mut found = ListedGrowth::default();
        for shard in listed {
            let index = known.get(shard.url.as_str()).copied();
            if let Some(index) = index {
                is_listed[index] = true;
            }
            let Some(range) = shard.kafka_range() else { continue };
            let Some(index) = index else {
                found.ends.push(((self.partitions.len() + found.partitions.len()) as u32, range.to));
                found.partitions.push(self.new_partition(shard, range));
                continue;
            };
            let recorded = &self.partitions[index];
            if range.topic_id != recorded.topic_id {
                return Err(format!(
                    "the topic of {} was deleted and created again: its id was {} and is {} now; {NEW_JOB}",
                    shard.url, recorded.topic_id, range.topic_id
                ));
            }
            if range.to > recorded.next {
                found.ends.push((index as u32, range.to));
            } else if range.to < recorded.next {
                found.behind.get_or_insert((index as u32, range.to));
            }
        }
        if let Some(missing) = is_listed.iter().position(|is_listed| !is_listed) {
            return Err(format!(
                "the job reads {}, which no longer exists; {NEW_JOB}",
                self.partitions[missing].url
            ));
        }
        check_partition_count(self.partitions.len() + found.partitions.len())?;
        Ok(found)
    }

    /// Describes that a partition ends before its recorded offsets.
    pub fn describe_lost(&self, (partition, end): (u32, u64)) -> String {
        let GrowthPartition { url, next, .. } = &self.partitions[partition as usize];
        format!(
            "{url} ends at offset {end}, but the job has recorded the offsets before {next}: a replica without the last records became the leader; set `on_gap: skip` to continue without them, or {NEW_JOB}"
        )
    }

    /// Creates a partition that was added while the job runs. It has the reader's schema of its topic.
    fn new_partition(&self, shard: &ShardRef, range: KafkaRange) -> GrowthPartition {
        let bytes = self.partitions.iter().map(|known| known.row_bytes).max().unwrap_or(DEFAULT_ROW_BYTES);
        let mut partition = partition_of(shard, range, bytes);
        if let Some(sibling) = self.partitions.iter().find(|known| known.topic_url() == partition.topic_url())
        {
            (partition.schema_id, partition.row_bytes) = (sibling.schema_id, sibling.row_bytes);
        }
        partition
    }

    /// Forms the next segment from the unrecorded offsets before `ends`; `None` without such offsets. If there are more than
    /// the maximum, each partition contributes an equal number, and partitions with fewer offsets contribute all of them.
    pub fn next_segment(&self, ends: &[(u32, u64)], plan: &SegmentPlan) -> Option<Segment> {
        let mut available: Vec<(u32, u64)> = ends
            .iter()
            .map(|(partition, end)| (*partition, self.unrecorded(*partition, *end)))
            .filter(|(_, rows)| *rows > 0)
            .collect();
        // Partitions with few offsets first, so that the others share what is left.
        available.sort_unstable_by_key(|(partition, rows)| (*rows, *partition));
        let (mut left, mut others) = (plan.max_rows, available.len() as u64);
        let mut ranges = Vec::with_capacity(available.len());
        for (partition, rows) in available {
            let rows = rows.min(left.div_ceil(others));
            (left, others) = (left - rows, others - 1);
            let GrowthPartition { next, row_bytes, .. } = self.partitions[partition as usize];
            if rows > 0 {
                ranges.push(OffsetRange { partition, from: next, to: next + rows, row_bytes });
            }
        }
        ranges.sort_unstable_by_key(|range| range.partition);
        let rows: u64 = ranges.iter().map(OffsetRange::rows).sum();
        let round_rows = plan.split_rows * u64::from(plan.streams.max(1));
        (rows > 0).then(|| Segment {
            first_round: self.rounds,
            rounds: rows.div_ceil(round_rows),
            first_row_id: self.rows,
            epoch: self.epoch.saturating_add(u32::from(plan.starts_epoch)),
            ranges,
        })
    }

    /// Adds partitions, and the next segment. `epoch_ms` is the time since the start of the segment's epoch.
    pub fn extend(&mut self, partitions: &[GrowthPartition], segment: Option<&Segment>, epoch_ms: u64) {
        self.partitions.extend_from_slice(partitions);
        let Some(segment) = segment.filter(|segment| segment.first_round == self.rounds) else { return };
        for range in &segment.ranges {
            if let Some(partition) = self.partitions.get_mut(range.partition as usize) {
                partition.next = partition.next.max(range.to);
            }
        }
        if segment.epoch > self.epoch {
            (self.epoch, self.epoch_first_row) = (segment.epoch, segment.first_row_id);
        }
        self.epoch_ms = epoch_ms;
        self.rounds = segment.end_round();
        self.rows = segment.first_row_id + segment.rows();
        self.segments.push(segment.clone());
    }

    /// Removes the segments that end before a round, because all their rows are delivered.
    pub fn trim(&mut self, round: u64) {
        self.segments.trim(round);
    }

    /// Returns what a consumer does not know: the changes after `known`, or the whole state if the segments after `known` were
    /// removed.
    pub fn update_after(&self, known: KnownGrowth) -> GrowthUpdate {
        let first = self.segments.first().map_or(self.rounds, |segment| segment.first_round);
        let is_extendable = known.partitions > 0
            && known.partitions as usize <= self.partitions.len()
            && (first..=self.rounds).contains(&known.rounds);
        if !is_extendable {
            return GrowthUpdate { after: None, growth: self.clone() };
        }
        let segments = self.segments.iter().filter(|segment| segment.first_round >= known.rounds);
        let segments: Vec<Segment> = segments.cloned().collect();
        let growth = Self {
            partitions: self.partitions[known.partitions as usize..].to_vec(),
            segments: segments.into(),
            ..*self
        };
        GrowthUpdate { after: Some(known), growth }
    }

    /// Applies an update. Ignores an update that an earlier one contains, or that extends a later state.
    pub fn apply(&mut self, update: GrowthUpdate) {
        let GrowthUpdate { after, growth } = update;
        let Some(after) = after else {
            if growth.rounds >= self.rounds && growth.partitions.len() >= self.partitions.len() {
                *self = growth;
            }
            return;
        };
        let known = self.partitions.len().checked_sub(after.partitions as usize);
        let Some(known) = known.filter(|_| after.rounds <= self.rounds) else { return };
        self.partitions.extend(growth.partitions.into_iter().skip(known));
        for segment in &growth.segments {
            // Ignores a segment that is already known.
            self.extend(&[], Some(segment), growth.epoch_ms);
        }
    }

    /// Returns the state that a position with these streams must contain: without the segments before all streams.
    pub fn before(&self, layout: &Layout, streams: impl IntoIterator<Item = StreamPosition>) -> Self {
        let rounds = streams.into_iter().map(|position| position.row / layout.split_rows.max(1));
        let mut growth = self.clone();
        growth.trim(rounds.min().unwrap_or(self.rounds));
        growth
    }
}

/// The growth of a job in a position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthPosition {
    /// The partitions and the undelivered segments.
    #[serde(flatten)]
    pub growth: Growth,
    /// The columns of the source.
    pub columns: Schema,
    /// The number of rows of a split of the layout, by which the rows of positions are counted.
    pub split_rows: u64,
}

impl GrowthPosition {
    /// Returns the manifest of a job with these partitions as shards. Their only block has the estimated size of a record.
    pub fn manifest(&self) -> Manifest {
        let shard = |partition: &GrowthPartition| {
            let bytes = u64::from(partition.row_bytes);
            let block = Block { rows: 1, offset: 0, bytes, group: 0, row_bytes: Vec::new() };
            let index = ShardIndex {
                blocks: vec![block],
                schema: Some(self.columns.clone()),
                ..ShardIndex::default()
            };
            Shard::new(partition.shard(), index)
        };
        let shards = self.growth.partitions.iter().map(shard).collect();
        Manifest { schema: self.columns.clone(), shards }
    }

    /// Checks that the position has the segments of all rows after these streams.
    ///
    /// # Errors
    /// Returns a message with the fix.
    pub fn check(&self, layout: &Layout, streams: &[StreamPosition]) -> Result<(), String> {
        if self.split_rows != layout.split_rows {
            return Err("invalid position: the size of a split does not match; use an unmodified checkpoint"
                .to_owned());
        }
        let growth = &self.growth;
        let rounds = layout.dataset_rows / (layout.split_rows * u64::from(layout.streams));
        let has_valid_totals = growth.rounds < rounds
            && growth.epoch_first_row <= growth.rows
            && growth.rows <= MAX_ROWS
            && growth.partitions.iter().all(|partition| partition.next <= i64::MAX as u64)
            && growth.partitions.len() <= MAX_PARTITIONS;
        if !has_valid_totals {
            return Err("invalid position: a number is too large; use an unmodified checkpoint".to_owned());
        }
        let mut next = growth.segments.first().map_or(growth.rounds, |segment| segment.first_round);
        let first = next;
        for segment in &growth.segments {
            let is_known = |range: &OffsetRange| (range.partition as usize) < growth.partitions.len();
            let has_room = segment.rounds.checked_mul(layout.split_rows * u64::from(layout.streams));
            let is_within =
                segment.first_row_id <= MAX_ROWS && segment.epoch <= growth.epoch && segment.rounds > 0;
            let fits = has_room >= Some(segment.rows()) && segment.ranges.iter().all(is_known);
            if segment.first_round != next || !fits || !is_within || !segment.has_valid_size() {
                return Err(
                    "invalid position: the segments do not match; use an unmodified checkpoint".to_owned()
                );
            }
            next = segment.end_round();
        }
        let blocks = growth.segments.totals_after(0).blocks;
        if blocks > MAX_POSITION_BLOCKS {
            return Err(format!(
                "the position has {blocks} blocks of undelivered records, more than the limit of {MAX_POSITION_BLOCKS}; use an unmodified checkpoint, or open a new job without a position"
            ));
        }
        let round = |position: &StreamPosition| position.row / layout.split_rows;
        let is_covered = |position: &StreamPosition| (first..=growth.rounds).contains(&round(position));
        if next != growth.rounds || growth.partitions.is_empty() {
            return Err(
                "invalid position: the segments are not complete; use an unmodified checkpoint".to_owned()
            );
        }
        match streams.iter().position(|position| !is_covered(position)) {
            Some(stream) => Err(format!(
                "the position does not contain the records of virtual consumer {stream}; merge the states of all ranks from the same step"
            )),
            None => Ok(()),
        }
    }
}

fn partition_of(shard: &ShardRef, range: KafkaRange, row_bytes: u32) -> GrowthPartition {
    let KafkaRange { topic_id, from, schema_id, .. } = range;
    GrowthPartition { url: shard.url.clone(), topic_id, schema_id, next: from, row_bytes }
}

/// Checks the number of partitions of an unbounded job.
///
/// # Errors
/// Returns a message with the fix.
pub fn check_partition_count(partitions: usize) -> Result<(), String> {
    if partitions > MAX_PARTITIONS {
        return Err(format!(
            "the topics have {partitions} partitions, more than the limit of {MAX_PARTITIONS} with `until: none`; select fewer topics"
        ));
    }
    Ok(())
}

/// The mean size of a row in blocks; `None` without rows.
fn row_bytes<'a>(blocks: impl Iterator<Item = &'a Block>) -> Option<u32> {
    let (rows, bytes) = blocks.fold((0_u64, 0_u64), |(rows, bytes), block| {
        (rows.saturating_add(u64::from(block.rows)), bytes.saturating_add(block.bytes))
    });
    (rows > 0).then(|| u32::try_from(bytes.div_ceil(rows)).unwrap_or(u32::MAX).max(1))
}

#[cfg(test)]
mod tests;
