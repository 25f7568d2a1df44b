//! The coordinator's state machine: jobs, workers and consumers, leases and positions.
//!
//! [`Cluster::step`] takes the time and one input, and returns the records to persist and the replies to send ([`Ready`]).
//! A reply may be sent once all earlier records are persisted. The crate owns no clock, task, socket or file.
//!
//! A step examines only state that its input has changed and deadlines that have passed. Its cost does not depend on the
//! numbers of jobs, workers, consumers and leases.

mod consumer_plans;
mod consumer_reports;
mod dataset_checks;
mod deal;
mod empty_epochs;
mod expiry;
mod first_record;
mod group_commits;
mod growing;
mod initial_cache;
mod inputs;
mod joining;
mod limits;
mod loaded_graphs;
mod losses;
mod lost_loads;
mod lost_tasks;
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
mod unrest;
mod worker_plans;
mod worker_reports;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::ids::{JobId, Millis, TaskId, WorkerId};
use feedline_data::messages::JobState;
use feedline_data::random::mix64;

pub use self::initial_cache::initial_cache_decision;
pub use self::inputs::{IndexToSave, Input, Ready, Reply, RequestId, SavedIndexes};
use self::records::Record;
pub use self::replicated_state::ReplicatedState;
pub use self::settings::{ClusterLimits, ClusterSettings};
use self::state::deadlines::Deadlines;
pub use self::state::ended_job::DroppedPipeline;
use self::state::group_commits::GroupCommits;
use self::state::isolated_worker::IsolatedWorker;
use self::state::job::TrackedJob;
use self::state::preparation::Preparation;
use self::state::running_jobs::RunningJobs;
pub use self::state::slot_ownership::SlotOwnership;
pub use self::state::suspects::LostWorkers;
use self::state::task_queue::TaskQueue;
use self::state::visited_map::VisitedMap;
use self::state::worker::{TaskRoom, TrackedWorker};
use self::unrest::Unrest;

/// Maximum number of ended jobs that the state machine reports.
const MAX_ENDED_JOBS: usize = 100;
/// Delay between a change in the number of running jobs and the redistribution of unplanned jobs over the workers.
const REDISTRIBUTE_DELAY_MS: u64 = 250;
/// Maximum length in bytes of a string in a report. The strings are written to the log and sent to all clients.
const MAX_TEXT_BYTES: usize = 2_048;
/// Truncates a string from a report to [`MAX_TEXT_BYTES`].
fn truncate_text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}

/// The state machine.
#[derive(Debug)]
pub struct Cluster {
    settings: ClusterSettings,
    /// Identifies this run of the state machine, so that plan revisions of earlier runs do not match.
    incarnation: u64,
    now: Millis,
    jobs: VisitedMap<JobId, TrackedJob>,
    workers: VisitedMap<WorkerId, TrackedWorker>,
    /// Jobs that have not ended, by tenant and name.
    open_jobs: BTreeMap<(String, String), JobId>,
    /// Ended jobs, in the order in which they ended.
    ended_jobs: VecDeque<JobId>,
    /// Running jobs by tenant.
    running_jobs: RunningJobs,
    next_job: u64,

    preparations: BTreeMap<JobId, Preparation>,
    task_queue: TaskQueue,
    /// The job of each unfinished task.
    task_jobs: BTreeMap<TaskId, JobId>,
    /// Workers that can start a task.
    task_room: TaskRoom,
    next_task: u64,

    /// The time of the last report of each consumer of a job that has not ended.
    consumer_reports: Deadlines<(JobId, u32)>,
    /// The time of the last report of each worker.
    worker_reports: Deadlines<WorkerId>,
    consumer_polls: Deadlines<(JobId, u32)>,
    worker_polls: Deadlines<WorkerId>,
    /// The time at which each running job must be examined even without an input.
    job_timers: Deadlines<JobId>,
    /// Jobs with unanswered step queries.
    queried_jobs: BTreeSet<JobId>,

    /// The first plan revision of a new worker. It is larger than the revisions of all workers that expired in this
    /// incarnation.
    next_revision: u64,
    /// Workers that accept leases.
    live_workers: Vec<WorkerId>,
    /// The workers that the plan assigns to each job, with the job's cores. Jobs without an entry may use any worker.
    planned_workers: BTreeMap<JobId, BTreeMap<WorkerId, f64>>,
    /// The time at which the workers of a planned job changed.
    planned_at: BTreeMap<JobId, Millis>,
    /// Maximum cores of unplanned jobs on each worker, derived from the quotas of their tenants.
    core_limits: BTreeMap<JobId, BTreeMap<WorkerId, f64>>,
    /// The time at which unplanned jobs are redistributed over the workers.
    redistribute_at: Option<Millis>,
    /// Jobs with splits whose workers were lost, or with workers that were lost while they loaded the graph.
    suspect_jobs: BTreeSet<JobId>,
    /// Tasks that wait until they can run alone on a worker.
    isolated_tasks: BTreeSet<(JobId, TaskId)>,
    /// The worker that runs a suspect alone.
    isolation: Option<IsolatedWorker>,
    unrest: Unrest,
    /// The time until which jobs of an earlier leader keep the workers that hold their graphs.
    graphs_kept_until: Option<Millis>,
    group_commits: GroupCommits,
    /// Jobs for which leases must be checked.
    jobs_to_schedule: BTreeSet<JobId>,
    examined_items: u64,
}

impl Cluster {
    /// Creates an empty cluster. `incarnation` must differ from the value of every earlier run of this coordinator.
    pub fn new(settings: ClusterSettings, incarnation: u64) -> Self {
        Self {
            settings,
            incarnation,
            now: 0,
            jobs: VisitedMap::default(),
            workers: VisitedMap::default(),
            open_jobs: BTreeMap::new(),
            ended_jobs: VecDeque::new(),
            running_jobs: RunningJobs::default(),
            // Workers outlive a coordinator that loses its log, so a new job must not reuse the id of a job that workers
            // know. An incarnation is a time in nanoseconds, which leaves enough ids for one job per millisecond.
            next_job: (incarnation >> 20).max(1),
            preparations: BTreeMap::new(),
            task_queue: TaskQueue::default(),
            task_jobs: BTreeMap::new(),
            task_room: TaskRoom::new(),
            // Late results of tasks of an earlier incarnation must not match tasks of this incarnation.
            next_task: mix64(incarnation) >> 1,
            consumer_reports: Deadlines::default(),
            worker_reports: Deadlines::default(),
            consumer_polls: Deadlines::default(),
            worker_polls: Deadlines::default(),
            job_timers: Deadlines::default(),
            queried_jobs: BTreeSet::new(),
            next_revision: 1,
            live_workers: Vec::new(),
            planned_workers: BTreeMap::new(),
            planned_at: BTreeMap::new(),
            core_limits: BTreeMap::new(),
            redistribute_at: None,
            suspect_jobs: BTreeSet::new(),
            isolated_tasks: BTreeSet::new(),
            isolation: None,
            unrest: Unrest::default(),
            graphs_kept_until: None,
            group_commits: GroupCommits::default(),
            jobs_to_schedule: BTreeSet::new(),
            examined_items: 0,
        }
    }

    /// Returns the number of jobs, workers, consumers, streams and leases that all steps have examined. This measure of the
    /// cost of a step does not depend on the machine.
    pub fn examined_items(&self) -> u64 {
        self.examined_items
    }

    /// Processes one input at time `now`, and adds the resulting records and replies to `ready`.
    pub fn step(&mut self, now: Millis, input: Input, ready: &mut Ready) {
        self.take_input(now, input, ready);
        self.expire_workers(ready);
        let due = self.take_due_jobs();
        self.expire_consumers(&due, ready);
        self.expire_jobs(&due, ready);
        self.update_isolation(ready);
        self.commit_due_groups();
        self.prepare_again(&due);
        self.list_growth(&due);
        self.hand_out_tasks();
        self.deal_slots(&due, ready);
        self.schedule(ready);
        self.send_due_replies(ready);
        self.set_job_timers();
    }

    /// Accepts one of several simultaneous inputs without making decisions. The next [`Self::step`], such as a step with
    /// [`Input::Tick`], decides on all of them.
    pub fn take_input(&mut self, now: Millis, input: Input, ready: &mut Ready) {
        self.now = self.now.max(now);
        match input {
            Input::Tick => {}
            Input::OpenJob { request, spec, saved_index: saved } => {
                let reply = self.on_open_job(*spec, saved, ready);
                ready.replies.push((request, reply.map_or_else(Reply::Rejected, Reply::Opened)));
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
            Input::IndexSaved { job, result } => self.on_index_saved(job, result, ready),
            Input::JobDetails { request, job } => ready.replies.push((request, self.details(job))),
            Input::JobStatus { request, job } => {
                self.keep_index_job(job);
                ready.replies.push((request, self.status(job)));
            }
            Input::QueryPositions { request, job, step } => self.on_step_query(request, job, step, ready),
        }
    }

    /// Ends a job. Revokes its leases and changes the plans of its workers and consumers.
    fn end_job(&mut self, job: JobId, state: JobState, ready: &mut Ready) {
        self.finish_group_commits(job);
        self.drop_preparation(job);
        self.core_limits.remove(&job);
        self.unrest.forget(job);
        self.release_graph(job);
        if let Some(found) = self.jobs.get_mut(&job) {
            for id in std::mem::take(&mut found.workers) {
                let Some(worker) = self.workers.get_mut(&id) else { continue };
                worker.remove_job(job);
                worker.revision += 1;
                worker.unsettled_jobs.insert((worker.revision, job));
                found.unsettled_workers.insert(id);
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

    /// Updates the list of workers that accept leases, and schedules a check of all leases in this step.
    fn refresh_live_workers(&mut self) {
        self.live_workers =
            self.workers.iter().filter(|(_, worker)| worker.accepts_work()).map(|(id, _)| *id).collect();
        let running: Vec<JobId> =
            self.jobs.values().filter(|job| job.running_layout().is_some()).map(|job| job.id).collect();
        self.examined_items += (self.workers.len() + running.len()) as u64;
        running.into_iter().for_each(|id| self.refresh_candidates_of(id));
    }

    /// Discards the lease candidates of a job, so that this step chooses new candidates and checks all leases of the job.
    fn refresh_candidates_of(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        for worker in job.candidates.take().iter().flat_map(|candidates| candidates.workers()) {
            if let Some(worker) = self.workers.get_mut(&worker) {
                worker.candidate_of.remove(&id);
            }
        }
        job.touched_streams.all = true;
        self.jobs_to_schedule.insert(id);
    }

    /// Applies a record to the durable state and adds it to the records to persist.
    fn record(&mut self, mut record: Record, ready: &mut Ready) {
        while let Some(part) = record.split_off_part() {
            self.apply(&part);
            ready.records.push(part);
        }
        self.apply(&record);
        ready.records.push(record);
    }

    /// Applies a record to the durable state. This is the only function that changes the durable state.
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
        let was_running = job.running_layout().is_some();
        job.apply(record, self.now);
        if self.running_jobs.update(&job.spec.tenant, was_running, job.running_layout().is_some()) {
            self.redistribute_at.get_or_insert(self.now + REDISTRIBUTE_DELAY_MS);
        }
        if matches!(record, Record::Ended { .. }) {
            self.open_jobs.remove(&(job.spec.tenant.clone(), job.spec.name.clone()));
            self.consumer_reports.remove_range((id, 0)..=(id, u32::MAX));
            self.job_timers.remove(id);
            self.ended_jobs.push_back(id);
            self.forget_oldest_ended_job();
        }
    }

    /// Removes the oldest ended job if there are more than [`MAX_ENDED_JOBS`], so that state and log do not grow with past
    /// jobs. The newest job stays, so that its id is not reused.
    fn forget_oldest_ended_job(&mut self) {
        if self.ended_jobs.len() <= MAX_ENDED_JOBS {
            return;
        }
        let newest = self.jobs.last_key();
        let oldest = self.ended_jobs.iter().position(|job| Some(*job) != newest);
        if let Some(oldest) = oldest.and_then(|index| self.ended_jobs.remove(index)) {
            self.consumer_polls.remove_range((oldest, 0)..=(oldest, u32::MAX));
            self.jobs.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
