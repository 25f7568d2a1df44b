//! Unbounded jobs: lists the topics again while the job runs, and records the new offsets as segments. A segment is recorded
//! before any of its splits is leased, so that the order of the rows does not depend on later events.

use std::collections::BTreeSet;

use feedline_data::growth::{Growth, ListedGrowth, SegmentTotals};
use feedline_data::ids::{JobId, WorkerId};
use feedline_data::manifest::ShardRef;
use feedline_data::messages::{JobSegments, JobState};
use feedline_data::pipeline::OnGap;
use feedline_data::segments::{MAX_UNDELIVERED_BLOCKS, Segment};

use crate::records::Record;
use crate::state::job::TrackedJob;
use crate::state::job_growth::{MAX_SEGMENTS_PER_LISTING, MAX_UNDELIVERED_ROWS, MAX_UNDELIVERED_SEGMENTS};
use crate::state::preparation::Preparation;
use crate::state::worker::TrackedWorker;
use crate::{Cluster, Ready, SavedIndexes, truncate_text};

impl Cluster {
    /// Starts the listings of unbounded jobs that are due.
    pub(crate) fn list_growth(&mut self, due: &BTreeSet<JobId>) {
        for id in due {
            let (now, settings) = (self.now, &self.settings);
            let Some(job) = self.jobs.get_mut(id).filter(|job| job.running_layout().is_some()) else {
                continue;
            };
            let is_due = job.growth.as_ref().is_some_and(|growth| growth.next_listing_at <= now);
            if !is_due || job.is_idle(now, settings) || self.preparations.contains_key(id) {
                continue;
            }
            if job.needs_growth() {
                self.preparations.insert(*id, Preparation::new(SavedIndexes::default()));
                self.add_task(*id, None, Vec::new());
                continue;
            }
            let limit = job.growth_limit();
            if let Some(growth) = job.growth.as_mut() {
                growth.on_listed(now);
                growth.source_error = limit;
            }
        }
    }

    /// Records what a listing of a running job has found.
    pub(crate) fn on_growth_listed(&mut self, id: JobId, listed: &[ShardRef], ready: &mut Ready) {
        self.drop_preparation(id);
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let kafka = job.spec.pipeline.source.kafka.as_ref();
        let skips_gaps = kafka.is_some_and(|kafka| kafka.on_gap == OnGap::Skip);
        let Some(growth) = job.growth.as_mut() else { return };
        match growth.recorded.compare(listed) {
            Ok(found) => {
                growth.on_listed(now);
                match growth.lost_records(&found, now).filter(|_| !skips_gaps) {
                    Some(message) => self.end_job(id, JobState::Failed(message), ready),
                    None => self.record_growth(id, found, ready),
                }
            }
            Err(message) => self.on_growth_failed(id, message, ready),
        }
    }

    /// Fails a running job whose topics cannot be listed, unless this is the case only for a short time.
    pub(crate) fn on_growth_failed(&mut self, id: JobId, message: String, ready: &mut Ready) {
        self.drop_preparation(id);
        let now = self.now;
        let growth = self.jobs.get_mut(&id).and_then(|job| job.growth.as_mut());
        if growth.is_some_and(|growth| growth.on_failed(truncate_text(message.clone()), now)) {
            self.end_job(id, JobState::Failed(message), ready);
        }
    }

    /// Records that the topics of a running job cannot be listed. The job waits, and its status contains the reason.
    pub(crate) fn on_growth_unavailable(
        &mut self,
        id: JobId,
        worker: WorkerId,
        reason: String,
        ready: &mut Ready,
    ) {
        if self.jobs.get(&id).is_some_and(|job| job.first_record.waits()) {
            self.wait_for_first_record(id);
            return;
        }
        if self.jobs.get(&id).is_some_and(|job| job.running_layout().is_none()) {
            self.end_job(id, JobState::Failed(reason), ready);
            return;
        }
        self.drop_preparation(id);
        let now = self.now;
        if let Some(growth) = self.jobs.get_mut(&id).and_then(|job| job.growth.as_mut()) {
            growth.on_unavailable(truncate_text(reason), now);
            growth.failed_worker = Some(worker);
        }
    }

    fn record_growth(&mut self, id: JobId, mut found: ListedGrowth, ready: &mut Ready) {
        let partitions = std::mem::take(&mut found.partitions);
        if !partitions.is_empty() {
            self.record(Record::Grown { job: id, partitions, segment: None, epoch_ms: 0 }, ready);
        }
        for _ in 0..MAX_SEGMENTS_PER_LISTING {
            let next = self.jobs.get(&id).and_then(|job| job.next_segment(&found, self.now));
            let Some((segment, epoch_ms)) = next else { break };
            self.examined_items += segment.ranges.len() as u64;
            let record = Record::Grown { job: id, partitions: Vec::new(), segment: Some(segment), epoch_ms };
            self.record(record, ready);
        }
        if let Some(growth) = self.jobs.get_mut(&id).and_then(|job| job.growth.as_mut()) {
            growth.set_unrecorded(&found);
        }
    }

    /// Returns the segments that contain the leased splits of a worker.
    pub(crate) fn segments_of(&self, worker: &TrackedWorker) -> Vec<JobSegments> {
        let mut jobs: Vec<JobSegments> = Vec::new();
        let mut growth: Option<&Growth> = None;
        for (id, split) in worker.leases() {
            if jobs.last().is_none_or(|last| last.job != id) {
                growth =
                    self.jobs.get(&id).and_then(|job| job.growth.as_ref()).map(|growth| &growth.recorded);
                jobs.push(JobSegments { job: id, partitions: Vec::new(), segments: Vec::new() });
            }
            let Some(last) = jobs.last_mut() else { continue };
            let Some(segment) = growth.and_then(|growth| growth.segment(split.ordinal)) else { continue };
            // The leases are in the order of their rounds.
            if last.segments.last().is_none_or(|known| known.first_round < segment.first_round) {
                last.segments.push(segment.clone());
            }
        }
        jobs.retain(|job| !job.segments.is_empty());
        for job in &mut jobs {
            let Some(growth) = self.jobs.get(&job.job).and_then(|found| found.growth.as_ref()) else {
                continue;
            };
            let ranges = job.segments.iter().flat_map(|segment| &segment.ranges);
            let used: BTreeSet<u32> = ranges.map(|range| range.partition).collect();
            let shard = |index: u32| Some((index, growth.recorded.partitions.get(index as usize)?.shard()));
            job.partitions = used.into_iter().filter_map(shard).collect();
        }
        jobs
    }
}

impl TrackedJob {
    /// Whether the job should record more rows: few rows and segments are undelivered, or a consumer needs more splits for its next
    /// batch and the undelivered blocks are below their limit.
    fn needs_growth(&self) -> bool {
        let Some((segments, SegmentTotals { rows, blocks })) = self.undelivered_segments() else {
            return false;
        };
        // A block has at least one row, so these segments are also below the limit of blocks.
        let has_room = segments < MAX_UNDELIVERED_SEGMENTS && rows < MAX_UNDELIVERED_ROWS;
        has_room || (blocks < MAX_UNDELIVERED_BLOCKS && self.has_consumer_without_splits())
    }

    /// Describes why a job records no rows although a consumer needs some; `None` without such a consumer.
    fn growth_limit(&self) -> Option<String> {
        let (_, SegmentTotals { blocks, .. }) = self.undelivered_segments()?;
        let is_limited = blocks >= MAX_UNDELIVERED_BLOCKS && self.has_consumer_without_splits();
        is_limited.then(|| {
            format!(
                "the job waits for its consumers: {blocks} blocks of recorded rows are not delivered, so it records no other rows; continue the consumers that have stopped, or use a smaller batch"
            )
        })
    }

    /// Whether a consumer needs more splits for its next batch than are recorded.
    fn has_consumer_without_splits(&self) -> bool {
        (0..self.streams.len() as u32)
            .any(|stream| self.streams.splits_ahead(stream) < self.wanted_splits_of(stream) as u64)
    }

    /// The number and the totals of the segments that are not delivered to all streams. `recorded` contains delivered segments until
    /// the next record.
    fn undelivered_segments(&self) -> Option<(usize, SegmentTotals)> {
        let segments = &self.growth.as_ref()?.recorded.segments;
        let round = self.first_undelivered_round();
        Some((segments.ending_after(round).len(), segments.totals_after(round)))
    }

    /// Returns the next segment to record, with the time since the start of its epoch.
    fn next_segment(&self, found: &ListedGrowth, now: u64) -> Option<(Segment, u64)> {
        let (layout, growth) = (self.running_layout()?, self.growth.as_ref()?);
        let rows = found.rows(&growth.recorded);
        if !growth.is_segment_due(rows, layout, now) || !self.needs_growth() {
            return None;
        }
        let plan = growth.plan_segment(&self.spec.pipeline, layout, now);
        let segment = growth.recorded.next_segment(&found.ends, &plan)?;
        Some((segment, if plan.starts_epoch { 0 } else { growth.epoch_ms(now) }))
    }
}
