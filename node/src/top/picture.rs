//! The cluster as text: tables of jobs and workers, what is kept, and what the planner says.

use std::cmp::Reverse;
use std::fmt::Write;

use feedline_data::tenants;
use feedline_data::view::{ClusterView, JobView, WorkerView};

use crate::jobs::{are_several, state};
use crate::size::{show_bytes, show_count, show_rate};
use crate::table;

#[cfg(test)]
mod tests;

/// Characters of a bar.
const BAR: usize = 10;
/// Jobs that have ended which are shown, the last ones.
const ENDED_SHOWN: usize = 5;

/// The whole picture.
pub(super) fn render(view: &ClusterView) -> String {
    let running = view.jobs.iter().filter(|job| !job.state.is_ended()).count() as u64;
    let jobs = show_count(running, "job");
    let mut text = format!("{jobs}, {}\n", show_count(view.workers.len() as u64, "worker"));
    if !view.jobs.is_empty() {
        let _ = write!(text, "\n{}", jobs_table(view));
    }
    if !view.workers.is_empty() {
        let lines = view.workers.iter().map(worker_line);
        let head = ["worker", "address", "cpu", "cores", "held", "memory", "peak rss", "jobs", "state"];
        let head = head.map(str::to_owned).to_vec();
        let all: Vec<Vec<String>> = [head].into_iter().chain(lines).collect();
        let _ = write!(text, "\n{}", table::render(&all, &[1, 2, 7, 8]));
    }
    if !view.caches.is_empty() {
        let line = |cache: &feedline_data::view::CacheView| {
            let readers: Vec<String> = cache.jobs.iter().map(ToString::to_string).collect();
            vec![
                cache.operator.clone(),
                cache.form.name().to_owned(),
                cache.tier.name().to_owned(),
                show_bytes(cache.bytes),
                cache.found_share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
                readers.join(", "),
            ]
        };
        let head = ["kept", "form", "tier", "size", "found", "read by"].map(str::to_owned).to_vec();
        let all: Vec<Vec<String>> = [head].into_iter().chain(view.caches.iter().map(line)).collect();
        let _ = write!(text, "\n{}", table::render(&all, &[0, 1, 2, 5]));
    }
    text + &plan(view)
}

fn plan(view: &ClusterView) -> String {
    let wanted = view.wanted.iter().map(|kind| {
        format!(
            "{} of {}: {} wanted",
            show_count(kind.present.into(), "worker"),
            kind.worker_type,
            kind.wanted
        )
    });
    let sentences = wanted.chain(view.scaling.iter().cloned()).chain(view.reasons.iter().cloned());
    let lines: String = sentences.map(|sentence| format!("  {sentence}\n")).collect();
    if lines.is_empty() { lines } else { format!("\nplan\n{lines}") }
}

/// Jobs at work first, then those that prepare, then the last ones that ended.
fn jobs_table(view: &ClusterView) -> String {
    let (ended, mut jobs): (Vec<&JobView>, Vec<&JobView>) =
        view.jobs.iter().partition(|job| job.state.is_ended());
    jobs.sort_by_key(|job| (state(&job.state) != "running", job.job));
    let mut last = ended.clone();
    last.sort_by_key(|job| Reverse(job.job));
    last.truncate(ENDED_SHOWN);
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
    let are_several = are_several(view.jobs.iter().map(|job| &job.tenant));
    let mut texts = vec![1, 2, 3, 11];
    if are_several {
        head.insert(1, "tenant".to_owned());
        texts = vec![1, 2, 3, 4, 12];
    }
    let lines = jobs.into_iter().chain(last).map(|job| {
        let mut line = job_line(job);
        if are_several {
            line.insert(1, tenants::shown(&job.tenant).to_owned());
        }
        line
    });
    let mut text = table::render(&[head].into_iter().chain(lines).collect::<Vec<_>>(), &texts);
    if let Some(more) = ended.len().checked_sub(ENDED_SHOWN + 1) {
        let _ = writeln!(text, "and {} more that ended", show_count(more as u64 + 1, "job"));
    }
    text
}

fn job_line(job: &JobView) -> Vec<String> {
    let flows = job.rows_per_s > 0.0 || job.stall_share.is_some();
    let known = |shown: Option<String>| shown.unwrap_or_else(|| "-".to_owned());
    vec![
        job.job.to_string(),
        job.name.clone(),
        state(&job.state),
        known(job.fed_fraction.map(|fed| format!("{} {:>3.0} %", bar(fed), 100.0 * fed))),
        known(flows.then(|| show_rate(job.rows_per_s))),
        known(job.demand_rows_per_s.map(show_rate)),
        known(job.stall_share.map(|share| format!("{:.0} %", 100.0 * share))),
        known((job.cores > 0.0).then(|| format!("{:.1}", job.cores))),
        job.workers.to_string(),
        job.consumers.to_string(),
        job.rows.to_string(),
        known(job.bottleneck.as_ref().map(ToString::to_string)),
    ]
}

fn worker_line(worker: &WorkerView) -> Vec<String> {
    let cores = f64::from(worker.cores);
    let share = if cores > 0.0 { worker.used_cores / cores } else { 0.0 };
    let jobs: Vec<String> = worker.parts.iter().map(|part| part.job.to_string()).collect();
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
        show_bytes(worker.held_bytes as f64),
        show_bytes(worker.memory_bytes as f64),
        worker.peak_rss_bytes.map_or_else(|| "-".to_owned(), |bytes| show_bytes(bytes as f64)),
        if jobs.is_empty() { "-".to_owned() } else { jobs.join(" ") },
        state.to_owned(),
    ]
}

/// A bar of [`BAR`] characters, full from 1 on.
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

/// The lines of a text that fit so many columns and lines; the last one says what to press, and what is left out.
pub(super) fn fit(text: &str, (columns, lines): (usize, usize)) -> Vec<String> {
    // What users named must not command the terminal.
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let clip = |line: &str| -> String { line.chars().map(plain).take(columns).collect() };
    let room = lines.saturating_sub(1);
    let mut fitting: Vec<String> = text.lines().take(room).map(clip).collect();
    let left_out = text.lines().count() - fitting.len();
    let more =
        if left_out > 0 { format!("{} more; ", show_count(left_out as u64, "line")) } else { String::new() };
    fitting.push(clip(&format!("{more}q quits")));
    fitting
}
