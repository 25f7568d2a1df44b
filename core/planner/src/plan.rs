//! Who works on what: cores, limits, read concurrency and caches for all jobs together, and how many workers are wanted.
//!
//! The problem is solved in named steps, each of which leaves something feasible:
//!
//! 1. `plan/caches.rs` chooses which cuts are kept, and where, by search with the linear problem inside.
//! 2. `plan/linear.rs` gives each job rows per second on each worker type: the smallest weighted fed fraction is as large as
//!    can be, then the weighted sum of fed fractions, then the cost as small as can be. Its size depends on jobs and
//!    worker types, not on workers.
//! 3. `plan/assign.rs` turns rates on types into cores of single workers, keeping what the previous plan had.
//! 4. `plan/tune.rs` gives operators limits, and workers read concurrency and prefetch, by Little's law.
//! 5. `plan/allocations.rs` makes the allocations that workers receive.
//! 6. `plan/cache_history.rs` decides what running jobs cache, and holds to it.
//! 7. `plan/wanted.rs` asks how many workers of each type would feed everyone; [`scale`] decides when to act on it.
//!
//! Quotas of tenants are rows of the linear problem, and hold in each of these steps: `plan/level.rs` finds what the jobs of one
//! reach together, and `plan/caps.rs` makes upper limits of them.
//!
//! Where there is no time for this, or the solver fails, `plan/fallback.rs` shares proportionally, which always works.
//!
//! Jobs, types and workers are dense ordinals inside; ids and names are at the rim only. Time is no input: what ends the
//! work is a [`Deadline`].

mod allocations;
mod assign;
mod cache_history;
mod caches;
mod caps;
mod costs;
mod fallback;
mod level;
mod linear;
mod problem;
mod reasons;
pub mod scale;
mod solution;
mod solve;
mod tune;
mod wanted;

#[cfg(test)]
mod testing;

pub use allocations::{ReadSteps, shares};
pub use cache_history::CacheHistory;
pub use problem::{
    CachePolicy, CutProblem, JobProblem, OperatorProblem, PlannerSettings, Prices, Problem, TenantProblem,
    WorkerSlot, WorkerType,
};
pub use scale::{Climber, ScaleDecision, ScaleHistory, ScaleInput, ScaleSettings, rate_quotient};
pub use solution::{Assignment, CachePlan, JobPlan, Objective, OperatorLimit, Plan, PlannedCachePoint};
pub use solve::{CheckLimit, Deadline, NoDeadline, solve};
