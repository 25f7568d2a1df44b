//! Renders the view of a cluster as text: tables of jobs, workers and caches, and the plan.

use std::cmp::Reverse;
use std::fmt::Write;

use feedline_data::messages::JobState;
use feedline_data::tenants;
use feedline_data::view::{ClusterView, JobView, PoolDecision, WorkerView};

use crate::jobs::{format_state, has_several_tenants};
use crate::size::{format_bytes, format_count, format_rate};
use crate::table;

#[cfg(test)]
mod tests;

/// Width of a bar in characters.
const BAR_WIDTH: usize = 10;
/// Maximum number of ended jobs in the table.
const MAX_ENDED_JOBS: usize = 5;

/// Renders the whole view.
pub(super) fn render(view: &ClusterView) -> String {
    let running = view.jobs.iter().filter(|job| !job.state.is_ended()).count() as u64;
    let jobs = format_count(running, "job");
    let mut text = format!("{jobs}, {}\n", format_count(view.workers.len() as u64, "worker"));
    if !view.jobs.is_empty() {
        let _ = write!(text, "\n{}", jobs_table(view));
    }
    if !view.workers.is_empty() {
        let lines = view.workers.iter().map(worker_line);
        let head = [
            "worker",
            "address",
            "cpu",
            "cores",
            "held",
            "memory",
            "largest account",
            "peak rss",
            "jobs",
            "state",
        ];
        let head = head.map(str::to_owned).to_vec();
        let all: Vec<Vec<String>> = [head].into_iter().chain(lines).collect();
        let _ = write!(text, "\n{}", table::render(&all, &[1, 2, 6, 8, 9]));
    }
    // The only pool of `feedline up --autoscale` without --pool has no name, and the plan describes its size.
    if view.pools.len() > 1 || view.pools.iter().any(|pool| !pool.pool.is_empty()) {
        let _ = write!(text, "\n{}", pools_table(&view.pools));
    }
    if !view.caches.is_empty() {
        let line = |cache: &feedline_data::view::CacheView| {
            let readers: Vec<String> = cache.jobs.iter().map(ToString::to_string).collect();
            vec![
                cache.operator.clone(),
                cache.encoding.name().to_owned(),
                cache.tier.name().to_owned(),
                format_bytes(cache.bytes),
                cache.hit_rate.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
                readers.join(", "),
            ]
        };
        let head = ["cached", "encoding", "tier", "size", "hits", "read by"].map(str::to_owned).to_vec();
        let all: Vec<Vec<String>> = [head].into_iter().chain(view.caches.iter().map(line)).collect();
        let _ = write!(text, "\n{}", table::render(&all, &[0, 1, 2, 5]));
    }
    text + &render_plan(view)
}

/// Renders the sizes of the pools of workers.
fn pools_table(pools: &[PoolDecision]) -> String {
    let line = |pool: &PoolDecision| {
        let name = if pool.pool.is_empty() { "default" } else { &pool.pool };
        let demand = if pool.is_known { "known" } else { "unknown" };
        vec![name.to_owned(), pool.present.to_string(), pool.wanted.to_string(), demand.to_owned()]
    };
    let head = ["pool", "workers", "wanted", "demand"].map(str::to_owned).to_vec();
    let all: Vec<Vec<String>> = [head].into_iter().chain(pools.iter().map(line)).collect();
    table::render(&all, &[0, 3])
}

fn render_plan(view: &ClusterView) -> String {
    let wanted = view.wanted.iter().map(|kind| {
        format!(
            "{} of {}: {} requested",
            format_count(kind.live.into(), "worker"),
            kind.worker_type,
            kind.wanted
        )
    });
    let of_job = |job: &JobView| Some(format!("{}: {}", job.name, job.store_limit.as_ref()?));
    let sentences = view.jobs.iter().filter_map(of_job).chain(wanted);
    let sentences = sentences.chain(view.scaling.iter().cloned()).chain(view.reasons.iter().cloned());
    let lines: String = sentences.map(|sentence| format!("  {sentence}\n")).collect();
    if lines.is_empty() { lines } else { format!("\nplan\n{lines}") }
}

/// Renders the jobs: first running jobs, then preparing jobs, then the most recently ended jobs.
fn jobs_table(view: &ClusterView) -> String {
    let (ended, mut jobs): (Vec<&JobView>, Vec<&JobView>) =
        view.jobs.iter().partition(|job| job.state.is_ended());
    jobs.sort_by_key(|job| (format_state(&job.state) != "running", job.job));
    let mut last_ended = ended.clone();
    last_ended.sort_by_key(|job| Reverse(job.job));
    last_ended.truncate(MAX_ENDED_JOBS);
    let head = [
        "job",
        "name",
        "state",
        "fed",
        "rows/s",
        "demand",
        "stalled",
        "cores",
        "workers",
        "consumers",
        "rows",
        "bottleneck",
    ];
    let mut head = head.map(str::to_owned).to_vec();
    let has_several_tenants = has_several_tenants(view.jobs.iter().map(|job| &job.tenant));
    let mut texts = vec![1, 2, 3, 11];
    if has_several_tenants {
        head.insert(1, "tenant".to_owned());
        texts = vec![1, 2, 3, 4, 12];
    }
    let lines = jobs.into_iter().chain(last_ended).map(|job| {
        let mut line = job_line(job);
        if has_several_tenants {
            line.insert(1, tenants::display_name(&job.tenant).to_owned());
        }
        line
    });
    let mut text = table::render(&[head].into_iter().chain(lines).collect::<Vec<_>>(), &texts);
    if let Some(more) = ended.len().checked_sub(MAX_ENDED_JOBS + 1) {
        let _ = writeln!(text, "and {} ended earlier", format_count(more as u64 + 1, "job"));
    }
    text
}

fn job_line(job: &JobView) -> Vec<String> {
    let is_running = job.state == JobState::Running;
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    vec![
        job.job.to_string(),
        job.name.clone(),
        format_state(&job.state),
        or_dash(job.fed_fraction.map(|fed| format!("{} {:>3.0} %", bar(fed), 100.0 * fed))),
        or_dash(is_running.then(|| format_rate(job.rows_per_s))),
        or_dash(job.demand_rows_per_s.map(format_rate)),
        or_dash(job.stall_share.map(|share| format!("{:.0} %", 100.0 * share))),
        or_dash((job.cores > 0.0).then(|| format!("{:.1}", job.cores))),
        job.workers.to_string(),
        job.consumers.to_string(),
        job.rows.to_string(),
        or_dash(job.bottleneck.as_ref().map(ToString::to_string)),
    ]
}

fn worker_line(worker: &WorkerView) -> Vec<String> {
    let cores = f64::from(worker.cores);
    let share = if cores > 0.0 { worker.used_cores / cores } else { 0.0 };
    let jobs: Vec<String> = worker.job_usage.iter().map(|part| part.job.to_string()).collect();
    let state = match (worker.draining, worker.memory_full) {
        (true, _) => "draining",
        (_, true) => "memory full",
        _ => "",
    };
    vec![
        worker.worker.to_string(),
        worker.address.clone(),
        bar(share),
        format!("{:.1} of {}", worker.used_cores, worker.cores),
        format_bytes(worker.finished_bytes as f64),
        format_bytes(worker.memory_bytes as f64),
        largest_account(worker),
        worker.peak_rss_bytes.map_or_else(|| "-".to_owned(), |bytes| format_bytes(bytes as f64)),
        if jobs.is_empty() { "-".to_owned() } else { jobs.join(" ") },
        state.to_owned(),
    ]
}

/// Returns the account that uses the largest part of the memory budget, such as `blocks 1.2 GB`.
fn largest_account(worker: &WorkerView) -> String {
    let used = worker.memory.iter().filter(|usage| usage.used_bytes > 0);
    let largest = used.max_by_key(|usage| usage.used_bytes);
    largest.map_or_else(
        || "-".to_owned(),
        |usage| format!("{} {}", usage.account, format_bytes(usage.used_bytes as f64)),
    )
}

/// Renders a fraction as a bar of [`BAR_WIDTH`] characters.
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR_WIDTH as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR_WIDTH - full))
}

/// Clips a text to the size of the screen. The last line counts the omitted lines and names the key to exit.
pub(super) fn clip_to_screen(text: &str, (columns, lines): (usize, usize)) -> Vec<String> {
    // User-defined names must not contain control characters for the terminal.
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    let clip = |line: &str| -> String { line.chars().map(printable).take(columns).collect() };
    let available = lines.saturating_sub(1);
    let mut clipped: Vec<String> = text.lines().take(available).map(clip).collect();
    let omitted = text.lines().count() - clipped.len();
    let more =
        if omitted > 0 { format!("{} more; ", format_count(omitted as u64, "line")) } else { String::new() };
    clipped.push(clip(&format!("{more}q quits")));
    clipped
}
