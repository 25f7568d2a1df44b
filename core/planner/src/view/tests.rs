//! Views of a job whose bottleneck is a crop, and of jobs without counters.

use feedline_data::messages::samples::TopicSample;
use feedline_data::messages::{ConsumerStats, JobState, JobStatus, StoreStats};

use super::*;
use crate::observe::tests::{JOB, observed, samples};
use crate::plan::{CachePolicy, NoDeadline, PlannerSettings, solve};

fn view() -> ClusterView {
    let observer = observed(&[JOB]);
    let problem = observer.problem(PlannerSettings::default(), CachePolicy::Never);
    let plan = solve(&problem, None, &NoDeadline).unwrap();
    cluster_view(8_000, &samples(8, &[JOB]), &observer, Some(&plan), &BTreeMap::new())
}

fn status(job: JobId, state: JobState) -> JobStatus {
    JobStatus {
        job,
        tenant: "a".to_owned(),
        name: format!("job {job}"),
        state,
        epochs: 1,
        consumers: 3,
        dataset: None,
        layout: None,
        position: None,
        operators: Vec::new(),
        store: StoreStats::default(),
        worker_cpu: Vec::new(),
        delivered: ConsumerStats { rows: 8_000, ..ConsumerStats::default() },
        worker_peak_rss_bytes: Vec::new(),
        coordinator_peak_rss_bytes: 0,
        workers: 1,
        settled: true,
        slot_owners: Vec::new(),
        source_error: None,
    }
}

#[test]
fn a_job_has_its_rates_and_its_bottleneck() {
    let view = view();
    let job = &view.jobs[0];
    assert_eq!((job.job, job.name.as_str(), job.workers), (JOB, "photographs", 1));
    assert_eq!(job.rows_per_s.round(), 1_000.0);
    assert_eq!(job.demand_rows_per_s.map(f64::round), Some(5_000.0));
    assert_eq!(job.fed_fraction.map(|fed| (100.0 * fed).round()), Some(20.0));
    assert_eq!(job.stall_share, Some(0.8));
    assert!((job.cores - 2.0).abs() < 1e-6, "{}", job.cores);
    let bound = job.bottleneck.as_ref().unwrap();
    let explanation =
        "2 cores compute 1250 rows/s at 1.6 ms of CPU time per row, mostly in `random_resized_crop`";
    assert_eq!(bound.explanation, explanation);
    assert!(!view.reasons.is_empty());
    assert_eq!(view.wanted.len(), 1);
}

#[test]
fn a_job_that_waits_for_records_is_not_stalled() {
    let stalls = |arriving_per_s: u64, backlog_rows: u64| {
        let mut observer = Observer::default();
        let at = |second: u64| {
            let mut samples = samples(second, &[JOB]);
            let arrived_rows = arriving_per_s * second;
            samples.jobs[0].topic = Some(TopicSample { arrived_rows, backlog_rows, step_rows: 2_048 });
            samples
        };
        (1..=8).for_each(|second| observer.push(second * 1_000, &at(second)));
        let view = cluster_view(8_000, &at(8), &observer, None, &BTreeMap::new());
        (view.jobs[0].stall_share, observer.waits_for_store(JOB))
    };
    assert_eq!(stalls(1_000, 100), (None, false));
    assert_eq!(stalls(100, 2_000), (None, false), "the topic is slow, and a step is not complete");
    assert_eq!(stalls(0, 5), (None, false), "the topic is quiet");
    assert_eq!(stalls(1_000, 100_000).0, Some(0.8), "the workers deliver fewer records than arrive");
    assert_eq!(stalls(100, 3_000).0, Some(0.8), "the workers do not deliver a complete step");
    assert_eq!(stalls(0, 2_048).0, Some(0.8), "the workers do not deliver the last step");
}

#[test]
fn a_worker_has_its_cores_and_memory_by_job() {
    let view = view();
    let [worker] = view.workers.as_slice() else { panic!("one worker") };
    assert_eq!((worker.cores, worker.address.as_str()), (2, "http://10.0.0.7:7071"));
    // The process used 1,600 us of CPU for each of 1,000 rows/s.
    assert!((worker.used_cores - 1.6).abs() < 1e-6, "{}", worker.used_cores);
    assert_eq!(
        worker.job_usage,
        [WorkerJobUsage { job: JOB, used_cores: worker.used_cores, finished_bytes: worker.finished_bytes }]
    );
    assert_eq!(worker.peak_rss_bytes, None, "no peak was reported");
}

#[test]
fn without_a_plan_a_job_may_use_all_workers() {
    let view = cluster_view(8_000, &samples(8, &[JOB]), &observed(&[JOB]), None, &BTreeMap::new());
    let job = &view.jobs[0];
    assert_eq!(job.cores, 0.0);
    assert!(job.bottleneck.as_ref().is_some_and(|bound| bound.explanation.starts_with("2 cores compute")));
    assert_eq!((view.reasons.len(), view.wanted.len()), (0, 0));
}

#[test]
fn a_plan_of_other_jobs_is_not_shown() {
    let observer = observed(&[JOB]);
    let plan = Plan { reasons: vec!["long ago".to_owned()], ..Plan::default() };
    let view = cluster_view(8_000, &samples(8, &[JOB]), &observer, Some(&plan), &BTreeMap::new());
    assert_eq!(view.reasons, Vec::<String>::new());
}

#[test]
fn every_job_has_the_state_of_its_status() {
    let ended = status(JobId(3), JobState::Completed);
    let shown = view().with_states(&[ended, status(JOB, JobState::Running)]);
    let [ended, running] = shown.jobs.as_slice() else { panic!("two jobs") };
    assert_eq!((ended.state.clone(), ended.rows, ended.rows_per_s), (JobState::Completed, 8_000, 0.0));
    assert_eq!((running.consumers, running.rows_per_s.round()), (3, 1_000.0));
    let shown = view().with_states(&[status(JOB, JobState::Cancelled)]);
    assert_eq!(
        (shown.jobs[0].rows_per_s, &shown.jobs[0].bottleneck),
        (0.0, &None),
        "a cancelled job has no rates"
    );
}

#[test]
fn a_view_equals_its_deserialized_json() {
    let view = view();
    let text = serde_json::to_string(&view).unwrap();
    assert_eq!(serde_json::from_str::<ClusterView>(&text).unwrap(), view);
}

#[test]
fn cached_rows_are_shown_with_their_hit_share() {
    let (mut observer, mut last) = (Observer::default(), samples(8, &[JOB]));
    for second in 1..=8 {
        last = samples(second, &[JOB]);
        let mut stats = (*last.workers[0].jobs[0]).clone();
        let cache = feedline_data::messages::OperatorStats {
            name: "cache".to_owned(),
            rows_in: 1_000 * second,
            rows_out: 250 * second,
            ..Default::default()
        };
        stats.operators.insert(2, cache);
        last.workers[0].jobs[0] = std::sync::Arc::new(stats);
        observer.push(second * 1_000, &last);
    }
    let decision =
        CacheDecision { operators_before: 1, tier: CacheTier::Disk, encoding: CacheEncoding::AsIs };
    let view = cluster_view(8_000, &last, &observer, None, &[(JOB, decision)].into());
    let [cached] = view.caches.as_slice() else { panic!("{:?}", view.caches) };
    assert_eq!(
        (cached.operator.as_str(), cached.tier, cached.jobs.as_slice()),
        ("burn", CacheTier::Disk, &[JOB][..])
    );
    assert!((cached.bytes / 1e9 - 1.0).abs() < 1e-6, "{}", cached.bytes);
    assert_eq!(cached.hit_rate, Some(0.25));
}
