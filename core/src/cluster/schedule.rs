//! Who gets which split: leases in bulk ahead of need, stragglers twice, relaxed splits to whoever asks.

use std::collections::BTreeMap;

use super::job::{Holder, Job};
use super::records::Record;
use super::workers::Worker;
use super::{Cluster, Ready};
use crate::ids::{JobId, WorkerId};
use crate::layout::SplitRef;

/// A stream looks at least this many splits ahead, so that one worker computes while another is read.
const MIN_SPLITS_AHEAD: usize = 2;

impl Cluster {
    /// Grants what is needed and assigns what was asked for.
    pub(super) fn schedule(&mut self, ready: &mut Ready) {
        let running: Vec<JobId> =
            self.jobs.values().filter(|job| job.running().is_some()).map(|job| job.id).collect();
        for id in running {
            // A job may start at its end, or the log may hold a job's last step but not its end.
            if self.finish_if_done(id, ready) || self.jobs[&id].is_idle(self.now, &self.settings) {
                continue;
            }
            self.assign_relaxed(id, ready);
            let grants = self.choose_grants(&self.jobs[&id]);
            self.grant_all(id, grants, ready);
            let copies = self.choose_copies(&self.jobs[&id]);
            self.grant_all(id, copies, ready);
        }
    }

    /// Workers that a job's leases go to: those that the plan gives it, or all where it gives none that is there.
    fn hosts(&self, job: &Job) -> Vec<WorkerId> {
        let takes =
            |id: &WorkerId| self.workers.get(id).is_some_and(|worker| worker.known && !worker.draining);
        let planned: Vec<WorkerId> = job.parts.keys().copied().filter(takes).collect();
        if !planned.is_empty() {
            return planned;
        }
        self.workers.keys().copied().filter(takes).collect()
    }

    /// Splits of a job that should be with a worker now, most urgent first.
    fn needed(&self, job: &Job) -> Vec<SplitRef> {
        let Some(layout) = job.running() else { return Vec::new() };
        let workers = self.hosts(job).len();
        let slots = workers * self.settings.leases_ahead as usize;
        let ahead = (2 * slots).div_ceil(layout.streams as usize).max(MIN_SPLITS_AHEAD);
        let mut splits: Vec<SplitRef> = job.open.keys().copied().collect();
        for stream in 0..layout.streams {
            // Rows may be so few that a consumer needs many splits for a batch: it then asks for more.
            let wants = job.consumers.get(&job.owner(stream)).map_or(0, |consumer| consumer.wants as usize);
            splits.extend(job.splits_ahead(stream, ahead.max(wants)));
        }
        splits.sort_unstable();
        splits
    }

    fn choose_grants(&self, job: &Job) -> BTreeMap<WorkerId, Vec<SplitRef>> {
        let mut grants: BTreeMap<WorkerId, Vec<SplitRef>> = BTreeMap::new();
        let hosts = self.hosts(job);
        let mut load: BTreeMap<WorkerId, u32> =
            hosts.into_iter().map(|id| (id, self.workers[&id].uncomputed(job.id))).collect();
        for split in self.needed(job) {
            if job.leases.contains_key(&split) {
                continue;
            }
            let Some(worker) = self.choose_worker(job, split, &load) else { continue };
            *load.entry(worker).or_default() += 1;
            grants.entry(worker).or_default().push(split);
        }
        grants
    }

    /// The worker with room that is loaded least for the cores that the job has there. The next split of a stream is granted whatever the load, since its consumer
    /// waits for nothing else.
    fn choose_worker(&self, job: &Job, split: SplitRef, load: &BTreeMap<WorkerId, u32>) -> Option<WorkerId> {
        let urgent = self.is_urgent(job, split);
        let room = |id: &WorkerId, load: u32| {
            urgent || (load < self.settings.leases_ahead && !self.workers[id].memory_full)
        };
        let cores = |id: &WorkerId| job.parts.get(id).copied().unwrap_or(1.0);
        let best = |avoided: bool| {
            load.iter()
                .filter(|(id, load)| room(id, **load) && job.avoid.contains(&(split, **id)) == avoided)
                .map(|(id, load)| (f64::from(*load) / cores(id), self.workers[id].leases.len(), *id))
                .min_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))))
                .map(|(.., id)| id)
        };
        let elsewhere = || {
            let takes = |(id, worker): &(&WorkerId, &Worker)| {
                worker.known && !worker.draining && !job.avoid.contains(&(split, **id))
            };
            let others = self.workers.iter().filter(|_| urgent).filter(takes);
            others.min_by_key(|(_, worker)| worker.leases.len()).map(|(id, _)| *id)
        };
        // A worker that the consumer could not reach is asked again only when there is no other.
        best(false).or_else(elsewhere).or_else(|| best(true))
    }

    /// Whether a consumer waits for this split before all others of its stream: it is the next one, or those before it
    /// were computed a while ago and the consumer has not moved, since their rows do not fill a batch.
    fn is_urgent(&self, job: &Job, split: SplitRef) -> bool {
        if job.is_relaxed() && job.open.contains_key(&split) {
            return true;
        }
        let wants = job.consumers.get(&job.owner(split.stream)).map_or(0, |consumer| consumer.wants as usize);
        for earlier in job.splits_ahead(split.stream, wants.max(1)) {
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
        if self.needed(job).iter().any(|split| !job.leases.contains_key(split)) || !self.is_tail(job) {
            return copies;
        }
        let idle = |(_, worker): &(&WorkerId, &Worker)| {
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
            let mut ahead = job.splits_ahead(stream, job.leases.len() + 1).into_iter();
            ahead.all(|split| job.leases.contains_key(&split))
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
