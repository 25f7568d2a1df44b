//! A simulated worker. It computes the rows of its leases at the rate of its cores, and reports like a real worker.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::manifest::{Manifest, ShardRef};
use feedline_data::messages::{
    OperatorStats, ProcessCpu, Revision, StoreStats, Task, TaskOutput, TaskResult, WorkerJobStats,
    WorkerPlan, WorkerReport,
};

use super::job::{self, SimulatedJob};
use super::lease::SimulatedLease;
use super::scenario::ScenarioWorkerType;

/// The duration of one store request, in seconds.
const REQUEST_LATENCY_S: f64 = 0.02;
/// The size of one store request, in bytes.
const REQUEST_BYTES: f64 = (1 << 20) as f64;
/// The number of requests in flight while the store is saturated.
const REQUESTS_IN_FLIGHT: f64 = 16.0;
/// The number of rounds per time step that divide idle cores among the jobs that can use them.
const CORE_SHARING_ROUNDS: usize = 3;

/// The state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// The worker starts at this time.
    Starting(Millis),
    Working,
    /// The worker leaves when it has no leases.
    Draining,
    Left,
}

/// The work of a worker for one job.
#[derive(Debug, Clone, Copy, Default)]
struct JobWork {
    rows: f64,
    store_wait_s_per_row: f64,
}

#[derive(Debug)]
pub(super) struct SimulatedWorker {
    pub(super) id: WorkerId,
    pub(super) state: WorkerState,
    /// The time at which the worker was requested. The worker incurs costs from this time on.
    pub(super) requested_at: Millis,
    started_at: Millis,
    /// The time at which the worker left, if it has left.
    pub(super) left_at: Option<Millis>,
    machine: String,
    cores: u32,
    speed: f64,
    memory_bytes: f64,
    plan_revision: Revision,
    /// Leased splits, sorted by urgency, the most urgent first.
    leases: Vec<SimulatedLease>,
    /// The allocated and the maximum cores of each job.
    job_cores: Vec<(u32, f64, f64)>,
    work_by_job: BTreeMap<u32, JobWork>,
    task_results: Vec<TaskResult>,
    memory_full: bool,
    /// The earliest time of the next report.
    pub(super) next_report: Millis,
    /// Whether the coordinator has not answered the last report yet.
    pub(super) awaits_reply: bool,
    /// Whether the state has changed since the last report.
    pub(super) has_unreported_change: bool,
}

/// The data that a worker needs to apply its plan: jobs and manifests.
pub(super) struct WorkerPlanContext<'a> {
    pub(super) jobs: &'a [SimulatedJob],
    pub(super) manifests: &'a [std::sync::Arc<Manifest>],
    /// The id of the first job. The ids of the other jobs follow consecutively.
    pub(super) first_job: JobId,
}

impl WorkerPlanContext<'_> {
    pub(super) fn index_of(&self, job: JobId) -> Option<u32> {
        let place = job.0.checked_sub(self.first_job.0)?;
        (place < self.jobs.len() as u64).then_some(place as u32)
    }
}

impl SimulatedWorker {
    pub(super) fn new(id: WorkerId, kind: &ScenarioWorkerType, state: WorkerState, now: Millis) -> Self {
        Self {
            id,
            state,
            requested_at: now,
            started_at: if let WorkerState::Starting(at) = state { at } else { now },
            left_at: None,
            machine: kind.name.clone(),
            cores: kind.cores,
            speed: kind.speed,
            memory_bytes: kind.memory_gib * f64::from(1 << 30),
            plan_revision: Revision::default(),
            leases: Vec::new(),
            job_cores: Vec::new(),
            work_by_job: BTreeMap::new(),
            task_results: Vec::new(),
            memory_full: false,
            next_report: now,
            awaits_reply: false,
            has_unreported_change: false,
        }
    }

    /// Whether a report is due: the coordinator has answered the last report or the worker's state has changed, and the
    /// shortest interval has passed.
    pub(super) fn is_report_due(&self, now: Millis) -> bool {
        self.is_running() && now >= self.next_report && (!self.awaits_reply || self.has_unreported_change)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, WorkerState::Working | WorkerState::Draining)
    }

    pub(super) fn has_no_splits(&self) -> bool {
        self.leases.is_empty()
    }

    /// Returns the bytes per second that the worker would read from an unlimited store.
    pub(super) fn wanted_bytes_per_s(&self, jobs: &[SimulatedJob]) -> f64 {
        let mut cheapest: f64 = 0.0;
        for lease in self.leases.iter().filter(|lease| lease.has_work()) {
            let job = &jobs[lease.job as usize];
            cheapest = cheapest.max(job.definition.store_bytes_per_row as f64 / job.cpu_s_per_row);
        }
        cheapest * f64::from(self.cores) * self.speed
    }

    /// Sets the rows of the leased splits that have arrived by `now`.
    pub(super) fn receive_rows(&mut self, now: Millis, jobs: &[SimulatedJob]) {
        for lease in &mut self.leases {
            let job = &jobs[lease.job as usize];
            if let Some(arrived) = job.arrived_rows(now) {
                let start = job.layout.split_range(lease.split).start;
                lease.arrived = arrived.saturating_sub(start).min(u64::from(lease.row_count)) as u32;
            }
        }
    }

    /// Computes rows for `seconds` seconds. `store_share` is the share of the requested bytes that the store delivers.
    pub(super) fn compute(&mut self, seconds: f64, store_share: f64, jobs: &[SimulatedJob]) {
        let held = |lease: &SimulatedLease| {
            lease.unfetched_rows() * jobs[lease.job as usize].definition.delivered_bytes_per_row as f64
        };
        let was_full = self.memory_full;
        self.memory_full = self.leases.iter().map(held).sum::<f64>() >= self.memory_bytes;
        self.has_unreported_change |= was_full && !self.memory_full;
        if self.memory_full {
            // Always compute the most urgent split.
            return self.compute_most_urgent_split(seconds, store_share, jobs);
        }
        let waits_for_store =
            |job: u32| store_share < 1.0 && jobs[job as usize].definition.store_bytes_per_row > 0;
        let mut left = f64::from(self.cores) * self.speed * seconds;
        let mut active: Vec<(u32, f64)> = Vec::new();
        let mut waiting_for_store: Vec<u32> = Vec::new();
        let mut spent: BTreeMap<u32, f64> = BTreeMap::new();
        for round in 0..CORE_SHARING_ROUNDS {
            active.clear();
            for lease in self.leases.iter().filter(|lease| lease.has_work()) {
                // If jobs wait for the store or have reached their maximum cores, other jobs use their share of the
                // cores.
                let is_over = round > 0
                    && (waits_for_store(lease.job)
                        || spent
                            .get(&lease.job)
                            .is_some_and(|spent| *spent >= self.max_core_s(lease.job, seconds)));
                if !is_over && active.iter().all(|(job, _)| *job != lease.job) {
                    active.push((lease.job, self.core_weight(lease.job)));
                }
            }
            let all: f64 = active.iter().map(|(_, weight)| weight).sum();
            if active.is_empty() || left <= 1e-9 {
                break;
            }
            let dealt = left;
            for (job, weight) in &active {
                let share = if waits_for_store(*job) { store_share } else { 1.0 };
                let before = spent.get(job).copied().unwrap_or(0.0);
                let may = (self.max_core_s(*job, seconds) - before).max(0.0);
                let used = self.compute_job(*job, (dealt * weight / all * share).min(may), jobs);
                spent.insert(*job, before + used);
                left -= used;
                if share < 1.0 {
                    waiting_for_store.push(*job);
                }
            }
        }
        for job in waiting_for_store {
            self.work_by_job.entry(job).or_default().store_wait_s_per_row += REQUESTS_IN_FLIGHT * seconds;
        }
    }

    /// Computes only the most urgent split.
    fn compute_most_urgent_split(&mut self, seconds: f64, store_share: f64, jobs: &[SimulatedJob]) {
        let Some(place) = self.leases.iter().position(SimulatedLease::has_work) else { return };
        let reads = jobs[self.leases[place].job as usize].definition.store_bytes_per_row > 0;
        let seconds = if reads { seconds * store_share } else { seconds };
        let later = self.leases.split_off(place + 1);
        let job = self.leases[place].job;
        let may = (f64::from(self.cores) * self.speed * seconds).min(self.max_core_s(job, seconds));
        self.compute_job(job, may, jobs);
        self.leases.extend(later);
    }

    fn core_weight(&self, job: u32) -> f64 {
        let all = f64::from(self.cores);
        let listed = self.job_cores.iter().find(|(listed, ..)| *listed == job);
        listed.map_or(all, |(_, cores, _)| if *cores > 0.0 { *cores } else { all })
    }

    /// Returns the maximum core seconds, at speed 1, that a job may use within `seconds`.
    fn max_core_s(&self, job: u32, seconds: f64) -> f64 {
        let listed = self.job_cores.iter().find(|(listed, ..)| *listed == job);
        let limit = listed.map(|(.., most)| *most).filter(|most| *most > 0.0);
        limit.map_or(f64::INFINITY, |most| most * self.speed * seconds)
    }

    /// Computes rows of a job with up to `core_s` core seconds at speed 1. Returns the used core seconds.
    fn compute_job(&mut self, job: u32, core_s: f64, jobs: &[SimulatedJob]) -> f64 {
        let known = &jobs[job as usize];
        let mut rows = core_s / known.cpu_s_per_row;
        let mut made = 0.0;
        for lease in self.leases.iter_mut().filter(|lease| lease.job == job && lease.has_work()) {
            let computed = lease.compute(rows);
            made += computed;
            rows -= computed;
            if lease.has_work() {
                break;
            }
            self.has_unreported_change |= lease.is_computed();
        }
        let work = self.work_by_job.entry(job).or_default();
        work.rows += made;
        work.store_wait_s_per_row +=
            made * known.definition.store_bytes_per_row as f64 / REQUEST_BYTES * REQUEST_LATENCY_S;
        made * known.cpu_s_per_row
    }

    /// Fetches the computed rows of a split, starting at offset `from`. Returns the offset after the last fetched row.
    pub(super) fn fetch(&mut self, job: u32, split: SplitRef, from: u32) -> Option<u32> {
        if !self.is_running() {
            return None;
        }
        let place = self.leases.binary_search_by_key(&(split, job), SimulatedLease::sort_key).ok()?;
        self.leases[place].fetch(from)
    }

    /// Applies a plan from the coordinator.
    pub(super) fn on_plan(&mut self, plan: WorkerPlan, context: &WorkerPlanContext) {
        self.awaits_reply = false;
        self.plan_revision = plan.revision;
        let mut leases = Vec::with_capacity(plan.leases.len());
        for lease in &plan.leases {
            let Some(job) = context.index_of(lease.job) else { continue };
            let before = self.leases.binary_search_by_key(&(lease.split, job), SimulatedLease::sort_key);
            match before.map(|place| self.leases[place]) {
                Ok(before) if f64::from(lease.start_offset) <= before.computed_end => {
                    leases.push(SimulatedLease {
                        fetched_end: before.fetched_end.max(lease.start_offset),
                        ..before
                    });
                }
                _ => {
                    let len = context.jobs[job as usize].layout.split_len(lease.split);
                    leases.push(SimulatedLease::new(lease, job, len));
                }
            }
        }
        self.leases = leases;
        self.job_cores.clear();
        for allocation in &plan.allocations {
            let place = context.index_of(allocation.job);
            self.job_cores.extend(place.map(|job| (job, allocation.cores, allocation.max_cores)));
        }
        let listed = plan.tasks.iter().filter_map(|task| list_shards(task, context));
        self.task_results = listed.collect();
        self.has_unreported_change |= !self.task_results.is_empty();
    }

    /// Returns the report of the worker.
    pub(super) fn report(&mut self, now: Millis, context: &WorkerPlanContext) -> WorkerReport {
        self.awaits_reply = true;
        self.has_unreported_change = false;
        let elapsed_ns = (now - self.started_at) * 1_000_000;
        let id = |job: u32| JobId(context.first_job.0 + u64::from(job));
        let computed = self.leases.iter().filter(|lease| lease.is_computed());
        let computed = computed.map(|lease| (id(lease.job), lease.split)).collect();
        let spent = |(job, work): (&u32, &JobWork)| {
            work.rows * context.jobs[*job as usize].cpu_s_per_row / self.speed
        };
        let process_ns = (1e9 * self.work_by_job.iter().map(spent).sum::<f64>()) as u64;
        let cpu = ProcessCpu { process_ns, transport_ns: 0 };
        let stats = self.work_by_job.iter().map(|(job, work)| WorkerJobStats {
            job: id(*job),
            operators: operator_stats(&context.jobs[*job as usize], work, self.speed),
            store: store_stats(&context.jobs[*job as usize], work),
            memory_wait_ns: 0,
            peak_rss_bytes: 0,
            elapsed_ns,
            cpu,
            encodings: Vec::new(),
            graph: None,
        });
        WorkerReport {
            worker: self.id,
            address: format!("http://{}", self.id),
            tls_name: None,
            pool: String::new(),
            cores: self.cores,
            memory_bytes: self.memory_bytes as u64,
            machine: self.machine.clone(),
            nic_bytes_per_s: 0,
            plan_revision: self.plan_revision,
            computed,
            memory_full: self.memory_full,
            draining: self.state == WorkerState::Draining,
            tasks: self.task_results.clone(),
            task_progress: Vec::new(),
            elapsed_ns,
            cpu,
            stats: stats.collect(),
            caches: Vec::new(),
            memory: Vec::new(),
            stores: Vec::new(),
            graphs: None,
        }
    }

    /// Returns the total number of computed rows of all jobs.
    pub(super) fn computed_rows(&self) -> f64 {
        self.work_by_job.values().map(|work| work.rows).sum()
    }
}

/// Returns the result of a listing task.
fn list_shards(task: &Task, context: &WorkerPlanContext) -> Option<TaskResult> {
    let manifest = context.manifests.get(job::job_number(&task.source)?)?;
    let shards: Vec<ShardRef> = manifest.shards.iter().map(|shard| shard.object.clone()).collect();
    Some(TaskResult { id: task.id, outcome: Ok(TaskOutput::Listed(shards)) })
}

fn operator_stats(job: &SimulatedJob, work: &JobWork, speed: f64) -> Vec<OperatorStats> {
    let rows = work.rows as u64;
    let last = job.operators.len() - 1;
    let of = |(place, (name, cpu_s)): (usize, &(String, f64))| {
        let cpu_ns = (1e9 * work.rows * cpu_s / speed) as u64;
        let latency_ns = if place == 0 { (1e9 * work.store_wait_s_per_row) as u64 } else { 0 };
        let bytes = |per_row: u64| rows * per_row;
        let finished = bytes(job.definition.delivered_bytes_per_row);
        let read = bytes(job.definition.store_bytes_per_row);
        OperatorStats {
            name: name.clone(),
            rows_in: if place == 0 { 0 } else { rows },
            rows_out: rows,
            bytes_in: if place <= 1 { read } else { finished },
            bytes_out: if place == 0 { read } else { finished },
            cpu_ns,
            busy_ns: cpu_ns + latency_ns,
            latency_ns,
            queue_bytes: if place == last { job.definition.delivered_bytes_per_row } else { 0 },
            ..OperatorStats::default()
        }
    };
    job.operators.iter().enumerate().map(of).collect()
}

fn store_stats(job: &SimulatedJob, work: &JobWork) -> StoreStats {
    let bytes = work.rows * job.definition.store_bytes_per_row as f64;
    StoreStats {
        requests: (bytes / REQUEST_BYTES) as u64,
        bytes: bytes as u64,
        wait_ns: (1e9 * work.store_wait_s_per_row) as u64,
        ..StoreStats::default()
    }
}
