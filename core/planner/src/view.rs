//! The cluster at one moment as people see it: jobs with what they get and what bounds them, workers with what they use, and
//! what the planner says. It decides nothing, and is made of what was reported.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::samples::{JobFacts, Samples, WorkerReportSample};
use feedline_data::messages::{CacheDecision, saturating_sum};
use feedline_data::pipeline::{CacheEncoding, CacheTier, Pipeline};
use feedline_data::view::{CacheView, ClusterView, JobView, WorkerPart, WorkerView};

use crate::model::job::JobObservation;
use crate::model::{self, JobModel, JobResources, WorkerTypeShare, bottleneck};
use crate::observe::Observer;

use crate::plan::{Assignment, CutProblem, JobPlan, Plan};

#[cfg(test)]
mod tests;

/// A job as it was observed.
struct Seen<'a> {
    facts: &'a JobFacts,
    observation: JobObservation,
    model: Option<JobModel>,
    planned: Option<&'a JobPlan>,
}

/// What was reported up to `now`, which the observer has taken, what was planned for it, and what jobs keep.
pub fn cluster_view(
    now: Millis,
    samples: &Samples,
    observer: &Observer,
    plan: Option<&Plan>,
    keeps: &BTreeMap<JobId, CacheDecision>,
) -> ClusterView {
    let planned = |job: JobId| plan.and_then(|plan| plan.jobs.iter().find(|planned| planned.job == job));
    let seen: Vec<Seen<'_>> = samples
        .jobs
        .iter()
        .filter_map(|facts| {
            let observation = observer.observation(facts.job)?;
            let model = JobModel::build(&observation);
            Some(Seen { facts, observation, model, planned: planned(facts.job) })
        })
        .collect();
    // A plan of jobs that have ended says nothing of now.
    let plan = plan.filter(|_| seen.iter().any(|job| job.planned.is_some()));
    let by_id: BTreeMap<WorkerId, &WorkerReportSample> =
        samples.workers.iter().map(|worker| (worker.worker, worker)).collect();
    let mut recent: BTreeMap<WorkerId, Vec<(JobId, &model::JobWorkerSample)>> = BTreeMap::new();
    for job in &seen {
        for sample in &job.observation.recent {
            recent.entry(sample.worker).or_default().push((job.facts.job, sample));
        }
    }
    let here = |worker: &WorkerReportSample| recent.get(&worker.worker).map_or(&[][..], Vec::as_slice);
    ClusterView {
        now_ms: now,
        jobs: seen.iter().map(|job| job.view(&by_id, observer)).collect(),
        workers: samples.workers.iter().map(|worker| worker_view(worker, here(worker))).collect(),
        wanted: plan.map(|plan| plan.wanted.clone()).unwrap_or_default(),
        caches: caches(observer, &seen, keeps),
        reasons: plan.map(|plan| plan.reasons.clone()).unwrap_or_default(),
        scaling: None,
    }
}

impl Seen<'_> {
    /// Share of its rows that its cache had.
    fn found_share(&self) -> Option<f64> {
        let operators = self.observation.recent.iter().flat_map(|sample| &sample.operators);
        let counts: Vec<_> = operators.filter(|operator| operator.name == "cache").collect();
        let asked = saturating_sum(counts.iter().map(|cache| cache.rows_in));
        let found = saturating_sum(counts.iter().map(|cache| cache.rows_out));
        (asked > 0).then(|| found as f64 / asked as f64)
    }

    fn view(&self, workers: &BTreeMap<WorkerId, &WorkerReportSample>, observer: &Observer) -> JobView {
        let consumers = &self.observation.consumers;
        let rows_per_s: f64 = consumers.iter().map(|one| one.rows as f64 / seconds(one.elapsed_ns)).sum();
        let elapsed_ns = saturating_sum(consumers.iter().map(|one| one.elapsed_ns));
        let stall_ns = saturating_sum(consumers.iter().map(|one| one.stall_ns));
        let demand_rows_per_s = self.model.as_ref().and_then(|model| model.demand_rows_per_s);
        let wanted = demand_rows_per_s.or(self.planned.map(|planned| planned.demand_rows_per_s));
        let fed = |wanted: f64| (wanted > 0.0 && wanted.is_finite()).then(|| (rows_per_s / wanted).min(1.0));
        JobView {
            workers: self.observation.recent.len() as u32,
            rows_per_s,
            demand_rows_per_s,
            fed_fraction: wanted.and_then(fed),
            stall_share: (elapsed_ns > 0).then(|| stall_ns as f64 / elapsed_ns as f64),
            cores: self.planned.map_or(0.0, |job| job.assignments.iter().map(|part| part.cores).sum()),
            bottleneck: self.model.as_ref().and_then(|model| {
                let mut allocation = allocation(self.planned, workers);
                allocation.locality = observer.locality(self.facts.job);
                if observer.waits_for_store(self.facts.job) {
                    // As many as could be: nothing else held them up.
                    allocation.read_concurrency = model.store_concurrency;
                }
                bottleneck(model, &allocation)
            }),
            ..JobView::new(self.facts.job, &self.facts.tenant, &self.facts.name)
        }
    }
}

/// The planned parts of workers; without a plan, all of all that stay.
fn allocation(planned: Option<&JobPlan>, workers: &BTreeMap<WorkerId, &WorkerReportSample>) -> JobResources {
    let parts: Vec<(&WorkerReportSample, f64)> = match planned {
        None => {
            let stay = workers.values().filter(|worker| !worker.draining);
            stay.map(|worker| (*worker, f64::from(worker.cores))).collect()
        }
        Some(job) => {
            let part = |part: &Assignment| Some((*workers.get(&part.worker)?, part.cores));
            job.assignments.iter().filter_map(part).collect()
        }
    };
    let mut shares: BTreeMap<String, WorkerTypeShare> = BTreeMap::new();
    let mut memory_bytes = 0.0;
    for (worker, cores) in parts {
        let kind = Observer::type_of(worker);
        let share = shares.entry(kind.name.clone()).or_insert_with(|| WorkerTypeShare {
            worker_type: kind.name,
            nic_bytes_per_s: kind.nic_bytes_per_s,
            ..WorkerTypeShare::default()
        });
        // The mean of so many.
        share.cores = (share.cores * f64::from(share.count) + cores) / f64::from(share.count + 1);
        share.count += 1;
        memory_bytes += worker.memory_bytes as f64;
    }
    JobResources { workers: shares.into_values().collect(), memory_bytes, ..JobResources::default() }
}

/// `recent` is what it did of late for each job.
fn worker_view(worker: &WorkerReportSample, recent: &[(JobId, &model::JobWorkerSample)]) -> WorkerView {
    let part = |(job, one): &(JobId, &model::JobWorkerSample)| WorkerPart {
        job: *job,
        used_cores: one.process_cpu_ns as f64 / one.elapsed_ns.max(1) as f64,
        held_bytes: one.held_bytes,
    };
    let parts: Vec<WorkerPart> = recent.iter().map(part).collect();
    WorkerView {
        worker: worker.worker,
        address: worker.address.clone(),
        worker_type: Observer::type_of(worker).name,
        cores: worker.cores,
        used_cores: parts.iter().map(|part| part.used_cores).sum(),
        memory_bytes: worker.memory_bytes,
        held_bytes: saturating_sum(parts.iter().map(|part| part.held_bytes)),
        peak_rss_bytes: worker.jobs.iter().map(|job| job.peak_rss_bytes).max().filter(|bytes| *bytes > 0),
        draining: worker.draining,
        memory_full: worker.memory_full,
        parts,
    }
}

/// What is kept of the jobs, by the plan or by their pipelines; what several jobs read is there once.
fn caches(observer: &Observer, seen: &[Seen<'_>], keeps: &BTreeMap<JobId, CacheDecision>) -> Vec<CacheView> {
    let mut views: BTreeMap<(u64, CacheTier), CacheView> = BTreeMap::new();
    for job in seen {
        let pipeline = &job.facts.pipeline;
        let keep = keeps.get(&job.facts.job).copied().or_else(|| named(pipeline));
        let unkept = keep.and_then(|_| observer.unkept(job.facts.job, &[]));
        let (Some(keep), Some(unkept)) = (keep, unkept) else { continue };
        let is_kept = |cut: &&CutProblem| (cut.after, cut.form) == (keep.after as usize, keep.form);
        let Some(cut) = unkept.cuts.iter().find(is_kept) else { continue };
        let view = views.entry((cut.key, keep.tier)).or_insert_with(|| CacheView {
            operator: unkept.operators[cut.after].name.clone(),
            tier: keep.tier,
            form: keep.form,
            bytes: cut.bytes,
            found_share: job.found_share(),
            jobs: Vec::new(),
        });
        view.jobs.push(job.facts.job);
        view.found_share = view.found_share.or(job.found_share());
    }
    views.into_values().collect()
}

/// What the pipeline's own `cache` keeps.
fn named(pipeline: &Pipeline) -> Option<CacheDecision> {
    let (before, tier) = pipeline.cached_prefix()?;
    let after = before.iter().filter(|operator| !operator.kind.is_engine_operator()).count() as u32;
    Some(CacheDecision { after, tier, form: CacheEncoding::AsIs })
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
