//! The coordinator's state machine: jobs, workers and consumers, leases and positions.
//!
//! [`Cluster::step`] takes the time and one input, and returns the records to persist and the replies to send ([`Ready`]).
//! A reply may be sent once all earlier records are persisted. The crate owns no clock, task, socket or file.
//!
//! A step examines only what its input has changed and what is due by time, whatever the numbers of jobs, workers, consumers
//! and leases.

mod consumer_plans;
mod consumer_reports;
mod dataset_checks;
mod deal;
mod expiry;
mod initial_cache;
mod inputs;
mod limits;
mod mix_changes;
mod opening;
mod placement;
mod prepare;
mod quotas;
pub mod records;
mod relaxed;
mod replicated_state;
mod replies;
mod restore;
mod samples;
mod schedule;
mod settings;
mod slots;
mod spec_checks;
mod state;
mod status;
mod step_positions;
mod worker_plans;
mod worker_reports;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::ids::{JobId, Millis, TaskId, WorkerId};
use feedline_data::messages::JobState;
use feedline_data::random::mix64;

pub use self::initial_cache::initial_cache_decision;
pub use self::inputs::{Input, Ready, Reply, RequestId};
use self::records::Record;
pub use self::replicated_state::ReplicatedState;
pub use self::settings::{ClusterLimits, ClusterSettings};
use self::state::deadlines::Deadlines;
use self::state::job::TrackedJob;
use self::state::preparation::Preparation;
use self::state::running_jobs::RunningJobs;
pub use self::state::slot_ownership::SlotOwnership;
use self::state::task_queue::TaskQueue;
use self::state::visited_map::VisitedMap;
use self::state::worker::{TaskRoom, TrackedWorker};

/// Ended jobs that the state machine still reports.
const KEPT_ENDED_JOBS: usize = 100;
/// Jobs without a plan are spread over the workers again this long after the number of running jobs has changed.
const REDISTRIBUTE_MS: u64 = 250;
/// Longest text of a report that is kept, in bytes: texts enter the log and are sent to all clients.
const MAX_TEXT_BYTES: usize = 2_048;

/// Truncates a text of a report to the length that is kept.
fn truncate_text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}

/// The state machine.
#[derive(Debug)]
pub struct Cluster {
    settings: ClusterSettings,
    /// Distinguishes the revisions of this life from those of earlier ones.
    life: u64,
    now: Millis,
    jobs: VisitedMap<JobId, TrackedJob>,
    workers: VisitedMap<WorkerId, TrackedWorker>,
    /// Jobs that have not ended, by tenant and name.
    open_jobs: BTreeMap<(String, String), JobId>,
    /// Ended jobs, the one that ended first in front.
    ended: VecDeque<JobId>,
    /// Running jobs by tenant.
    running: RunningJobs,
    next_job: u64,

    preparations: BTreeMap<JobId, Preparation>,
    tasks: TaskQueue,
    /// The job of each unfinished task.
    task_jobs: BTreeMap<TaskId, JobId>,
    /// Workers that can start a task.
    task_room: TaskRoom,
    next_task: u64,

    /// The last reports of the consumers of jobs that have not ended.
    consumer_reports: Deadlines<(JobId, u32)>,
    /// The last reports of the workers.
    worker_reports: Deadlines<WorkerId>,
    consumer_polls: Deadlines<(JobId, u32)>,
    worker_polls: Deadlines<WorkerId>,
    /// When each running job must be examined although no input concerns it.
    job_timers: Deadlines<JobId>,
    /// Jobs with open step queries.
    queried_jobs: BTreeSet<JobId>,

    /// The first plan revision of a new worker: after those of every worker that expired in this life.
    next_revision: u64,
    /// Workers that get leases.
    live: Vec<WorkerId>,
    /// The workers that the plan gives each job, with its cores there. Other jobs may use any worker.
    planned_workers: BTreeMap<JobId, BTreeMap<WorkerId, f64>>,
    /// When the workers of a planned job changed.
    planned_at: BTreeMap<JobId, Millis>,
    /// Most cores that jobs without a plan may use of workers because of their tenants' quotas.
    core_limits: BTreeMap<JobId, BTreeMap<WorkerId, f64>>,
    /// When jobs without a plan are spread over the workers again.
    redistribute_at: Option<Millis>,
    /// Jobs for which leases must be checked.
    jobs_to_schedule: BTreeSet<JobId>,
    examined: u64,
}

impl Cluster {
    /// An empty cluster. `life` must differ from that of every earlier life of this coordinator.
    pub fn new(settings: ClusterSettings, life: u64) -> Self {
        Self {
            settings,
            life,
            now: 0,
            jobs: VisitedMap::default(),
            workers: VisitedMap::default(),
            open_jobs: BTreeMap::new(),
            ended: VecDeque::new(),
            running: RunningJobs::default(),
            // Workers outlive a coordinator that loses its log and must not mistake a new job for one that they have. A life
            // is a time in nanoseconds, so this leaves room for a job in each millisecond.
            next_job: (life >> 20).max(1),
            preparations: BTreeMap::new(),
            tasks: TaskQueue::default(),
            task_jobs: BTreeMap::new(),
            task_room: TaskRoom::new(),
            // Late results of an earlier life's tasks must not match tasks of this life.
            next_task: mix64(life) >> 1,
            consumer_reports: Deadlines::default(),
            worker_reports: Deadlines::default(),
            consumer_polls: Deadlines::default(),
            worker_polls: Deadlines::default(),
            job_timers: Deadlines::default(),
            queried_jobs: BTreeSet::new(),
            next_revision: 1,
            live: Vec::new(),
            planned_workers: BTreeMap::new(),
            planned_at: BTreeMap::new(),
            core_limits: BTreeMap::new(),
            redistribute_at: None,
            jobs_to_schedule: BTreeSet::new(),
            examined: 0,
        }
    }

    /// Jobs, workers, consumers, streams and leases that steps have examined so far: a measure of the work of a step that does
    /// not depend on the machine.
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// Takes one input at time `now` and adds the resulting records and replies to `ready`.
    pub fn step(&mut self, now: Millis, input: Input, ready: &mut Ready) {
        self.take(now, input, ready);
        self.expire_workers(ready);
        let due = self.take_due_jobs();
        self.expire_consumers(&due, ready);
        self.expire_jobs(&due, ready);
        self.hand_out_tasks();
        self.deal_slots(&due, ready);
        self.schedule(ready);
        self.send_due_replies(ready);
        self.set_job_timers();
    }

    /// Takes one of several simultaneous inputs. The [`Self::step`] after the last one, such as a step with [`Input::Tick`],
    /// makes the decisions for all of them.
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
            Input::Allocations { allocations } => self.on_allocations(&allocations),
            Input::IndexSaved { job, saved } => self.on_index_saved(job, saved, ready),
            Input::JobDetails { request, job } => ready.replies.push((request, self.details(job))),
            Input::JobStatus { request, job } => ready.replies.push((request, self.status(job))),
            Input::Places { request, job, step } => self.on_step_query(request, job, step, ready),
        }
    }

    /// Ends a job: its leases end, and the plans of its workers and consumers change.
    fn end_job(&mut self, job: JobId, state: JobState, ready: &mut Ready) {
        self.drop_preparation(job);
        self.core_limits.remove(&job);
        if let Some(found) = self.jobs.get_mut(&job) {
            for id in std::mem::take(&mut found.workers) {
                let Some(worker) = self.workers.get_mut(&id) else { continue };
                worker.release_job(job);
                worker.revision += 1;
                worker.unsettled.insert((worker.revision, job));
                found.unsettled.insert(id);
            }
            for id in found.candidates.take().iter().flat_map(|candidates| candidates.workers()) {
                if let Some(worker) = self.workers.get_mut(&id) {
                    worker.candidate_of.remove(&job);
                }
            }
        }
        let state = match state {
            JobState::Failed(message) => JobState::Failed(truncate_text(message)),
            other => other,
        };
        self.record(Record::Ended { job, state }, ready);
        if let Some(found) = self.jobs.get_mut(&job) {
            found.touch_all_consumers();
        }
    }

    /// Checks the leases of all running jobs in this step, because the workers that get leases have changed.
    fn refresh_live_workers(&mut self) {
        self.live =
            self.workers.iter().filter(|(_, worker)| worker.accepts_work()).map(|(id, _)| *id).collect();
        let running: Vec<JobId> =
            self.jobs.values().filter(|job| job.running().is_some()).map(|job| job.id).collect();
        self.examined += (self.workers.len() + running.len()) as u64;
        running.into_iter().for_each(|id| self.refresh_candidates_of(id));
    }

    /// Chooses the candidates of a job anew in this step and checks all of its leases.
    fn refresh_candidates_of(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        for worker in job.candidates.take().iter().flat_map(|candidates| candidates.workers()) {
            if let Some(worker) = self.workers.get_mut(&worker) {
                worker.candidate_of.remove(&id);
            }
        }
        job.touched.all = true;
        self.jobs_to_schedule.insert(id);
    }

    /// Applies the record to the durable state, and adds it to the records to persist.
    fn record(&mut self, mut record: Record, ready: &mut Ready) {
        while let Some(part) = record.split_off_part() {
            self.apply(&part);
            ready.records.push(part);
        }
        self.apply(&record);
        ready.records.push(record);
    }

    /// Changes the durable state by a record. Nothing else changes it.
    fn apply(&mut self, record: &Record) {
        let id = record.job();
        if let Record::Opened { job, spec } = record {
            self.next_job = self.next_job.max(job.0 + 1);
            self.open_jobs.insert((spec.tenant.clone(), spec.name.clone()), *job);
            self.jobs.insert(*job, TrackedJob::new(*job, (**spec).clone(), self.now));
            return;
        }
        self.jobs_to_schedule.insert(id);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let ran = job.running().is_some();
        job.apply(record, self.now);
        if self.running.update(&job.spec.tenant, ran, job.running().is_some()) {
            self.redistribute_at.get_or_insert(self.now + REDISTRIBUTE_MS);
        }
        if matches!(record, Record::Ended { .. }) {
            self.open_jobs.remove(&(job.spec.tenant.clone(), job.spec.name.clone()));
            self.consumer_reports.remove_range((id, 0)..=(id, u32::MAX));
            self.job_timers.remove(id);
            self.ended.push_back(id);
            self.forget_oldest_ended_job();
        }
    }

    /// Forgets an ended job beyond [`KEPT_ENDED_JOBS`], so that state and log do not grow with the number of past jobs. The
    /// newest job stays, so that no other job gets its id.
    fn forget_oldest_ended_job(&mut self) {
        if self.ended.len() <= KEPT_ENDED_JOBS {
            return;
        }
        let newest = self.jobs.last_key();
        let oldest = self.ended.iter().position(|job| Some(*job) != newest);
        if let Some(oldest) = oldest.and_then(|index| self.ended.remove(index)) {
            self.consumer_polls.remove_range((oldest, 0)..=(oldest, u32::MAX));
            self.jobs.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
