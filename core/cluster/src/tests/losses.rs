//! Tests of lost workers: a split or task that crashes each worker is given up, and nothing else is blamed.

use super::*;

/// A running job on workers, of which some are dead: they never report again.
struct LossBench {
    bench: Bench,
    job: JobId,
    live: BTreeSet<u64>,
}

impl LossBench {
    fn new(spec: &JobSpec, workers: u64) -> Self {
        let (bench, job) = Bench::running(spec, 64);
        let mut this = Self { bench, job, live: (1..=workers).collect() };
        this.report_all();
        this.bench.consumer(consumer_report(job, 0));
        this
    }

    /// All live workers report that they have seen their plans, and have computed nothing.
    fn report_all(&mut self) {
        for worker in self.live.clone() {
            let number = self.bench.cluster.workers.get(&WorkerId(worker)).map_or(0, |found| found.revision);
            let plan_revision = Revision { incarnation: INCARNATION, number };
            self.bench.worker(WorkerReport { plan_revision, ..report(worker) });
        }
    }

    /// Passes time, in which the live workers and the consumer report.
    fn pass(&mut self, ms: Millis) {
        for _ in 0..ms / 500 {
            self.bench.pass(500);
            self.report_all();
            self.bench.consumer(consumer_report(self.job, 0));
        }
    }

    fn holder(&self, split: SplitRef) -> Option<u64> {
        let lease = self.bench.cluster.jobs[&self.job].leases.get(split)?;
        lease.only_holder().map(|holder| holder.worker.0)
    }

    /// The holder of a split crashes, and the consumer cannot reach it.
    fn crash(&mut self, split: SplitRef) -> u64 {
        let worker = self.holder(split).expect("the split is leased");
        self.live.remove(&worker);
        let unreachable = vec![(split, WorkerId(worker))];
        self.bench.consumer(ConsumerReport { unreachable, ..consumer_report(self.job, 0) });
        self.bench.pass(1);
        self.report_all();
        worker
    }

    fn losses(&self, split: SplitRef) -> u32 {
        self.bench.cluster.jobs[&self.job].suspects.losses(split)
    }

    fn lost_records(&self) -> usize {
        let is_lost = |record: &&Record| matches!(record, Record::Revoked { lost: true, .. });
        self.bench.records.iter().filter(is_lost).count()
    }
}

#[test]
fn a_split_that_crashes_its_workers_is_given_up_after_three() {
    let mut bench = LossBench::new(&spec(4, 1), 6);
    let poison = split(0, 0);
    bench.crash(poison);
    assert_eq!(bench.losses(poison), 1);
    assert!(bench.holder(poison).is_some(), "one loss is not evidence");
    bench.crash(poison);
    let alone = bench.holder(poison).expect("it runs alone");
    assert_eq!(bench.bench.held(alone), [poison]);
    bench.pass(1_000);
    assert_eq!(bench.bench.held(alone), [poison], "the worker gets no other split");
    bench.crash(poison);
    assert_eq!((bench.losses(poison), bench.holder(poison)), (3, None), "the losses are not confirmed");
    bench.pass(3_500);
    assert_eq!(bench.live.len(), 3);
    let last = bench.holder(poison).expect("a worker reports its rows as failed");
    let plan = bench.bench.cluster.worker_plan(WorkerId(last));
    let lease = plan.leases.iter().find(|lease| lease.split == poison).expect("it is planned");
    assert_eq!(lease.lost_workers, 3);
    assert!(bench.bench.held(last).len() > 1, "the worker is not reserved");
    let later = (1..5).map(|ordinal| bench.losses(split(0, ordinal))).max();
    assert!(later < Some(3), "no other split is given up");
}

#[test]
fn a_lost_worker_without_the_suspect_excuses_one_loss() {
    let mut bench = LossBench::new(&spec(4, 1), 8);
    let poison = split(0, 0);
    for _ in 0..2 {
        bench.crash(poison);
        bench.pass(4_000);
    }
    let alone = bench.holder(poison).expect("it runs alone");
    let has_suspect = |bench: &LossBench, worker: u64| {
        let lost = |split: &SplitRef| bench.losses(*split) > 0;
        bench.bench.held(worker).iter().any(lost)
    };
    let live = bench.live.clone();
    let other = live.iter().find(|worker| **worker != alone && !has_suspect(&bench, **worker));
    bench.live.remove(other.expect("a worker has only other splits"));
    bench.pass(4_000);
    bench.crash(poison);
    bench.pass(4_000);
    assert_eq!(bench.losses(poison), 2, "workers are lost for another reason");
    bench.crash(poison);
    bench.pass(4_000);
    assert_eq!(bench.losses(poison), 3);
}

#[test]
fn third_losses_do_not_count_after_a_failover() {
    let mut bench = LossBench::new(&spec(4, 1), 6);
    let poison = split(0, 0);
    for _ in 0..2 {
        bench.crash(poison);
        bench.pass(4_000);
    }
    let (snapshot, now) = (bench.bench.cluster.snapshot(), bench.bench.now);
    bench.bench.cluster = Cluster::restore(ClusterSettings::default(), INCARNATION, now, snapshot);
    bench.report_all();
    bench.pass(2_000);
    bench.crash(poison);
    bench.pass(4_000);
    assert_eq!(bench.losses(poison), 2);
    bench.pass(60_000);
    bench.crash(poison);
    bench.pass(4_000);
    assert_eq!(bench.losses(poison), 3);
}

#[test]
fn the_settings_determine_the_number_of_losses() {
    let mut bench = LossBench::new(&spec(4, 1), 8);
    bench.bench.cluster.settings.limits.lost_workers = 5;
    let poison = split(0, 0);
    let losses: Vec<u32> = (0..5)
        .map(|_| {
            bench.crash(poison);
            bench.pass(4_000);
            bench.losses(poison)
        })
        .collect();
    assert_eq!(losses, [1, 2, 2, 2, 3]);
}

#[test]
fn splits_that_were_lost_with_the_suspect_are_not_given_up() {
    let mut bench = LossBench::new(&spec(4, 1), 1);
    let (poison, innocent) = (split(0, 0), split(0, 1));
    assert_eq!((bench.holder(poison), bench.holder(innocent)), (Some(1), Some(1)));
    // One worker holds both splits each time, until the suspect runs alone.
    for worker in 2..=3 {
        bench.crash(poison);
        bench.pass(4_000);
        bench.live.insert(worker);
        bench.pass(1_000);
    }
    assert_eq!((bench.losses(poison), bench.losses(innocent)), (2, 2));
    assert_eq!((bench.holder(poison), bench.holder(innocent)), (Some(3), None));
    bench.crash(poison);
    bench.pass(4_000);
    bench.live.extend([4, 5]);
    bench.pass(1_000);
    assert_eq!((bench.losses(poison), bench.losses(innocent)), (3, 2));
}

#[test]
fn a_worker_that_is_only_unreachable_is_not_lost() {
    let mut bench = LossBench::new(&spec(4, 1), 3);
    let first = split(0, 0);
    for _ in 0..5 {
        let worker = bench.crash(first);
        assert_eq!(bench.losses(first), 1);
        bench.live.insert(worker);
        bench.report_all();
        assert_eq!(bench.losses(first), 0, "the worker has seen its new plan");
    }
    assert_eq!(bench.lost_records(), 0);
}

#[test]
fn a_worker_that_reports_after_its_expiry_withdraws_its_losses() {
    let mut bench = LossBench::new(&spec(4, 1), 3);
    let first = split(0, 0);
    let worker = bench.holder(first).expect("it is leased");
    bench.live.remove(&worker);
    bench.pass(4_000);
    assert_eq!((bench.losses(first), bench.lost_records()), (1, 1));
    bench.live.insert(worker);
    bench.report_all();
    assert_eq!(bench.losses(first), 0);
    let snapshot = bench.bench.cluster.snapshot();
    let restored = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, snapshot);
    assert!(restored.jobs[&bench.job].suspects.is_empty());
}

#[test]
fn a_split_that_a_lost_worker_never_received_is_not_at_fault() {
    let mut bench = LossBench::new(&spec(4, 1), 2);
    let first = bench.holder(split(0, 0)).expect("it is leased");
    let second = 3 - first;
    // The second worker is dead, but its lease has not expired, so that it still receives leases.
    let own = *bench.bench.held(second).first().expect("it has leases");
    assert_eq!(bench.crash(own), second);
    bench.crash(split(0, 0));
    assert_eq!(bench.holder(split(0, 0)), Some(second), "no other worker is left");
    bench.bench.pass(4_000);
    assert_eq!(bench.losses(split(0, 0)), 1, "only the first worker had the split in its plan");
}

#[test]
fn a_draining_worker_and_computed_splits_do_not_count() {
    let mut bench = LossBench::new(&spec(4, 1), 2);
    let draining = bench.holder(split(0, 0)).expect("it is leased");
    bench.bench.worker(WorkerReport { draining: true, ..report(draining) });
    bench.live.remove(&draining);
    bench.pass(4_000);
    assert_eq!((bench.losses(split(0, 0)), bench.lost_records()), (0, 0));
    let other = bench.holder(split(0, 0)).expect("it moved");
    let computed = vec![(bench.job, split(0, 0))];
    bench.bench.worker(WorkerReport { computed, ..report(other) });
    bench.live.clear();
    bench.pass(4_000);
    assert_eq!((bench.losses(split(0, 0)), bench.losses(split(0, 1))), (0, 1));
}

#[test]
fn losses_survive_a_failover_and_a_failover_adds_none() {
    let mut bench = LossBench::new(&spec(4, 1), 2);
    let first = split(0, 0);
    bench.crash(first);
    bench.pass(4_000);
    assert_eq!(bench.losses(first), 1);
    let snapshot = bench.bench.cluster.snapshot();
    let mut restored =
        Cluster::restore(ClusterSettings::default(), INCARNATION + 1, bench.bench.now, snapshot);
    assert_eq!(restored.jobs[&bench.job].suspects.losses(first), 1);
    let mut ready = Ready::default();
    restored.step(bench.bench.now + 4_000, Input::Tick, &mut ready);
    assert!(matches!(ready.records[..], [Record::Revoked { lost: false, .. }, ..]), "{:?}", ready.records);
    assert_eq!(
        restored.jobs[&bench.job].suspects.losses(first),
        1,
        "the worker never reported to this leader"
    );
}

#[test]
fn delivered_splits_are_forgotten() {
    let mut bench = LossBench::new(&spec(4, 1), 3);
    bench.crash(split(0, 0));
    bench.pass(4_000);
    assert_eq!(bench.losses(split(0, 0)), 1);
    let positions = vec![(0, StreamPosition { epoch: 0, row: 64 })];
    bench.bench.consumer(ConsumerReport { positions, ..consumer_report(bench.job, 0) });
    assert!(bench.bench.cluster.jobs[&bench.job].suspects.is_empty());
}

#[test]
fn a_job_that_skips_rows_gives_up_few_splits() {
    let mut skipping = spec(4, 1);
    skipping.pipeline.on_error = OnError::Skip;
    let mut bench = LossBench::new(&skipping, 1);
    let mut ready = Ready::default();
    for ordinal in 0..4 {
        assert_eq!(bench.bench.status(bench.job).state, JobState::Running);
        for worker in 10..13 {
            bench.bench.cluster.revoke_lost(bench.job, WorkerId(worker), vec![split(0, ordinal)], &mut ready);
        }
    }
    match bench.bench.status(bench.job).state {
        JobState::Failed(message) => {
            assert!(
                message.starts_with("4 groups of rows of the job have crashed their workers"),
                "{message}"
            );
        }
        other => panic!("not failed: {other:?}"),
    }
}

#[test]
fn a_shard_that_crashes_its_workers_fails_the_job_by_name() {
    let mut bench = Bench::new();
    let manifest = manifest(&[3; 20]);
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    let plan = bench.worker(report(1)).expect("the listing");
    let mut plan = bench
        .worker(WorkerReport {
            plan_revision: plan.revision,
            tasks: vec![listed(plan.tasks[0].id, &manifest)],
            ..report(1)
        })
        .expect("tasks follow");
    let bad = "file:///d/7";
    let has_bad = |task: &feedline_data::messages::Task| {
        task.shards.as_ref().is_some_and(|shards| shards.iter().any(|shard| shard.url == bad))
    };
    let mut lost = 0;
    for worker in 2..40 {
        if !plan.tasks.iter().any(has_bad) {
            // These tasks finish, and the worker asks again.
            let index = |object: &ShardRef| {
                manifest.shards.iter().find(|shard| shard.object == *object).expect("listed").to_indexed()
            };
            let done = |task: &feedline_data::messages::Task| TaskResult {
                id: task.id,
                outcome: Ok(TaskOutput::Indexed(task.shards.iter().flatten().map(index).collect())),
            };
            let tasks = plan.tasks.iter().map(done).collect();
            let report = WorkerReport { plan_revision: plan.revision, tasks, ..report(worker - 1) };
            bench.now += 100;
            match bench.worker(report.clone()) {
                Some(next) => plan = next,
                None => {
                    bench.pass(500);
                    plan = bench.cluster.worker_plan(report.worker);
                }
            }
            if !plan.tasks.iter().any(has_bad) {
                bench.worker(WorkerReport { draining: true, ..report });
            }
        }
        if plan.tasks.iter().any(has_bad) {
            lost += 1;
            if lost == 3 {
                assert_eq!(plan.tasks.len(), 1, "the suspect runs alone");
            }
        }
        bench.pass(3_001);
        if matches!(bench.status(job).state, JobState::Failed(_)) {
            break;
        }
        plan = bench.worker(report(worker)).unwrap_or_else(|| bench.cluster.worker_plan(WorkerId(worker)));
        if plan.tasks.is_empty() {
            bench.pass(1);
            plan = bench.cluster.worker_plan(WorkerId(worker));
        }
    }
    match bench.status(job).state {
        JobState::Failed(message) => assert!(
            message.starts_with("3 workers were lost one after another while they indexed file:///d/7; "),
            "{message}"
        ),
        other => panic!("not failed after {lost} losses: {other:?}"),
    }
    assert_eq!(lost, 3);
}

/// Two shards that are indexed for more than the time for which a worker is reserved.
#[test]
fn a_suspect_shard_keeps_its_worker_until_it_is_indexed() {
    let mut bench = Bench::new();
    let manifest = manifest(&[3; 2]);
    bench.open(&spec(4, 1)).expect("a valid job");
    let plan = bench.worker(report(1)).expect("the listing");
    let listing = vec![listed(plan.tasks[0].id, &manifest)];
    bench.worker(WorkerReport { plan_revision: plan.revision, tasks: listing, ..report(1) });
    bench.pass(3_001);
    let plan = bench.worker(report(2)).expect("the tasks of the lost worker");
    assert_eq!(plan.tasks.iter().flat_map(|task| task.shards.iter().flatten()).count(), 2);
    bench.pass(3_001);
    bench.worker(report(3));
    let tasks = |bench: &mut Bench| {
        bench.pass(500);
        bench.worker(report(3));
        let plan = bench.cluster.worker_plan(WorkerId(3));
        plan.tasks.iter().map(|task| task.id).collect::<Vec<_>>()
    };
    let first = tasks(&mut bench);
    assert_eq!(first.len(), 1, "it runs alone");
    for _ in 0..30 {
        assert_eq!(tasks(&mut bench), first);
    }
}

#[test]
fn a_job_that_prepares_ends_without_its_client() {
    for index_only in [false, true] {
        let mut bench = Bench::new();
        let job = bench.open(&JobSpec { index_only, ..spec(4, 1) }).expect("a valid job");
        bench.pass(3_600_000);
        assert!(matches!(bench.cluster.job_state(&bench.cluster.jobs[&job]), JobState::Preparing { .. }));
        bench.pass(1);
        match bench.cluster.job_state(&bench.cluster.jobs[&job]) {
            JobState::Failed(message) => assert!(message.contains("in the last 60 minutes"), "{message}"),
            other => panic!("not failed: {other:?}"),
        }
    }
    let mut bench = Bench::new();
    let job = bench.open(&JobSpec { index_only: true, ..spec(4, 1) }).expect("a valid job");
    bench.pass(3_600_000);
    bench.status(job);
    bench.pass(3_600_000);
    assert!(matches!(bench.status(job).state, JobState::Preparing { .. }), "its client polls the status");
}

#[test]
fn a_listing_that_crashes_its_workers_fails_the_job() {
    let mut bench = Bench::new();
    let job = bench.open(&super::growing::unbounded(super::growing::options(), 1)).expect("a valid job");
    for worker in 1..=3 {
        let plan = bench.worker(report(worker)).expect("the listing task");
        assert_eq!(plan.tasks.len(), 1, "worker {worker} lists the topics");
        let before = bench.status(job).state;
        assert!(matches!(before, JobState::Preparing { .. }), "{before:?}");
        bench.pass(3_001);
    }
    match bench.status(job).state {
        JobState::Failed(message) => {
            assert!(
                message.contains("3 workers were lost one after another while they listed the source; "),
                "{message}"
            );
        }
        other => panic!("not failed: {other:?}"),
    }
}

/// A worker that is chosen for a suspect may be lost already.
#[test]
fn a_loss_counts_for_splits_that_were_moved_before_it_was_known() {
    let mut bench = LossBench::new(&spec(4, 1), 2);
    let poison = split(0, 0);
    let first = bench.holder(poison).expect("it is leased");
    let second = 3 - first;
    let other = *bench.bench.held(second).first().expect("it has leases");
    bench.report_all();
    let mut ready = Ready::default();
    bench.bench.cluster.revoke_lost(bench.job, WorkerId(90), vec![poison], &mut ready);
    bench.live.clear();
    bench.crash(poison);
    assert_eq!((bench.bench.held(second), bench.losses(other)), (vec![poison], 0));
    bench.bench.pass(4_000);
    assert_eq!(bench.losses(other), 1);
}
