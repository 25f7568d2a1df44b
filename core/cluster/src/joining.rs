//! Moves leases to workers that are new in a job. Consumers receive splits in order, so a new worker with only later splits
//! would not make the job faster before the other workers have computed all splits that they hold.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::layout::{Layout, SplitRef};

use crate::state::candidates::CandidateQueue;
use crate::state::job::TrackedJob;
use crate::{Cluster, Ready};

/// A split that waits until its worker has computed earlier splits.
struct WaitingSplit {
    holder: WorkerId,
    /// Number of splits that the holder computes until it has computed this split.
    position: u32,
}

impl Cluster {
    /// Revokes splits that wait on a worker and that a new worker would compute earlier. The new worker receives them in the
    /// same step, because they are the first missing splits and its load is the smallest. It also receives a part of the long
    /// runs, of which it computes the splits that are not leased yet.
    pub(crate) fn revoke_for_new_workers(&mut self, id: JobId, ready: &mut Ready) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.new_candidates.is_empty()) else { return };
        let mut new_workers = std::mem::take(&mut job.new_candidates);
        // The splits of a round of a coordinated job must stay together.
        if job.running_layout().is_none_or(|layout| layout.coordinated) {
            return;
        }
        if let Some(candidates) = &job.candidates {
            job.run_workers.move_to(&new_workers, candidates);
        }
        let job = &self.jobs[&id];
        let (Some(layout), Some(candidates)) = (job.running_layout(), &job.candidates) else { return };
        new_workers.retain(|worker| candidates.room_on(*worker) > 0);
        if new_workers.is_empty() {
            return;
        }
        self.examined_items += job.leases.len() as u64;
        let waiting = self.waiting_splits(job, layout, candidates);
        let is_urgent = |split| self.is_urgent(job, split);
        for (holder, splits) in choose_moves(waiting, &new_workers, candidates, is_urgent) {
            self.revoke(id, holder, splits, ready);
        }
        self.update_candidates(id);
    }

    /// Returns the splits that may move: all uncomputed splits except the first splits of each holder, with one row or indivisible
    /// batch for each core. A worker advances the streams of a job together, so a split of another stream may have begun. Its new
    /// holder starts at the first undelivered row. The splits of a long run stay, because another worker would have to decompress
    /// the run again.
    fn waiting_splits(
        &self,
        job: &TrackedJob,
        layout: &Layout,
        candidates: &CandidateQueue,
    ) -> BTreeMap<SplitRef, WaitingSplit> {
        let mut uncomputed: BTreeMap<WorkerId, BTreeSet<SplitRef>> = BTreeMap::new();
        for (split, lease) in job.leases.iter() {
            // A split with several holders is late or was unreachable, and has been granted again already.
            let Some(holder) = lease.only_holder().map(|holder| holder.worker) else { continue };
            let worker = self.workers.get(&holder).filter(|worker| !worker.is_computed(job.id, split));
            if worker.is_some() && candidates.contains(holder) && !job.unreachable.has_split(split) {
                uncomputed.entry(holder).or_default().insert(split);
            }
        }
        let mut waiting = BTreeMap::new();
        for (holder, splits) in uncomputed {
            let cores = self.workers.get(&holder).map_or(0, |worker| u64::from(worker.cores));
            let begun = cores.div_ceil(layout.split_parts().max(1)).max(1) as usize;
            for (split, position) in splits.into_iter().zip(1..).skip(begun) {
                if job.run_key(split).is_none() {
                    waiting.insert(split, WaitingSplit { holder, position });
                }
            }
        }
        waiting
    }
}

/// Chooses the splits that a new worker would compute earlier than their holders, in the order of the job. Returns them by
/// holder.
fn choose_moves(
    waiting: BTreeMap<SplitRef, WaitingSplit>,
    new_workers: &[WorkerId],
    candidates: &CandidateQueue,
    is_urgent: impl Fn(SplitRef) -> bool,
) -> BTreeMap<WorkerId, Vec<SplitRef>> {
    let finish_time = |worker: WorkerId, splits: u32| candidates.finish_time(worker, splits);
    let mut moves: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
    // The times at which each new worker would finish one more split.
    let mut next: BTreeSet<(u64, WorkerId, u32)> =
        new_workers.iter().filter_map(|worker| Some((finish_time(*worker, 1)?, *worker, 1))).collect();
    for (split, WaitingSplit { holder, position }) in waiting {
        let moved = moves.get(&holder).map_or(0, Vec::len) as u32;
        let Some((earliest, worker, splits)) = next.first().copied() else { break };
        let has_no_room = splits > candidates.room_on(worker) && !is_urgent(split);
        if has_no_room || finish_time(holder, position - moved).is_none_or(|time| time <= earliest) {
            continue;
        }
        moves.entry(holder).or_default().push(split);
        next.pop_first();
        next.extend(finish_time(worker, splits + 1).map(|time| (time, worker, splits + 1)));
    }
    moves
}
