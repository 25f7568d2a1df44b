//! Tests of listing and indexing, and of the checks against the dataset.

use expect_test::expect;
use feedline_data::checkpoint::Position;
use feedline_data::layout::StreamPosition;
use feedline_data::manifest::{TopicRange, TopicRanges};
use feedline_data::messages::{index_key, saved_index_key};
use feedline_data::pipeline::{BatchParams, KafkaOptions, OperatorKind, Remainder, Repeat};

use super::*;

/// The results of all tasks of a plan, taken from a manifest.
pub(super) fn results(plan: &WorkerPlan, manifest: &Manifest) -> Vec<TaskResult> {
    let index = |object: &ShardRef| {
        manifest.shards.iter().find(|shard| shard.object == *object).expect("listed").to_indexed()
    };
    let result = |task: &feedline_data::messages::Task| match &task.shards {
        None => listed(task.id, manifest),
        Some(shards) => {
            TaskResult { id: task.id, outcome: Ok(TaskOutput::Indexed(shards.iter().map(index).collect())) }
        }
    };
    plan.tasks.iter().map(result).collect()
}

/// Lets one worker prepare a job.
pub(super) fn prepare(bench: &mut Bench, manifest: &Manifest) {
    let mut plan = bench.worker(report(1)).expect("a first plan");
    for _ in 0..100 {
        let tasks = results(&plan, manifest);
        if tasks.is_empty() {
            return;
        }
        plan = bench
            .worker(WorkerReport { plan_revision: plan.revision, tasks, ..report(1) })
            .expect("the plan changed");
    }
    panic!("preparing does not end");
}

fn failure(spec: &JobSpec, manifest: &Manifest) -> String {
    let mut bench = Bench::new();
    let job = bench.open(spec).expect("a valid job");
    prepare(&mut bench, manifest);
    match bench.status(job).state {
        JobState::Failed(message) => message,
        other => panic!("not failed: {other:?}"),
    }
}

/// The numbers of indexed shards, of listed shards and of workers.
#[track_caller]
fn preparing(bench: &mut Bench, job: JobId) -> (u64, u64, u32) {
    match bench.status(job).state {
        JobState::Preparing { indexed, shards, workers, .. } => (indexed, shards, workers),
        other => panic!("{other:?}"),
    }
}

#[test]
fn indexing_is_distributed_over_workers_and_saved() {
    let mut bench = Bench::new();
    let manifest = manifest(&[3; 70]);
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    assert_eq!(preparing(&mut bench, job), (0, 0, 0));
    assert_eq!((bench.cluster.samples().jobs.len(), bench.cluster.samples().preparing_jobs), (0, 1));
    let one = bench.worker(report(1)).expect("a first plan");
    assert_eq!(bench.worker(report(2)).expect("a first plan").tasks, [], "one worker lists");
    let tasks = results(&one, &manifest);
    let one =
        bench.worker(WorkerReport { plan_revision: one.revision, tasks, ..report(1) }).expect("tasks follow");
    let two = bench.worker(report(2)).expect("tasks follow");
    assert_eq!((one.tasks.len(), two.tasks.len()), (2, 2));
    assert_eq!(preparing(&mut bench, job), (0, 70, 2));
    let tasks = results(&one, &manifest);
    bench.worker(WorkerReport { tasks, ..report(1) });
    assert_eq!(preparing(&mut bench, job), (32, 70, 2));
    bench.worker(WorkerReport { tasks: results(&two, &manifest), ..report(2) });
    let one = bench.worker(report(1)).expect("the rest");
    bench.worker(WorkerReport { tasks: results(&one, &manifest), ..report(1) });
    assert_eq!(bench.status(job).state, JobState::Running);
    let key = source_key("", &spec(4, 1).pipeline.source);
    assert_eq!(bench.manifests, [IndexToSave { job, key, manifest: Arc::new(manifest), in_use: Vec::new() }]);
}

#[test]
fn an_index_that_cannot_be_saved_fails_the_job() {
    let mut bench = Bench::new();
    bench.saving = Err("the disk is full; free some disk space".to_owned());
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    prepare(&mut bench, &manifest(&[8]));
    assert_eq!(
        bench.status(job).state,
        JobState::Failed("the disk is full; free some disk space".to_owned())
    );
}

#[test]
fn a_job_waits_until_its_index_is_saved() {
    let mut bench = Bench::new();
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    let listing = bench.worker(report(1)).expect("the listing");
    bench.worker(WorkerReport { tasks: results(&listing, &manifest(&[8])), ..report(1) });
    let indexing = bench.worker(report(1)).expect("indexing");
    let tasks = results(&indexing, &manifest(&[8]));
    let (mut ready, report) = (Ready::default(), WorkerReport { tasks, ..report(1) });
    bench.cluster.step(0, Input::Worker { request: 99, report }, &mut ready);
    assert_eq!((ready.records.len(), ready.manifests.len()), (0, 1));
    bench.pass(1_000);
    assert_eq!(preparing(&mut bench, job), (1, 1, 1));
    bench.step(Input::IndexSaved { job, result: Ok(()) });
    bench.step(Input::IndexSaved { job, result: Err("a second result".to_owned()) });
    assert_eq!(bench.status(job).state, JobState::Running);
}

#[test]
fn the_tasks_of_an_expired_worker_move_to_another() {
    let mut bench = Bench::new();
    bench.open(&spec(4, 1)).expect("a valid job");
    let lost = bench.worker(report(1)).expect("the listing");
    bench.pass(2_000);
    assert_eq!(bench.worker(report(2)).expect("a first plan").tasks, []);
    bench.pass(2_000);
    assert_eq!(bench.worker(report(2)).expect("a plan").tasks, lost.tasks);
}

#[test]
fn tasks_of_ended_jobs_are_removed() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        let job = bench.open(&spec(4, 1)).expect("a valid job");
        assert_eq!(bench.worker(report(1)).expect("a plan").tasks.len(), 1);
        bench.ask(|request| Input::CancelJob { request, job });
        assert_eq!(bench.worker(report(1)).expect("a plan").tasks, []);
    }
}

#[test]
fn a_task_result_for_an_earlier_leader_is_ignored() {
    let mut bench = Bench::new();
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    let stale = bench.worker(report(1)).expect("the listing");
    bench.cluster = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, bench.records.clone());
    bench.worker(WorkerReport { tasks: results(&stale, &manifest(&[9])), ..report(1) });
    assert_eq!(preparing(&mut bench, job), (0, 0, 1));
}

#[test]
fn a_saved_index_that_is_still_valid_is_used() {
    let (bench, _) = Bench::running(&spec(4, 1), 8);
    assert_eq!(bench.manifests.len(), 1, "other coordinators may not have the index");
}

#[test]
fn reindex_also_ignores_the_saved_index_after_a_restart() {
    let spec = JobSpec { reindex: true, index_only: true, ..spec(4, 1) };
    let mut bench = Bench::new();
    let old = Arc::new(manifest(&[5]));
    let job = bench.open_with(&spec, Some(Arc::clone(&old))).expect("a valid job");
    bench.cluster = Cluster::restore(ClusterSettings::default(), INCARNATION + 1, 0, bench.records.clone());
    bench.cluster.set_saved_index(job, Some(old).into());
    prepare(&mut bench, &manifest(&[8]));
    assert_eq!(bench.status(job).state, JobState::Completed);
    assert_eq!(bench.manifests.len(), 1);
}

#[test]
fn defects_fail_the_job_or_are_skipped() {
    let mut damaged = manifest(&[8]);
    damaged.shards[0].index.defects.push(Defect { offset: 700, reason: "the last record is cut".to_owned() });
    expect!["shard file:///d/0 at byte 700: the last record is cut; repair the shard, or set `on_error: skip` to skip the rest of the shard"]
        .assert_eq(&failure(&spec(4, 1), &damaged));
    let mut skipping = spec(4, 1);
    skipping.pipeline.on_error = OnError::Skip;
    let mut bench = Bench::new();
    let job = bench.open(&skipping).expect("a valid job");
    prepare(&mut bench, &damaged);
    assert_eq!(bench.status(job).state, JobState::Running);
}

#[test]
fn a_job_with_an_incompatible_dataset_fails() {
    expect!["the job has 9 virtual consumers, but the dataset has only 8 rows; use fewer consumers"]
        .assert_eq(&failure(&spec(4, 9), &manifest(&[8])));
    let mut dropping = spec(4, 1);
    dropping.pipeline.operators =
        vec![OperatorKind::Batch(BatchParams { size: 16, remainder: Remainder::Drop }).into()];
    expect!["`remainder: drop` would drop all rows: the dataset has 8 rows, fewer than one batch of 16 rows for each of 1 consumers; use a smaller batch or `remainder: emit`"]
        .assert_eq(&failure(&dropping, &manifest(&[8])));
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    let start = bench.status(job).position;
    let other = JobSpec { start: start.clone(), ..spec(5, 1) };
    expect!["the position was saved with a different pipeline (the operator `batch` changed); use the original pipeline file, or continue with this one by `--accept-changed-pipeline`, or `accept_changed_pipeline=True` in Python"]
        .assert_eq(&failure(&other, &manifest(&[8])));
    let accepted = failure(&JobSpec { accept_changed_pipeline: true, ..other }, &manifest(&[8]));
    assert!(accepted.contains("`batch` must not change"), "{accepted}");
    let mut seeded = JobSpec { start, accept_changed_pipeline: true, ..spec(4, 1) };
    seeded.pipeline.seed += 1;
    let mut bench = Bench::new();
    let job = bench.open(&seeded).expect("a valid job");
    prepare(&mut bench, &manifest(&[8]));
    assert_eq!(bench.status(job).state, JobState::Running);
}

#[test]
fn a_job_that_starts_at_its_end_completes() {
    let (mut bench, job) = Bench::running(&spec(4, 1), 8);
    let mut start = bench.status(job).position.expect("it runs");
    start.streams = vec![StreamPosition { epoch: 1, row: 0 }];
    let mut bench = Bench::new();
    let job = bench.open(&JobSpec { start: Some(start), ..spec(4, 1) }).expect("a valid job");
    prepare(&mut bench, &manifest(&[8]));
    assert_eq!(bench.status(job).state, JobState::Completed);
}

#[test]
fn a_wrong_number_of_indexes_fails_the_job() {
    let mut bench = Bench::new();
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    let plan = bench.worker(report(1)).expect("the listing");
    bench.worker(WorkerReport { tasks: results(&plan, &manifest(&[8, 8])), ..report(1) });
    let plan = bench.worker(report(1)).expect("indexing");
    let outcome = Ok(TaskOutput::Indexed(Vec::new()));
    bench.worker(WorkerReport { tasks: vec![TaskResult { id: plan.tasks[0].id, outcome }], ..report(1) });
    assert!(matches!(bench.status(job).state, JobState::Failed(_)));
}

#[test]
fn a_dataset_with_many_shards_does_not_delay_other_tenants() {
    let mut bench = Bench::new();
    let (large, small) = (manifest(&[1; 1_600]), manifest(&[8]));
    let of = |tenant: &str| JobSpec { tenant: tenant.to_owned(), ..spec(1, 1) };
    let first = bench.open(&of("a")).expect("a valid job");
    let plan = bench.worker(report(1)).expect("a first plan");
    let tasks = results(&plan, &large);
    let mut plan = bench
        .worker(WorkerReport { plan_revision: plan.revision, tasks, ..report(1) })
        .expect("tasks follow");
    let second = bench.open(&of("b")).expect("a valid job");
    for _ in 0..4 {
        // One task finishes at a time.
        let task = plan.tasks.last().expect("there is much to do").clone();
        let is_second = task.shards.as_ref().is_none_or(|shards| shards.len() == 1);
        let one = WorkerPlan { tasks: vec![task], ..plan.clone() };
        let tasks = results(&one, if is_second { &small } else { &large });
        plan = bench.worker(WorkerReport { tasks, ..report(1) }).expect("the plan changed");
    }
    assert_eq!(bench.status(second).state, JobState::Running, "after a few tasks of the other job");
    let JobState::Preparing { indexed, .. } = bench.status(first).state else { panic!("it has much to do") };
    assert!(indexed < 1_600);
}

#[test]
fn too_many_rows_are_rejected() {
    let manifest = manifest(&[u32::MAX; 5_000]);
    let mut spec = spec(1, 1);
    spec.pipeline.operators.insert(0, OperatorKind::Repeat(Repeat { count: 1_000_000 }).into());
    let mut bench = Bench::new();
    let job = bench.open_with(&spec, Some(Arc::new(manifest.clone()))).expect("a valid job");
    let plan = bench.worker(report(1)).expect("there is a task");
    bench.worker(WorkerReport { tasks: vec![listed(plan.tasks[0].id, &manifest)], ..report(1) });
    let JobState::Failed(message) = bench.status(job).state else { panic!("it is not counted") };
    expect!["too many rows per epoch: 1000000 passes over 21474836475000 rows; use a smaller `repeat`"]
        .assert_eq(&message);
}

/// A worker may report any sizes.
#[test]
fn sums_of_impossible_shard_sizes_saturate() {
    let mut manifest = manifest(&[1, 1]);
    for shard in &mut manifest.shards {
        shard.object.size_bytes = u64::MAX;
        shard.index.blocks.iter_mut().for_each(|block| block.bytes = u64::MAX);
    }
    let mut bench = Bench::new();
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    prepare(&mut bench, &manifest);
    let status = bench.status(job);
    assert_eq!(status.state, JobState::Running);
    assert_eq!(status.dataset.map(|dataset| dataset.bytes), Some(u64::MAX));
}

/// A dataset of one Kafka partition.
fn partition(topic_id: &str, offsets: u32) -> Manifest {
    let range = TopicRange {
        url: "kafka://a:9092/events/0".to_owned(),
        range: format!("{topic_id}@0-{offsets}"),
        part: 0,
        block_rows: 4,
        row_bytes: 10,
    };
    let ranges = TopicRanges { columns: manifest(&[1]).schema, partitions: vec![range] };
    ranges.manifest().expect("a valid range")
}

#[test]
fn a_job_resumes_in_a_topic_with_the_offsets_of_its_position() {
    let mut spec = spec(4, 1);
    spec.pipeline.source = Source::kafka("kafka://a:9092").with_kafka(KafkaOptions::topic("events"));
    let recorded = partition("id", 8);
    let key = index_key("", &spec.pipeline.source, &recorded.fingerprint());
    let mut bench = Bench::new();
    let job = bench.open(&spec).expect("a valid job");
    prepare(&mut bench, &recorded);
    assert_eq!((bench.status(job).state, &bench.manifests[0].key), (JobState::Running, &key));
    let resumed = JobSpec { start: bench.status(job).position, ..spec };
    assert_eq!(saved_index_key(&resumed), Some(key));
    let state = |saved: Option<Manifest>, listed: &Manifest| {
        let mut bench = Bench::new();
        let job = bench.open_with(&resumed, saved.map(Arc::new)).expect("a valid job");
        prepare(&mut bench, listed);
        bench.status(job).state
    };
    let message = |state: JobState| match state {
        JobState::Failed(message) => message,
        other => panic!("not failed: {other:?}"),
    };
    assert_eq!(
        state(Some(recorded.clone()), &partition("id", 20)),
        JobState::Running,
        "the topic has more records"
    );
    assert_eq!(state(None, &partition("id", 20)), JobState::Running, "the position contains the offsets");
    let other = message(state(None, &partition("other", 8)));
    assert!(other.contains("was deleted and created again"), "{other}");
    let earlier = resumed.start.clone().map(|start| Position { ranges: None, ..start });
    let mut bench = Bench::new();
    let job = bench.open(&JobSpec { start: earlier, ..resumed.clone() }).expect("a valid job");
    prepare(&mut bench, &partition("id", 20));
    let unknown = message(bench.status(job).state);
    assert!(unknown.starts_with("the coordinators have no record of the offsets"), "{unknown}");
    let other = message(state(Some(recorded), &partition("other", 8)));
    assert!(other.contains("was deleted and created again: its id was id and is other now"), "{other}");
}

#[test]
fn only_the_position_of_a_topic_contains_its_offsets() {
    let mut spec = spec(4, 1);
    spec.pipeline.source = Source::kafka("kafka://a:9092").with_kafka(KafkaOptions::topic("events"));
    let mut bench = Bench::new();
    let job = bench.open(&spec).expect("a valid job");
    prepare(&mut bench, &partition("id", 8));
    let status = bench.status(job);
    let ranges = status.position.and_then(|position| position.ranges).expect("the job can resume");
    assert_eq!(ranges.partitions[0].range, "id@0-8");
    assert_eq!(status.dataset.map(|dataset| (dataset.rows, dataset.ranges)), Some((8, None)));
    match bench.ask(|request| Input::JobDetails { request, job }) {
        Some(Reply::Details(details)) => {
            assert_eq!((details.dataset.rows, details.dataset.ranges), (8, None))
        }
        other => panic!("not known: {other:?}"),
    }
}
