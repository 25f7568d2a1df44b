//! Tests of datasets that change: which shards are indexed again, and whether a job resumes.

use expect_test::expect;
use feedline_data::manifest::{ChecksumAlgorithm, StoreChecksum};

use super::preparing::{prepare, results};
use super::*;

/// A shard with another version and another number of rows.
fn rewritten(manifest: &Manifest, number: usize, rows: u32) -> Manifest {
    let mut changed = manifest.clone();
    let Shard { mut object, mut index, .. } = changed.shards[number].clone();
    object.version = "2".to_owned();
    index.blocks[0].rows = rows;
    changed.shards[number] = Shard::simulated(object, index);
    changed
}

/// The shards that the tasks of a preparation index.
fn indexed_shards(bench: &mut Bench, manifest: &Manifest) -> Vec<String> {
    let mut urls = Vec::new();
    loop {
        let plan = bench.worker(report(1)).expect("a plan");
        let tasks = results(&plan, manifest);
        if tasks.is_empty() {
            return urls;
        }
        let shards = plan.tasks.iter().filter_map(|task| task.shards.as_ref()).flatten();
        urls.extend(shards.map(|shard| shard.url.clone()));
        bench.worker(WorkerReport { tasks, ..report(1) });
    }
}

#[test]
fn only_changed_and_new_shards_are_indexed_again() {
    let saved = manifest(&[8; 40]);
    let mut now = rewritten(&rewritten(&saved, 3, 5), 30, 6);
    now.shards.remove(1);
    let added = manifest(&[8; 41]).shards.remove(40);
    now.shards.push(added);
    let mut bench = Bench::new();
    let job = bench.open_with(&spec(4, 1), Some(Arc::new(saved))).expect("a valid job");
    assert_eq!(indexed_shards(&mut bench, &now), ["file:///d/3", "file:///d/30", "file:///d/40"]);
    let dataset = bench.status(job).dataset.expect("it is indexed");
    assert_eq!(bench.manifests.last().map(|index| &*index.manifest), Some(&now));
    assert_eq!((dataset.rows, dataset.index.as_str()), (8 * 38 + 11, now.index_id().as_str()));
    expect![
        "4 of 40 shards changed since they were indexed (2 rewritten, 1 added, 1 removed); indexed them again"
    ]
    .assert_eq(&dataset.changes.describe(dataset.shards));
    assert_eq!(bench.status(job).state, JobState::Running);
}

#[test]
fn removed_and_reordered_shards_need_no_task() {
    let saved = manifest(&[8, 7, 6]);
    let mut now = saved.clone();
    now.shards.remove(1);
    now.shards.reverse();
    let mut bench = Bench::new();
    let job = bench.open_with(&spec(4, 1), Some(Arc::new(saved))).expect("a valid job");
    assert_eq!(indexed_shards(&mut bench, &now), Vec::<String>::new());
    assert_eq!(bench.status(job).dataset.map(|dataset| dataset.rows), Some(14));
}

#[test]
fn an_index_of_an_earlier_release_is_built_again() {
    let mut saved = manifest(&[8, 8]);
    saved.shards[1].digest = None;
    let mut bench = Bench::new();
    let job = bench.open_with(&spec(4, 1), Some(Arc::new(saved))).expect("a valid job");
    assert_eq!(indexed_shards(&mut bench, &manifest(&[8, 8])), ["file:///d/1"]);
    assert!(bench.status(job).dataset.is_some_and(|dataset| dataset.changes.is_empty()));
}

/// The position of a job in a dataset.
fn start_in(manifest: &Manifest) -> feedline_data::checkpoint::Position {
    let mut bench = Bench::new();
    let job = bench.open(&spec(4, 1)).expect("a valid job");
    prepare(&mut bench, manifest);
    bench.status(job).position.expect("it runs")
}

/// Resumes in a dataset whose latest index is `saved`. Returns the state, and the number of saved indexes.
fn resume(
    saved: SavedIndexes,
    start: &Manifest,
    now: &Manifest,
    accept_reuploaded: bool,
) -> (JobState, usize) {
    let mut bench = Bench::new();
    let spec = JobSpec { start: Some(start_in(start)), accept_reuploaded, ..spec(4, 1) };
    let Some(Reply::Opened(job)) =
        bench.ask(|request| Input::OpenJob { request, spec: Box::new(spec), saved_index: saved })
    else {
        panic!("it is opened")
    };
    indexed_shards(&mut bench, now);
    (bench.status(job).state, bench.manifests.len())
}

#[test]
fn a_resume_continues_if_the_same_bytes_were_written_again() {
    let saved = manifest(&[8, 8]);
    let mut now = saved.clone();
    now.shards[0].object.version = "2".to_owned();
    let latest = || SavedIndexes::from(Some(Arc::new(saved.clone())));
    assert_eq!(resume(latest(), &saved, &now, false), (JobState::Running, 1), "the new index is saved");
    assert_eq!(resume(SavedIndexes::default(), &saved, &now, false), (JobState::Running, 1));
}

#[test]
fn a_resume_names_the_shards_that_changed() {
    let saved = manifest(&[8, 8]);
    let now = rewritten(&saved, 1, 8);
    let failed = |saved_index, start| match resume(saved_index, start, &now, true) {
        (JobState::Failed(message), 0) => message,
        other => panic!("it failed, and no index was saved: {other:?}"),
    };
    let named = "the dataset changed since the position was saved: 1 shard was rewritten (file:///d/1); restore the original shards, or start without the position";
    assert_eq!(failed(Some(Arc::new(saved.clone())).into(), &saved), named);
    let latest = Some(Arc::new(now.clone()));
    let saved_index = SavedIndexes { latest: latest.clone(), of_start: Some(Arc::new(saved.clone())) };
    assert_eq!(failed(saved_index, &saved), named, "another job has indexed the dataset since then");
    let unnamed = failed(latest.into(), &saved);
    assert!(unnamed.contains("is not available to name the shards"), "{unnamed}");
}

#[test]
fn a_resume_with_shards_that_were_read_in_part_must_be_accepted() {
    let mut saved = manifest(&[8, 8]);
    for shard in &mut saved.shards {
        shard.digest = shard.digest.map(|digest| ShardDigest::Parts(*digest.hash()));
    }
    let mut now = saved.clone();
    now.shards[0].object.version = "2".to_owned();
    let latest = || SavedIndexes::from(Some(Arc::new(saved.clone())));
    let (state, _) = resume(latest(), &saved, &now, false);
    assert!(
        matches!(&state, JobState::Failed(message) if message.contains("--accept-reuploaded") && message.contains("file:///d/0")),
        "{state:?}"
    );
    assert_eq!(resume(latest(), &saved, &now, true), (JobState::Running, 1));
    assert_eq!(resume(latest(), &saved, &saved, false), (JobState::Running, 1));
}

#[test]
fn a_resume_continues_if_the_store_has_the_same_checksum() {
    let with_checksum = |manifest: &Manifest, byte| {
        let mut manifest = manifest.clone();
        for shard in &mut manifest.shards {
            let checksum = StoreChecksum::new(ChecksumAlgorithm::Crc64Nvme, 0, &[byte; 8]);
            let parts = shard.digest.map(|digest| ShardDigest::Parts(*digest.hash()));
            shard.digest = parts.map(|digest| digest.with_checksum(checksum));
        }
        manifest
    };
    let saved = with_checksum(&manifest(&[8, 8]), 1);
    let mut now = saved.clone();
    now.shards[0].object.version = "2".to_owned();
    let latest = || SavedIndexes::from(Some(Arc::new(saved.clone())));
    assert_eq!(resume(latest(), &saved, &now, false), (JobState::Running, 1), "the new index is saved");
    now.shards[0] = with_checksum(&now, 2).shards[0].clone();
    let (state, _) = resume(latest(), &saved, &now, true);
    assert!(
        matches!(&state, JobState::Failed(message) if message.contains("1 shard was rewritten (file:///d/0)")),
        "{state:?}"
    );
}

#[test]
fn the_indexes_of_running_jobs_are_in_use() {
    let (mut bench, first) = Bench::running(&spec(4, 1), 8);
    let second = bench.open(&JobSpec { name: "second".to_owned(), ..spec(4, 1) }).expect("a valid job");
    prepare(&mut bench, &manifest(&[9]));
    let in_use = |bench: &Bench| bench.manifests.last().map(|index| index.in_use.clone());
    assert_eq!(in_use(&bench), Some(vec![manifest(&[8]).index_id()]));
    bench.ask(|request| Input::CancelJob { request, job: first });
    bench.open(&JobSpec { name: "third".to_owned(), ..spec(4, 1) }).expect("a valid job");
    prepare(&mut bench, &manifest(&[9]));
    assert_eq!(in_use(&bench), Some(vec![manifest(&[9]).index_id()]), "of the second job");
    assert_eq!(bench.status(second).state, JobState::Running);
}
