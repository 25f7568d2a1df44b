//! Who gets which split: leases in bulk ahead of need, stragglers twice, relaxed splits to whoever asks.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::layout::SplitRef;

use super::candidates::{CandidateQueue, LeaseCandidate};
use super::job::{LeaseHolder, TouchedStreams, TrackedJob};
use super::leases::LeaseState;
use super::records::Record;
use super::{Cluster, Ready};

/// A stream looks at least this many splits ahead, so that one worker computes while another is read.
const MIN_SPLITS_AHEAD: usize = 2;

/// A split is not recalled before its job's workers have been the same for so long: it may be done soon.
const SETTLED_MS: u64 = 500;

/// All jobs are looked at as often as this, for what time alone changes.
const SCHEDULE_MS: u64 = 250;

/// Splits that are not computed so long after they were granted are recalled from a worker in which their job has no part
/// any more: what others leave of it may be nothing, and a stream waits for its next split whoever has it.
const RECALL_MS: u64 = 2_000;

/// The workers of a job by what they have to do.
struct WorkerLoads {
    queue: CandidateQueue,
    /// Splits of each stream that are leased ahead.
    ahead: usize,
}

impl TrackedJob {
    /// Looks for missing splits of streams that have changed. Gives what had changed.
    fn look_for_missing(&mut self, ahead: usize) -> TouchedStreams {
        let touched = std::mem::take(&mut self.touched);
        let Some(streams) = self.running().map(|layout| layout.streams) else { return touched };
        if touched.all {
            self.missing.clear();
            (0..streams).for_each(|stream| self.look_for_missing_of(stream, ahead));
        } else {
            touched.streams.iter().for_each(|stream| self.look_for_missing_of(*stream, ahead));
        }
        touched
    }

    fn look_for_missing_of(&mut self, stream: u32, ahead: usize) {
        // Rows may be so few that a consumer needs many splits for a batch: it then asks for more.
        let wants = self.wants_of(stream);
        let open = self.open.keys().copied().filter(|split| split.stream == stream);
        let splits = open.chain(self.splits_from(stream).take(ahead.max(wants)));
        let missing = splits.filter(|split| !self.leases.contains(*split)).collect();
        self.missing.set(stream, missing);
    }
}

impl Cluster {
    /// Grants what is needed and assigns what was asked for, for jobs of which something has changed and now and then
    /// for all.
    pub(super) fn schedule(&mut self, ready: &mut Ready) {
        let is_recent = |at: Millis| self.now < at + SCHEDULE_MS;
        let some = self.scheduled_at.is_some_and(is_recent);
        let stale = std::mem::take(&mut self.stale);
        let running = |job: &&TrackedJob| job.running().is_some();
        let chosen: Vec<JobId> = if some {
            let found = stale.iter().filter_map(|id| self.jobs.get(id));
            found.filter(running).map(|job| job.id).collect()
        } else {
            self.scheduled_at = Some(self.now);
            self.jobs.values().filter(running).map(|job| job.id).collect()
        };
        if chosen.is_empty() {
            return;
        }
        let live: Vec<WorkerId> = self.workers.keys().copied().filter(|id| self.takes_leases(*id)).collect();
        let running = self.running.all();
        let by_tenant = self.running_by_tenant();
        for id in chosen {
            // Time alone changes what is urgent and what is recalled.
            if !some && let Some(job) = self.jobs.get_mut(&id) {
                job.touched.all = true;
            }
            // A job may start at its end, or the log may hold a job's last step but not its end.
            if self.finish_if_done(id, ready) || self.jobs[&id].is_idle(self.now, &self.settings) {
                continue;
            }
            self.assign_relaxed(id, ready);
            let placed = self.placed_live(id);
            if let Some(parts) = placed.as_ref().filter(|_| self.jobs[&id].touched.all) {
                self.recall(id, parts, ready);
            }
            let is_placed = placed.is_some();
            let parts = placed.unwrap_or_else(|| self.unplaced_parts(id, &live, running, &by_tenant));
            self.cap(id, (!is_placed).then_some(parts.as_slice()));
            self.lease_missing(id, &parts, ready);
        }
        // What was recorded meanwhile has been taken into account.
        self.stale.clear();
    }

    fn takes_leases(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.known && !worker.draining)
    }

    /// The workers that the plan gives a job; `None` where there are none.
    fn placed_live(&self, job: JobId) -> Option<Vec<LeaseCandidate>> {
        let parts = self
            .placed
            .get(&job)?
            .iter()
            .map(|(worker, cores)| LeaseCandidate { worker: *worker, cores: *cores });
        let live: Vec<LeaseCandidate> = parts.filter(|part| self.takes_leases(part.worker)).collect();
        (!live.is_empty()).then_some(live)
    }

    /// Takes splits from workers in which their job has no part any more.
    fn recall(&mut self, id: JobId, parts: &[LeaseCandidate], ready: &mut Ready) {
        let mut recalled: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        let is_settled = self.placed_at.get(&id).is_none_or(|at| self.now >= at + SETTLED_MS);
        let job = &self.jobs[&id];
        // Where a consumer could not reach a worker, the split may be where it is for want of another.
        let is_avoided = |split| job.avoid.iter().any(|(avoided, _)| *avoided == split);
        for (split, lease) in job.leases.iter() {
            for holder in &lease.holders {
                let is_late = self.now.saturating_sub(holder.granted_at) >= RECALL_MS && is_settled;
                let has_part = || parts.binary_search_by_key(&holder.worker, |part| part.worker).is_ok();
                let worker = self.workers.get(&holder.worker);
                let is_computed = || worker.is_none_or(|worker| worker.computed.contains(&(id, split)));
                let stays = || worker.is_some_and(|worker| !worker.draining);
                if is_late && !has_part() && stays() && !is_computed() && !is_avoided(split) {
                    recalled.entry(holder.worker).or_default().push(split);
                }
            }
        }
        for (worker, splits) in recalled {
            self.revoke(id, worker, splits, ready);
        }
    }

    /// Grants what is missing, and near the job's end what takes long a second time.
    fn lease_missing(&mut self, id: JobId, parts: &[LeaseCandidate], ready: &mut Ready) {
        let loads = self.load_of(&self.jobs[&id], parts);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let touched = job.look_for_missing(loads.ahead);
        let missing = job.missing.len();
        let grants = self.choose_grants(&self.jobs[&id], &touched, parts, loads.queue);
        let granted: usize = grants.values().map(Vec::len).sum();
        self.grant_all(id, grants, ready);
        if granted == missing && self.is_tail(&self.jobs[&id]) {
            let copies = self.choose_copies(&self.jobs[&id], parts);
            self.grant_all(id, copies, ready);
        }
    }

    /// What the workers of a job have to compute, and how many splits ahead keep them busy.
    fn load_of(&self, job: &TrackedJob, parts: &[LeaseCandidate]) -> WorkerLoads {
        let least = self.settings.leases_ahead;
        let mut queue = CandidateQueue::new(parts, least);
        let Some(layout) = job.running() else { return WorkerLoads { queue, ahead: 0 } };
        let mut slots = 0;
        for part in parts {
            let worker = &self.workers[&part.worker];
            let ahead = worker.leases_ahead(least, layout.split_rows);
            slots += queue.slots(part).max(if ahead > least { ahead } else { 0 }) as usize;
            queue.put(*part, worker.uncomputed(job.id), ahead, worker.leases.len(), worker.memory_full);
        }
        let ahead = (2 * slots).div_ceil(layout.streams as usize).max(MIN_SPLITS_AHEAD);
        WorkerLoads { queue, ahead }
    }

    /// Who gets which. The next split of a stream is granted whatever the load, since its consumer waits for nothing
    /// else. Once no worker has room, only streams that have changed are looked at: time is looked at for all of them.
    fn choose_grants(
        &self,
        job: &TrackedJob,
        touched: &TouchedStreams,
        parts: &[LeaseCandidate],
        mut loads: CandidateQueue,
    ) -> BTreeMap<WorkerId, Vec<SplitRef>> {
        let mut grants: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        let mut last = None;
        let looks_at_all = touched.all || job.running().is_some_and(|layout| layout.coordinated);
        while let Some(split) = job.missing.after(last).filter(|_| looks_at_all || loads.has_room()) {
            last = Some(split);
            self.choose_grant(job, split, parts, &mut loads, &mut grants);
        }
        if !looks_at_all {
            let streams = touched.streams.iter().flat_map(|stream| job.missing.of_stream(*stream));
            let mut rest: Vec<SplitRef> = streams.copied().filter(|split| Some(*split) > last).collect();
            rest.sort_unstable();
            for split in rest {
                self.choose_grant(job, split, parts, &mut loads, &mut grants);
            }
        }
        grants
    }

    fn choose_grant(
        &self,
        job: &TrackedJob,
        split: SplitRef,
        parts: &[LeaseCandidate],
        loads: &mut CandidateQueue,
        grants: &mut BTreeMap<WorkerId, Vec<SplitRef>>,
    ) {
        let urgent = self.is_urgent(job, split);
        let avoid = |worker| job.avoid.contains(&(split, worker));
        let mate = self.round_mate(job, split, grants).filter(|worker| !avoid(*worker));
        // A worker that the consumer could not reach is asked again only when there is no other, wherever.
        let chosen = mate.or_else(|| {
            let (best, first) = loads.choose(urgent, avoid);
            let elsewhere = || if urgent { self.elsewhere(parts, avoid) } else { None };
            best.or_else(elsewhere).or(first)
        });
        if let Some(worker) = chosen {
            loads.add(worker);
            grants.entry(worker).or_default().push(split);
        }
    }

    /// The worker that has, or now gets, another stream's part of the same round of a coordinated job: it computes the round
    /// for all of them.
    fn round_mate(
        &self,
        job: &TrackedJob,
        split: SplitRef,
        grants: &BTreeMap<WorkerId, Vec<SplitRef>>,
    ) -> Option<WorkerId> {
        let layout = job.running().filter(|layout| layout.coordinated)?;
        let mates = || (0..layout.streams).map(|stream| SplitRef { stream, ..split });
        let held = mates().filter_map(|mate| job.leases.get(mate));
        let holders = held.flat_map(|lease| lease.holders.iter().map(|holder| holder.worker));
        let granted = grants.iter().filter(|(_, splits)| mates().any(|mate| splits.contains(&mate)));
        let mut workers = holders.chain(granted.map(|(worker, _)| *worker));
        workers.find(|worker| self.takes_leases(*worker))
    }

    /// A worker beyond those that the job is to be on.
    fn elsewhere(&self, parts: &[LeaseCandidate], avoid: impl Fn(WorkerId) -> bool) -> Option<WorkerId> {
        let others = self.workers.iter().filter(|(id, _)| self.takes_leases(**id) && !avoid(**id));
        let others = others.filter(|(id, _)| parts.binary_search_by_key(id, |part| &part.worker).is_err());
        others.min_by_key(|(_, worker)| worker.leases.len()).map(|(id, _)| *id)
    }

    /// Whether a consumer waits for this split before all others of its stream: it is the next one, or those before it
    /// were computed a while ago and the consumer has not moved, since their rows do not fill a batch. A worker whose memory
    /// is full computes what a consumer asks for and nothing else: of what it has not computed after a while, the
    /// consumer has the rows already, from a worker before it.
    fn is_urgent(&self, job: &TrackedJob, split: SplitRef) -> bool {
        if job.is_relaxed() && job.open.contains_key(&split) {
            return true;
        }
        let wants = job.wants_of(split.stream);
        for earlier in job.splits_from(split.stream).take(wants.max(1)) {
            if earlier == split {
                return true;
            }
            let waits = |holder: &LeaseHolder| {
                self.now.saturating_sub(holder.granted_at) >= self.settings.straggler_ms
                    && self
                        .workers
                        .get(&holder.worker)
                        .is_some_and(|found| found.memory_full || found.computed.contains(&(job.id, earlier)))
            };
            if !job.leases.get(earlier).is_some_and(|lease| lease.holders.iter().any(waits)) {
                return false;
            }
        }
        false
    }

    /// Near the end of a job, splits that take long are leased to an idle worker as well: the results are identical,
    /// so whichever comes first is taken.
    fn choose_copies(&self, job: &TrackedJob, parts: &[LeaseCandidate]) -> BTreeMap<WorkerId, Vec<SplitRef>> {
        let mut copies: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        let idle = |(_, worker): &(&WorkerId, &super::workers::TrackedWorker)| {
            worker.known && !worker.draining && !worker.memory_full && worker.uncomputed(job.id) == 0
        };
        // Elsewhere they would be recalled.
        let own = parts.iter().filter_map(|part| self.workers.get_key_value(&part.worker));
        let mut idle: Vec<WorkerId> = own.filter(idle).map(|(id, _)| *id).collect();
        let mut leases: Vec<(SplitRef, &LeaseState)> = job.leases.iter().collect();
        leases.sort_unstable_by_key(|(split, _)| *split);
        for (split, lease) in leases {
            let [holder] = lease.holders.as_slice() else { continue };
            let late = self.now.saturating_sub(holder.granted_at) >= self.settings.straggler_ms;
            let computed = self
                .workers
                .get(&holder.worker)
                .is_some_and(|worker| worker.computed.contains(&(job.id, split)));
            if !late || computed {
                continue;
            }
            let Some(place) = idle.iter().position(|id| *id != holder.worker) else { break };
            copies.entry(idle.swap_remove(place)).or_default().push(split);
        }
        copies
    }

    /// Whether every split that is left of the job is leased.
    fn is_tail(&self, job: &TrackedJob) -> bool {
        let Some(layout) = job.running() else { return false };
        (0..layout.streams).all(|stream| {
            // A stream has too many splits left far more often than not, which can be told without looking at them.
            let left =
                |next: SplitRef| u64::from(layout.epochs - next.epoch) * layout.splits(stream) - next.ordinal;
            let next = job.splits_from(stream).next();
            next.is_none_or(|next| left(next) <= job.leases.len() as u64)
                && job.splits_from(stream).take(job.leases.len() + 1).all(|split| job.leases.contains(split))
        })
    }

    fn grant_all(&mut self, job: JobId, grants: BTreeMap<WorkerId, Vec<SplitRef>>, ready: &mut Ready) {
        for (worker, splits) in grants {
            let Some(found) = self.workers.get_mut(&worker) else { continue };
            for split in &splits {
                found.grant(job, *split);
            }
            self.record(Record::Granted { job, worker, splits: splits.clone() }, ready);
            let Some(found) = self.jobs.get_mut(&job) else { continue };
            for split in splits {
                found.touch_consumer_of(split);
            }
        }
    }

    /// Relaxed mode: gives each consumer that has room the next splits of the sequence.
    fn assign_relaxed(&mut self, id: JobId, ready: &mut Ready) {
        let job = &self.jobs[&id];
        if !job.is_relaxed() {
            return;
        }
        let mut free: Vec<SplitRef> =
            job.open.iter().filter(|(_, open)| open.consumer.is_none()).map(|(split, _)| *split).collect();
        let mut held: BTreeMap<u32, usize> = BTreeMap::new();
        for number in job.open.values().filter_map(|open| open.consumer) {
            *held.entry(number).or_default() += 1;
        }
        let limit = self.settings.consumer_lease_ms;
        let alive = job.consumers.iter().filter(|(_, seat)| self.now.saturating_sub(seat.last_seen) <= limit);
        let mut rooms: Vec<(u32, usize)> = alive
            .map(|(number, seat)| {
                let held = held.get(number).copied().unwrap_or_default();
                (*number, (seat.wants as usize).saturating_sub(held))
            })
            .collect();
        let wanted: usize = rooms.iter().map(|(_, room)| room).sum();
        if wanted > free.len() {
            free.extend(job.splits_ahead(0, wanted - free.len()));
        }
        let mut chosen: BTreeMap<u32, Vec<SplitRef>> = BTreeMap::new();
        let mut free = free.into_iter();
        // One split in turn to each consumer with room.
        'outer: loop {
            let mut given = false;
            for (number, room) in rooms.iter_mut().filter(|(_, room)| *room > 0) {
                let Some(split) = free.next() else { break 'outer };
                *room -= 1;
                chosen.entry(*number).or_default().push(split);
                given = true;
            }
            if !given {
                break;
            }
        }
        self.assign_all(id, chosen, ready);
    }

    fn assign_all(&mut self, job: JobId, chosen: BTreeMap<u32, Vec<SplitRef>>, ready: &mut Ready) {
        // The sequence is taken from its head, so records must follow its order.
        let mut in_order: Vec<(SplitRef, u32)> = chosen
            .into_iter()
            .flat_map(|(number, splits)| splits.into_iter().map(move |split| (split, number)))
            .collect();
        in_order.sort_unstable();
        for (split, number) in in_order {
            self.record(Record::Assigned { job, consumer: Some(number), splits: vec![split] }, ready);
            let Some(found) = self.jobs.get_mut(&job) else { continue };
            found.touch_consumer(number);
            if let Some(seat) = found.consumers.get_mut(&number) {
                seat.lost.remove(&split);
            }
        }
    }
}
