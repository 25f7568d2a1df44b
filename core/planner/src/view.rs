//! The view of the cluster that users see: jobs with their rates and bottlenecks, workers with their utilisation, and
//! the reasons for the plan. The view is built from reports and makes no decisions.

use std::collections::BTreeMap;

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::samples::{JobProperties, Samples, WorkerReportSample};
use feedline_data::messages::{CacheDecision, saturating_sum};
use feedline_data::pipeline::{CacheEncoding, CacheTier, Pipeline};
use feedline_data::view::{CacheView, ClusterView, JobView, WorkerJobUsage, WorkerView};

use crate::model::job::JobObservation;
use crate::model::{self, JobModel, JobResources, WorkerTypeResources, bottleneck};
use crate::observe::{Observer, worker_type};

use crate::plan::{CachePointProblem, JobPlan, Plan};

#[cfg(test)]
mod tests;

/// A job with its properties, its observation and its plan.
struct ObservedJob<'a> {
    properties: &'a JobProperties,
    observation: JobObservation,
    model: Option<JobModel>,
    planned: Option<&'a JobPlan>,
}

/// Returns the view at `now`. The observer must have received the same samples. `cache_decisions` contains the decisions of
/// the planner.
pub fn cluster_view(
    now: Millis,
    samples: &Samples,
    observer: &Observer,
    plan: Option<&Plan>,
    cache_decisions: &BTreeMap<JobId, CacheDecision>,
) -> ClusterView {
    let planned = |job: JobId| plan.and_then(|plan| plan.jobs.iter().find(|planned| planned.job == job));
    let seen: Vec<ObservedJob<'_>> = samples
        .jobs
        .iter()
        .filter_map(|properties| {
            let observation = observer.observation(properties.job)?;
            let model = JobModel::build(&observation);
            Some(ObservedJob { properties, observation, model, planned: planned(properties.job) })
        })
        .collect();
    // Ignore an outdated plan, which contains none of the running jobs.
    let plan = plan.filter(|_| seen.iter().any(|job| job.planned.is_some()));
    let by_id: BTreeMap<WorkerId, &WorkerReportSample> =
        samples.workers.iter().map(|worker| (worker.worker, worker)).collect();
    let mut recent: BTreeMap<WorkerId, Vec<(JobId, &model::JobWorkerSample)>> = BTreeMap::new();
    for job in &seen {
        for sample in &job.observation.recent {
            recent.entry(sample.worker).or_default().push((job.properties.job, sample));
        }
    }
    let recent_of = |worker: &WorkerReportSample| recent.get(&worker.worker).map_or(&[][..], Vec::as_slice);
    ClusterView {
        now_ms: now,
        jobs: seen.iter().map(|job| job.view(&by_id, observer)).collect(),
        workers: samples.workers.iter().map(|worker| worker_view(worker, recent_of(worker))).collect(),
        wanted: plan.map(|plan| plan.wanted_workers.clone()).unwrap_or_default(),
        caches: cached_rows(observer, &seen, cache_decisions),
        reasons: plan.map(|plan| plan.reasons.clone()).unwrap_or_default(),
        scaling: None,
        pools: Vec::new(),
    }
}

impl ObservedJob<'_> {
    /// Returns the share of cache lookups of the job that were hits.
    fn hit_share(&self) -> Option<f64> {
        let operators = self.observation.recent.iter().flat_map(|sample| &sample.operators);
        let counts: Vec<_> = operators.filter(|operator| operator.name == "cache").collect();
        let lookups = saturating_sum(counts.iter().map(|cache| cache.rows_in));
        let hits = saturating_sum(counts.iter().map(|cache| cache.rows_out));
        (lookups > 0).then(|| hits as f64 / lookups as f64)
    }

    fn view(&self, workers: &BTreeMap<WorkerId, &WorkerReportSample>, observer: &Observer) -> JobView {
        let consumers = &self.observation.consumers;
        let rows_per_s: f64 =
            consumers.iter().map(|one| one.stats.rows as f64 / seconds(one.elapsed_ns)).sum();
        let elapsed_ns = saturating_sum(consumers.iter().map(|one| one.elapsed_ns));
        let stall_ns = saturating_sum(consumers.iter().map(|one| one.stats.stall_ns));
        // More workers do not shorten waits for records that have not arrived.
        let has_stalls = elapsed_ns > 0 && !self.observation.waits_for_records;
        let demand_rows_per_s = self.model.as_ref().and_then(|model| model.demand_rows_per_s);
        let wanted = demand_rows_per_s.or(self.planned.map(|planned| planned.demand_rows_per_s));
        let fed = |wanted: f64| (wanted > 0.0 && wanted.is_finite()).then(|| (rows_per_s / wanted).min(1.0));
        JobView {
            workers: self.observation.recent.len() as u32,
            rows_per_s,
            demand_rows_per_s,
            fed_fraction: wanted.and_then(fed),
            stall_share: has_stalls.then(|| stall_ns as f64 / elapsed_ns as f64),
            cores: self.planned.map_or(0.0, JobPlan::cores),
            bottleneck: self.model.as_ref().and_then(|model| {
                let mut resources = resources(self.planned, workers);
                resources.locality = observer.locality(self.properties.job);
                if observer.waits_for_store(self.properties.job) {
                    // Only the store limits the job, so the measured number of requests in flight is the maximum.
                    resources.read_concurrency = model.store_concurrency;
                }
                bottleneck(model, &resources)
            }),
            ..JobView::new(self.properties.job, &self.properties.tenant, &self.properties.name)
        }
    }
}

/// Returns the resources of a job: its planned allocations, or all workers except draining workers if it has no plan.
fn resources(planned: Option<&JobPlan>, workers: &BTreeMap<WorkerId, &WorkerReportSample>) -> JobResources {
    let workers_with_cores: Vec<(&WorkerReportSample, f64)> = match planned {
        None => {
            let stay = workers.values().filter(|worker| !worker.draining);
            stay.map(|worker| (*worker, f64::from(worker.cores))).collect()
        }
        Some(job) => {
            let allocations = job.allocations.iter();
            allocations.filter_map(|(worker, own)| Some((*workers.get(worker)?, own.cores))).collect()
        }
    };
    let mut by_type: BTreeMap<String, WorkerTypeResources> = BTreeMap::new();
    let mut memory_bytes = 0.0;
    for (worker, cores) in workers_with_cores {
        let kind = worker_type(worker);
        let own = by_type.entry(kind.name.clone()).or_insert_with(|| WorkerTypeResources {
            worker_type: kind.name,
            nic_bytes_per_s: kind.nic_bytes_per_s,
            ..WorkerTypeResources::default()
        });
        // Compute the mean over all workers of the type.
        own.cores = (own.cores * f64::from(own.count) + cores) / f64::from(own.count + 1);
        own.count += 1;
        memory_bytes += worker.memory_bytes as f64;
    }
    JobResources { workers: by_type.into_values().collect(), memory_bytes, ..JobResources::default() }
}

/// Returns the view of one worker. `recent` contains its recent counters for each job.
fn worker_view(worker: &WorkerReportSample, recent: &[(JobId, &model::JobWorkerSample)]) -> WorkerView {
    let part = |(job, one): &(JobId, &model::JobWorkerSample)| WorkerJobUsage {
        job: *job,
        used_cores: one.process_cpu_ns as f64 / one.elapsed_ns.max(1) as f64,
        finished_bytes: one.held_bytes,
    };
    let parts: Vec<WorkerJobUsage> = recent.iter().map(part).collect();
    WorkerView {
        worker: worker.worker,
        address: worker.address.clone(),
        worker_type: worker_type(worker).name,
        cores: worker.cores,
        used_cores: parts.iter().map(|part| part.used_cores).sum(),
        memory_bytes: worker.memory_bytes,
        memory: worker.memory.clone(),
        finished_bytes: saturating_sum(parts.iter().map(|part| part.finished_bytes)),
        peak_rss_bytes: worker.jobs.iter().map(|job| job.peak_rss_bytes).max().filter(|bytes| *bytes > 0),
        draining: worker.draining,
        memory_full: worker.memory_full,
        job_usage: parts,
    }
}

/// Returns the cached rows of all jobs, as the planner or the pipelines specify. Rows that several jobs read are listed
/// once.
fn cached_rows(
    observer: &Observer,
    seen: &[ObservedJob<'_>],
    decisions: &BTreeMap<JobId, CacheDecision>,
) -> Vec<CacheView> {
    let mut views: BTreeMap<(u64, CacheTier), CacheView> = BTreeMap::new();
    for job in seen {
        let pipeline = &job.properties.pipeline;
        let decision = decisions.get(&job.properties.job).copied().or_else(|| pipeline_cache(pipeline));
        let uncached = decision.and_then(|_| observer.problem_without_cache(job.properties.job, &[]));
        let (Some(decision), Some(uncached)) = (decision, uncached) else { continue };
        let is_cached = |point: &&CachePointProblem| {
            (point.operator_index, point.encoding) == (decision.operators_before as usize, decision.encoding)
        };
        let Some(point) = uncached.cache_points.iter().find(is_cached) else { continue };
        let view = views.entry((point.key, decision.tier)).or_insert_with(|| CacheView {
            operator: uncached.operators[point.operator_index].name.clone(),
            tier: decision.tier,
            encoding: decision.encoding,
            bytes: point.bytes,
            hit_rate: job.hit_share(),
            jobs: Vec::new(),
        });
        view.jobs.push(job.properties.job);
        view.hit_rate = view.hit_rate.or(job.hit_share());
    }
    views.into_values().collect()
}

/// Returns the cache decision that corresponds to the `cache` operator of the pipeline, if any.
fn pipeline_cache(pipeline: &Pipeline) -> Option<CacheDecision> {
    let (before, tier) = pipeline.cached_prefix()?;
    let after = before.iter().filter(|operator| !operator.kind.is_engine_operator()).count() as u32;
    Some(CacheDecision { operators_before: after, tier, encoding: CacheEncoding::AsIs })
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
