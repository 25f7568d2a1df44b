//! A simulated worker: follows its plan, computes the pieces of its leases in order, and serves them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use feedline_cluster::Reply;
use feedline_data::consumer::Piece;
use feedline_data::ids::{JobId, Millis, TaskId, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::manifest::ShardRef;
use feedline_data::messages::{
    GraphJobLoad, GraphLoadState, GraphReport, JobDetails, Lease, MAX_LOST_WORKERS, ProcessCpu, Revision,
    ServiceErrorKind, Task, TaskOutput, TaskResult, WorkerPlan, WorkerReport,
};

use super::dice::Dice;
use super::messages::{Call, Fetch, Outcome, Request, Rows, Send};
use super::scenario::JobData;

type Key = (JobId, SplitRef);

/// Milliseconds between two reports with changes.
const NEWS_MS: Millis = 60;
/// Milliseconds after which a call times out.
const ANSWER_MS: Millis = 1_500;
/// Maximum time for which a fetch waits for rows.
const HOLD_FETCH_MS: Millis = 400;
/// Maximum number of pieces in one reply to a fetch.
const PIECES: usize = 3;

#[derive(Debug)]
struct Work {
    from: u32,
    next: u32,
    len: u32,
    pieces: Vec<Piece<Rows>>,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) stalled_until: Millis,
    /// Whether the worker has crashed.
    pub(crate) has_crashed: bool,
    /// A split of the first job that crashes its worker.
    planted: Option<SplitRef>,
    /// All jobs of the scenario.
    known: Vec<Rc<JobData>>,
    /// Input rows of a piece.
    cut: u32,
    row_ms: u64,
    /// Number of computed splits at which the memory is full.
    capacity: usize,
    seen: Revision,
    plan: Vec<Lease>,
    tasks: Vec<Task>,
    results: BTreeMap<TaskId, TaskResult>,
    jobs: BTreeMap<JobId, Rc<JobData>>,
    works: BTreeMap<Key, Work>,
    busy: Option<(Key, Millis)>,
    indexing: Option<(TaskId, Millis)>,
    report: Call,
    asked: Call,
    news: bool,
    waiting: Vec<(Fetch, Millis)>,
    /// Milliseconds to load a graph; `None` if the jobs sample no graph.
    load_ms: Option<Millis>,
    /// The jobs of the plan that sample a graph.
    graphs: BTreeMap<JobId, GraphLoad>,
    /// Jobs whose graph the worker has loaded, and may have evicted again.
    loaded: BTreeSet<JobId>,
}

/// The graph of a job.
#[derive(Debug, Clone, Copy)]
enum GraphLoad {
    Planned,
    Until(Millis),
    Loaded,
}

impl Worker {
    pub(crate) fn new(
        id: WorkerId,
        known: Vec<Rc<JobData>>,
        planted: Option<SplitRef>,
        dice: &mut Dice,
    ) -> Self {
        let samples = known.iter().all(|data| data.layout.indivisible);
        Self {
            id,
            load_ms: samples.then(|| dice.range(0, 4_000)),
            graphs: BTreeMap::new(),
            loaded: BTreeSet::new(),
            stalled_until: 0,
            has_crashed: false,
            planted,
            known,
            cut: dice.range(1, 12) as u32,
            row_ms: dice.pick(&[0, 1, 2, 5, 40]),
            capacity: dice.range(1, 6) as usize,
            seen: Revision::default(),
            plan: Vec::new(),
            tasks: Vec::new(),
            results: BTreeMap::new(),
            jobs: BTreeMap::new(),
            works: BTreeMap::new(),
            busy: None,
            indexing: None,
            report: Call::default(),
            asked: Call::default(),
            news: false,
            waiting: Vec::new(),
        }
    }

    /// Runs periodically.
    pub(crate) fn on_wake(&mut self, now: Millis, dice: &mut Dice, out: &mut Vec<Send>) {
        self.load(now);
        self.compute(now);
        self.index(now, dice);
        self.serve_waiting(now, out);
        let unknown = self.plan.iter().map(|lease| lease.job).find(|job| !self.jobs.contains_key(job));
        if let Some(job) = unknown.filter(|_| self.asked.may_send(now, ANSWER_MS)) {
            out.push(Send::Request(self.asked.send(now), Box::new(Request::Details(job))));
        }
        let due = self.report.may_send(now, ANSWER_MS) || (self.news && self.report.age(now) >= NEWS_MS);
        if due {
            self.news = false;
            let call = self.report.send(now);
            out.push(Send::Request(call, Box::new(Request::Worker(self.build_report()))));
        }
    }

    fn build_report(&self) -> WorkerReport {
        WorkerReport {
            worker: self.id,
            address: format!("sim://{}", self.id),
            tls_name: None,
            pool: String::new(),
            cores: 1,
            memory_bytes: 1 << 30,
            machine: String::new(),
            nic_bytes_per_s: 0,
            plan_revision: self.seen,
            computed: self.computed().collect(),
            memory_full: self.is_full(),
            draining: false,
            tasks: self.results.values().cloned().collect(),
            task_progress: Vec::new(),
            elapsed_ns: 0,
            cpu: ProcessCpu::default(),
            stats: Vec::new(),
            caches: Vec::new(),
            memory: Vec::new(),
            stores: Vec::new(),
            graphs: self.load_ms.map(|_| self.graph_report()),
        }
    }

    fn graph_report(&self) -> GraphReport {
        let state = |load: &GraphLoad| match load {
            GraphLoad::Planned | GraphLoad::Until(_) => GraphLoadState::Loading,
            GraphLoad::Loaded => GraphLoadState::Loaded,
        };
        let jobs = self.graphs.iter().map(|(job, load)| GraphJobLoad { job: *job, state: state(load) });
        GraphReport { held: Vec::new(), jobs: jobs.collect() }
    }

    /// Loads the graphs of the plan.
    fn load(&mut self, now: Millis) {
        let Some(load_ms) = self.load_ms else { return };
        for (job, load) in &mut self.graphs {
            match *load {
                GraphLoad::Planned => *load = GraphLoad::Until(now + load_ms),
                GraphLoad::Until(end) if now >= end => {
                    *load = GraphLoad::Loaded;
                    self.loaded.insert(*job);
                    self.news = true;
                }
                GraphLoad::Until(_) | GraphLoad::Loaded => {}
            }
        }
    }

    fn computed(&self) -> impl Iterator<Item = Key> + '_ {
        self.works.iter().filter(|(_, work)| work.next >= work.len).map(|(key, _)| *key)
    }

    fn is_full(&self) -> bool {
        self.computed().count() >= self.capacity
    }

    pub(crate) fn on_reply(&mut self, call: u64, reply: Reply) -> Result<(), String> {
        match reply {
            Reply::Worker(plan) if self.report.take(call) => self.apply_plan(plan)?,
            Reply::Details(details) if self.asked.take(call) => self.learn(&details)?,
            Reply::Rejected(refusal) if refusal.kind == ServiceErrorKind::Unavailable => {
                self.asked.take(call);
                self.report.take(call);
            }
            Reply::Rejected(refusal) if self.asked.take(call) => {
                return Err(format!("a worker was refused the details of a job it works on: {refusal}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn learn(&mut self, details: &JobDetails) -> Result<(), String> {
        let data = self.known.iter().find(|data| data.spec.pipeline == details.pipeline);
        let Some(data) = data.filter(|data| data.layout == details.layout) else {
            return Err("the coordinator's pipeline or layout is not the reference's".to_owned());
        };
        self.jobs.insert(details.job, Rc::clone(data));
        Ok(())
    }

    fn apply_plan(&mut self, plan: WorkerPlan) -> Result<(), String> {
        if self.load_ms.is_some()
            && let Some(lease) = plan.leases.iter().find(|lease| !self.loaded.contains(&lease.job))
        {
            return Err(format!("worker {} received {lease:?} before it had loaded the graph", self.id));
        }
        self.seen = plan.revision;
        self.plan = plan.leases;
        // A worker also loads the graphs of its leases.
        let leased = self.plan.iter().map(|lease| lease.job).filter(|_| self.load_ms.is_some());
        let graphs: BTreeSet<JobId> = plan.graph_jobs.into_iter().chain(leased).collect();
        self.graphs.retain(|job, _| graphs.contains(job));
        for job in graphs {
            self.graphs.entry(job).or_insert(GraphLoad::Planned);
        }
        let held: BTreeSet<Key> = self.plan.iter().map(|lease| (lease.job, lease.split)).collect();
        self.works.retain(|key, _| held.contains(key));
        self.results.retain(|id, _| plan.tasks.iter().any(|task| task.id == *id));
        self.tasks = plan.tasks;
        if self.busy.is_some_and(|(key, _)| !held.contains(&key)) {
            self.busy = None;
        }
        Ok(())
    }

    fn compute(&mut self, now: Millis) {
        if let Some((key, until)) = self.busy {
            if now < until {
                return;
            }
            self.busy = None;
            self.finish_piece(key);
        }
        let full = self.is_full();
        let asked: BTreeSet<Key> = self.waiting.iter().map(|(fetch, _)| (fetch.job, fetch.split)).collect();
        for place in 0..self.plan.len() {
            let lease = self.plan[place];
            let key = (lease.job, lease.split);
            let Some(data) = self.jobs.get(&lease.job) else { continue };
            if data.layout.indivisible && !matches!(self.graphs.get(&lease.job), Some(GraphLoad::Loaded)) {
                continue;
            }
            let len = data.layout.split_len(lease.split);
            let work = self.works.entry(key).or_insert_with(|| Work {
                from: lease.start_offset,
                next: lease.start_offset,
                len,
                pieces: Vec::new(),
            });
            // With full memory the worker computes only splits that a consumer fetches.
            if work.next < work.len && (!full || asked.contains(&key)) {
                // A split that was given up is not computed. The simulated worker serves its rows, so that the checks of rows apply.
                let is_first = Rc::ptr_eq(data, &self.known[0]);
                if is_first && self.planted == Some(lease.split) && lease.lost_workers < MAX_LOST_WORKERS {
                    self.has_crashed = true;
                    return;
                }
                let rows = u64::from(self.cut.min(work.len - work.next));
                self.busy = Some((key, now + rows * self.row_ms));
                return;
            }
        }
    }

    fn finish_piece(&mut self, (job, split): Key) {
        let (Some(work), Some(data)) = (self.works.get_mut(&(job, split)), self.jobs.get(&job)) else {
            return;
        };
        let rows = if data.layout.indivisible { data.layout.batch_rows } else { self.cut };
        let to = (work.next + rows).min(work.len);
        let rows = data.rows(split, work.next, to);
        let kept: Vec<u32> = (work.next..to)
            .zip(rows)
            .filter(|(_, row)| data.keeps(**row))
            .map(|(offset, _)| offset)
            .collect();
        let payload = Rows::new(rows.iter().copied().filter(|row| data.keeps(*row)).collect());
        let kept = data.layout.changes_rows.then_some(kept);
        work.pieces.push(Piece { split, start: work.next, end: to, kept_offsets: kept, payload });
        work.next = to;
        self.news |= to == work.len;
    }

    fn index(&mut self, now: Millis, dice: &mut Dice) {
        if let Some((id, until)) = self.indexing {
            if now < until {
                return;
            }
            self.indexing = None;
            if let Some(task) = self.tasks.iter().find(|task| task.id == id) {
                let outcome = Ok(self.output_of(task));
                self.results.insert(id, TaskResult { id, outcome });
                self.news = true;
            }
        }
        let open = self.tasks.iter().find(|task| !self.results.contains_key(&task.id));
        self.indexing = open.map(|task| (task.id, now + dice.range(1, 200)));
    }

    fn output_of(&self, task: &Task) -> TaskOutput {
        let of_task = |data: &&Rc<JobData>| data.spec.pipeline.listed_source() == task.source;
        let shards = &self.known.iter().find(of_task).expect("a source that a job has").manifest.shards;
        match &task.shards {
            None => TaskOutput::Listed(shards.iter().map(|shard| shard.object.clone()).collect()),
            Some(asked) => {
                let index = |object: &ShardRef| {
                    shards.iter().find(|shard| shard.object == *object).expect("a listed shard")
                };
                TaskOutput::Indexed(asked.iter().map(|object| index(object).to_indexed()).collect())
            }
        }
    }

    pub(crate) fn on_fetch(&mut self, now: Millis, fetch: Fetch, out: &mut Vec<Send>) {
        self.waiting.push((fetch, now));
        self.serve_waiting(now, out);
    }

    fn serve_waiting(&mut self, now: Millis, out: &mut Vec<Send>) {
        for (fetch, since) in std::mem::take(&mut self.waiting) {
            let key = (fetch.job, fetch.split);
            let planned = self.plan.iter().any(|lease| (lease.job, lease.split) == key);
            let outcome = match self.works.get(&key) {
                None if !planned => Some(Outcome::NotHeld),
                Some(work) if fetch.from < work.from => Some(Outcome::NotHeld),
                Some(work) => {
                    let ready = work.pieces.iter().filter(|piece| piece.end > fetch.from);
                    let pieces: Vec<_> = ready.take(PIECES).cloned().collect();
                    (!pieces.is_empty()).then_some(Outcome::Pieces(pieces))
                }
                None => None,
            };
            match outcome {
                Some(outcome) => out.push(Send::Fetched(fetch, outcome)),
                None if now - since >= HOLD_FETCH_MS => {
                    out.push(Send::Fetched(fetch, Outcome::Pieces(Vec::new())))
                }
                None => self.waiting.push((fetch, since)),
            }
        }
    }
}
