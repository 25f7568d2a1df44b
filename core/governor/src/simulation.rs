//! A simulation of many workers that read one store with a limit, with delays between workers, leader and store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::samples::{Samples, WorkerReportSample};
use feedline_data::messages::{StoreReport, StoreShare};

use crate::fleet::StoreGovernors;
use crate::pacer::{NextRequest, PacedRequest, Pacer};

pub(crate) mod store;
mod tests;

use store::{Answer, Store};

/// Size of each request.
const REQUEST_BYTES: u64 = 64 << 10;

/// The leader divides the budgets again at least this long after the last plan when a worker reports rejections.
const EARLY_PLAN_S: f64 = 0.25;

/// What happens at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Begin(usize),
    Wake(usize),
    Poll(usize),
    Arrive(usize, u64),
    Answered(usize, u64),
    Tick(usize),
    Report(usize, bool),
    Plan(bool),
    Share(usize, u64),
}

/// A request on its way.
struct Request {
    queued: PacedRequest,
    sent: f64,
    answer: Option<Answer>,
}

/// The parameters of a run.
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) workers: usize,
    /// Requests that each job has waiting or in flight on each worker.
    pub(super) depths: Vec<usize>,
    pub(super) store: Store,
    pub(super) seconds: f64,
    /// A worker handles an answer late by a random time of at most this, in seconds.
    pub(super) lateness_s: f64,
    /// Mean time between two reports of a worker, in seconds.
    pub(super) report_s: f64,
    /// The number of workers that do not read the store before a time, and the time.
    pub(super) late: (usize, f64),
    /// The number of workers that need nothing between two times, and the times. Requests that wait at the first time are sent.
    pub(super) rest: (usize, f64, f64),
    /// The leader does nothing in this time.
    pub(super) leaderless: (f64, f64),
}

impl Scenario {
    /// Whether a worker does not read the store yet.
    fn is_idle(&self, worker: usize, now: f64) -> bool {
        worker >= self.workers - self.late.0 && now < self.late.1
    }

    /// Whether a worker that has read the store needs nothing now.
    fn is_resting(&self, worker: usize, now: f64) -> bool {
        let (workers, from, to) = self.rest;
        worker >= self.workers - workers && (from..to).contains(&now)
    }
}

/// An answered request: its worker, when it arrived, when it was answered, its job, and whether the store rejected it.
pub(super) struct Answered {
    pub(super) worker: usize,
    pub(super) arrived: f64,
    pub(super) end: f64,
    pub(super) job: JobId,
    pub(super) is_rejected: bool,
}

struct World {
    now: f64,
    random: u64,
    scenario: Scenario,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    pacers: Vec<Pacer>,
    polls: Vec<f64>,
    requests: BTreeMap<u64, Request>,
    reports: BTreeMap<WorkerId, WorkerReportSample>,
    shares: BTreeMap<u64, StoreShare>,
    /// The last parts of workers that do not read the store yet.
    idle_shares: BTreeMap<usize, StoreShare>,
    governors: StoreGovernors,
    log: Vec<Answered>,
    early_reports: Vec<bool>,
    early_plan: bool,
    planned: f64,
}

/// The result of a run: all requests.
pub(super) struct Outcome {
    pub(super) log: Vec<Answered>,
}

pub(super) fn run(scenario: Scenario) -> Outcome {
    let workers = scenario.workers;
    let mut world = World {
        now: 0.0,
        random: scenario.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        events: BinaryHeap::new(),
        count: 0,
        pacers: (0..workers as u64).map(|worker| Pacer::new(scenario.seed * 1000 + worker + 1)).collect(),
        polls: vec![f64::INFINITY; workers],
        requests: BTreeMap::new(),
        reports: BTreeMap::new(),
        shares: BTreeMap::new(),
        idle_shares: BTreeMap::new(),
        governors: StoreGovernors::default(),
        log: Vec::new(),
        early_reports: vec![false; workers],
        early_plan: false,
        planned: 0.0,
        scenario,
    };
    world.start();
    world.run();
    Outcome { log: world.log }
}

impl World {
    fn random(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn at(&mut self, seconds: f64, event: Event) {
        self.count += 1;
        self.events.push(Reverse(((seconds * 1e9) as u64, self.count, event)));
    }

    fn start(&mut self) {
        let (resting, _, rest_end) = self.scenario.rest;
        for worker in self.scenario.workers - resting..self.scenario.workers {
            self.at(rest_end, Event::Wake(worker));
        }
        for worker in 0..self.scenario.workers {
            let (begin, report) = (0.2 * self.random(), self.random());
            let begin = if self.scenario.is_idle(worker, begin) { self.scenario.late.1 } else { begin };
            self.at(begin, Event::Begin(worker));
            self.at(report, Event::Report(worker, false));
        }
        let plan = self.random();
        self.at(plan, Event::Plan(false));
    }

    fn run(&mut self) {
        while let Some(Reverse((nanos, _, event))) = self.events.pop() {
            self.now = nanos as f64 / 1e9;
            if self.now > self.scenario.seconds {
                return;
            }
            match event {
                Event::Begin(worker) => self.on_begin(worker),
                Event::Wake(worker) => self.push_all(worker),
                // An earlier poll has replaced this one.
                Event::Poll(worker) if self.now + 1e-6 < self.polls[worker] => {}
                Event::Poll(worker) => {
                    self.polls[worker] = f64::INFINITY;
                    self.poll(worker);
                }
                Event::Arrive(worker, id) => self.on_arrival(worker, id),
                Event::Answered(worker, id) => self.on_answer(worker, id),
                Event::Tick(worker) => {
                    let now = self.time();
                    self.pacers[worker].tick(now);
                    self.poll(worker);
                    self.at(self.now + 0.25, Event::Tick(worker));
                }
                Event::Report(worker, is_early) => self.on_report(worker, is_early),
                Event::Plan(is_early) => self.on_plan(is_early),
                Event::Share(worker, id) => {
                    let (now, share) = (self.time(), self.shares.remove(&id).expect("it was sent"));
                    if self.scenario.is_idle(worker, self.now) {
                        self.idle_shares.insert(worker, share);
                    } else {
                        self.pacers[worker].set_share(now, &share);
                        self.poll(worker);
                    }
                }
            }
        }
    }

    fn on_begin(&mut self, worker: usize) {
        let now = self.time();
        if let Some(share) = self.idle_shares.remove(&worker) {
            self.pacers[worker].set_share(now, &share);
        }
        self.push_all(worker);
        self.at(self.now, Event::Tick(worker));
    }

    /// Adds the requests of all jobs of a worker.
    fn push_all(&mut self, worker: usize) {
        for (job, depth) in (0..).zip(self.scenario.depths.clone()) {
            (0..depth).for_each(|_| self.push(worker, JobId(job), false, None));
        }
        self.poll(worker);
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.now)
    }

    fn push(&mut self, worker: usize, job: JobId, is_repeated: bool, id: Option<u64>) {
        self.count += 1;
        let queued = PacedRequest { id: id.unwrap_or(self.count), job, bytes: REQUEST_BYTES };
        let now = self.time();
        self.pacers[worker].push(now, queued, is_repeated);
    }

    fn poll(&mut self, worker: usize) {
        loop {
            let now = self.time();
            match self.pacers[worker].next(now) {
                NextRequest::Send(queued) => {
                    self.count += 1;
                    let id = self.count;
                    self.requests.insert(id, Request { queued, sent: self.now, answer: None });
                    let delay = 0.0005 + 0.002 * self.random();
                    self.at(self.now + delay, Event::Arrive(worker, id));
                }
                NextRequest::At(time) => {
                    let late = 0.003 * self.random();
                    let time = time.as_secs_f64() + late;
                    if time < self.polls[worker] {
                        self.polls[worker] = time;
                        self.at(time, Event::Poll(worker));
                    }
                    return;
                }
                NextRequest::Blocked => return,
            }
        }
    }

    fn on_arrival(&mut self, worker: usize, id: u64) {
        let noise = self.random();
        let answer = self.scenario.store.answer(self.now, REQUEST_BYTES as f64, noise);
        let request = self.requests.get_mut(&id).expect("it was sent");
        request.answer = Some(answer);
        let job = request.queued.job;
        let (end, is_rejected) = match answer {
            Answer::Accepted { end } => (end, false),
            Answer::Rejected { .. } => (self.now + 0.001, true),
        };
        self.log.push(Answered { worker, arrived: self.now, end, job, is_rejected });
        // A run without lateness uses no random numbers for it.
        let lateness_s = self.scenario.lateness_s;
        let late = if lateness_s > 0.0 { lateness_s * self.random() } else { 0.0 };
        self.at(end + late, Event::Answered(worker, id));
    }

    fn on_answer(&mut self, worker: usize, id: u64) {
        let Request { queued, sent, answer } = self.requests.remove(&id).expect("it was sent");
        let now = self.time();
        if let Some(Answer::Rejected { retry_after }) = answer {
            let retry_after = retry_after.map(Duration::from_secs_f64);
            self.pacers[worker].on_rejection(now, queued, retry_after);
            self.push(worker, queued.job, true, Some(queued.id));
            if !self.early_reports[worker] {
                self.early_reports[worker] = true;
                let delay = 0.02 + 0.08 * self.random();
                self.at(self.now + delay, Event::Report(worker, true));
            }
        } else {
            let latency = Duration::from_secs_f64(self.now - sent);
            self.pacers[worker].on_success(queued, REQUEST_BYTES, latency);
            if !self.scenario.is_resting(worker, self.now) {
                self.push(worker, queued.job, false, None);
            }
        }
        self.poll(worker);
    }

    fn on_report(&mut self, worker: usize, is_early: bool) {
        let id = WorkerId(worker as u64);
        let mut report = self.pacers[worker].report(self.time());
        report.key = "store".to_owned();
        let mut sample = store::sample(id, report);
        let is_waiting = |report: &StoreReport| report.jobs.iter().any(|job| job.waiting > 0);
        sample.stores.retain(|report| report.accepted + report.rejected > 0 || is_waiting(report));
        self.reports.insert(id, sample);
        if is_early {
            self.early_reports[worker] = false;
            let next = self.now.max(self.planned + EARLY_PLAN_S);
            if !self.early_plan {
                self.early_plan = true;
                self.at(next, Event::Plan(true));
            }
        } else {
            let pause = self.scenario.report_s * (0.8 + 0.4 * self.random());
            self.at(self.now + pause, Event::Report(worker, false));
        }
    }

    fn on_plan(&mut self, is_early: bool) {
        if is_early {
            self.early_plan = false;
        } else {
            self.at(self.now + 1.0, Event::Plan(false));
        }
        self.planned = self.now;
        let (from, to) = self.scenario.leaderless;
        if self.now >= from && self.now < to {
            // The next leader knows neither the limits nor the workers.
            self.governors = StoreGovernors::default();
            self.reports.clear();
            return;
        }
        let samples = Samples { workers: self.reports.values().cloned().collect(), ..Samples::default() };
        let parts = self.governors.plan((self.now * 1e3) as u64, &samples);

        for (worker, shares) in parts {
            for share in shares {
                self.count += 1;
                let id = self.count;
                self.shares.insert(id, share);
                let delay = 0.01 + 0.1 * self.random();
                self.at(self.now + delay, Event::Share(worker.0 as usize, id));
            }
        }
    }
}
