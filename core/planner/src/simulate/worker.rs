//! A simulated worker: computes the rows of its leases at the rate its cores give, and reports as the real one does.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::manifest::{Manifest, ShardRef};
use feedline_data::messages::{
    OperatorStats, ProcessCpu, Revision, StoreStats, Task, TaskOutput, TaskResult, WorkerJobStats,
    WorkerPlan, WorkerReport,
};

use super::job::{self, SimulatedJob};
use super::lease::HeldSplit;
use super::scenario::ScenarioWorkerType;

/// Time of one request to the store, in seconds, and the bytes of one.
const REQUEST_S: f64 = 0.02;
const REQUEST_BYTES: f64 = (1 << 20) as f64;
/// Requests in flight while the store is short.
const REQUESTS_IN_FLIGHT: f64 = 16.0;
/// Shares of the cores are dealt out anew so many times within a step, as jobs run out of work.
const ROUNDS: usize = 3;

/// How far a worker is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It will report at this time.
    Starting(Millis),
    Working,
    /// It leaves once it holds nothing.
    Draining,
    Gone,
}

/// What a worker has done for a job.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    rows: f64,
    store_wait_s: f64,
}

#[derive(Debug)]
pub(super) struct SimulatedWorker {
    pub(super) id: WorkerId,
    pub(super) state: State,
    /// When it was asked for: from then on it costs.
    pub(super) asked_at: Millis,
    started_at: Millis,
    /// When it left.
    pub(super) gone_at: Option<Millis>,
    machine: String,
    cores: u32,
    speed: f64,
    memory_bytes: f64,
    seen: Revision,
    /// Most urgent first.
    leases: Vec<HeldSplit>,
    /// Weights of jobs on its cores, and cores that they may use at most.
    weights: Vec<(u32, f64, f64)>,
    done: BTreeMap<u32, Done>,
    results: Vec<TaskResult>,
    memory_full: bool,
    /// No report before this.
    pub(super) next_report: Millis,
    /// Whether its last report has not been answered.
    pub(super) waits: bool,
    /// Whether it has something to say that its last report does not.
    pub(super) has_news: bool,
}

/// What a worker's plan is read with.
pub(super) struct WorkerPlanContext<'a> {
    pub(super) jobs: &'a [SimulatedJob],
    pub(super) manifests: &'a [std::sync::Arc<Manifest>],
    /// The first job's id; the others' follow it.
    pub(super) first: JobId,
}

impl WorkerPlanContext<'_> {
    pub(super) fn place(&self, job: JobId) -> Option<u32> {
        let place = job.0.checked_sub(self.first.0)?;
        (place < self.jobs.len() as u64).then_some(place as u32)
    }
}

impl SimulatedWorker {
    pub(super) fn new(id: WorkerId, kind: &ScenarioWorkerType, state: State, now: Millis) -> Self {
        Self {
            id,
            state,
            asked_at: now,
            started_at: if let State::Starting(at) = state { at } else { now },
            gone_at: None,
            machine: kind.name.clone(),
            cores: kind.cores,
            speed: kind.speed,
            memory_bytes: kind.memory_gib * f64::from(1 << 30),
            seen: Revision::default(),
            leases: Vec::new(),
            weights: Vec::new(),
            done: BTreeMap::new(),
            results: Vec::new(),
            memory_full: false,
            next_report: now,
            waits: false,
            has_news: false,
        }
    }

    /// Whether it reports now: it was answered or has news, and its last report is long enough ago.
    pub(super) fn reports(&self, now: Millis) -> bool {
        self.is_at_work() && now >= self.next_report && (!self.waits || self.has_news)
    }

    pub(super) fn is_at_work(&self) -> bool {
        matches!(self.state, State::Working | State::Draining)
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.leases.is_empty()
    }

    /// Bytes per second that it would read if the store gave them.
    pub(super) fn wanted_bytes_per_s(&self, jobs: &[SimulatedJob]) -> f64 {
        let mut cheapest: f64 = 0.0;
        for lease in self.leases.iter().filter(|lease| !lease.is_computed()) {
            let job = &jobs[lease.job as usize];
            cheapest = cheapest.max(job.given.store_bytes_per_row as f64 / job.cpu_s);
        }
        cheapest * f64::from(self.cores) * self.speed
    }

    /// Computes for so many seconds. `store_share` is the share of what it wants that the store gives.
    pub(super) fn compute(&mut self, seconds: f64, store_share: f64, jobs: &[SimulatedJob]) {
        let held = |lease: &HeldSplit| {
            lease.waiting() * jobs[lease.job as usize].given.delivered_bytes_per_row as f64
        };
        let was_full = self.memory_full;
        self.memory_full = self.leases.iter().map(held).sum::<f64>() >= self.memory_bytes;
        self.has_news |= was_full && !self.memory_full;
        if self.memory_full {
            // What consumers wait for is computed in any case.
            return self.compute_first(seconds, store_share, jobs);
        }
        let is_held_up = |job: u32| store_share < 1.0 && jobs[job as usize].given.store_bytes_per_row > 0;
        let mut left = f64::from(self.cores) * self.speed * seconds;
        let mut active: Vec<(u32, f64)> = Vec::new();
        let mut held_up: Vec<u32> = Vec::new();
        let mut spent: BTreeMap<u32, f64> = BTreeMap::new();
        for round in 0..ROUNDS {
            active.clear();
            for lease in self.leases.iter().filter(|lease| !lease.is_computed()) {
                // What the store holds up leaves its time to others, and so does who may use no more.
                let is_over = round > 0
                    && (is_held_up(lease.job)
                        || spent
                            .get(&lease.job)
                            .is_some_and(|spent| *spent >= self.most(lease.job, seconds)));
                if !is_over && active.iter().all(|(job, _)| *job != lease.job) {
                    active.push((lease.job, self.weight(lease.job)));
                }
            }
            let all: f64 = active.iter().map(|(_, weight)| weight).sum();
            if active.is_empty() || left <= 1e-9 {
                break;
            }
            let dealt = left;
            for (job, weight) in &active {
                let share = if is_held_up(*job) { store_share } else { 1.0 };
                let before = spent.get(job).copied().unwrap_or(0.0);
                let may = (self.most(*job, seconds) - before).max(0.0);
                let taken = self.compute_job(*job, (dealt * weight / all * share).min(may), jobs);
                spent.insert(*job, before + taken);
                left -= taken;
                if share < 1.0 {
                    held_up.push(*job);
                }
            }
        }
        for job in held_up {
            self.done.entry(job).or_default().store_wait_s += REQUESTS_IN_FLIGHT * seconds;
        }
    }

    /// Computes nothing but the most urgent split.
    fn compute_first(&mut self, seconds: f64, store_share: f64, jobs: &[SimulatedJob]) {
        let Some(place) = self.leases.iter().position(|lease| !lease.is_computed()) else { return };
        let reads = jobs[self.leases[place].job as usize].given.store_bytes_per_row > 0;
        let seconds = if reads { seconds * store_share } else { seconds };
        let later = self.leases.split_off(place + 1);
        let job = self.leases[place].job;
        let may = (f64::from(self.cores) * self.speed * seconds).min(self.most(job, seconds));
        self.compute_job(job, may, jobs);
        self.leases.extend(later);
    }

    fn weight(&self, job: u32) -> f64 {
        let all = f64::from(self.cores);
        let listed = self.weights.iter().find(|(listed, ..)| *listed == job);
        listed.map_or(all, |(_, cores, _)| if *cores > 0.0 { *cores } else { all })
    }

    /// Core seconds of speed 1 that a job may use of so many seconds.
    fn most(&self, job: u32, seconds: f64) -> f64 {
        let listed = self.weights.iter().find(|(listed, ..)| *listed == job);
        let limit = listed.map(|(.., most)| *most).filter(|most| *most > 0.0);
        limit.map_or(f64::INFINITY, |most| most * self.speed * seconds)
    }

    /// Spends up to so many core seconds of speed 1 on a job; how many it did.
    fn compute_job(&mut self, job: u32, core_s: f64, jobs: &[SimulatedJob]) -> f64 {
        let known = &jobs[job as usize];
        let mut rows = core_s / known.cpu_s;
        let mut made = 0.0;
        for lease in self.leases.iter_mut().filter(|lease| lease.job == job && !lease.is_computed()) {
            let computed = lease.compute(rows);
            made += computed;
            rows -= computed;
            if !lease.is_computed() {
                break;
            }
            self.has_news = true;
        }
        let done = self.done.entry(job).or_default();
        done.rows += made;
        done.store_wait_s += made * known.given.store_bytes_per_row as f64 / REQUEST_BYTES * REQUEST_S;
        made * known.cpu_s
    }

    /// What a consumer gets that asks for the rows of a split from an offset on: the offset after them.
    pub(super) fn fetch(&mut self, job: u32, split: SplitRef, from: u32) -> Option<u32> {
        if !self.is_at_work() {
            return None;
        }
        let place = self.leases.binary_search_by_key(&(split, job), HeldSplit::key).ok()?;
        self.leases[place].fetch(from)
    }

    /// Takes the coordinator's answer.
    pub(super) fn on_plan(&mut self, plan: WorkerPlan, known: &WorkerPlanContext) {
        self.waits = false;
        self.seen = plan.revision;
        let mut leases = Vec::with_capacity(plan.leases.len());
        for lease in &plan.leases {
            let Some(job) = known.place(lease.job) else { continue };
            let before = self.leases.binary_search_by_key(&(lease.split, job), HeldSplit::key);
            match before.map(|place| self.leases[place]) {
                Ok(before) if f64::from(lease.from) <= before.done => {
                    leases.push(HeldSplit { fetched: before.fetched.max(lease.from), ..before });
                }
                _ => {
                    let len = known.jobs[job as usize].layout.split_len(lease.split);
                    leases.push(HeldSplit::new(lease, job, len));
                }
            }
        }
        self.leases = leases;
        self.weights.clear();
        for allotment in &plan.allotments {
            let place = known.place(allotment.job);
            self.weights.extend(place.map(|job| (job, allotment.cores, allotment.most_cores)));
        }
        let listed = plan.tasks.iter().filter_map(|task| list(task, known));
        self.results = listed.collect();
        self.has_news |= !self.results.is_empty();
    }

    /// What it reports.
    pub(super) fn report(&mut self, now: Millis, known: &WorkerPlanContext) -> WorkerReport {
        self.waits = true;
        self.has_news = false;
        let elapsed_ns = (now - self.started_at) * 1_000_000;
        let id = |job: u32| JobId(known.first.0 + u64::from(job));
        let computed = self.leases.iter().filter(|lease| lease.is_computed());
        let computed = computed.map(|lease| (id(lease.job), lease.split)).collect();
        let spent = |(job, done): (&u32, &Done)| done.rows * known.jobs[*job as usize].cpu_s / self.speed;
        let process_ns = (1e9 * self.done.iter().map(spent).sum::<f64>()) as u64;
        let cpu = ProcessCpu { process_ns, transport_ns: 0 };
        let stats = self.done.iter().map(|(job, done)| WorkerJobStats {
            job: id(*job),
            operators: operators(&known.jobs[*job as usize], done, self.speed),
            store: store(&known.jobs[*job as usize], done),
            memory_wait_ns: 0,
            peak_rss_bytes: 0,
            elapsed_ns,
            cpu,
            forms: Vec::new(),
        });
        WorkerReport {
            worker: self.id,
            address: format!("http://{}", self.id),
            cores: self.cores,
            memory_bytes: self.memory_bytes as u64,
            machine: self.machine.clone(),
            nic_bytes_per_s: 0,
            seen: self.seen,
            computed,
            memory_full: self.memory_full,
            draining: self.state == State::Draining,
            tasks: self.results.clone(),
            elapsed_ns,
            cpu,
            stats: stats.collect(),
            caches: Vec::new(),
        }
    }

    /// Rows computed, summed over jobs.
    pub(super) fn computed_rows(&self) -> f64 {
        self.done.values().map(|done| done.rows).sum()
    }
}

/// The listing that a task asks for.
fn list(task: &Task, known: &WorkerPlanContext) -> Option<TaskResult> {
    let manifest = known.manifests.get(job::number_of(&task.source)?)?;
    let shards: Vec<ShardRef> = manifest.shards.iter().map(|shard| shard.object.clone()).collect();
    Some(TaskResult { id: task.id, outcome: Ok(TaskOutput::Listed(shards)) })
}

fn operators(job: &SimulatedJob, done: &Done, speed: f64) -> Vec<OperatorStats> {
    let rows = done.rows as u64;
    let last = job.operators.len() - 1;
    let of = |(place, (name, cpu_s)): (usize, &(String, f64))| {
        let cpu_ns = (1e9 * done.rows * cpu_s / speed) as u64;
        let latency_ns = if place == 0 { (1e9 * done.store_wait_s) as u64 } else { 0 };
        let bytes = |per_row: u64| rows * per_row;
        let finished = bytes(job.given.delivered_bytes_per_row);
        let read = bytes(job.given.store_bytes_per_row);
        OperatorStats {
            name: name.clone(),
            rows_in: if place == 0 { 0 } else { rows },
            rows_out: rows,
            bytes_in: if place <= 1 { read } else { finished },
            bytes_out: if place == 0 { read } else { finished },
            cpu_ns,
            busy_ns: cpu_ns + latency_ns,
            latency_ns,
            queue_bytes: if place == last { job.given.delivered_bytes_per_row } else { 0 },
            ..OperatorStats::default()
        }
    };
    job.operators.iter().enumerate().map(of).collect()
}

fn store(job: &SimulatedJob, done: &Done) -> StoreStats {
    let bytes = done.rows * job.given.store_bytes_per_row as f64;
    StoreStats {
        requests: (bytes / REQUEST_BYTES) as u64,
        bytes: bytes as u64,
        wait_ns: (1e9 * done.store_wait_s) as u64,
        ..StoreStats::default()
    }
}
