//! From what workers and consumers report to models of jobs, and to the planner's problem.
//!
//! Keeps the counts of the last seconds for each worker and consumer of each job. Counts come from [`Cluster::samples`];
//! the time is an argument. It decides nothing.
//!
//! [`Cluster::samples`]: feedline_cluster::Cluster::samples

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::samples::JobFacts;
use feedline_data::messages::{ConsumerStats, EncodingStats, samples, saturating_sum};
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use feedline_data::view::Bottleneck;

use self::stores::ObservedStore;
use self::tenants::ObservedTenants;
use self::terms::{has_done_as_much, operators_cpu_ns, random_operators, store_of, worker_sample};
use self::waits::{BUSY, cores_at_work, is_at_limit, longest_waits};

use crate::model::bandwidth::Observation;
use crate::model::job::JobObservation;
use crate::model::{
    JobConsumerSample, JobModel, JobResources, JobWorkerSample, SampleWindow, WorkerTypeShare, bottleneck,
};

use crate::plan::{CachePolicy, JobProblem, PlannerSettings, Problem, WorkerSlot, WorkerType};

mod needs;
mod stores;
mod tenants;
mod terms;
mod waits;

pub use needs::ResourceNeeds;
pub use stores::reads_local_files;
pub use terms::cut_keys;

#[cfg(test)]
pub(crate) mod tests;

/// Workers that a plan may wish for, of one type.
const MOST_WORKERS: u32 = 10_000;
/// The last seconds that rates are taken over.
pub const RECENT_MS: Millis = 5_000;
/// Where a consumer's rate has changed by more than this share, it is looked at over less time, so that a step of demand is
/// seen at once and not over the seconds in which it is mixed with what was before.
const CHANGED: f64 = 0.25;
const FRESH_MS: Millis = 2_000;
/// Batches that are enough to tell a rate: it is off by one of them at most.
const FRESH_BATCHES: u64 = 8;
/// What a window can tell of at most.
const SPAN_MS: Millis = 8_000;
/// Times at which the store's bandwidth was seen that are remembered for each job.
const STORE_SEEN: usize = 32;
/// Costs that have been seen for so long are those of the job, and not of its beginning.
const SETTLED_MS: Millis = 2_000;
/// What a worker's disk is taken to give in bytes per second, to all its jobs together.
const DISK_READ_BYTES_PER_S: f64 = 4e8;
/// Consumers that wait for more than this part of the time are short of rows.
const STARVED: f64 = 0.5;

/// Counts of the last seconds, and what they mean.
#[derive(Debug, Clone, Default)]
pub struct Observer {
    jobs: BTreeMap<JobId, JobWindows>,
    workers: BTreeMap<WorkerId, Known>,
    /// Workers that share a process, and so report the same transport; 0 is 1.
    workers_of_process: usize,
}

/// What is known of a worker beside its counts.
#[derive(Debug, Clone)]
struct Known {
    kind: WorkerType,
    draining: bool,
    /// Room for caches in the store; 0 without.
    store_bytes: u64,
}

impl Known {
    fn new(worker: &samples::WorkerReportSample) -> Self {
        let in_store = worker.caches.iter().find(|room| room.tier == CacheTier::Store);
        Self {
            kind: Observer::type_of(worker),
            draining: worker.draining,
            store_bytes: in_store.map_or(0, |room| room.room_bytes),
        }
    }
}

#[derive(Debug, Clone)]
struct JobWindows {
    facts: JobFacts,
    /// When its first rows were seen.
    since: Option<Millis>,
    /// Names of the operators that draw anew in each pass.
    random: Vec<String>,
    workers: BTreeMap<WorkerId, SampleWindow<JobWorkerSample>>,
    consumers: BTreeMap<u32, SampleWindow<JobConsumerSample>>,
    store_seen: VecDeque<Observation>,
    waits_for_store: bool,
    /// The operator whose waits hold the job up.
    waits_for: Option<String>,
    /// What forms of kept rows cost, over all workers.
    forms: BTreeMap<(u32, CacheEncoding), EncodingStats>,
}

impl Observer {
    /// An observer of workers of which so many share each process.
    pub fn of_processes(workers: usize) -> Self {
        Self { workers_of_process: workers, ..Self::default() }
    }

    /// Takes what has been reported up to `now`. Jobs and workers that are not among it are forgotten.
    pub fn push(&mut self, now: Millis, samples: &samples::Samples) {
        let mut before = std::mem::take(&mut self.jobs);
        for facts in &samples.jobs {
            let windows = before.remove(&facts.job);
            let fresh = || JobWindows {
                facts: facts.clone(),
                since: None,
                random: random_operators(&facts.pipeline),
                workers: BTreeMap::new(),
                consumers: BTreeMap::new(),
                store_seen: VecDeque::new(),
                waits_for_store: false,
                waits_for: None,
                forms: BTreeMap::new(),
            };
            let mut windows = windows.unwrap_or_else(fresh);
            windows.facts.passes_left = facts.passes_left;
            windows.forms.clear();
            self.jobs.insert(facts.job, windows);
        }
        self.workers = samples.workers.iter().map(|worker| (worker.worker, Known::new(worker))).collect();
        for worker in &samples.workers {
            let operators_ns = saturating_sum(worker.jobs.iter().map(|stats| operators_cpu_ns(stats)));
            for stats in &worker.jobs {
                if let Some(windows) = self.jobs.get_mut(&stats.job) {
                    for form in &stats.forms {
                        let none =
                            EncodingStats { after: form.after, form: form.form, ..EncodingStats::default() };
                        windows.forms.entry((form.after, form.form)).or_insert(none).add(form);
                    }
                    let sample = worker_sample(worker, stats, windows, operators_ns, self.workers_of_process);
                    let window =
                        windows.workers.entry(worker.worker).or_insert_with(|| SampleWindow::new(SPAN_MS));
                    if sample.operators.last().is_some_and(|last| last.rows_out > 0) {
                        windows.since.get_or_insert(now);
                    }
                    let was_at_rest = window.is_at_rest();
                    window.push(now, sample);
                    // Jobs move on to other workers, and those they leave go on telling of them.
                    if window.is_unchanged(was_at_rest, has_done_as_much) {
                        window.rest();
                    }
                }
            }
        }
        let mut sessions: BTreeMap<JobId, Vec<&samples::ConsumerReportSample>> = BTreeMap::new();
        for session in &samples.consumers {
            sessions.entry(session.job).or_default().push(session);
        }
        for (job, windows) in &mut self.jobs {
            windows.workers.retain(|worker, _| self.workers.contains_key(worker));
            windows.push_consumers(now, sessions.remove(job).unwrap_or_default());
        }
        let busy = self.busy_workers();
        self.jobs.values_mut().for_each(|windows| windows.note_store(&busy));
    }

    /// Workers whose threads all their jobs together have kept at work nearly all the time.
    fn busy_workers(&self) -> BTreeSet<WorkerId> {
        let mut at_work: BTreeMap<WorkerId, (f64, f64)> = BTreeMap::new();
        for (worker, window) in self.jobs.values().flat_map(|windows| &windows.workers) {
            if let Some(sample) = recent_of_worker(window) {
                let (cores, of) = at_work.entry(*worker).or_default();
                (*cores, *of) = (*cores + cores_at_work(&sample), sample.cores);
            }
        }
        let is_busy = |(_, (cores, of)): &(WorkerId, (f64, f64))| *cores > BUSY * of;
        at_work.into_iter().filter(is_busy).map(|(worker, _)| worker).collect()
    }

    /// What is known of a job; `None` for one that was not among what was pushed last.
    pub fn observation(&self, job: JobId) -> Option<JobObservation> {
        Some(self.jobs.get(&job)?.observation())
    }

    /// The job's model; `None` before its first rows.
    pub fn model(&self, job: JobId) -> Option<JobModel> {
        JobModel::build(&self.observation(job)?)
    }

    /// Jobs of which it can be decided what is kept: their pipelines keep nothing, their costs have been seen for a while,
    /// and rows will be asked for again.
    pub fn could_keep(&self, now: Millis) -> Vec<JobId> {
        let could = |windows: &&JobWindows| {
            windows.since.is_some_and(|since| now >= since + SETTLED_MS)
                && windows.facts.passes_left > 1.0
                && windows.facts.pipeline.cached_prefix().is_none()
        };
        self.jobs.values().filter(could).map(|windows| windows.facts.job).collect()
    }

    /// Whether the job was among what was pushed last.
    pub fn knows(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// The jobs that were among what was pushed last.
    pub fn facts(&self) -> impl Iterator<Item = &JobFacts> {
        self.jobs.values().map(|windows| &windows.facts)
    }

    /// A job as it is, or would be, without what plans have it keep; for workers of these types.
    pub fn unkept(&self, job: JobId, types: &[WorkerType]) -> Option<JobProblem> {
        let windows = self.jobs.get(&job)?;
        let model = JobModel::build(&windows.unkept())?;
        let keys = cut_keys(&windows.facts.pipeline, &model);
        let locality = windows.locality();
        Some(JobProblem {
            locality,
            ..JobProblem::from_model(job, &windows.facts.name, &model, types, &keys)
        })
    }

    /// Forgets what a job did and keeps what its store gave: from the next reports on it is looked at with other limits, which
    /// must not be mixed with those before.
    pub fn look_anew(&mut self, job: JobId) {
        if let Some(windows) = self.jobs.get_mut(&job) {
            windows.workers.clear();
            windows.consumers.clear();
        }
    }

    /// Whether the job's consumers wait while its workers do, too: for reads, in number or in speed, and not for longer in
    /// one of its operators.
    pub fn waits_for_store(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|windows| windows.waits_for_store)
    }

    /// What a job has if it has all workers: those that do not leave, by type.
    pub fn allocation(&self, job: JobId) -> JobResources {
        let mut allocation = JobResources::default();
        for worker in self.workers.values().filter(|worker| !worker.draining) {
            let kind = &worker.kind;
            allocation.memory_bytes += kind.memory_bytes;
            match allocation.workers.iter_mut().find(|known| known.worker_type == kind.name) {
                Some(known) => known.count += 1,
                None => allocation.workers.push(WorkerTypeShare {
                    worker_type: kind.name.clone(),
                    count: 1,
                    cores: kind.cores,
                    nic_bytes_per_s: kind.nic_bytes_per_s,
                }),
            }
        }
        allocation.locality = self.locality(job);
        if let Some(model) = self.model(job).filter(|_| self.waits_for_store(job)) {
            // As many reads as could be: nothing else held them up.
            allocation.read_concurrency = model.store_concurrency;
        }
        allocation
    }

    /// What would bound a job that had all workers; `None` before its first rows.
    pub fn bottleneck(&self, job: JobId) -> Option<Bottleneck> {
        bottleneck(&self.model(job)?, &self.allocation(job))
    }

    /// The type of a worker: those with as many cores of the same kind, as much memory and the same network are of
    /// one.
    pub fn type_of(worker: &samples::WorkerReportSample) -> WorkerType {
        let gib = worker.memory_bytes as f64 / f64::from(1 << 30);
        let nic = worker.nic_bytes_per_s as f64;
        let network = if nic > 0.0 { format!(", {:.2} GB/s", nic / 1e9) } else { String::new() };
        let of = if worker.machine.is_empty() { "" } else { " of " };
        let on_disk = worker.caches.iter().find(|room| room.tier == CacheTier::Disk);
        WorkerType {
            name: format!("{} cores{of}{}, {gib:.1} GiB{network}", worker.cores, worker.machine),
            cores: f64::from(worker.cores),
            memory_bytes: worker.memory_bytes as f64,
            nic_bytes_per_s: nic,
            disk_bytes: on_disk.map_or(0.0, |room| room.room_bytes as f64),
            disk_read_bytes_per_s: DISK_READ_BYTES_PER_S,
            max_workers: MOST_WORKERS,
            ..WorkerType::default()
        }
    }

    /// The planner's problem: all jobs that have a model, on all workers that do not leave. `cache` says whether it may
    /// reckon with caches that are yet to be filled; those that pipelines name are in the counts already.
    pub fn problem(&self, settings: PlannerSettings, cache: CachePolicy) -> Problem {
        let mut worker_types: Vec<WorkerType> = Vec::new();
        let mut workers = Vec::new();
        for (id, worker) in self.workers.iter().filter(|(_, worker)| !worker.draining) {
            let known = worker_types.iter().position(|known| known.name == worker.kind.name);
            let place = known.unwrap_or_else(|| {
                worker_types.push(worker.kind.clone());
                worker_types.len() - 1
            });
            workers.push(WorkerSlot { id: *id, worker_type: place });
        }
        let mut jobs = Vec::new();
        let mut stores: Vec<(String, ObservedStore)> = Vec::new();
        let mut tenants = ObservedTenants::default();
        for (id, windows) in &self.jobs {
            let model = JobModel::build(&windows.observation());
            let tenant = tenants.add(&windows.facts, model.is_some());
            let Some(model) = model else { continue };
            let name = store_of(&windows.facts.pipeline);
            let store = stores.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                stores.push((name, ObservedStore::default()));
                stores.len() - 1
            });
            stores[store].1.add(&model, windows.waits_for_store);
            let keys = cut_keys(&windows.facts.pipeline, &model);
            let job = JobProblem::from_model(*id, &windows.facts.name, &model, &worker_types, &keys);
            let (weight, locality) = (windows.facts.weight, windows.locality());
            jobs.push(JobProblem { cache, store, tenant, weight, locality, ..job });
        }
        let staying = self.workers.values().filter(|worker| !worker.draining);
        let store_cache_bytes = staying.map(|worker| worker.store_bytes).min().unwrap_or(0) as f64;
        let stores = stores.iter().map(|(_, seen)| seen.limit()).collect();
        let tenants = tenants.problems();
        Problem { jobs, worker_types, workers, stores, store_cache_bytes, tenants, copies: 1.0, settings }
    }
}

impl JobWindows {
    fn push_consumers(&mut self, now: Millis, sessions: Vec<&samples::ConsumerReportSample>) {
        // A consumer's sessions follow each other, each from 0: their sum only grows.
        let mut sums: BTreeMap<u32, ConsumerStats> = BTreeMap::new();
        for session in sessions {
            sums.entry(session.consumer).or_default().add(&session.stats);
        }
        for (consumer, sum) in sums {
            let sample = JobConsumerSample {
                consumer,
                batches: sum.batches,
                rows: sum.rows,
                bytes: sum.bytes,
                network_bytes: sum.network_bytes,
                stall_ns: sum.stall_ns,
                step_ns: sum.step_ns,
                elapsed_ns: sum.stall_ns.saturating_add(sum.step_ns),
            };
            self.consumers.entry(consumer).or_insert_with(|| SampleWindow::new(SPAN_MS)).push(now, sample);
        }
    }

    /// Remembers what the store gave, where nothing but the store held the job up: otherwise less was asked of it than it
    /// can give, and what it gave says nothing of its limit. `busy` are the workers that have no time to spare.
    fn note_store(&mut self, busy: &BTreeSet<WorkerId>) {
        let seen: Vec<JobConsumerSample> = self.consumers.values().filter_map(recent_of_consumer).collect();
        let stalled = saturating_sum(seen.iter().map(|consumer| consumer.stall_ns));
        let elapsed = saturating_sum(seen.iter().map(|consumer| consumer.elapsed_ns));
        let is_starved = stalled as f64 > STARVED * elapsed as f64;
        self.waits_for_store = false;
        self.waits_for = None;
        if !is_starved {
            return;
        }
        let recent: Vec<JobWorkerSample> = self.workers.values().filter_map(recent_of_worker).collect();
        let busy = recent.iter().filter(|sample| busy.contains(&sample.worker)).count();
        if 2 * busy > recent.len() || recent.iter().any(is_at_limit) {
            return;
        }
        self.waits_for = longest_waits(&recent);
        self.waits_for_store = self.waits_for.is_none();
        if !self.waits_for_store {
            return;
        }
        let (mut concurrency, mut bytes_per_s) = (0.0, 0.0);
        for sample in &recent {
            let seconds = sample.elapsed_ns as f64 / 1e9;
            concurrency += sample.store.wait_ns as f64 / 1e9 / seconds;
            bytes_per_s += sample.store.bytes as f64 / seconds;
        }
        if bytes_per_s > 0.0 && concurrency > 0.0 {
            let now = Observation { concurrency, bytes_per_s };
            self.store_seen.retain(|before| !now.contradicts(before));
            if self.store_seen.len() == STORE_SEEN {
                self.store_seen.pop_front();
            }
            self.store_seen.push_back(now);
        }
    }

    /// All that was seen of a job whose pipeline names no cache, as if there were none: what operators take of the rows that
    /// come to them does not depend on how many were found.
    fn unkept(&self) -> JobObservation {
        let mut seen = self.observation();
        for sample in &mut seen.total {
            sample.operators.retain(|operator| operator.name != "cache");
        }
        JobObservation { recent: seen.total.clone(), ..seen }
    }

    fn observation(&self) -> JobObservation {
        JobObservation {
            recent: self.workers.values().filter_map(recent_of_worker).collect(),
            total: self.workers.values().filter_map(|window| window.total().cloned()).collect(),
            consumers: self.consumers.values().filter_map(recent_of_consumer).collect(),
            store_seen: self.store_seen.iter().copied().collect(),
            waits_for: self.waits_for.clone(),
            forms: self.forms.values().copied().collect(),
        }
    }
}

/// What a worker did. Without a newer report there is nothing to tell; its own clock says which time it is about.
fn recent_of_worker(window: &SampleWindow<JobWorkerSample>) -> Option<JobWorkerSample> {
    window.recent(RECENT_MS).map(|(_, sample)| sample).filter(|sample| sample.elapsed_ns > 0)
}

/// Of a consumer that has waited all the time it is not seen what it could take: as much as before. Its earlier steps count
/// for so small a part of the time that its waiting is seen all the same.
fn with_earlier_steps(recent: JobConsumerSample, total: &JobConsumerSample) -> JobConsumerSample {
    let steps_ns = total.step_ns.min(recent.elapsed_ns / 4);
    let part = |count: u64| (count as f64 * steps_ns as f64 / total.step_ns.max(1) as f64) as u64;
    JobConsumerSample {
        rows: recent.rows.max(part(total.rows)),
        step_ns: steps_ns,
        elapsed_ns: recent.elapsed_ns.saturating_add(steps_ns),
        ..recent
    }
}

/// What a consumer took; `None` for one that has left.
fn recent_of_consumer(window: &SampleWindow<JobConsumerSample>) -> Option<JobConsumerSample> {
    let within = |span_ms| window.recent(span_ms).map(|(_, sample)| sample);
    let recent = within(RECENT_MS).filter(|sample| sample.elapsed_ns > 0)?;
    if recent.step_ns == 0
        && let Some(total) = window.total()
    {
        return Some(with_earlier_steps(recent, total));
    }
    let rate = |sample: &JobConsumerSample| sample.rows as f64 / sample.step_ns.max(1) as f64;
    let has_changed = |fresh: &JobConsumerSample| {
        let change = rate(fresh) / rate(&recent).max(f64::MIN_POSITIVE) - 1.0;
        fresh.batches >= FRESH_BATCHES && change.abs() > CHANGED
    };
    Some(within(FRESH_MS).filter(has_changed).unwrap_or(recent))
}
