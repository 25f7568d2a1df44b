//! The governors of all stores of a cluster. The leader owns them.
//!
//! They observe the reports of the workers, and divide the budget of each throttled store among the workers. A new leader
//! knows nothing: it starts with the sum of the parts that the workers still use.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::samples::{Samples, WorkerReportSample};
use feedline_data::messages::{StoreReport, StoreShare};

use crate::division::{Claim, divide, round_parts};
use crate::in_flight::{InFlightLaw, LatencyInterval};
use crate::pacer::MIN_RATE;
use crate::rate::{RateInterval, RateLaw};

/// A worker that is not backlogged may increase its requests by this factor, and by [`IDLE_RATE`] requests per second.
const DEMAND_FACTOR: f64 = 1.5;
const IDLE_RATE: f64 = 0.2;
/// The largest fraction of a budget for the jobs that have no requests on their workers. They seldom use it.
const IDLE_FRACTION: f64 = 0.02;
/// Time for which workers receive parts without limits after the limits have ended.
const WITHDRAW_MS: Millis = 30_000;
/// Time in which a new leader collects the reports of the workers, whose parts of the previous leader it continues.
const RESUME_MS: Millis = 5_000;
/// Workers without a report about a store receive a part of its budget, in case they begin to read the store. This is the largest
/// fraction of a budget for all of them.
const NEWCOMERS_FRACTION: f64 = 0.2;
/// Time for which the other workers receive less because of such a worker.
const NEWCOMER_MS: Millis = 10_000;
/// A store that no worker has reported for this time is removed.
const FORGET_MS: Millis = 120_000;

/// The limit of a store, for users.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreLimit {
    /// The store, such as `s3://bucket`.
    pub name: String,
    /// The allowed requests per second of the cluster; `None` if only the requests in flight are limited.
    pub requests_per_s: Option<f64>,
    /// The allowed requests in flight of the cluster.
    pub in_flight: Option<f64>,
    /// The part of each job whose requests wait, in requests per second; in requests in flight if `requests_per_s` is `None`.
    pub jobs: BTreeMap<JobId, f64>,
}

#[derive(Debug, Default)]
struct Governor {
    rate: RateLaw,
    in_flight: InFlightLaw,
    observed_at: Option<Millis>,
    /// Until when the parts of the previous leader are collected; `None` without such parts.
    resumes_until: Option<Millis>,
    newcomers: BTreeMap<WorkerId, Newcomer>,
    /// The last part of each worker without a report.
    idle_share: StoreShare,
    /// The last demand of each job that has no requests on a worker.
    idle_demand: f64,
    used_at: Millis,
    workers: BTreeMap<WorkerId, WorkerInterval>,
    /// When the limits ended. Workers then receive parts without limits for a while.
    limited_until: Option<Millis>,
}

/// A worker that has not reported about a store.
#[derive(Debug, Clone, Copy)]
struct Newcomer {
    since: Millis,
    /// Whether it runs a job that reads the store.
    has_job: bool,
}

/// What one worker did between its last two reports.
#[derive(Debug, Default)]
struct WorkerInterval {
    report: StoreReport,
    /// Accepted requests per second.
    accepted_per_s: f64,
    /// The time of the accepted requests, in seconds per second, which is the mean number of requests in flight.
    latency_s_per_s: f64,
    /// The base latency of an accepted request; `None` without one.
    base_latency_s: Option<f64>,
    bytes_per_s: f64,
    /// Requests per second of each job, and whether its requests wait.
    jobs: BTreeMap<JobId, (f64, bool)>,
}

/// The governors of all stores, by key.
#[derive(Debug, Default)]
pub struct StoreGovernors {
    stores: BTreeMap<String, Governor>,
    limits: Vec<StoreLimit>,
}

impl StoreGovernors {
    /// Observes the latest reports, and returns the parts of the workers for each throttled store.
    pub fn plan(&mut self, now: Millis, samples: &Samples) -> BTreeMap<WorkerId, Vec<StoreShare>> {
        let mut reports: BTreeMap<&str, Vec<(&WorkerReportSample, &StoreReport)>> = BTreeMap::new();
        for worker in &samples.workers {
            for report in &worker.stores {
                reports.entry(&report.key).or_default().push((worker, report));
            }
        }
        let weights: BTreeMap<JobId, (&str, f64)> =
            samples.jobs.iter().map(|job| (job.job, (job.tenant.as_str(), job.weight))).collect();
        let mut parts: BTreeMap<WorkerId, Vec<StoreShare>> = BTreeMap::new();
        self.limits.clear();
        for (key, reports) in reports {
            let governor = self.stores.entry(key.to_owned()).or_default();
            governor.used_at = now;
            governor.find_newcomers(now, &reports, &samples.workers);
            for (worker, share) in governor.plan(now, &reports, &weights, &mut self.limits) {
                parts.entry(worker).or_default().push(StoreShare { key: key.to_owned(), ..share });
            }
        }
        self.stores.retain(|_, governor| now.saturating_sub(governor.used_at) < FORGET_MS);
        parts
    }

    /// The limits of the throttled stores according to the last plan.
    pub fn limits(&self) -> &[StoreLimit] {
        &self.limits
    }

    /// Describes the store that limits a job, in one sentence; `None` if no requests of the job wait.
    pub fn describe(&self, job: JobId) -> Option<String> {
        let (limit, part) = self.limits.iter().find_map(|limit| Some((limit, *limit.jobs.get(&job)?)))?;
        let unit = if limit.requests_per_s.is_some() { "requests/s" } else { "requests in flight" };
        Some(format!("store {} limits the job to {part:.0} {unit}", limit.name))
    }
}

impl Governor {
    fn plan(
        &mut self,
        now: Millis,
        reports: &[(&WorkerReportSample, &StoreReport)],
        weights: &BTreeMap<JobId, (&str, f64)>,
        limits: &mut Vec<StoreLimit>,
    ) -> Vec<(WorkerId, StoreShare)> {
        if self.observed_at.is_none() && self.resume(now, reports) {
            return Vec::new();
        }
        self.observe(now, reports);
        let (rate, in_flight) = (self.rate.limit(), self.in_flight.limit());
        if rate.is_none() && in_flight.is_none() {
            let is_withdrawn = self.limited_until.is_some_and(|until| now < until + WITHDRAW_MS);
            let workers = reports.iter().filter(|_| is_withdrawn);
            return workers.map(|(worker, _)| (worker.worker, StoreShare::default())).collect();
        }
        self.limited_until = Some(now);
        let budget = rate.or(in_flight).unwrap_or(0.0);
        let idle = self.workers.values().map(WorkerInterval::idle_jobs).sum::<usize>();
        self.idle_demand = coarse(self.idle_demand, IDLE_FRACTION * budget / idle.max(1) as f64);
        let claims = build_claims(&self.workers, weights, self.idle_demand, rate.is_none());
        let recent = self.newcomers.values().filter(|newcomer| newcomer.is_recent(now)).count();
        let for_recent = newcomer_fraction(recent, self.workers.len());
        let for_others = 1.0 - for_recent * recent as f64;
        let mut jobs: BTreeMap<JobId, f64> = BTreeMap::new();
        let mut parts: BTreeMap<WorkerId, (f64, Vec<(JobId, f64)>)> = BTreeMap::new();
        for (claim, part) in claims.iter().zip(divide(for_others * budget, &claims)) {
            if claim.demand.is_infinite() {
                *jobs.entry(claim.job).or_default() += part;
            }
            let (fraction, weights) = parts.entry(claim.worker).or_default();
            *fraction += part / budget;
            weights.push((claim.job, round(part).max(MIN_RATE)));
        }
        let requests: Vec<f64> =
            parts.values().map(|(fraction, _)| fraction * in_flight.unwrap_or(0.0)).collect();
        let mut shares: BTreeMap<WorkerId, StoreShare> = BTreeMap::new();
        for ((worker, (fraction, jobs)), requests) in parts.into_iter().zip(round_parts(&requests)) {
            let in_flight = in_flight.map_or(0, |_| requests);
            shares.insert(worker, StoreShare { in_flight, jobs, ..self.share_of(fraction) });
        }
        // A worker that has not read the store for long would begin without a limit, or with a part from before.
        let for_idle = newcomer_fraction(self.newcomers.len(), self.workers.len());
        self.idle_share = coarse_share(&self.idle_share, &self.share_of(for_idle));
        for (worker, newcomer) in &self.newcomers {
            let is_recent = newcomer.is_recent(now);
            let share = if is_recent { self.share_of(for_recent) } else { self.idle_share.clone() };
            shares.insert(*worker, share);
        }
        let name = reports.first().map(|(_, report)| report.name.clone()).unwrap_or_default();
        limits.push(StoreLimit { name, requests_per_s: rate, in_flight, jobs });
        shares.into_iter().collect()
    }

    /// The part of a worker that receives a fraction of the budget.
    fn share_of(&self, fraction: f64) -> StoreShare {
        let part_of = |limit: f64| (limit * fraction).round().max(1.0);
        StoreShare {
            requests_per_s: self.rate.limit().map_or(0.0, |limit| round(limit * fraction).max(MIN_RATE)),
            in_flight: self.in_flight.limit().map_or(0, |limit| part_of(limit) as u32),
            bytes_in_flight: self.in_flight.limit_bytes().map_or(0, |limit| part_of(limit) as u64),
            ..StoreShare::default()
        }
    }

    /// Continues with the limits that the workers have from the previous leader or from their own observations, if most of them
    /// have one. Returns whether more workers may report theirs. They keep their parts until then.
    fn resume(&mut self, now: Millis, reports: &[(&WorkerReportSample, &StoreReport)]) -> bool {
        let limits = reports.iter().map(|(_, report)| report.requests_per_s);
        let limits: Vec<f64> = limits.filter(|rate| *rate > 0.0 && rate.is_finite()).collect();
        if limits.is_empty() || 2 * limits.len() < reports.len() {
            return false;
        }
        let mean = limits.iter().sum::<f64>() / limits.len() as f64;
        if now < *self.resumes_until.get_or_insert(now + RESUME_MS) {
            return true;
        }
        self.rate = RateLaw::with_limit(mean * reports.len() as f64);
        false
    }

    /// Finds workers that may begin to read the store: new ones, and those with a job that reads it.
    fn find_newcomers(
        &mut self,
        now: Millis,
        reports: &[(&WorkerReportSample, &StoreReport)],
        workers: &[WorkerReportSample],
    ) {
        let with_report: BTreeSet<WorkerId> = reports.iter().map(|(worker, _)| worker.worker).collect();
        let jobs: BTreeSet<JobId> =
            reports.iter().flat_map(|(_, report)| report.jobs.iter().map(|job| job.job)).collect();
        let mut newcomers = BTreeMap::new();
        for worker in workers.iter().filter(|worker| !with_report.contains(&worker.worker)) {
            let has_job = worker.jobs.iter().any(|job| jobs.contains(&job.job));
            let before = self.newcomers.get(&worker.worker).copied();
            let newcomer = before.filter(|before| before.has_job || !has_job);
            newcomers.insert(worker.worker, newcomer.unwrap_or(Newcomer { since: now, has_job }));
        }
        self.newcomers = newcomers;
    }

    /// Adds what the workers have done since their previous reports.
    fn observe(&mut self, now: Millis, reports: &[(&WorkerReportSample, &StoreReport)]) {
        let present: BTreeSet<WorkerId> = reports.iter().map(|(worker, _)| worker.worker).collect();
        self.workers.retain(|worker, _| present.contains(worker));
        let mut total = Totals::default();
        for (worker, report) in reports {
            self.workers.entry(worker.worker).or_default().update(report, &mut total);
        }
        // The counters of the first reports contain an unknown time.
        if let Some(at) = self.observed_at {
            let seconds = now.saturating_sub(at) as f64 / 1e3;
            let waiting = self.workers.values().filter(|worker| worker.is_waiting()).count() as f64;
            let is_backlogged = total.active > 0.0 && waiting >= 0.5 * total.active;
            self.rate.on_interval(&RateInterval {
                seconds,
                accepted: seconds * total.accepted_per_s,
                rejected: total.rejected,
                paused: total.paused / total.active.max(1.0),
                is_backlogged,
            });
            if total.rejected == 0.0 {
                self.in_flight.on_interval(&LatencyInterval {
                    seconds,
                    finished: seconds * total.accepted_per_s,
                    latency_s: seconds * total.latency_s_per_s,
                    base_latency_s: seconds * total.accepted_per_s * total.base_latency_s(),
                    bytes: seconds * total.bytes_per_s,
                    workers: total.active,
                    is_backlogged,
                });
            }
        }
        self.observed_at = Some(now);
    }
}

impl Newcomer {
    fn is_recent(&self, now: Millis) -> bool {
        now.saturating_sub(self.since) < NEWCOMER_MS
    }
}

/// The fraction of a budget for each of the workers without a report.
fn newcomer_fraction(newcomers: usize, others: usize) -> f64 {
    let equal = 1.0 / (newcomers + others).max(1) as f64;
    equal.min(NEWCOMERS_FRACTION / newcomers.max(1) as f64)
}

/// Sums over the workers of a store.
#[derive(Debug, Default)]
struct Totals {
    accepted_per_s: f64,
    rejected: f64,
    latency_s_per_s: f64,
    /// The base latency per request of each worker.
    base_latencies_s: Vec<f64>,
    bytes_per_s: f64,
    /// Workers that send requests, or want to.
    active: f64,
    /// The sum of the fractions of time in which the active workers paused.
    paused: f64,
}

impl Totals {
    /// The latency of a request without a queue. Workers that started while a queue existed overestimate it.
    fn base_latency_s(&mut self) -> f64 {
        self.base_latencies_s.sort_by(f64::total_cmp);
        self.base_latencies_s.get(self.base_latencies_s.len() / 10).copied().unwrap_or(0.0)
    }
}

impl WorkerInterval {
    /// The mean time of an accepted request.
    fn latency_s(&self) -> f64 {
        self.latency_s_per_s / self.accepted_per_s.max(f64::MIN_POSITIVE)
    }

    /// The number of jobs without requests.
    fn idle_jobs(&self) -> usize {
        self.jobs.values().filter(|(rate, is_waiting)| *rate <= 0.0 && !is_waiting).count()
    }

    fn is_waiting(&self) -> bool {
        self.jobs.values().any(|(_, is_waiting)| *is_waiting)
    }

    /// Replaces the numbers if the report is new, and adds them.
    fn update(&mut self, report: &StoreReport, total: &mut Totals) {
        let is_new = report.elapsed_ns != self.report.elapsed_ns;
        let before = std::mem::take(&mut self.report);
        // The counters of a restarted worker begin at 0.
        let before = if before.elapsed_ns > report.elapsed_ns { StoreReport::default() } else { before };
        let seconds = (report.elapsed_ns - before.elapsed_ns) as f64 / 1e9;
        let counted = |new: u64, old: u64| new.saturating_sub(old) as f64;
        let per_s = |new: u64, old: u64| counted(new, old) / seconds.max(1e-3);
        if is_new {
            self.accepted_per_s = per_s(report.accepted, before.accepted);
            self.latency_s_per_s = per_s(report.latency_ns, before.latency_ns) / 1e9;
            let accepted = counted(report.accepted, before.accepted);
            let base_s = counted(report.base_latency_ns, before.base_latency_ns) / 1e9;
            self.base_latency_s = (accepted > 0.0).then(|| base_s / accepted);
            self.bytes_per_s = per_s(report.bytes, before.bytes);
            let jobs = report.jobs.iter().map(|job| {
                let old = before.jobs.iter().find(|old| old.job == job.job).map_or(0, |old| old.requests);
                (job.job, (per_s(job.requests, old), job.waiting > 0))
            });
            self.jobs = jobs.collect();
        }
        total.accepted_per_s += self.accepted_per_s;
        total.rejected += counted(report.rejected, before.rejected);
        total.latency_s_per_s += self.latency_s_per_s;
        total.base_latencies_s.extend(self.base_latency_s);
        total.bytes_per_s += self.bytes_per_s;
        if self.accepted_per_s > 0.0 || self.is_waiting() {
            total.active += 1.0;
            total.paused += (per_s(report.paused_ns, before.paused_ns) / 1e9).min(1.0);
        }
        self.report = report.clone();
    }
}

/// Returns what the jobs ask for on each worker: requests in flight if only these are limited, otherwise requests per second. A job
/// without requests on a worker asks for at most `idle_demand`.
fn build_claims(
    workers: &BTreeMap<WorkerId, WorkerInterval>,
    weights: &BTreeMap<JobId, (&str, f64)>,
    idle_demand: f64,
    are_in_flight: bool,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (worker, interval) in workers {
        // Little's law.
        let unit = if are_in_flight { interval.latency_s() } else { 1.0 };
        for (job, (rate, is_waiting)) in &interval.jobs {
            let demand = if *is_waiting {
                f64::INFINITY
            } else if *rate > 0.0 {
                unit * (DEMAND_FACTOR * rate + IDLE_RATE)
            } else {
                (unit * IDLE_RATE).min(idle_demand)
            };
            let (tenant, weight) = weights.get(job).copied().unwrap_or(("", 1.0));
            claims.push(Claim { tenant: tenant.to_owned(), job: *job, weight, worker: *worker, demand });
        }
    }
    claims
}

/// Rounds to three digits, so that small changes do not change plans. Values that differ only by rounding errors are equal.
fn round(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 0.0;
    }
    let unit = 10f64.powf(value.log10().floor() - 2.0);
    ((1e6 * value / unit).round() / 1e6).round() * unit
}

/// Rounds the part of an idle worker down to a power of two, and keeps the previous part while it is at least a fourth of the new
/// one. A limit that learns or probes therefore seldom changes the plans of idle workers.
fn coarse(previous: f64, part: f64) -> f64 {
    match part {
        0.0 => 0.0,
        _ if previous <= part && part < 4.0 * previous => previous,
        _ => part.log2().floor().exp2(),
    }
}

/// Applies [`coarse`] to each limit of a part.
fn coarse_share(previous: &StoreShare, share: &StoreShare) -> StoreShare {
    StoreShare {
        requests_per_s: coarse(previous.requests_per_s, share.requests_per_s),
        in_flight: coarse(f64::from(previous.in_flight), f64::from(share.in_flight)) as u32,
        bytes_in_flight: coarse(previous.bytes_in_flight as f64, share.bytes_in_flight as f64) as u64,
        ..StoreShare::default()
    }
}

#[cfg(test)]
mod tests;
