//! Tests of the comparison of an index with listed shards and with a later index.

use expect_test::expect;
use proptest::prelude::*;

use super::*;
use crate::manifest::{Block, ShardDigest, ShardIndex, ShardValue};
use crate::schema::Schema;

fn object(number: u32, version: u32) -> ShardRef {
    ShardRef {
        url: format!("s3://b/{number}"),
        size_bytes: 10,
        version: format!("v{version}"),
        ..ShardRef::default()
    }
}

/// Shards with these numbers and versions. The content of a shard is its version.
fn manifest(shards: &[(u32, u32)]) -> Manifest {
    let block = || Block { rows: 1, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() };
    let shard = |(number, version): &(u32, u32)| Shard {
        object: object(*number, *version),
        index: ShardIndex {
            blocks: vec![block()],
            schema: None,
            defects: Vec::new(),
            ..ShardIndex::default()
        },
        digest: Some(ShardDigest::of_bytes(&version.to_le_bytes())),
    };
    Manifest { schema: Schema::default(), shards: shards.iter().map(shard).collect() }
}

fn listed(shards: &[(u32, u32)]) -> Vec<ShardRef> {
    shards.iter().map(|(number, version)| object(*number, *version)).collect()
}

#[test]
fn unchanged_shards_keep_their_index() {
    let indexed = manifest(&[(1, 1), (2, 1), (3, 1)]);
    let same = indexed.reuse_for(&listed(&[(1, 1), (2, 1), (3, 1)]));
    assert!(same.is_complete(3) && same.changes.is_empty());
    let reuse = indexed.reuse_for(&listed(&[(0, 1), (1, 1), (3, 2)]));
    assert_eq!(reuse.indexed, [None, Some(0), None]);
    assert_eq!(reuse.changes, ShardChanges { rewritten: 1, added: 1, removed: 1 });
    assert!(!indexed.reuse_for(&listed(&[(1, 1), (2, 1)])).is_complete(3));
    assert!(!indexed.reuse_for(&listed(&[(2, 1), (1, 1), (3, 1)])).is_complete(3), "another order");
}

#[test]
fn a_shard_that_is_listed_twice_keeps_both_indexes_in_order() {
    let indexed = manifest(&[(1, 1), (2, 1), (1, 1)]);
    let reuse = indexed.reuse_for(&listed(&[(1, 1), (2, 2), (1, 1), (1, 1)]));
    assert_eq!(reuse.indexed, [Some(0), None, Some(2), None]);
    assert_eq!(reuse.changes, ShardChanges { rewritten: 1, added: 1, removed: 0 });
}

#[test]
fn a_new_commit_changes_only_the_files_whose_content_differs() {
    let at =
        |commit: &str, number: u32| format!("hf://datasets/org/name@{}/{number}.parquet", commit.repeat(40));
    let mut indexed = manifest(&[(1, 1), (2, 1)]);
    let mut objects = listed(&[(1, 1), (2, 2)]);
    for (shard, object) in indexed.shards.iter_mut().zip(&mut objects) {
        let number = shard.index.blocks[0].rows + u32::from(object.version == "v2");
        (shard.object.url, object.url) = (at("a", number), at("b", number));
    }
    let reuse = indexed.reuse_for(&objects);
    assert_eq!(reuse.indexed, [Some(0), None]);
    assert_eq!(reuse.changes, ShardChanges { rewritten: 1, added: 0, removed: 0 });
    objects[1].version = "v1".to_owned();
    let reuse = indexed.reuse_for(&objects);
    assert_eq!((&reuse.indexed, reuse.changes), (&vec![Some(0), Some(1)], ShardChanges::default()));
    assert!(!reuse.is_complete(2), "the index refers to the old commit");
}

#[test]
fn several_commits_of_one_file_are_different_shards() {
    let at = |commit: &str, version: u32| ShardRef {
        url: format!("hf://datasets/org/name@{}/0.parquet", commit.repeat(40)),
        ..object(0, version)
    };
    let mut indexed = manifest(&[(0, 1), (0, 2), (3, 1)]);
    (indexed.shards[0].object, indexed.shards[1].object) = (at("a", 1), at("b", 2));
    assert_eq!(indexed.describe_changes(&indexed), "");
    let reuse = indexed.reuse_for(&[at("a", 1), at("b", 2), object(3, 2)]);
    assert_eq!(reuse.indexed, [Some(0), Some(1), None]);
    assert_eq!(reuse.changes, ShardChanges { rewritten: 1, added: 0, removed: 0 });
    let reuse = indexed.reuse_for(&[at("c", 2), at("a", 1), object(3, 1)]);
    assert_eq!((reuse.indexed, reuse.changes), (vec![Some(1), Some(0), Some(2)], ShardChanges::default()));
    let reuse = indexed.reuse_for(&[at("a", 1), at("b", 2), at("c", 2)]);
    assert_eq!(reuse.indexed, [Some(0), Some(1), None]);
    assert_eq!(reuse.changes, ShardChanges { rewritten: 0, added: 1, removed: 1 });
    let mut later = indexed.clone();
    (later.shards[0].object, later.shards[2].object) = (at("c", 1), at("d", 3));
    expect!["1 shard was added (hf://datasets/org/name@dddddddddddddddddddddddddddddddddddddddd/0.parquet), 1 shard was removed (s3://b/3)"]
        .assert_eq(&indexed.describe_changes(&later));
}

#[test]
fn another_label_does_not_change_a_shard_but_another_type_of_a_column_does() {
    let mut indexed = manifest(&[(1, 1), (2, 1)]);
    let mut objects = listed(&[(1, 1), (2, 1)]);
    for (shard, object) in indexed.shards.iter_mut().zip(&mut objects) {
        shard.object.values = vec![ShardValue::int64("label", 3)].into();
        object.values = vec![ShardValue::int64("label", 3)].into();
    }
    // A new class moves the labels of the others.
    objects[1].values = vec![ShardValue::int64("label", 4)].into();
    let reuse = indexed.reuse_for(&objects);
    assert_eq!((&reuse.indexed, reuse.changes), (&vec![Some(0), Some(1)], ShardChanges::default()));
    assert!(!reuse.is_complete(2), "the index has the old label");
    objects[1].values = vec![ShardValue::text("label", "x")].into();
    assert_eq!(indexed.reuse_for(&objects).indexed, [Some(0), None]);
    objects[1].values = vec![ShardValue::int64("class", 3)].into();
    assert_eq!(indexed.reuse_for(&objects).indexed, [Some(0), None]);
}

#[test]
fn shards_without_a_digest_or_a_validator_are_indexed_again() {
    let mut indexed = manifest(&[(1, 1), (2, 1)]);
    indexed.shards[0].digest = None;
    indexed.shards[1].object.version = String::new();
    let objects: Vec<ShardRef> = indexed.shards.iter().map(|shard| shard.object.clone()).collect();
    let reuse = indexed.reuse_for(&objects);
    assert_eq!((reuse.indexed, reuse.changes), (vec![None, None], ShardChanges::default()));
}

#[test]
fn a_sentence_counts_the_changed_shards() {
    let sentence = |rewritten, added, removed| ShardChanges { rewritten, added, removed }.describe(10_000);
    expect!["10 of 10000 shards changed since they were indexed; indexed them again"]
        .assert_eq(&sentence(10, 0, 0));
    expect!["6 of 10000 shards changed since they were indexed (1 rewritten, 2 added, 3 removed); indexed them again"]
        .assert_eq(&sentence(1, 2, 3));
    expect!["3 of 10000 shards changed since they were indexed (0 rewritten, 0 added, 3 removed)"]
        .assert_eq(&sentence(0, 0, 3));
}

#[test]
fn a_message_names_the_shards_whose_content_differs() {
    let before = manifest(&[(1, 1), (2, 1), (3, 1)]);
    assert_eq!(before.describe_changes(&before), "");
    let mut uploaded_again = before.clone();
    uploaded_again.shards.iter_mut().for_each(|shard| shard.object.version.push('x'));
    assert_eq!(before.describe_changes(&uploaded_again), "", "the content is the same");
    expect!["1 shard was rewritten (s3://b/2), 1 shard was added (s3://b/4), 1 shard was removed (s3://b/3)"]
        .assert_eq(&before.describe_changes(&manifest(&[(1, 1), (2, 2), (4, 1)])));
    let all = manifest(&[(1, 2), (2, 2), (3, 2), (4, 2), (5, 2)]);
    let old = manifest(&[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]);
    expect!["5 shards were rewritten (s3://b/1, s3://b/2, s3://b/3 and 2 more)"]
        .assert_eq(&old.describe_changes(&all));
}

#[test]
fn a_shard_that_is_not_read_completely_is_rewritten_if_its_validator_differs() {
    let mut before = manifest(&[(1, 1)]);
    before.shards[0].digest = Some(ShardDigest::Parts([1; 32]));
    let mut after = before.clone();
    assert_eq!(before.describe_changes(&after), "");
    after.shards[0].object.version.push('x');
    expect!["1 shard was rewritten (s3://b/1)"].assert_eq(&before.describe_changes(&after));
}

proptest! {
    /// The comparison agrees with a comparison of each pair of shards.
    #[test]
    fn reuse_agrees_with_a_simple_comparison(
        before in prop::collection::btree_map(0u32..12, 0u32..3, 0..12),
        after in prop::collection::btree_map(0u32..12, 0u32..3, 0..12),
    ) {
        let before: Vec<(u32, u32)> = before.into_iter().collect();
        let after: Vec<(u32, u32)> = after.into_iter().collect();
        let reuse = manifest(&before).reuse_for(&listed(&after));
        let expected: Vec<Option<usize>> =
            after.iter().map(|shard| before.iter().position(|known| known == shard)).collect();
        prop_assert_eq!(&reuse.indexed, &expected);
        let is_known = |list: &[(u32, u32)], number: u32| list.iter().any(|shard| shard.0 == number);
        let added = after.iter().filter(|shard| !is_known(&before, shard.0)).count() as u64;
        let removed = before.iter().filter(|shard| !is_known(&after, shard.0)).count() as u64;
        let rewritten = expected.iter().filter(|found| found.is_none()).count() as u64 - added;
        prop_assert_eq!(reuse.changes, ShardChanges { rewritten, added, removed });
        prop_assert_eq!(reuse.is_complete(before.len()), before == after);
    }
}
