//! Runs a simulation in time steps. In each step, workers compute rows, consumers process batches, the state machine
//! receives reports, and the planner may make a plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedline_cluster::{
    Cluster, ClusterLimits, ClusterSettings, IndexToSave, Input, Ready, Reply, RequestId,
};
use feedline_data::ids::{JobId, Millis};
use feedline_data::manifest::Manifest;
use feedline_data::messages::PlanAllocations;
use feedline_data::messages::samples::TopicSample;
use feedline_data::random::mix64;

use super::consumer::SimulatedConsumer;
use super::decider::{DeliveredTotals, ScalingDecider, ScalingInput};
use super::fleet::Fleet;
use super::job::SimulatedJob;
use super::meter::{Meter, Phase};
use super::recording::{ConsumerTimes, ElapsedSecond, Recording};
use super::report::{ScalingChange, SimulatedAudit, SimulationReport};
use super::scaling_rule::ScalingRule;
use super::scenario::Scenario;
use super::worker::{SimulatedWorker, WorkerPlanContext};

use crate::observe::Observer;
use crate::plan::{self, CachePolicy, NoDeadline, Plan, Problem, ReadLimits, plan_allocations, solve};

use crate::view::cluster_view;

/// The leadership epoch of the simulated coordinator. The first job id in this epoch is 1.
const COORDINATOR_EPOCH: u64 = 1 << 20;
/// The first request id of consumers. The request ids of workers start at 0, and all other requests have the id
/// [`OTHER_REQUEST`].
const FIRST_CONSUMER_REQUEST: RequestId = 1 << 32;
const OTHER_REQUEST: RequestId = 1 << 33;

/// A running simulation.
#[derive(Debug)]
pub struct Simulation {
    scenario: Scenario,
    rule: ScalingRule,
    now: Millis,
    jobs: Vec<SimulatedJob>,
    manifests: Vec<Arc<Manifest>>,
    consumers: Vec<SimulatedConsumer>,
    fleet: Fleet,
    cluster: Cluster,
    observer: Observer,
    plan: Option<Plan>,
    allocations: PlanAllocations,
    read_limits: ReadLimits,
    decider: ScalingDecider,
    recording: Recording,
    inputs: Vec<Input>,
    /// The number of reports so far.
    input_count: u64,
}

impl Simulation {
    /// Creates a simulation with all jobs open.
    ///
    /// # Errors
    /// Returns a message that names the invalid value of the scenario.
    pub fn new(scenario: &Scenario, rule: ScalingRule) -> Result<Self, String> {
        scenario.check()?;
        let control = &scenario.control;
        let settings = ClusterSettings {
            hold_ms: control.hold_ms,
            leases_ahead: control.leases_ahead,
            tenants: scenario.quotas(),
            limits: ClusterLimits::UNLIMITED,
            ..ClusterSettings::default()
        };
        let mut simulation = Self {
            scenario: scenario.clone(),
            rule,
            now: 0,
            jobs: Vec::new(),
            manifests: Vec::new(),
            consumers: Vec::new(),
            fleet: Fleet::new(scenario),
            cluster: Cluster::new(settings, COORDINATOR_EPOCH),
            observer: Observer::default(),
            plan: None,
            allocations: PlanAllocations::new(),
            read_limits: ReadLimits::default(),
            decider: ScalingDecider::new(rule, &scenario.scaling),
            recording: Recording::new(scenario.warm_up_s, 0),
            inputs: Vec::new(),
            input_count: 0,
        };
        for definition in &scenario.jobs {
            let definition = Arc::new(definition.clone());
            for copy in 1..=definition.count {
                let name = if definition.count == 1 {
                    definition.name.clone()
                } else {
                    format!("{}{copy}", definition.name)
                };
                simulation.open_job(SimulatedJob::new(&definition, name, simulation.jobs.len())?)?;
            }
        }
        simulation.recording = Recording::new(scenario.warm_up_s, simulation.jobs.len());
        let seed = scenario.seed;
        for (number, worker) in simulation.fleet.workers.iter_mut().enumerate() {
            worker.next_report = mix64(seed ^ number as u64) % control.worker_report_ms.max(1);
        }
        Ok(simulation)
    }

    fn open_job(
        &mut self,
        (job, spec, manifest): (SimulatedJob, feedline_data::messages::JobSpec, Manifest),
    ) -> Result<(), String> {
        let manifest = Arc::new(manifest);
        let mut ready = Ready::default();
        let saved_index = Some(Arc::clone(&manifest)).into();
        let input = Input::OpenJob { request: OTHER_REQUEST, spec: Box::new(spec), saved_index };
        self.cluster.step(self.now, input, &mut ready);
        for (_, reply) in ready.replies {
            if let Reply::Rejected(refusal) = reply {
                return Err(refusal.message);
            }
        }
        let place = self.jobs.len() as u32;
        for number in 0..job.definition.consumers {
            let seed = self.scenario.seed ^ mix64(self.consumers.len() as u64);
            let first_report = mix64(seed) % self.scenario.control.consumer_report_ms.max(1);
            self.consumers.push(SimulatedConsumer::new(place, number, first_report));
        }
        self.jobs.push(job);
        self.manifests.push(manifest);
        Ok(())
    }

    /// Returns the milliseconds since the start.
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Returns the number of reports so far.
    pub fn report_count(&self) -> u64 {
        self.input_count
    }

    /// Whether the duration of the scenario has passed.
    pub fn is_over(&self) -> bool {
        self.now >= 1_000 * u64::from(self.scenario.duration_s)
    }

    /// Simulates one time step.
    pub fn tick(&mut self, meter: &mut dyn Meter) {
        meter.begin(Phase::World);
        self.now += self.scenario.control.tick_ms;
        self.fleet.update_states(self.now);
        self.compute_rows();
        self.consume_batches();
        self.collect_reports();
        meter.end(Phase::World);
        meter.begin(Phase::Inputs);
        self.input_count += self.inputs.len() as u64;
        let mut ready = Ready::default();
        for input in self.inputs.drain(..) {
            self.cluster.take_input(self.now, input, &mut ready);
        }
        // Saving an index takes no simulated time.
        for IndexToSave { job, .. } in std::mem::take(&mut ready.manifests) {
            self.cluster.take_input(self.now, Input::IndexSaved { job, result: Ok(()) }, &mut ready);
        }
        self.cluster.step(self.now, Input::Tick, &mut ready);
        meter.end(Phase::Inputs);
        meter.begin(Phase::World);
        self.apply_replies(ready);
        if self.now.is_multiple_of(1_000) {
            self.record_second();
        }
        meter.end(Phase::World);
        if self.now.is_multiple_of(self.scenario.control.plan_ms) {
            self.make_plan(meter);
        }
    }

    /// Lets the workers compute rows, limited by their cores and the store.
    fn compute_rows(&mut self) {
        let seconds = self.scenario.control.tick_ms as f64 / 1e3;
        let limit = self.scenario.store_bytes_per_s;
        let at_work = || self.fleet.workers.iter().filter(|worker| worker.is_running());
        let mut store_share = 1.0;
        if limit > 0.0 {
            let wanted: f64 = at_work().map(|worker| worker.wanted_bytes_per_s(&self.jobs)).sum();
            store_share = (limit / wanted.max(f64::MIN_POSITIVE)).min(1.0);
        }
        for worker in self.fleet.workers.iter_mut().filter(|worker| worker.is_running()) {
            worker.receive_rows(self.now, &self.jobs);
            worker.compute(seconds, store_share, &self.jobs);
        }
    }

    /// Lets the consumers fetch computed rows and process batches.
    fn consume_batches(&mut self) {
        let control = &self.scenario.control;
        let (start, end) = ((self.now - control.tick_ms) * 1_000_000, self.now * 1_000_000);
        let second = ((self.now - control.tick_ms) / 1_000) as u32;
        for consumer in &mut self.consumers {
            let job = &self.jobs[consumer.job as usize];
            let rows_per_s = job.demand_rows_per_s(second) / f64::from(job.definition.consumers);
            consumer.fetch(&mut self.fleet);
            consumer.advance(start, end, rows_per_s, job, control.splits_ahead);
        }
    }

    fn collect_reports(&mut self) {
        let control = &self.scenario.control;
        let known = WorkerPlanContext { jobs: &self.jobs, manifests: &self.manifests, first_job: FIRST_JOB };
        for (place, worker) in self.fleet.workers.iter_mut().enumerate() {
            if worker.is_report_due(self.now) {
                worker.next_report = self.now + control.worker_report_ms.max(control.tick_ms);
                let report = worker.report(self.now, &known);
                self.inputs.push(Input::Worker { request: place as u64, report });
            }
        }
        for (place, consumer) in self.consumers.iter_mut().enumerate() {
            if consumer.is_report_due(self.now) {
                consumer.schedule_report(self.now, control);
                let layout = &self.jobs[consumer.job as usize].layout;
                let report = consumer.report(self.now, job_id(consumer.job), layout, control.splits_ahead);
                self.inputs.push(Input::Consumer { request: FIRST_CONSUMER_REQUEST + place as u64, report });
            }
        }
    }

    fn apply_replies(&mut self, ready: Ready) {
        let known = WorkerPlanContext { jobs: &self.jobs, manifests: &self.manifests, first_job: FIRST_JOB };
        for (request, reply) in ready.replies {
            match reply {
                Reply::Worker(plan) => self.fleet.workers[request as usize].on_plan(plan, &known),
                Reply::Consumer(plan) => {
                    let consumer = &mut self.consumers[(request - FIRST_CONSUMER_REQUEST) as usize];
                    let layout = &self.jobs[consumer.job as usize].layout;
                    consumer.on_plan(&plan, layout, self.scenario.control.splits_ahead);
                }
                _ => {}
            }
        }
    }

    fn record_second(&mut self) {
        let second = (self.now / 1_000) as u32;
        let mut times = vec![ConsumerTimes::default(); self.jobs.len()];
        for consumer in &self.consumers {
            let sum = &mut times[consumer.job as usize];
            sum.stall_ns += consumer.stall_ns;
            sum.step_ns += consumer.step_ns;
        }
        let demand_rows_per_s = self.jobs.iter().map(|job| job.demand_rows_per_s(second - 1)).sum();
        let rows = self.consumers.iter().map(SimulatedConsumer::consumed_rows).sum();
        let wanted = self.plan.iter().flat_map(|plan| &plan.wanted_workers).map(|kind| kind.wanted).sum();
        let workers = self.fleet.paid_workers();
        let lag_rows = (0..self.jobs.len()).filter_map(|job| self.topic_sample(job));
        let lag_rows = lag_rows.map(|topic| topic.backlog_rows).sum();
        let elapsed = ElapsedSecond {
            at_s: second,
            workers,
            wanted,
            demand_rows_per_s,
            rows,
            lag_rows,
            job_times: times,
        };
        self.recording.on_second(elapsed);
    }

    /// Returns the rows of a job that have arrived; `None` for a job whose rows exist from the start.
    fn topic_sample(&self, job: usize) -> Option<TopicSample> {
        let arrived_rows = self.jobs[job].arrived_rows(self.now)?;
        let own = self.consumers.iter().filter(|consumer| consumer.job as usize == job);
        let delivered: u64 = own.map(SimulatedConsumer::consumed_rows).sum();
        Some(TopicSample {
            arrived_rows,
            backlog_rows: arrived_rows.saturating_sub(delivered),
            step_rows: self.jobs[job].layout.full_step_rows(),
        })
    }

    /// Observes the cluster and makes a plan, as the coordinator does once per second.
    fn make_plan(&mut self, meter: &mut dyn Meter) {
        meter.begin(Phase::Inputs);
        let mut samples = self.cluster.samples();
        for properties in &mut samples.jobs {
            properties.topic = self.topic_sample((properties.job.0 - FIRST_JOB.0) as usize);
        }
        meter.end(Phase::Inputs);
        meter.begin(Phase::Observe);
        self.observer.push(self.now, &samples);
        let problem = self.observer.problem(plan::PlannerSettings::default(), CachePolicy::Never);
        meter.end(Phase::Observe);
        if !problem.jobs.is_empty() {
            meter.begin(Phase::Solve);
            let allocations = solve(&problem, self.plan.as_ref(), &NoDeadline).ok().map(|plan| {
                let wanted = plan_allocations(&plan, &problem, &BTreeMap::new());
                self.plan = Some(plan);
                self.read_limits.limit(wanted, |job| self.observer.has_job(job))
            });
            meter.end(Phase::Solve);
            let at_s = (self.now / 1_000) as u32;
            for planned in self.plan.iter().flat_map(|plan| &plan.jobs) {
                let place = (planned.job.0 - FIRST_JOB.0) as usize;
                self.recording.record_planned_fed_fraction(place, at_s, planned.fed_fraction);
            }
            if self.scenario.control.follow_plan {
                self.apply_allocations(allocations, meter);
            }
        }
        // Build the view although it is not used here, because a real coordinator builds it.
        meter.begin(Phase::Observe);
        let view = cluster_view(self.now, &samples, &self.observer, self.plan.as_ref(), &BTreeMap::new());
        drop((view, samples));
        meter.end(Phase::Observe);
        meter.begin(Phase::World);
        self.apply_scaling(&problem);
        meter.end(Phase::World);
    }

    fn apply_allocations(&mut self, allocations: Option<PlanAllocations>, meter: &mut dyn Meter) {
        let Some(allocations) = allocations.filter(|new| *new != self.allocations) else { return };
        self.allocations.clone_from(&allocations);
        let mut ready = Ready::default();
        meter.begin(Phase::Inputs);
        self.cluster.step(self.now, Input::Allocations { allocations }, &mut ready);
        meter.end(Phase::Inputs);
        self.apply_replies(ready);
    }

    fn apply_scaling(&mut self, problem: &Problem) {
        let delivered =
            self.consumers.iter().fold(DeliveredTotals::default(), |sum, consumer| DeliveredTotals {
                batches: sum.batches + consumer.consumed_batches(),
                elapsed_ns: sum.elapsed_ns + consumer.stall_ns + consumer.step_ns,
            });
        let present = self.fleet.current_workers();
        let seen = ScalingInput {
            now: self.now,
            current_workers: present,
            observer: &self.observer,
            problem,
            plan: self.plan.as_ref(),
            delivered,
        };
        let Some(decision) = self.decider.decide(&seen).filter(|decision| decision.wanted != present) else {
            return;
        };
        self.fleet.scale(decision.wanted, self.now);
        let at_s = (self.now / 1_000) as u32;
        self.recording.decisions.push(ScalingChange {
            at_s,
            from_workers: present,
            to_workers: decision.wanted,
            explanation: decision.explanation,
        });
    }

    /// Processes the last report of each consumer, and returns the report of the run.
    pub fn finish(mut self) -> SimulationReport {
        let audit = self.audit();
        let warm_up_ms = 1_000 * u64::from(self.scenario.warm_up_s);
        SimulationReport {
            scenario: self.scenario.name,
            rule: self.rule,
            worker_seconds: self.fleet.worker_seconds(warm_up_ms, self.now),
            stall_seconds: self.recording.stall_seconds(),
            smallest_fed: self.recording.smallest_fed(),
            mean_fed: self.recording.mean_fed(),
            decision_count: self.recording.decisions_after_warm_up(),
            oscillations: self.recording.oscillations(),
            demand_changes: self.recording.demand_changes(),
            jobs: self.recording.outcomes(self.jobs.iter().map(|job| job.name.as_str())),
            decisions: self.recording.decisions,
            audit,
            seconds: self.recording.seconds,
        }
    }

    fn audit(&mut self) -> SimulatedAudit {
        let mut ready = Ready::default();
        for consumer in &self.consumers {
            let job = &self.jobs[consumer.job as usize];
            let report = consumer.report(
                self.now,
                job_id(consumer.job),
                &job.layout,
                self.scenario.control.splits_ahead,
            );
            self.cluster.take_input(self.now, Input::Consumer { request: OTHER_REQUEST, report }, &mut ready);
        }
        let mut ready = Ready::default();
        self.cluster.step(self.now, Input::JobStatus { request: OTHER_REQUEST, job: None }, &mut ready);
        let mut positions = BTreeMap::new();
        for (request, reply) in ready.replies {
            if let Reply::Status(jobs) = reply
                && request == OTHER_REQUEST
            {
                positions.extend(jobs.into_iter().filter_map(|job| Some((job.job, job.position?))));
            }
        }
        let mut audit = SimulatedAudit {
            streams: self.consumers.len() as u32,
            computed_rows: self.fleet.workers.iter().map(SimulatedWorker::computed_rows).sum::<f64>() as u64,
            ..SimulatedAudit::default()
        };
        for consumer in &self.consumers {
            let layout = &self.jobs[consumer.job as usize].layout;
            let stream = consumer.number;
            let position = consumer.position(layout).unwrap_or_default();
            let before = u64::from(position.epoch) * layout.stream_rows(stream) + position.row;
            audit.rows += consumer.consumed_rows();
            audit.broken_streams += u32::from(before != consumer.consumed_rows());
            let held = positions.get(&job_id(consumer.job)).and_then(|job| job.streams.get(stream as usize));
            audit.unacknowledged_streams += u32::from(held != Some(&layout.normalise(stream, position)));
        }
        audit
    }
}

const FIRST_JOB: JobId = JobId(1);

fn job_id(job: u32) -> JobId {
    JobId(FIRST_JOB.0 + u64::from(job))
}
