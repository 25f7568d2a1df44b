//! Tests of leases of datasets with long runs: all splits of a lane or of a file go to one worker.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::compression::{Codec, ShardCompression};

use super::*;

const WORKERS: [u64; 3] = [1, 2, 3];

/// Compressed files without access points, each with 400 rows.
fn runs(files: usize) -> Manifest {
    let mut manifest = manifest(&vec![1; files]);
    manifest.shards.iter_mut().for_each(compress);
    manifest
}

fn compress(shard: &mut Shard) {
    let block = |block: u64| Block {
        rows: 10,
        offset: block * 1_000_000,
        bytes: 1_000_000,
        group: 0,
        row_bytes: Vec::new(),
    };
    shard.index.blocks = (0..40).map(block).collect();
    shard.index.compression = Some(ShardCompression {
        codec: Codec::Zstd,
        content_bytes: 40_000_000,
        readable_bytes: 10,
        decoder_bytes: 1 << 20,
        points: Vec::new(),
    });
}

fn job_spec(window: u64) -> JobSpec {
    let mut spec = spec(4, 1);
    spec.pipeline.shuffle.window = window;
    spec
}

/// Computes and delivers splits until a number of splits is delivered. `pause` is called before each.
fn deliver(
    bench: &mut Bench,
    job: JobId,
    splits: std::ops::Range<u64>,
    mut pause: impl FnMut(&mut Bench, u64),
) {
    let split_rows = bench.cluster.jobs[&job].layout.as_ref().expect("it runs").split_rows;
    for ordinal in splits {
        pause(bench, ordinal);
        let present: Vec<u64> = bench.cluster.workers.iter().map(|(id, _)| id.0).collect();
        for worker in present {
            let computed = bench.held(worker).into_iter().map(|split| (job, split)).collect();
            bench.worker(WorkerReport { computed, ..report(worker) });
        }
        let position = StreamPosition { epoch: 0, row: (ordinal + 1) * split_rows };
        let positions = vec![(0, position)];
        bench.consumer(ConsumerReport { positions, ..consumer_report(job, 0) });
    }
}

/// The workers to which the splits of each key were granted.
fn workers_by_key(bench: &Bench, job: JobId) -> BTreeMap<u64, BTreeSet<u64>> {
    let mut workers: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for worker in WORKERS {
        for split in bench.granted(worker) {
            if let Some(key) = bench.cluster.jobs[&job].run_key(split) {
                workers.entry(key).or_default().insert(worker);
            }
        }
    }
    workers
}

#[test]
fn all_splits_of_a_run_go_to_one_worker() {
    for window in [0, 8] {
        let mut bench = Bench::new();
        WORKERS.into_iter().for_each(|worker| _ = bench.worker(report(worker)));
        let manifest = runs(8);
        let saved = Arc::new(manifest.clone());
        let job = bench.open_with(&job_spec(window), Some(saved)).expect("a valid job");
        let listing = WORKERS.into_iter().find_map(|worker| {
            let plan = bench.worker(report(worker))?;
            Some((worker, plan.tasks.first()?.id))
        });
        let (worker, task) = listing.expect("the listing task");
        bench.worker(WorkerReport { tasks: vec![listed(task, &manifest)], ..report(worker) });
        deliver(&mut bench, job, 0..50, |_, _| ());
        let workers = workers_by_key(&bench, job);
        assert!(workers.len() > 2 && workers.values().all(|workers| workers.len() == 1), "{workers:?}");
        let used: BTreeSet<&u64> = workers.values().flatten().collect();
        assert_eq!(used.len(), 3, "window {window}: {workers:?}");
    }
}

#[test]
fn the_lanes_of_a_lost_worker_move_and_a_new_worker_receives_some() {
    let (mut bench, job) = Bench::running_on(&job_spec(8), runs(8));
    let start = bench.records.len();
    deliver(&mut bench, job, 0..60, |bench, ordinal| match ordinal {
        20 => _ = bench.worker(report(2)),
        40 => {
            bench.pass(2_000);
            bench.worker(report(2));
            bench.consumer(consumer_report(job, 0));
            bench.pass(1_001);
        }
        _ => {}
    });
    assert!(!bench.records[start..].is_empty());
    let workers = workers_by_key(&bench, job);
    let moved = workers.values().filter(|workers| workers.len() == 2).count();
    assert_eq!((workers.len(), moved), (8, 8), "each lane was on worker 1, and is on worker 2: {workers:?}");
    assert_eq!(bench.cluster.workers.iter().count(), 1);
}

#[test]
fn a_new_worker_takes_over_the_splits_outside_of_long_runs() {
    // The first four splits contain the rows of a file that is not compressed.
    let mut mixed = manifest(&[400, 1, 1, 1, 1, 1, 1, 1, 1]);
    mixed.shards[1..].iter_mut().for_each(compress);
    let (mut bench, job) = Bench::running_on(&job_spec(0), mixed);
    assert_eq!(bench.held(1), [split(0, 0), split(0, 1), split(0, 2)]);
    let has_key = |bench: &Bench, split: SplitRef| bench.cluster.jobs[&job].run_key(split).is_some();
    assert!(!has_key(&bench, split(0, 3)) && has_key(&bench, split(0, 4)));
    bench.worker(report(2));
    assert!(bench.held(1).starts_with(&[split(0, 0), split(0, 2)]));
    assert_eq!(bench.held(2)[0], split(0, 1), "it waited for the first split");

    let (mut bench, _) = Bench::running_on(&job_spec(0), runs(8));
    let before = bench.held(1);
    bench.worker(report(2));
    assert!(before.len() > 1 && before.iter().all(|split| bench.held(1).contains(split)));
}
