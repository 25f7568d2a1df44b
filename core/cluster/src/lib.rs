//! The coordinator's state machine: jobs, workers and consumers, leases and positions.
//!
//! It is told the time and what happened ([`Input`]) and says what to persist and what to answer ([`Ready`]). Every
//! answer waits until the records given before it are persisted. It owns no clock, task, socket or file.

mod candidates;
mod consumers;
mod deal;
mod first_keep;
mod inputs;
mod job;
mod leases;
mod leases_ahead;
mod limits;
mod missing_splits;
mod mix_changes;
mod opening;
mod prepare;
mod presence;
mod quotas;
pub mod records;
mod replicated_state;
mod samples;
mod schedule;
mod slots;
mod status;
mod step_queries;
mod tenant_rotation;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::manifest::Manifest;
use feedline_data::messages::{JobState, source_key};
use feedline_data::random::mix64;
use feedline_data::tenants::Tenants;
use serde::{Deserialize, Serialize};

pub use self::first_keep::first_keep;
pub use self::inputs::{Input, Ready, Reply, RequestId};
use self::job::TrackedJob;
pub use self::limits::ClusterLimits;
use self::limits::kept_text;
use self::prepare::Preparation;
use self::presence::Presence;
use self::quotas::RunningJobs;
use self::records::Record;
pub use self::replicated_state::ReplicatedState;
pub use self::slots::SlotOwnership;
use self::workers::TrackedWorker;

/// Times, depths, quotas and limits of the state machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSettings {
    /// Milliseconds without contact after which a worker's leases are given to others.
    pub worker_lease_ms: u64,
    /// Milliseconds without contact after which a consumer of a relaxed job loses the splits it took, and a job
    /// without any consumer its leases.
    pub consumer_lease_ms: u64,
    /// Milliseconds without any consumer after which a job fails.
    pub abandoned_ms: u64,
    /// Milliseconds that an unchanged plan is held back: the heartbeat interval.
    pub hold_ms: u64,
    /// Splits of one job that a worker holds and has not computed yet.
    pub leases_ahead: u32,
    /// Milliseconds after which a split near the job's end is leased a second time, to an idle worker.
    pub straggler_ms: u64,
    /// Whether rows are kept in caches where no pipeline asks for it.
    #[serde(default = "default_auto_cache")]
    pub auto_cache: bool,
    /// What the jobs of each tenant may take together.
    pub tenants: Tenants,
    /// How much there may be at once.
    pub limits: ClusterLimits,
}

fn default_auto_cache() -> bool {
    true
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            worker_lease_ms: 3_000,
            consumer_lease_ms: 15_000,
            abandoned_ms: 3_600_000,
            hold_ms: 500,
            leases_ahead: 3,
            straggler_ms: 1_000,
            auto_cache: default_auto_cache(),
            tenants: Tenants::default(),
            limits: ClusterLimits::default(),
        }
    }
}

/// Ended jobs that are still told of.
const KEPT_ENDED_JOBS: usize = 100;

/// The state machine.
#[derive(Debug)]
pub struct Cluster {
    settings: ClusterSettings,
    /// Distinguishes revisions of this life from those of earlier ones.
    life: u64,
    now: Millis,
    jobs: BTreeMap<JobId, TrackedJob>,
    workers: BTreeMap<WorkerId, TrackedWorker>,
    preparations: BTreeMap<JobId, Preparation>,
    /// Ended jobs, the one that ended first in front.
    ended: VecDeque<JobId>,
    next_job: u64,
    next_task: u64,
    /// Turns in which tasks were handed out so far.
    turn: u64,
    /// Consumers that are there.
    seats: Presence,
    /// Jobs of whose consumers somebody asks where they stand.
    asking: BTreeSet<JobId>,
    /// Jobs that run, by tenant.
    running: RunningJobs,
    /// First plan revision of a worker that appears: beyond those of every worker given up in this life.
    next_revision: u64,
    /// Workers of each job as the plan has it, with its cores there; jobs that are not listed go to any.
    placed: BTreeMap<JobId, BTreeMap<WorkerId, f64>>,
    /// Cores that jobs may use of workers at most, where the plan does not place them and their tenants have quotas.
    capped: BTreeMap<JobId, BTreeMap<WorkerId, f64>>,
    /// When a job's workers changed last.
    placed_at: BTreeMap<JobId, Millis>,
    /// Jobs for whose leases something has changed since they were looked at.
    stale: BTreeSet<JobId>,
    /// When all jobs were looked at; `None` when they must be.
    scheduled_at: Option<Millis>,
}

impl Cluster {
    /// An empty cluster. `life` must differ from that of every earlier life of this coordinator.
    pub fn new(settings: ClusterSettings, life: u64) -> Self {
        Self {
            settings,
            life,
            now: 0,
            jobs: BTreeMap::new(),
            workers: BTreeMap::new(),
            preparations: BTreeMap::new(),
            ended: VecDeque::new(),
            // Workers may live on while a coordinator loses its log: they must not take a new job for one they know.
            // A life is a time in nanoseconds, so this leaves room for a job in each millisecond.
            next_job: (life >> 20).max(1),
            // Results of an earlier life's tasks still arrive and must not be taken for this life's.
            next_task: mix64(life) >> 1,
            turn: 0,
            seats: Presence::default(),
            asking: BTreeSet::new(),
            running: RunningJobs::new(),
            next_revision: 1,
            placed: BTreeMap::new(),
            capped: BTreeMap::new(),
            placed_at: BTreeMap::new(),
            stale: BTreeSet::new(),
            scheduled_at: None,
        }
    }

    /// Rebuilds the durable state from records, in the order in which they were persisted. Workers that hold leases,
    /// and consumers that hold splits, count as seen at `now`, so that they keep them if they report within the lease
    /// time.
    pub fn restore(
        settings: ClusterSettings,
        life: u64,
        now: Millis,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut cluster = Self::new(settings, life);
        cluster.now = now;
        for record in records {
            cluster.apply(&record);
        }
        let mut holders: Vec<WorkerId> = Vec::new();
        for job in cluster.jobs.values() {
            holders.extend(job.holders());
            if !job.is_ended() && job.dataset.is_none() {
                cluster.preparations.insert(job.id, Preparation::new(None, 0));
            }
        }
        for worker in holders {
            cluster.workers.entry(worker).or_insert_with(|| TrackedWorker::remembered(now, 1));
        }
        for job in cluster.jobs.values_mut() {
            for (split, lease) in job.leases.iter() {
                for holder in &lease.holders {
                    if let Some(worker) = cluster.workers.get_mut(&holder.worker) {
                        worker.hold(job.id, split);
                    }
                }
            }
            job.released.clear();
            job.remember_consumers(now);
            if !job.is_ended() {
                job.consumers.keys().for_each(|consumer| cluster.seats.see(job.id, *consumer, now));
            }
        }
        cluster
    }

    /// Jobs whose dataset is being prepared, with their source keys: after [`Self::restore`] the driver gives their
    /// saved indexes back by [`Self::set_saved`].
    pub fn preparing(&self) -> Vec<(JobId, String)> {
        let key = |job: &JobId| {
            let spec = &self.jobs[job].spec;
            source_key(&spec.tenant, &spec.pipeline.source)
        };
        self.preparations.keys().map(|job| (*job, key(job))).collect()
    }

    /// Gives a preparing job the saved index of its dataset, unless it wants another.
    pub fn set_saved(&mut self, job: JobId, saved: Arc<Manifest>) {
        let reindex = self.jobs.get(&job).is_some_and(|found| found.spec.reindex);
        if let Some(preparation) = self.preparations.get_mut(&job).filter(|_| !reindex) {
            preparation.saved = Some(saved);
        }
    }

    /// The records that rebuild the present durable state: what a compacted log holds.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records: Vec<Record> = self.jobs.values().flat_map(TrackedJob::snapshot).collect();
        let ended = |job: &JobId| {
            let state = self.jobs.get(job).and_then(|found| found.ended.clone());
            state.map(|state| Record::Ended { job: *job, state })
        };
        // In the order in which they ended, since they are forgotten in that order.
        records.extend(self.ended.iter().filter_map(ended));
        records
    }

    /// Takes one input at time `now` and adds what follows to `ready`.
    pub fn step(&mut self, now: Millis, input: Input, ready: &mut Ready) {
        self.take(now, input, ready);
        self.expire(ready);
        self.prepare();
        self.deal_slots(ready);
        self.schedule(ready);
        self.answer_parked(ready);
    }

    /// Takes one input of several that come at once. What follows from them together is decided by the [`Self::step`]
    /// after the last of them, such as a [`Input::Tick`], so that it is decided once.
    pub fn take(&mut self, now: Millis, input: Input, ready: &mut Ready) {
        self.now = self.now.max(now);
        match input {
            Input::Tick => {}
            Input::OpenJob { request, spec, saved } => {
                let reply = self.on_open_job(*spec, saved, ready);
                ready.replies.push((request, reply.map_or_else(Reply::Refused, Reply::Opened)));
            }
            Input::JoinJob { request, spec, may_open } => {
                ready.replies.push((request, self.on_join_job(&spec, may_open)));
            }
            Input::CancelJob { request, job } => {
                let reply = self.on_cancel_job(job, ready);
                ready.replies.push((request, reply));
            }
            Input::SetWeights { request, job, weights } => self.on_set_weights(request, job, weights, ready),
            Input::Worker { request, report } => self.on_worker(request, report, ready),
            Input::Consumer { request, report } => self.on_consumer(request, report, ready),
            Input::Shares { shares } => self.on_shares(&shares),
            Input::IndexSaved { job, saved } => self.on_index_saved(job, saved, ready),
            Input::JobDetails { request, job } => ready.replies.push((request, self.details(job))),
            Input::JobStatus { request, job } => ready.replies.push((request, self.status(job))),
            Input::Places { request, job, step } => self.on_places(request, job, step, ready),
        }
    }

    /// Ends a job: its leases are gone, its workers and consumers are told.
    fn end_job(&mut self, job: JobId, state: JobState, ready: &mut Ready) {
        self.preparations.remove(&job);
        self.capped.remove(&job);
        for (id, worker) in &mut self.workers {
            if worker.worked_on(job)
                && let Some(found) = self.jobs.get_mut(&job)
            {
                worker.revision += 1;
                found.unsettled.insert(*id, worker.revision);
            }
            worker.forget_job(job);
        }
        let state = match state {
            JobState::Failed(message) => JobState::Failed(kept_text(message)),
            other => other,
        };
        self.record(Record::Ended { job, state }, ready);
        if let Some(found) = self.jobs.get_mut(&job) {
            found.touch_all_consumers();
        }
    }

    /// Something has changed that concerns the leases of all jobs.
    fn touch_all_jobs(&mut self) {
        self.scheduled_at = None;
    }

    /// Decides: changes the durable state and asks for the record to be persisted.
    fn record(&mut self, mut record: Record, ready: &mut Ready) {
        while let Some(part) = record.take_part() {
            self.apply(&part);
            ready.records.push(part);
        }
        self.apply(&record);
        ready.records.push(record);
    }

    /// Changes the durable state by a record; nothing else changes it.
    fn apply(&mut self, record: &Record) {
        if let Record::Opened { job, spec } = record {
            self.next_job = self.next_job.max(job.0 + 1);
            self.jobs.insert(*job, TrackedJob::new(*job, (**spec).clone(), self.now));
            return;
        }
        let job = record.job();
        self.stale.insert(job);
        if let Some(found) = self.jobs.get_mut(&job) {
            let ran = found.running().is_some();
            found.apply(record, self.now);
            self.running.count(&found.spec.tenant, ran, found.running().is_some());
        }
        if matches!(record, Record::Ended { .. }) {
            self.seats.forget_job(job);
            self.ended.push_back(job);
            self.forget_an_ended_job();
        }
    }

    /// State and log do not grow with the jobs that ever were. The newest job stays: no other gets its id.
    fn forget_an_ended_job(&mut self) {
        if self.ended.len() <= KEPT_ENDED_JOBS {
            return;
        }
        let newest = self.jobs.last_key_value().map(|(id, _)| *id);
        let oldest = self.ended.iter().position(|job| Some(*job) != newest);
        if let Some(oldest) = oldest.and_then(|place| self.ended.remove(place)) {
            self.jobs.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
