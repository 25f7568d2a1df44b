//! Who gets which split: leases in bulk ahead of need, stragglers twice, relaxed splits to whoever asks.

use std::collections::{BTreeMap, BTreeSet};

use super::job::{Holder, Job};
use super::records::Record;
use super::{Cluster, Ready};
use crate::ids::{JobId, Millis, WorkerId};
use crate::layout::SplitRef;

/// A stream looks at least this many splits ahead, so that one worker computes while another is read.
const MIN_SPLITS_AHEAD: usize = 2;

/// A job that the plan does not place yet may have splits on so many times its even part of the workers. So few jobs
/// are on all of them, and each worker has but few of many jobs.
const SPREAD: usize = 4;

/// All jobs are looked at as often as this, for what time alone changes.
const SCHEDULE_MS: u64 = 100;

/// Workers by how much of a job they have still to compute for the cores that it has there, then by how much they hold.
#[derive(Debug, Default)]
struct Loads {
    of: BTreeMap<WorkerId, Load>,
    all: BTreeSet<(u64, usize, WorkerId)>,
    /// Those with room for splits that can wait.
    with_room: BTreeSet<(u64, usize, WorkerId)>,
}

/// What a worker has of a job and in all.
#[derive(Debug, Clone, Copy)]
struct Load {
    uncomputed: u32,
    held: usize,
    memory_full: bool,
    cores: f64,
}

impl Load {
    fn key(&self, id: WorkerId) -> (u64, usize, WorkerId) {
        ((1e6 * f64::from(self.uncomputed) / self.cores) as u64, self.held, id)
    }
}

impl Loads {
    fn put(&mut self, id: WorkerId, load: Load, leases_ahead: u32) {
        self.of.insert(id, load);
        self.all.insert(load.key(id));
        if load.uncomputed < leases_ahead && !load.memory_full {
            self.with_room.insert(load.key(id));
        }
    }

    /// The least loaded worker that may have it, of those that are not to be avoided, and of all.
    fn choose(
        &self,
        is_urgent: bool,
        avoid: impl Fn(WorkerId) -> bool,
    ) -> (Option<WorkerId>, Option<WorkerId>) {
        let candidates = if is_urgent { &self.all } else { &self.with_room };
        let best = candidates.iter().map(|(.., id)| *id).find(|id| !avoid(*id));
        (best, candidates.first().map(|(.., id)| *id))
    }

    fn add(&mut self, id: WorkerId, leases_ahead: u32) {
        let Some(load) = self.of.get(&id).copied() else { return };
        self.all.remove(&load.key(id));
        self.with_room.remove(&load.key(id));
        self.put(id, Load { uncomputed: load.uncomputed + 1, ..load }, leases_ahead);
    }
}

/// Workers for one of so many jobs that the plan does not place: neighbouring jobs have neighbouring ones.
fn spread(live: &[WorkerId], job: JobId, jobs: usize) -> Vec<WorkerId> {
    let count = (SPREAD * live.len()).div_ceil(jobs.max(1)).min(live.len());
    let start = (job.0 as usize).wrapping_mul(count) % live.len().max(1);
    let mut workers: Vec<WorkerId> = live.iter().cycle().skip(start).take(count).copied().collect();
    workers.sort_unstable();
    workers
}

impl Cluster {
    /// Grants what is needed and assigns what was asked for, for jobs of which something has changed and now and then
    /// for all.
    pub(super) fn schedule(&mut self, ready: &mut Ready) {
        let is_recent = |at: Millis| self.now < at + SCHEDULE_MS;
        let some = self.scheduled_at.is_some_and(is_recent);
        let stale = std::mem::take(&mut self.stale);
        let running = |job: &&Job| job.running().is_some();
        let chosen: Vec<JobId> = if some {
            let found = stale.iter().filter_map(|id| self.jobs.get(id));
            found.filter(running).map(|job| job.id).collect()
        } else {
            self.scheduled_at = Some(self.now);
            self.jobs.values().filter(running).map(|job| job.id).collect()
        };
        let live: Vec<WorkerId> = match chosen.is_empty() {
            true => Vec::new(),
            false => self.workers.keys().copied().filter(|id| self.takes_leases(*id)).collect(),
        };
        let running = self.jobs.values().filter(running).count();
        for id in chosen {
            // A job may start at its end, or the log may hold a job's last step but not its end.
            if self.finish_if_done(id, ready) || self.jobs[&id].is_idle(self.now, &self.settings) {
                continue;
            }
            self.assign_relaxed(id, ready);
            let job = &self.jobs[&id];
            let workers = self.placed_live(id).unwrap_or_else(|| spread(&live, id, running));
            let missing = self.missing(job, workers.len());
            let grants = self.choose_grants(job, &missing, &workers);
            let granted: usize = grants.values().map(Vec::len).sum();
            self.grant_all(id, grants, ready);
            if granted == missing.len() && self.is_tail(&self.jobs[&id]) {
                let copies = self.choose_copies(&self.jobs[&id]);
                self.grant_all(id, copies, ready);
            }
        }
        // What was recorded meanwhile has been taken into account.
        self.stale.clear();
    }

    pub(super) fn takes_leases(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.known && !worker.draining)
    }

    /// The workers that the plan gives a job; `None` where there are none.
    fn placed_live(&self, job: JobId) -> Option<Vec<WorkerId>> {
        let placed = self.placed.get(&job)?.iter().copied();
        let live: Vec<WorkerId> = placed.filter(|id| self.takes_leases(*id)).collect();
        (!live.is_empty()).then_some(live)
    }

    /// Splits of a job that should be with one of so many workers now and are not, most urgent first.
    fn missing(&self, job: &Job, workers: usize) -> Vec<SplitRef> {
        let Some(layout) = job.running() else { return Vec::new() };
        let slots = workers * self.settings.leases_ahead as usize;
        let ahead = (2 * slots).div_ceil(layout.streams as usize).max(MIN_SPLITS_AHEAD);
        let mut splits: Vec<SplitRef> = job.open.keys().copied().collect();
        for stream in 0..layout.streams {
            // Rows may be so few that a consumer needs many splits for a batch: it then asks for more.
            let wants = job.consumers.get(&job.owner(stream)).map_or(0, |consumer| consumer.wants as usize);
            splits.extend(job.splits_from(stream).take(ahead.max(wants)));
        }
        splits.retain(|split| !job.leases.contains_key(split));
        splits.sort_unstable();
        splits
    }

    /// Who gets which. The next split of a stream is granted whatever the load, since its consumer waits for nothing
    /// else.
    fn choose_grants(
        &self,
        job: &Job,
        missing: &[SplitRef],
        workers: &[WorkerId],
    ) -> BTreeMap<WorkerId, Vec<SplitRef>> {
        let mut grants: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        if missing.is_empty() {
            return grants;
        }
        let ahead = self.settings.leases_ahead;
        let mut loads = Loads::default();
        for id in workers {
            let worker = &self.workers[id];
            let part = worker.share.allotments.iter().find(|allotment| allotment.job == job.id);
            let load = Load {
                uncomputed: worker.uncomputed(job.id),
                held: worker.leases.len(),
                memory_full: worker.memory_full,
                cores: part.map(|part| part.cores).filter(|cores| *cores > 0.0).unwrap_or(1.0),
            };
            loads.put(*id, load, ahead);
        }
        for split in missing {
            let urgent = self.is_urgent(job, *split);
            let avoid = |worker| job.avoid.contains(&(*split, worker));
            // A worker that the consumer could not reach is asked again only when there is no other, wherever.
            let (best, least) = loads.choose(urgent, avoid);
            let elsewhere = || self.elsewhere(workers, avoid).filter(|_| urgent);
            let Some(worker) = best.or_else(elsewhere).or(least) else { continue };
            loads.add(worker, ahead);
            grants.entry(worker).or_default().push(*split);
        }
        grants
    }

    /// A worker beyond those that the job is to be on.
    fn elsewhere(&self, workers: &[WorkerId], avoid: impl Fn(WorkerId) -> bool) -> Option<WorkerId> {
        let others = self.workers.iter().filter(|(id, _)| self.takes_leases(**id) && !avoid(**id));
        let others = others.filter(|(id, _)| workers.binary_search(id).is_err());
        others.min_by_key(|(_, worker)| worker.leases.len()).map(|(id, _)| *id)
    }

    /// Whether a consumer waits for this split before all others of its stream: it is the next one, or those before it
    /// were computed a while ago and the consumer has not moved, since their rows do not fill a batch.
    fn is_urgent(&self, job: &Job, split: SplitRef) -> bool {
        if job.is_relaxed() && job.open.contains_key(&split) {
            return true;
        }
        let wants = job.consumers.get(&job.owner(split.stream)).map_or(0, |consumer| consumer.wants as usize);
        for earlier in job.splits_from(split.stream).take(wants.max(1)) {
            if earlier == split {
                return true;
            }
            let waits = |holder: &Holder| {
                self.now.saturating_sub(holder.granted_at) >= self.settings.straggler_ms
                    && self
                        .workers
                        .get(&holder.worker)
                        .is_some_and(|found| found.computed.contains(&(job.id, earlier)))
            };
            if !job.leases.get(&earlier).is_some_and(|lease| lease.holders.iter().any(waits)) {
                return false;
            }
        }
        false
    }

    /// Near the end of a job, splits that take long are leased to an idle worker as well: the results are identical,
    /// so whichever comes first is taken.
    fn choose_copies(&self, job: &Job) -> BTreeMap<WorkerId, Vec<SplitRef>> {
        let mut copies: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        let idle = |(_, worker): &(&WorkerId, &super::workers::Worker)| {
            worker.known && !worker.draining && !worker.memory_full && worker.uncomputed(job.id) == 0
        };
        let mut idle: Vec<WorkerId> = self.workers.iter().filter(idle).map(|(id, _)| *id).collect();
        for (split, lease) in &job.leases {
            let [holder] = lease.holders.as_slice() else { continue };
            let late = self.now.saturating_sub(holder.granted_at) >= self.settings.straggler_ms;
            let computed = self
                .workers
                .get(&holder.worker)
                .is_some_and(|worker| worker.computed.contains(&(job.id, *split)));
            if !late || computed {
                continue;
            }
            let Some(place) = idle.iter().position(|id| *id != holder.worker) else { break };
            copies.entry(idle.swap_remove(place)).or_default().push(*split);
        }
        copies
    }

    /// Whether every split that is left of the job is leased.
    fn is_tail(&self, job: &Job) -> bool {
        let Some(layout) = job.running() else { return false };
        (0..layout.streams).all(|stream| {
            // A stream has too many splits left far more often than not, which can be told without looking at them.
            let left =
                |next: SplitRef| u64::from(layout.epochs - next.epoch) * layout.splits(stream) - next.ordinal;
            let next = job.splits_from(stream).next();
            next.is_none_or(|next| left(next) <= job.leases.len() as u64)
                && job
                    .splits_from(stream)
                    .take(job.leases.len() + 1)
                    .all(|split| job.leases.contains_key(&split))
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
        let limit = self.settings.consumer_lease_ms;
        let alive = job.consumers.iter().filter(|(_, seat)| self.now.saturating_sub(seat.last_seen) <= limit);
        let mut rooms: Vec<(u32, usize)> = alive
            .map(|(number, seat)| {
                let held = job.open.values().filter(|open| open.consumer == Some(*number)).count();
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
            if let Some(seat) = self.jobs.get_mut(&job).and_then(|job| job.consumers.get_mut(&number)) {
                seat.revision += 1;
                seat.lost.remove(&split);
            }
        }
    }
}
