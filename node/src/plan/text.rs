//! Formats a plan as text: tables of jobs, workers and caches, the objective, and the reasons.

use std::fmt::Write;

use feedline_data::ids::JobId;
use feedline_data::pipeline::{CacheEncoding, CacheTier};
use feedline_planner::plan::{CachePlan, JobPlan, Plan, PlannedCachePoint, Problem};

use crate::size::{format_bytes, format_count, format_rate};
use crate::table;

/// Formats the plan of a problem.
pub(super) fn render(problem: &Problem, plan: &Plan) -> String {
    let workers = format_count(problem.workers.len() as u64, "worker");
    let jobs = format_count(plan.jobs.len() as u64, "job");
    let mut text =
        format!("{jobs} on {workers}\n\n{}\n{}", jobs_table(problem, plan), workers_table(problem, plan));
    if !plan.caches.is_empty() {
        let _ = write!(text, "\n{}", caches_table(problem, plan));
    }
    let (objective, bound) = (&plan.objective, &plan.objective_bound);
    let _ = write!(
        text,
        "\nobjective  smallest fed fraction {}, weighted sum {:.3}, cost {:.2} per hour\n",
        percent(objective.smallest_fed),
        objective.total_fed,
        objective.cost_per_hour
    );
    let _ = writeln!(
        text,
        "bound      smallest fed fraction {}, weighted sum {:.3}: the plan is within {} of the optimum",
        percent(bound.smallest_fed),
        bound.total_fed,
        percent(plan.gap)
    );
    if !plan.reasons.is_empty() {
        text.push_str("\nreasons\n");
    }
    for reason in &plan.reasons {
        let _ = writeln!(text, "  {reason}");
    }
    text
}

fn jobs_table(problem: &Problem, plan: &Plan) -> String {
    let mut head = ["job", "rows/s", "demand", "fed"].map(str::to_owned).to_vec();
    head.extend(problem.worker_types.iter().map(|kind| format!("cores of {}", kind.name)));
    head.extend(["cached", "reason"].map(str::to_owned));
    let left = [0, head.len() - 2, head.len() - 1];
    let line = |job: &JobPlan| {
        let mut cells = vec![
            job.name.clone(),
            format_rate(job.rows_per_s),
            format_rate(job.demand_rows_per_s),
            percent(job.fed_fraction),
        ];
        cells.extend(job.cores_by_type.iter().map(|cores| format!("{cores:.1}")));
        cells.push(
            job.cache.map_or_else(|| "-".to_owned(), |point| format_cache_point(problem, job.job, &point)),
        );
        cells.push(job.explanation.clone());
        cells
    };
    table::render(&[head].into_iter().chain(plan.jobs.iter().map(line)).collect::<Vec<_>>(), &left)
}

fn workers_table(problem: &Problem, plan: &Plan) -> String {
    let head = ["workers", "cores", "memory", "present", "wanted"].map(str::to_owned).to_vec();
    let lines = problem.worker_types.iter().zip(&plan.wanted_workers).map(|(kind, wanted)| {
        vec![
            kind.name.clone(),
            kind.cores.to_string(),
            format_bytes(kind.memory_bytes),
            wanted.live.to_string(),
            wanted.wanted.to_string(),
        ]
    });
    table::render(&[head].into_iter().chain(lines).collect::<Vec<_>>(), &[0])
}

fn caches_table(problem: &Problem, plan: &Plan) -> String {
    let head = ["cached", "tier", "size", "read by"].map(str::to_owned).to_vec();
    let name = |id: &JobId| {
        let job = problem.jobs.iter().find(|job| job.id == *id);
        job.map_or_else(|| id.to_string(), |job| job.name.clone())
    };
    let line = |cache: &CachePlan| {
        vec![
            cached_operator(problem, cache),
            cache.tier.name().to_owned(),
            format_bytes(cache.bytes),
            cache.jobs.iter().map(name).collect::<Vec<_>>().join(", "),
        ]
    };
    table::render(&[head].into_iter().chain(plan.caches.iter().map(line)).collect::<Vec<_>>(), &[0, 1, 3])
}

/// Returns the operator whose output is cached.
fn cached_operator(problem: &Problem, cache: &CachePlan) -> String {
    let of_job = |job: &feedline_planner::plan::JobProblem| {
        let cut = job.cache_points.iter().find(|cut| cut.key == cache.key)?;
        job.operators.get(cut.operator_index).map(|operator| operator.name.clone())
    };
    problem.jobs.iter().find_map(of_job).unwrap_or_default()
}

fn format_cache_point(problem: &Problem, job: JobId, point: &PlannedCachePoint) -> String {
    let job = problem.jobs.iter().find(|known| known.id == job);
    let operator = job.and_then(|job| job.operators.get(point.operator_index));
    let tier = match point.tier {
        CacheTier::Memory => "in memory",
        CacheTier::Disk => "on disk",
        CacheTier::Store => "in the store",
    };
    let encoding = match point.encoding {
        CacheEncoding::AsIs => String::new(),
        encoding => format!(" as {}", encoding.name()),
    };
    format!("{}{encoding} {tier}", operator.map_or("", |operator| operator.name.as_str()))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests;
