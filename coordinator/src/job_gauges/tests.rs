//! Tests of the series of jobs: which jobs have series, and jobs that share their series.

use feedline_data::ids::JobId;
use metrics::with_local_recorder;

use super::*;
use crate::metrics::tests::GaugeRecorder;

fn job(id: u64, name: &str, rows_per_s: f64) -> JobView {
    JobView { fed_fraction: Some(0.5), rows_per_s, ..JobView::new(JobId(id), "vision", name) }
}

/// Returns gauges with two series for each job.
fn gauges(jobs: &[JobView]) -> Vec<NamedJobGauges<'_>> {
    let named = |job| {
        let mut named = NamedJobGauges::new(job);
        named.combine(JOB_FED_FRACTION, named.job.fed_fraction, f64::min);
        named.add(JOB_ROWS, Some(named.job.rows_per_s));
        named.add(JOB_DEMAND, Some(f64::INFINITY));
        named
    };
    jobs.iter().map(named).collect()
}

/// Returns the series as `name job value`.
fn exported(gauges: &mut JobGauges, jobs: &[JobView], max_series: usize) -> Vec<String> {
    let series = gauges.export(self::gauges(jobs), max_series);
    series.iter().map(|JobSeries { name, labels, value }| format!("{name} {} {value}", labels[1].1)).collect()
}

#[test]
fn jobs_with_the_same_name_share_their_series() {
    let unfed = JobView { fed_fraction: None, ..job(3, "train", 1.0) };
    let starved = JobView { fed_fraction: Some(0.2), ..job(2, "train", 20.0) };
    let jobs = [job(1, "train", 10.0), starved, unfed];
    let expected = [format!("{JOB_FED_FRACTION} train 0.2"), format!("{JOB_ROWS} train 31")];
    assert_eq!(exported(&mut JobGauges::default(), &jobs, 2), expected);
}

#[test]
fn series_are_sorted_by_name_and_labels() {
    let jobs = [job(1, "b", 1.0), job(2, "c", 2.0), job(3, "a", -0.0)];
    let rows = ["a 0", "b 1", "c 2"].map(|of| format!("{JOB_ROWS} {of}"));
    assert_eq!(exported(&mut JobGauges::default(), &jobs, MAX_SERIES)[3..], rows);
}

#[test]
fn beyond_the_limit_the_newest_jobs_have_all_their_series() {
    let mut gauges = JobGauges::default();
    let jobs = [job(1, "old", 1.0), job(2, "shared", 2.0), job(3, "new", 3.0), job(4, "shared", 4.0)];
    let shown = exported(&mut gauges, &jobs, 5);
    let rows = [format!("{JOB_ROWS} new 3"), format!("{JOB_ROWS} shared 6")];
    assert_eq!(shown[2..], rows, "a job that shares its series needs no further series");
    assert_eq!((shown.len(), gauges.omitted_jobs), (4, 1));
    assert_eq!(exported(&mut gauges, &jobs[..1], 5).len(), 2, "the other jobs have ended");
    assert_eq!(gauges.omitted_jobs, 0);
}

#[test]
fn ended_jobs_do_not_count_towards_the_limit() {
    let mut gauges = JobGauges::default();
    for run in 0..2 * MAX_SERIES as u64 {
        let jobs = [job(run, &format!("run-{run}"), 1.0)];
        assert_eq!(gauges.export(self::gauges(&jobs), 2).len(), 2, "run {run}");
    }
}

#[test]
fn a_cluster_without_jobs_and_workers_has_only_the_gauges_of_workers() {
    let recorder = GaugeRecorder::default();
    with_local_recorder(&recorder, || {
        let mut gauges = JobGauges::default();
        let series =
            gauges.publish(&ClusterView::default(), &Samples::default(), &Observer::default(), None, 0);
        assert_eq!(series, []);
        let of_workers = [WORKER_CORES, WORKER_USED_CORES].map(|name| format!("{name} 0"));
        assert_eq!(recorder.exported(), of_workers);
        JobGauges::retire();
        assert!(recorder.exported().is_empty());
    });
}
