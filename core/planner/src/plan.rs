//! Plans the cores, limits, read concurrency and caches of all jobs together, and the wanted number of workers.
//!
//! The problem is solved in steps. The result of each step is feasible:
//!
//! 1. `plan/caches.rs` chooses cache points and tiers, by a search around the linear problem.
//! 2. `plan/linear.rs` assigns each job rows per second on each worker type. It maximises the smallest weighted fed
//!    fraction, then the weighted sum of fed fractions, and then minimises the cost. Its size depends on the numbers of
//!    jobs and worker types, not on the number of workers.
//! 3. `plan/assign.rs` converts rates on worker types into cores on individual workers, and keeps the placements of the
//!    previous plan.
//! 4. `plan/tune.rs` computes each job's allocation on a worker, with read concurrency and operator limits from
//!    Little's law.
//! 5. `plan/allocations.rs` rounds the allocations and adds memory, quotas and caches. Workers receive the result.
//! 6. `plan/cache_history.rs` decides once per job which rows the job caches.
//! 7. `plan/wanted.rs` computes how many workers of each type would feed all jobs within the limits of the pools, which
//!    `plan/sizes.rs` defines. [`scale`] decides when to add or remove workers.
//!
//! Tenant quotas are constraints of the linear problem, and every step satisfies them. `plan/level.rs` computes the fed
//! fraction that the jobs of one tenant reach together. `plan/quota_limits.rs` converts quotas into upper limits on
//! cores.
//!
//! If the deadline passes or the solver fails, `plan/fallback.rs` assigns each job the same share of each worker type.
//!
//! Inside the planner, dense indexes identify jobs, types and workers. Only problems and plans contain ids and names.
//! The planner does not read the clock; a [`Deadline`] stops it.

mod allocations;
mod assign;
mod cache_history;
mod caches;
mod costs;
mod deadline;
mod fallback;
mod level;
mod linear;
mod problem;
mod quota_limits;
mod reasons;
pub mod scale;
mod sizes;
mod solution;
mod solve;
mod tune;
mod wanted;

#[cfg(test)]
mod testing;

pub use allocations::{ReadLimits, plan_allocations};
pub use cache_history::CacheHistory;
pub use deadline::{CheckLimit, Deadline, NoDeadline};
pub use problem::{
    CachePointProblem, CachePolicy, JobProblem, OperatorProblem, PlannerSettings, PoolProblem, Prices,
    Problem, TenantProblem, WorkerSlot, WorkerType,
};
pub use scale::{HillClimber, ScaleDecision, ScaleHistory, ScaleInput, ScaleSettings, rate_quotient};
pub use solution::{CachePlan, JobPlan, Objective, OperatorLimit, Plan, PlannedCachePoint};
pub use solve::solve;
