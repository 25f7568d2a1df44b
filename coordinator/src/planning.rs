//! The planning task: reads the reported samples, calls `feedline_planner::plan`, and sends the allocations to the driver.
//!
//! Rows do not depend on plans. Without a plan, the jobs of a worker share its threads evenly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use feedline_common::metric_table::ABSENT;
use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::samples::Samples;
use feedline_data::messages::{CacheDecision, PlanAllocations, StoreShare};
use feedline_data::view::ClusterView;
use feedline_governor::fleet::StoreGovernors;
use feedline_planner::observe::{Observer, ResourceNeeds};
use feedline_planner::plan::{
    CacheHistory, CachePolicy, Plan, PlannerSettings, Problem, ReadLimits, plan_allocations, solve,
};
use feedline_planner::view::cluster_view;
use metrics::{gauge, histogram};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::driver::DriverCommand;
use crate::job_gauges::JobGauges;
use crate::job_series::JobSeries;
use crate::leader_samples::LeaderSamples;
use crate::metrics::{FED_FRACTION, PLAN_SECONDS, WANTED_WORKERS};
use crate::scaling_policy::ScalingPolicy;
use crate::tenant_gauges::TenantGauges;
use crate::throttle_signal::ThrottleSignal;

/// Maximum time for the cache decisions of a plan.
const CACHE_DECISION_TIMEOUT: Duration = Duration::from_millis(250);
/// Time after which all live workers have reported to a new leader.
const FIRST_REPORTS_MS: Millis = 5_000;
/// Maximum time for a plan.
const PLAN_TIMEOUT: Duration = Duration::from_secs(1);

/// Settings of the planning task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanningSettings {
    /// The time between two plans.
    pub(crate) interval: Duration,
    /// Whether plans contain cache decisions.
    pub(crate) auto_cache: bool,
    pub(crate) settings: PlannerSettings,
}

/// What each plan publishes.
#[derive(Debug, Default)]
pub(crate) struct PlanOutputs {
    /// The view of the cluster.
    pub(crate) views: watch::Sender<Arc<ClusterView>>,
    /// The series of the running jobs; empty while another coordinator leads.
    pub(crate) job_series: watch::Sender<Arc<[JobSeries]>>,
}

/// Makes plans until `stop`, or until the driver has ended. `scaler` changes the number of workers. Each plan publishes in
/// `outputs`.
pub(crate) async fn run(
    commands: mpsc::Sender<DriverCommand>,
    outputs: PlanOutputs,
    settings: PlanningSettings,
    mut scaler: Option<ScalingPolicy>,
    throttle_signal: Arc<ThrottleSignal>,
    stop: CancellationToken,
) {
    let mut planner = Planner::new(settings);
    // The term of the last plan. The state of the planner and of the scaling policy is valid for one term.
    let mut planned_term = None;
    let mut ticks = tokio::time::interval(settings.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_plan = Instant::now();
    loop {
        let is_early = tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => false,
            () = throttle_signal.wait(last_plan) => true,
        };
        last_plan = Instant::now();
        let Some(observed) = observe(&commands).await else { return };
        let term = observed.as_ref().map(|observed| observed.term);
        if planned_term.is_some() && planned_term != term {
            planner.retire();
            outputs.job_series.send_replace(Arc::default());
            planner = Planner::new(settings);
            if let Some(scaler) = &mut scaler {
                scaler.reset();
            }
        }
        planned_term = term;
        // Without samples, another coordinator leads and plans.
        let Some(LeaderSamples { now, samples, .. }) = observed else { continue };
        if is_early {
            if let Some(allocations) = planner.plan_stores(now, &samples)
                && commands.send(DriverCommand::Allocate { allocations }).await.is_err()
            {
                return;
            }
            continue;
        }
        planner.observer.set_pools(scaler.as_ref().map(ScalingPolicy::pool_problems).unwrap_or_default());
        // Planning many jobs takes a long time.
        let planned = tokio::task::spawn_blocking(move || {
            let allocations = planner.plan(now, &samples);
            planner.tenants.publish(samples.jobs.iter(), planner.plan.as_ref());
            let (plan, decisions) = (planner.plan.as_ref(), &planner.cache_decisions);
            let mut view = cluster_view(now, &samples, &planner.observer, plan, decisions);
            for job in &mut view.jobs {
                job.store_limit = planner.governors.describe(job.job);
            }
            planner.tenants.publish_stalls(&view.jobs);
            let (observer, plan) = (&planner.observer, planner.plan.as_ref());
            let series = planner.jobs.publish(&view, &samples, observer, plan, unix_ms());
            (planner, allocations, view, series, samples)
        });
        match planned.await {
            Ok((planned, allocations, view, series, samples)) => {
                planner = planned;
                outputs.job_series.send_replace(series.into());
                if let Some(scaler) = &mut scaler {
                    scaler.update(now, &planner.needs, &samples.workers);
                }
                let scaling = scaler.as_ref().and_then(ScalingPolicy::explanation);
                let pools = scaler.as_ref().map(ScalingPolicy::decisions).unwrap_or_default();
                outputs.views.send_replace(Arc::new(ClusterView { scaling, pools, ..view }));
                if let Some(allocations) = allocations
                    && commands.send(DriverCommand::Allocate { allocations }).await.is_err()
                {
                    return;
                }
            }
            Err(error) => {
                tracing::error!(%error, "the planner panicked; restarting it; please report this bug");
                outputs.job_series.send_replace(Arc::default());
                planner = Planner::new(settings);
            }
        }
    }
}

/// Returns the milliseconds since 1970.
fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Reads the samples. `Some(None)` if another coordinator leads; `None` if the driver has ended.
async fn observe(commands: &mpsc::Sender<DriverCommand>) -> Option<Option<LeaderSamples>> {
    let (reply, answer) = oneshot::channel();
    commands.send(DriverCommand::Observe { reply }).await.ok()?;
    answer.await.ok()
}

/// The state of the planner between two plans.
#[derive(Debug, Default)]
struct Planner {
    settings: PlannerSettings,
    observer: Observer,
    plan: Option<Plan>,
    /// The state of the cache decisions; `None` if only pipelines place caches.
    cache_history: Option<CacheHistory>,
    /// The last cache decisions.
    cache_decisions: BTreeMap<JobId, CacheDecision>,
    /// The last allocations.
    allocations: PlanAllocations,
    /// The last allocations without the parts of throttled stores.
    job_allocations: PlanAllocations,
    /// The governors of the stores, and the last parts of the workers.
    governors: StoreGovernors,
    store_shares: BTreeMap<WorkerId, Vec<StoreShare>>,
    /// The highest read concurrency so far of each job on each worker, which limits further increases.
    reads: ReadLimits,
    /// The resource needs of the last plan.
    needs: ResourceNeeds,
    tenants: TenantGauges,
    jobs: JobGauges,
    /// Time of the first plan.
    began: Option<Millis>,
    /// The exported number of wanted workers; 0 before the first plan.
    exported_workers: f64,
}

impl Planner {
    fn new(settings: PlanningSettings) -> Self {
        let cache_history = settings.auto_cache.then(CacheHistory::default);
        Self { cache_history, settings: settings.settings, ..Self::default() }
    }

    /// Plans for the reported samples. Returns the allocations if they have changed.
    fn plan(&mut self, now: Millis, samples: &Samples) -> Option<PlanAllocations> {
        let began = Instant::now();
        self.store_shares = self.governors.plan(now, samples);
        self.observer.push(now, samples);
        // The measured costs contain the savings of caches, which are decided separately.
        let problem = self.observer.problem(self.settings, CachePolicy::Never);
        let started = Instant::now();
        let is_late = || started.elapsed() > CACHE_DECISION_TIMEOUT;
        let history = self.cache_history.as_mut();
        let decisions = history.map(|history| history.decide(now, &self.observer, self.settings, &is_late));
        let decisions = decisions.unwrap_or_default();
        self.log_cache_decisions(&decisions);
        if problem.jobs.is_empty() {
            self.plan = None;
            self.set_needs(now, samples, None, &problem);
            return self.changed_allocations(plan_allocations(&Plan::default(), &problem, &decisions));
        }
        let started = Instant::now();
        let plan = solve(&problem, self.plan.as_ref(), &|| started.elapsed() > PLAN_TIMEOUT);
        histogram!(PLAN_SECONDS).record(began.elapsed().as_secs_f64());
        match plan {
            Ok(plan) => {
                self.set_needs(now, samples, Some(&plan), &problem);
                self.on_plan(plan, &problem, &decisions)
            }
            Err(sentence) => {
                tracing::warn!("cannot plan: {sentence}");
                self.set_needs(now, samples, None, &problem);
                self.changed_allocations(self.job_allocations.clone())
            }
        }
    }

    /// Divides the budgets of throttled stores, and keeps the rest of the plan. Returns the allocations if they have changed.
    fn plan_stores(&mut self, now: Millis, samples: &Samples) -> Option<PlanAllocations> {
        self.store_shares = self.governors.plan(now, samples);
        self.changed_allocations(self.job_allocations.clone())
    }

    /// Updates and publishes the needs according to a plan.
    fn set_needs(&mut self, now: Millis, samples: &Samples, plan: Option<&Plan>, problem: &Problem) {
        self.needs = self.observer.needs(plan, problem);
        let has_fed_fraction = self.needs.is_known || plan.is_some();
        gauge!(FED_FRACTION).set(if has_fed_fraction { self.needs.fed_fraction } else { ABSENT });
        let present = samples.workers.iter().filter(|worker| !worker.draining).count();
        let led_ms = now.saturating_sub(*self.began.get_or_insert(now));
        self.exported_workers = exported_workers(&self.needs, present, led_ms, self.exported_workers);
        gauge!(WANTED_WORKERS).set(self.exported_workers);
    }

    /// Removes the gauges, because another coordinator leads and publishes them.
    fn retire(&mut self) {
        gauge!(FED_FRACTION).set(ABSENT);
        gauge!(WANTED_WORKERS).set(ABSENT);
        self.tenants.retire();
        JobGauges::retire();
    }

    fn on_plan(
        &mut self,
        plan: Plan,
        problem: &Problem,
        decisions: &BTreeMap<JobId, Option<CacheDecision>>,
    ) -> Option<PlanAllocations> {
        if self.plan.as_ref().is_none_or(|before| before.reasons != plan.reasons) {
            tracing::debug!(reasons = %plan.reasons.join("; "), "planned");
        }
        let wanted = plan_allocations(&plan, problem, decisions);
        let allocations = self.reads.limit(wanted, |job| self.observer.has_job(job));
        self.plan = Some(plan);
        self.changed_allocations(allocations)
    }

    /// Logs changed cache decisions.
    fn log_cache_decisions(&mut self, decisions: &BTreeMap<JobId, Option<CacheDecision>>) {
        let decisions: BTreeMap<JobId, CacheDecision> =
            decisions.iter().filter_map(|(job, decision)| Some((*job, (*decision)?))).collect();
        for facts in self
            .observer
            .job_properties()
            .filter(|facts| decisions.get(&facts.job) != self.cache_decisions.get(&facts.job))
        {
            let (job, name) = (facts.job, &facts.name);
            match decisions.get(&job) {
                Some(CacheDecision { operators_before: after, tier, encoding }) => {
                    let mut running = facts
                        .pipeline
                        .operators
                        .iter()
                        .filter(|operator| !operator.kind.is_engine_operator());
                    let before = after.checked_sub(1).and_then(|last| running.nth(last as usize));
                    let operator = before.map_or("source", |operator| operator.kind.name());
                    tracing::info!(%job, "job {name} caches the output of `{operator}` {} in {}", encoding.name(), tier.name());
                }
                None => tracing::info!(%job, "job {name} does not cache rows"),
            }
        }
        self.cache_decisions = decisions;
    }

    /// Adds the parts of throttled stores. Returns the allocations if they differ from the previous allocations.
    fn changed_allocations(&mut self, job_allocations: PlanAllocations) -> Option<PlanAllocations> {
        let mut allocations = job_allocations.clone();
        self.job_allocations = job_allocations;
        for (worker, shares) in &self.store_shares {
            allocations.entry(*worker).or_default().stores.clone_from(shares);
        }
        if allocations == self.allocations {
            return None;
        }
        self.allocations.clone_from(&allocations);
        Some(allocations)
    }
}

/// Returns the number of wanted workers to export. An autoscaler may set the number of workers to this value, so that it
/// must not fall while the needs are unknown. `present` is the number of workers that are not draining. It is too small
/// shortly after a new leader has started, when the leader has led for `led_ms`, and after workers have missed reports.
/// `before` is the last exported number.
fn exported_workers(needs: &ResourceNeeds, present: usize, led_ms: Millis, before: f64) -> f64 {
    match (needs.is_known, led_ms < FIRST_REPORTS_MS) {
        (true, _) => f64::from(needs.wanted_workers),
        (false, true) => ABSENT,
        // `max` ignores an absent number, which is NaN.
        (false, false) => (present as f64).max(before),
    }
}

#[cfg(test)]
mod tests;
