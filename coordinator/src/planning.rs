//! Plans: takes what was reported, asks the planner of `feedline_planner::plan`, and tells workers what jobs may use of them.
//!
//! Decides nothing that rows depend on. Where it cannot plan, workers share their threads evenly, as without it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::CacheDecision;
use feedline_data::messages::WorkerAllocations;
use feedline_data::messages::samples::Samples;
use feedline_data::view::ClusterView;
use feedline_planner::observe::{Observer, ResourceNeeds};
use feedline_planner::plan::{
    CacheHistory, CachePolicy, Plan, PlannerSettings, Problem, ReadSteps, shares, solve,
};
use feedline_planner::view::cluster_view;
use metrics::{gauge, histogram};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::driver::DriverCommand;
use crate::metrics::{FED_FRACTION, PLAN_SECONDS, WANTED_WORKERS};
use crate::scaling::ScalingPolicy;
use crate::tenant_gauges::TenantGauges;

/// Longest that the choice of caches may take each time.
const CHOOSING: Duration = Duration::from_millis(250);
/// Longest that one plan may take.
const PLANNING: Duration = Duration::from_secs(1);

/// How plans are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanningSettings {
    /// Time from one to the next.
    pub(crate) interval: Duration,
    /// Whether it is also decided what jobs keep.
    pub(crate) auto_cache: bool,
    pub(crate) settings: PlannerSettings,
}

/// Plans until `stop`, or until the driver has ended; `scaler` changes the number of workers. After each look, what was seen
/// is published in `views`.
pub(crate) async fn run(
    commands: mpsc::Sender<DriverCommand>,
    views: watch::Sender<Arc<ClusterView>>,
    how: PlanningSettings,
    mut scaler: Option<ScalingPolicy>,
    stop: CancellationToken,
) {
    let mut planner = Planner::new(how);
    let mut ticks = tokio::time::interval(how.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Some(observed) = observe(&commands).await else { return };
        let Some((now, samples)) = observed else {
            // Another plans; what it will have seen when this one leads is not known here.
            planner = Planner::new(how);
            continue;
        };
        // Models and plans of many jobs take a while.
        let planned = tokio::task::spawn_blocking(move || {
            let shares = planner.plan(now, &samples);
            planner.tenants.publish(samples.jobs.iter(), planner.plan.as_ref());
            let (plan, keeps) = (planner.plan.as_ref(), &planner.keeps);
            let view = cluster_view(now, &samples, &planner.observer, plan, keeps);
            (planner, shares, view)
        });
        match planned.await {
            Ok((planned, shares, view)) => {
                planner = planned;
                if let Some(scaler) = &mut scaler {
                    scaler.follow(now, planner.needs()).await;
                }
                let scaling = scaler.as_ref().and_then(ScalingPolicy::said);
                views.send_replace(Arc::new(ClusterView { scaling, ..view }));
                if let Some(shares) = shares
                    && commands.send(DriverCommand::Share { shares }).await.is_err()
                {
                    return;
                }
            }
            Err(error) => {
                tracing::error!(%error, "planning failed and begins anew; please report this");
                planner = Planner::new(how);
            }
        }
    }
}

/// What was reported; nothing where another leads, `None` once the driver has ended.
async fn observe(commands: &mpsc::Sender<DriverCommand>) -> Option<Option<(Millis, Box<Samples>)>> {
    let (reply, answer) = oneshot::channel();
    commands.send(DriverCommand::Observe { reply }).await.ok()?;
    answer.await.ok()
}

/// What was seen and decided so far.
#[derive(Debug, Default)]
struct Planner {
    settings: PlannerSettings,
    observer: Observer,
    plan: Option<Plan>,
    /// Decides what jobs keep; `None` where only pipelines do.
    keeping: Option<CacheHistory>,
    /// What it decided last.
    keeps: BTreeMap<JobId, CacheDecision>,
    /// What workers were told last.
    shares: BTreeMap<WorkerId, WorkerAllocations>,
    /// How far jobs have come with reading more.
    reads: ReadSteps,
    needs: ResourceNeeds,
    tenants: TenantGauges,
}

impl Planner {
    fn new(how: PlanningSettings) -> Self {
        let keeping = how.auto_cache.then(CacheHistory::default);
        Self { keeping, settings: how.settings, ..Self::default() }
    }

    /// What the last plan would need.
    fn needs(&self) -> ResourceNeeds {
        self.needs
    }

    /// Plans for what was reported; gives what workers are to be told, where that has changed.
    fn plan(&mut self, now: Millis, samples: &Samples) -> Option<BTreeMap<WorkerId, WorkerAllocations>> {
        let began = Instant::now();
        self.observer.push(now, samples);
        // What caches save is in what jobs take as they fill; which are filled is decided beside the plan.
        let problem = self.observer.problem(self.settings, CachePolicy::Never);
        let started = Instant::now();
        let is_chosen = || started.elapsed() > CHOOSING;
        let keeping = self.keeping.as_mut();
        let keeps = keeping.map(|keeping| keeping.decide(now, &self.observer, self.settings, &is_chosen));
        let keeps = keeps.unwrap_or_default();
        self.say_kept(&keeps);
        if problem.jobs.is_empty() {
            gauge!(FED_FRACTION).set(1.0);
            gauge!(WANTED_WORKERS).set(0.0);
            self.plan = None;
            self.needs = self.observer.needs(None, &problem);
            return self.tell(shares(&Plan::default(), &problem, &keeps));
        }
        let started = Instant::now();
        let plan = solve(&problem, self.plan.as_ref(), &|| started.elapsed() > PLANNING);
        histogram!(PLAN_SECONDS).record(began.elapsed().as_secs_f64());
        match plan {
            Ok(plan) => self.on_plan(plan, &problem, &keeps),
            Err(sentence) => {
                tracing::warn!("no plan was made: {sentence}");
                self.needs = self.observer.needs(None, &problem);
                None
            }
        }
    }

    fn on_plan(
        &mut self,
        plan: Plan,
        problem: &Problem,
        keeps: &BTreeMap<JobId, Option<CacheDecision>>,
    ) -> Option<BTreeMap<WorkerId, WorkerAllocations>> {
        self.needs = self.observer.needs(Some(&plan), problem);
        gauge!(FED_FRACTION).set(self.needs.fed_fraction);
        gauge!(WANTED_WORKERS).set(f64::from(self.needs.wanted));
        if self.plan.as_ref().is_none_or(|before| before.reasons != plan.reasons) {
            tracing::debug!(reasons = %plan.reasons.join("; "), "planned");
        }
        let shares = self.reads.next(shares(&plan, problem, keeps), |job| self.observer.knows(job));
        self.plan = Some(plan);
        self.tell(shares)
    }

    /// Logs what is to be kept, where that has changed.
    fn say_kept(&mut self, keeps: &BTreeMap<JobId, Option<CacheDecision>>) {
        let keeps: BTreeMap<JobId, CacheDecision> =
            keeps.iter().filter_map(|(job, keep)| Some((*job, (*keep)?))).collect();
        for facts in self.observer.facts().filter(|facts| keeps.get(&facts.job) != self.keeps.get(&facts.job))
        {
            let (job, name) = (facts.job, &facts.name);
            match keeps.get(&job) {
                Some(CacheDecision { after, tier, form }) => {
                    let mut running = facts
                        .pipeline
                        .operators
                        .iter()
                        .filter(|operator| !operator.kind.is_engine_operator());
                    let before = after.checked_sub(1).and_then(|last| running.nth(last as usize));
                    let operator = before.map_or("source", |operator| operator.kind.name());
                    tracing::info!(%job, "{name} keeps the output of `{operator}` {} in {}", form.name(), tier.name());
                }
                None => tracing::info!(%job, "{name} keeps nothing"),
            }
        }
        self.keeps = keeps;
    }

    /// What workers are to be told, if it is something else than what they were told last.
    fn tell(
        &mut self,
        shares: BTreeMap<WorkerId, WorkerAllocations>,
    ) -> Option<BTreeMap<WorkerId, WorkerAllocations>> {
        if shares == self.shares {
            return None;
        }
        self.shares.clone_from(&shares);
        Some(shares)
    }
}

#[cfg(test)]
mod tests;
