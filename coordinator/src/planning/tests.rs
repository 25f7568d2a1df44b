//! Tests of the conditions under which allocations are sent.

use feedline_data::ids::{JobId, WorkerId};
use feedline_data::messages::JobAllocation;
use feedline_data::view::WantedWorkers;
use feedline_planner::plan::{JobPlan, WorkerSlot, WorkerType};

use super::*;
use crate::metrics::tests::GaugeRecorder;

fn plan(parts: &[(u64, u64, f64)]) -> Plan {
    let mut jobs: BTreeMap<u64, BTreeMap<WorkerId, JobAllocation>> = BTreeMap::new();
    for &(job, worker, cores) in parts {
        let allocation = JobAllocation { cores, ..JobAllocation::unlimited(JobId(job)) };
        jobs.entry(job).or_default().insert(WorkerId(worker), allocation);
    }
    let job = |(job, allocations): (u64, BTreeMap<WorkerId, JobAllocation>)| JobPlan {
        job: JobId(job),
        name: format!("job {job}"),
        rows_per_s: 100.0,
        demand_rows_per_s: 200.0,
        fed_fraction: 0.5,
        cores_by_type: Vec::new(),
        allocations,
        operator_limits: Vec::new(),
        cache: None,
        explanation: String::new(),
    };
    let wanted = vec![WantedWorkers { worker_type: "a".to_owned(), live: 1, wanted: 3 }];
    Plan { jobs: jobs.into_iter().map(job).collect(), wanted_workers: wanted, ..Plan::default() }
}

fn problem(workers: &[u64]) -> Problem {
    let slot = |worker: &u64| WorkerSlot { id: WorkerId(*worker), worker_type: 0 };
    let worker_types = vec![WorkerType { memory_bytes: 1e9, ..WorkerType::default() }];
    Problem { workers: workers.iter().map(slot).collect(), worker_types, ..Problem::default() }
}

#[test]
fn allocations_are_sent_only_when_they_change() {
    let mut planner = Planner::default();
    let mut tell = |parts: &[(u64, u64, f64)]| planner.on_plan(plan(parts), &problem(&[7]), &BTreeMap::new());
    assert!(tell(&[(1, 7, 1.5), (2, 7, 0.5)]).is_some());
    assert_eq!(tell(&[(1, 7, 1.52), (2, 7, 0.48)]), None);
    assert!(tell(&[(1, 7, 0.5), (2, 7, 1.5)]).is_some());
    assert_eq!(tell(&[(2, 7, 2.0)]), Some(BTreeMap::new()), "the other job has ended");
}

#[test]
fn jobs_without_rows_are_not_planned() {
    let mut planner = Planner::default();
    assert_eq!(planner.plan(0, &Samples::default()), None);
    assert_eq!(planner.plan(1_000, &Samples::default()), None);
}

#[test]
fn the_gauges_of_the_planner_disappear_with_leadership() {
    let recorder = GaugeRecorder::default();
    metrics::with_local_recorder(&recorder, || {
        let mut planner = Planner::default();
        planner.plan(0, &Samples::default());
        assert_eq!(recorder.exported(), [format!("{FED_FRACTION} 1"), format!("{WANTED_WORKERS} 0")]);
        planner.retire();
        assert!(recorder.exported().is_empty(), "{:?}", recorder.exported());
    });
}

#[test]
fn the_exported_number_of_workers_does_not_fall_while_the_needs_are_unknown() {
    let known = ResourceNeeds { is_known: true, wanted_workers: 3, ..ResourceNeeds::default() };
    let unknown = ResourceNeeds { wanted_workers: 1, ..ResourceNeeds::default() };
    assert_eq!(exported_workers(&known, 8, 0, 9.0), 3.0);
    assert_eq!(exported_workers(&unknown, 8, FIRST_REPORTS_MS, 3.0), 8.0);
    assert_eq!(exported_workers(&unknown, 0, FIRST_REPORTS_MS, 3.0), 3.0, "the workers have missed reports");
    assert_eq!(exported_workers(&unknown, 2, FIRST_REPORTS_MS, ABSENT), 2.0);
    assert!(
        exported_workers(&unknown, 2, 0, 0.0).is_nan(),
        "not all workers have reported to the new leader"
    );
}

#[tokio::test(start_paused = true)]
async fn planning_ends_with_the_driver_and_with_stop() {
    let second = Duration::from_secs(1);
    let (commands, receiver) = mpsc::channel(1);
    drop(receiver);
    let how = PlanningSettings { interval: second, auto_cache: true, settings: PlannerSettings::default() };
    run(commands, PlanOutputs::default(), how, None, Arc::default(), CancellationToken::new()).await;
    let (commands, mut receiver) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let outputs = PlanOutputs::default();
    let mut seen = outputs.views.subscribe();
    let task = tokio::spawn(run(commands, outputs, how, None, Arc::default(), stop.clone()));
    for _ in 0..3 {
        let Some(DriverCommand::Observe { reply }) = receiver.recv().await else {
            panic!("it asks for reports")
        };
        reply.send(Some(LeaderSamples { term: 1, now: 9, samples: Box::default() })).unwrap();
    }
    seen.changed().await.unwrap();
    assert_eq!(seen.borrow().now_ms, 9, "each look is published");
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_series_of_jobs_disappear_with_leadership() {
    let (commands, mut receiver) = mpsc::channel(1);
    let how = PlanningSettings {
        interval: Duration::from_secs(1),
        auto_cache: true,
        settings: PlannerSettings::default(),
    };
    let outputs = PlanOutputs::default();
    let series = JobSeries { name: WANTED_WORKERS, labels: Vec::new(), value: 1.0 };
    let (mut views, mut jobs) = (outputs.views.subscribe(), outputs.job_series.subscribe());
    // The series of an earlier plan.
    let earlier = outputs.job_series.clone();
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(commands, outputs, how, None, Arc::default(), stop.clone()));
    let mut answer = async |samples| match receiver.recv().await {
        Some(DriverCommand::Observe { reply }) => reply.send(samples).unwrap(),
        _ => panic!("it asks for reports"),
    };
    answer(Some(LeaderSamples { term: 1, now: 9, samples: Box::default() })).await;
    views.changed().await.unwrap();
    earlier.send_replace([series].into());
    jobs.mark_unchanged();
    answer(None).await;
    jobs.changed().await.unwrap();
    assert!(jobs.borrow().is_empty());
    stop.cancel();
    task.await.unwrap();
}
