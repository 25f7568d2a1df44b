//! Plans: takes what was reported, asks the planner of `feedline_core::plan`, and tells workers what jobs may use of them.
//!
//! Decides nothing that rows depend on. Where it cannot plan, workers share their threads evenly, as without it.

use std::collections::BTreeMap;
use std::time::Duration;

use feedline_core::cluster::messages::Allotment;
use feedline_core::cluster::samples::{Samples, WorkerShare};
use feedline_core::ids::{Millis, WorkerId};
use feedline_core::observe::Observer;
use feedline_core::plan::{Plan, Problem, Settings, solve};
use metrics::{gauge, histogram};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::driver::Command;
use crate::metrics::{FED_FRACTION, PLAN_SECONDS, WANTED_WORKERS};

/// Reads that workers do at a time of themselves: a plan allows more, never fewer, since it knows means only.
const USUAL_READS: u32 = 16;
/// Longest that one plan may take.
const PLANNING: Duration = Duration::from_secs(1);

/// Plans each `interval` until `stop`, or until the driver has ended.
pub(crate) async fn run(commands: mpsc::Sender<Command>, interval: Duration, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut planner = Planner::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Some((now, samples)) = observe(&commands).await else { return };
        let Some(problem) = planner.on_reports(now, &samples) else { continue };
        let previous = planner.plan.take();
        let planned = tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            let plan = solve(&problem, previous.as_ref(), &|| started.elapsed() > PLANNING);
            histogram!(PLAN_SECONDS).record(started.elapsed().as_secs_f64());
            plan
        });
        match planned.await {
            Ok(Ok(plan)) => {
                if let Some(shares) = planner.on_plan(plan)
                    && commands.send(Command::Share { shares }).await.is_err()
                {
                    return;
                }
            }
            Ok(Err(sentence)) => tracing::warn!("no plan was made: {sentence}"),
            Err(error) => tracing::warn!(%error, "no plan was made"),
        }
    }
}

async fn observe(commands: &mpsc::Sender<Command>) -> Option<(Millis, Box<Samples>)> {
    let (reply, answer) = oneshot::channel();
    commands.send(Command::Observe { reply }).await.ok()?;
    answer.await.ok()
}

/// What was seen and decided so far.
#[derive(Debug, Default)]
struct Planner {
    observer: Observer,
    plan: Option<Plan>,
    /// What workers were told last.
    shares: BTreeMap<WorkerId, WorkerShare>,
}

impl Planner {
    /// The problem to solve; `None` where there is nothing to plan.
    fn on_reports(&mut self, now: Millis, samples: &Samples) -> Option<Problem> {
        self.observer.push(now, samples);
        let problem = self.observer.problem(Settings::default());
        if problem.jobs.is_empty() {
            gauge!(FED_FRACTION).set(1.0);
            return None;
        }
        Some(problem)
    }

    /// What workers are to be told, where that has changed.
    fn on_plan(&mut self, plan: Plan) -> Option<BTreeMap<WorkerId, WorkerShare>> {
        let least = plan.jobs.iter().map(|job| job.fed_fraction).fold(1.0, f64::min);
        gauge!(FED_FRACTION).set(least);
        let wanted: u32 = plan.wanted.iter().map(|kind| kind.wanted).sum();
        gauge!(WANTED_WORKERS).set(f64::from(wanted));
        if self.plan.as_ref().is_none_or(|before| before.reasons != plan.reasons) {
            tracing::debug!(reasons = %plan.reasons.join("; "), "planned");
        }
        let shares = shares(&plan);
        self.plan = Some(plan);
        if shares == self.shares {
            return None;
        }
        self.shares.clone_from(&shares);
        Some(shares)
    }
}

/// Each worker's part in each job of a plan. Operators keep to what the user pinned, and else to the worker's threads.
fn shares(plan: &Plan) -> BTreeMap<WorkerId, WorkerShare> {
    let mut shares: BTreeMap<WorkerId, WorkerShare> = BTreeMap::new();
    for job in &plan.jobs {
        for assignment in &job.assignments {
            let allotment = Allotment {
                // Small changes of a mean are no reason to tell a worker anything.
                cores: (assignment.cores * 4.0).round().max(1.0) / 4.0,
                read_concurrency: match assignment.read_concurrency {
                    reads if reads <= USUAL_READS => 0,
                    reads => reads.next_power_of_two(),
                },
                ..Allotment::unlimited(job.job)
            };
            shares.entry(assignment.worker).or_default().allotments.push(allotment);
        }
    }
    shares
}

#[cfg(test)]
mod tests;
