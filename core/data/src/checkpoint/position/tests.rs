//! Tests of positions: steps, the contents of a dataset, and the splits of indivisible batches.

use expect_test::expect;

use super::*;
use crate::manifest::{Block, ChecksumAlgorithm, Shard, ShardDigest, ShardIndex, ShardRef, StoreChecksum};
use crate::pipeline::Remainder;
use crate::schema::Schema;

/// Two streams of 6 rows, 3 steps of 2 rows, 2 epochs.
fn layout(dataset_rows: u64) -> Layout {
    Layout {
        dataset_rows,
        passes: 1,
        epochs: 2,
        streams: 2,
        batch_rows: 2,
        remainder: Remainder::Emit,
        changes_rows: false,
        split_rows: 4,
        group_rows: 2,
        coordinated: false,
        runs: Default::default(),
        mix_changes: Vec::new(),
        unbounded: false,
        indivisible: false,
    }
}

fn at_step(layout: &Layout, ranks: u32, epoch: u32, step: u64, streams_ahead: u32) -> Vec<(u32, u64)> {
    let fingerprints = Fingerprints {
        pipeline: "p".to_owned().into(),
        dataset: "d".to_owned(),
        content: ContentId::default(),
    };
    let position = Position::at_step(layout, fingerprints, JobStep { ranks, epoch, step, streams_ahead });
    position.streams.iter().map(|stream| (stream.epoch, stream.row)).collect()
}

#[test]
fn a_step_determines_the_position_of_every_stream() {
    let layout = layout(12);
    assert_eq!(at_step(&layout, 1, 0, 1, 0), [(0, 2), (0, 2)]);
    assert_eq!(at_step(&layout, 1, 0, 2, 1), [(1, 0), (0, 4)], "the first stream has delivered step 2");
    assert_eq!(at_step(&layout, 2, 0, 2, 1), [(1, 0), (1, 0)], "the first stream of each rank");
    assert_eq!(at_step(&layout, 1, 0, 3, 0), [(1, 0), (1, 0)]);
    assert_eq!(at_step(&layout, 1, 1, 3, 0), [(2, 0), (2, 0)]);
    assert_eq!(at_step(&layout, 1, u32::MAX, u64::MAX, 0), [(2, 0), (2, 0)]);
}

#[test]
fn a_position_of_indivisible_batches_contains_the_length_of_splits_and_is_between_batches() {
    let manifest = dataset(1, "v1", true);
    let dataset = manifest.summary();
    let layout = Layout { indivisible: true, ..layout(13) };
    let position = |step: u64| {
        let fingerprints = Fingerprints {
            pipeline: "p".to_owned().into(),
            dataset: dataset.fingerprint.clone(),
            content: dataset.content.clone(),
        };
        Position::at_step(&layout, fingerprints, JobStep { ranks: 1, epoch: 0, step, streams_ahead: 0 })
    };
    let check = |position: &Position, layout: &Layout| {
        position.check(&"p".to_owned().into(), false, &dataset, OrderMode::Deterministic, layout)
    };
    for step in 0..5 {
        assert_eq!(check(&position(step), &layout), Ok(()), "{step}");
    }
    let saved = position(1);
    assert_eq!((saved.split_rows, saved.stored_split_rows()), (Some(4), Some(4)));
    let longer = Layout { split_rows: 6, ..layout.clone() };
    assert_eq!(check(&saved, &longer.clone().resumed(4)), Ok(()));
    expect![
        "invalid position: its splits have 4 rows, but those of the job have 6; use an unmodified checkpoint"
    ]
    .assert_eq(&check(&saved, &longer).expect_err("another length"));
    let without = Position { split_rows: None, ..saved.clone() };
    assert!(check(&without, &layout).is_err());
    let mut within = saved;
    within.streams[1].row = 3;
    expect!["invalid position: row 3 of virtual consumer 1 is within a batch of 2 rows; use an unmodified checkpoint"]
        .assert_eq(&check(&within, &layout).expect_err("a batch cannot be divided"));
}

#[test]
fn a_job_without_rows_is_at_its_end() {
    let layout = Layout { epochs: 1_000_000, ..layout(0) };
    assert_eq!(at_step(&layout, 1, 0, 0, 0), [(1_000_000, 0); 2]);
}

/// A dataset of one shard, whose index read all of it or only a part.
fn dataset(content: u8, version: &str, is_whole: bool) -> Manifest {
    let url = "s3://b/rows".to_owned();
    let object = ShardRef { url, size_bytes: 10, version: version.to_owned(), ..ShardRef::default() };
    let blocks = vec![Block { rows: 12, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() }];
    let index = ShardIndex { blocks, schema: None, defects: Vec::new(), ..ShardIndex::default() };
    let hash = [content; 32];
    let digest = Some(if is_whole { ShardDigest::Whole(hash) } else { ShardDigest::Parts(hash) });
    Manifest { schema: Schema::default(), shards: vec![Shard { object, index, digest }] }
}

fn position_in(dataset: &Manifest) -> Position {
    let DatasetSummary { fingerprint, content, .. } = dataset.summary();
    let fingerprints = Fingerprints { pipeline: "p".to_owned().into(), dataset: fingerprint, content };
    Position::at_step(&layout(12), fingerprints, JobStep { ranks: 1, epoch: 0, step: 0, streams_ahead: 0 })
}

fn check(saved: &Manifest, now: &Manifest, is_known: bool, accept_reuploaded: bool) -> Result<(), String> {
    let position = position_in(saved);
    position.check_content(&now.summary(), now, is_known.then_some(saved), accept_reuploaded)?;
    position.check(&"p".to_owned().into(), false, &now.summary(), OrderMode::Deterministic, &layout(12))
}

#[test]
fn a_shard_with_the_same_bytes_is_the_same_although_it_was_written_again() {
    let (saved, again) = (dataset(1, "v1", true), dataset(1, "v2", true));
    assert_eq!(check(&saved, &saved, true, false), Ok(()));
    assert_eq!(check(&saved, &again, false, false), Ok(()));
}

#[test]
fn other_bytes_are_rejected_with_the_names_of_the_shards() {
    let (saved, now) = (dataset(1, "v1", true), dataset(2, "v2", true));
    expect!["the dataset changed since the position was saved: 1 shard was rewritten (s3://b/rows); restore the original shards, or start without the position"]
        .assert_eq(&check(&saved, &now, true, true).expect_err("the bytes differ"));
    let unnamed = check(&saved, &now, false, false).expect_err("the bytes differ");
    assert!(
        unnamed.contains("with 12 rows in 1 shards") && unnamed.contains("to name the shards"),
        "{unnamed}"
    );
}

#[test]
fn a_shard_that_was_read_in_part_and_written_again_must_be_accepted() {
    let (saved, again) = (dataset(1, "v1", false), dataset(1, "v2", false));
    assert_eq!(check(&saved, &saved, true, false), Ok(()));
    assert_eq!(check(&saved, &again, false, true), Ok(()));
    expect!["the dataset may have changed since the position was saved: 1 shard was rewritten (s3://b/rows); indexing reads only parts of these shards, and these parts are equal: if the same data was written again, resume with `--accept-reuploaded`, or `accept_reuploaded=True` in Python; otherwise restore the original shards, or start without the position"]
        .assert_eq(&check(&saved, &again, true, false).expect_err("it may have changed"));
    let changed = dataset(2, "v2", false);
    assert!(check(&saved, &changed, true, true).is_err(), "the parts differ");
}

#[test]
fn a_shard_with_the_same_checksum_in_the_store_is_the_same_although_it_was_written_again() {
    let checked = |checksum, version| {
        let mut dataset = dataset(1, version, false);
        let checksum = StoreChecksum::new(ChecksumAlgorithm::Crc64Nvme, 0, &[checksum; 8]);
        let shard = &mut dataset.shards[0];
        shard.digest = shard.digest.map(|digest| digest.with_checksum(checksum));
        dataset
    };
    let saved = checked(1, "v1");
    assert_eq!(check(&saved, &checked(1, "v2"), false, false), Ok(()));
    expect!["the dataset changed since the position was saved: 1 shard was rewritten (s3://b/rows); restore the original shards, or start without the position"]
        .assert_eq(&check(&saved, &checked(2, "v2"), true, true).expect_err("the bytes differ"));
    let unchecked = dataset(1, "v1", false);
    assert_eq!(check(&unchecked, &saved, false, false), Ok(()), "the store added a checksum");
    assert_eq!(check(&saved, &unchecked, false, false), Ok(()), "the store removed a checksum");
}

#[test]
fn another_checksum_of_one_shard_is_a_change_if_the_kind_of_another_differs() {
    let dataset = |version: &str, first: Option<StoreChecksum>, second: u8| {
        let mut both = dataset(1, version, false);
        let mut other = both.shards[0].clone();
        other.object.url.push('2');
        both.shards.push(other);
        let second = StoreChecksum::new(ChecksumAlgorithm::Crc64Nvme, 0, &[second; 8]);
        for (shard, checksum) in both.shards.iter_mut().zip([first, second]) {
            shard.digest = shard.digest.map(|digest| digest.with_checksum(checksum));
        }
        both
    };
    let composite = |parts| StoreChecksum::new(ChecksumAlgorithm::Sha256, parts, &[7; 32]);
    for (before, after) in [(composite(2), composite(3)), (None, composite(2)), (composite(2), None)] {
        let saved = dataset("v1", before, 1);
        assert_eq!(check(&saved, &dataset("v2", after, 1), true, true), Ok(()));
        let message = check(&saved, &dataset("v2", after, 2), true, true).expect_err("the bytes differ");
        assert!(
            message.starts_with("the dataset changed since") && message.contains("s3://b/rows2"),
            "{message}"
        );
    }
}

#[test]
fn a_position_of_an_earlier_release_is_compared_by_fingerprint() {
    let now = dataset(2, "v2", true);
    let mut position = position_in(&dataset(1, "v1", true));
    position.content = ContentId::default();
    let is_accepted = |position: &Position| {
        position.check_content(&now.summary(), &now, None, false)?;
        position.check(&"p".to_owned().into(), false, &now.summary(), OrderMode::Deterministic, &layout(12))
    };
    assert_eq!(is_accepted(&position), Ok(()));
    position.dataset = "another".to_owned();
    assert!(is_accepted(&position).is_err_and(|error| error.contains("fingerprint another")));
}
