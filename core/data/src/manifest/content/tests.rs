//! Tests of content ids and index ids.

use expect_test::expect;
use proptest::prelude::*;

use super::super::{ChecksumAlgorithm, Defect, ListPage, ListPages, ShardIndex};
use super::*;
use crate::schema::{ColumnType, Schema};

fn block(rows: u32, offset: u64) -> Block {
    Block { rows, offset, bytes: 10, group: 0, row_bytes: Vec::new() }
}

fn shard(name: &str, digest: Option<ShardDigest>) -> Shard {
    let url = format!("file:///d/{name}");
    let object = ShardRef { url, size_bytes: 20, version: "v1".to_owned(), ..ShardRef::default() };
    let schema = Some(Schema::new([("x", ColumnType::Utf8)]));
    let index = ShardIndex {
        blocks: vec![block(3, 0), block(4, 10)],
        schema,
        defects: Vec::new(),
        ..ShardIndex::default()
    };
    Shard { object, index, digest }
}

fn whole(byte: u8) -> Option<ShardDigest> {
    Some(ShardDigest::Whole([byte; 32]))
}

fn parts(byte: u8) -> Option<ShardDigest> {
    Some(ShardDigest::Parts([byte; 32]))
}

/// A digest of parts with a checksum of the store. `parts` is the number of parts of the upload.
fn checked(algorithm: ChecksumAlgorithm, parts: u32, byte: u8) -> Option<ShardDigest> {
    let checksum = StoreChecksum::new(algorithm, parts, &vec![byte; algorithm.bytes()]);
    Some(ShardDigest::Parts([2; 32]).with_checksum(checksum))
}

fn manifest(digests: &[Option<ShardDigest>]) -> Manifest {
    let shards = digests.iter().enumerate().map(|(number, digest)| shard(&number.to_string(), *digest));
    Manifest { schema: Schema::default(), shards: shards.collect() }
}

/// Saved positions, indexes and cached rows are valid only while these values do not change.
#[test]
fn ids_are_fixed_across_versions() {
    let read = manifest(&[whole(1), whole(2)]);
    expect!["8811a3bc7b00bb8f"].assert_eq(read.content_id().short());
    expect!["1adbbe34da7fe668"].assert_eq(&read.index_id()[..16]);
    let sampled = manifest(&[whole(1), parts(2)]).content_id();
    expect!["dd65855117e40942f0a731548045d16391d735df3c7eda84b4187e68141bb1d6-8e2eae114edc690525a5d6a7f588dfdd6d32c8f563b9d24c9d7b1a039efec1d4"].assert_eq(sampled.as_str());
    let sampled = manifest(&[whole(1), checked(ChecksumAlgorithm::Crc64Nvme, 0, 7)]);
    expect!["dd65855117e40942f0a731548045d16391d735df3c7eda84b4187e68141bb1d6-8e2eae114edc690525a5d6a7f588dfdd6d32c8f563b9d24c9d7b1a039efec1d4-eed9fb4fa4fdd515ceacbaa2d8c800ff2027a1fe4c965dee5f6924497b925cfa-ac12bd8cae65cca29651035b02484e25886fe4ee928cba1139792a307e9a7d53-0bcd58b1982648301cf6ea4ca79983ae0a0774128b7401c4b2f0811f48b16b58"].assert_eq(sampled.content_id().as_str());
    expect!["27c9d2178c178178"].assert_eq(&sampled.index_id()[..16]);
}

#[test]
fn a_dataset_of_an_earlier_release_has_an_unknown_content() {
    let old = manifest(&[whole(1), None]);
    assert!(old.content_id().is_unknown() && !old.has_digests());
    assert!(old.is_index(&old.fingerprint()), "its jobs refer to the fingerprint");
    assert!(old.is_index(&old.index_id()));
    let new = manifest(&[whole(1), whole(2)]);
    assert!(!new.is_index(&new.fingerprint()), "the shards may have been overwritten with equal sizes");
    assert_eq!(new.fingerprint(), old.fingerprint());
}

#[test]
fn the_content_id_does_not_depend_on_the_location_and_the_validators_of_hashed_shards() {
    let original = manifest(&[whole(1), whole(2)]);
    let mut copy = original.clone();
    for shard in &mut copy.shards {
        shard.object.url.push_str(".copy");
        shard.object.version = "v2".to_owned();
    }
    assert_eq!(copy.content_id(), original.content_id());
    assert_ne!(copy.index_id(), original.index_id());
}

#[test]
fn pages_of_lists_belong_to_the_index_and_not_to_the_content() {
    let original = manifest(&[whole(1), whole(2)]);
    let page = |rows_before| ListPage {
        offset: 4,
        stored_bytes: 7,
        decompressed_bytes: 9,
        rows_before,
        begins_within_row: false,
    };
    let with = |rows_before| {
        let mut manifest = original.clone();
        let pages = vec![page(rows_before)];
        manifest.shards[1].index.list_pages =
            vec![ListPages { group: 0, column: 0, dictionary_bytes: 0, pages }];
        manifest
    };
    assert_eq!(with(3).content_id(), original.content_id());
    assert_ne!(with(3).index_id(), original.index_id());
    assert_ne!(with(3).index_id(), with(4).index_id());
}

#[test]
fn shards_that_are_not_read_completely_are_identified_by_their_validators_too() {
    let original = manifest(&[whole(1), parts(2)]).content_id();
    let mut again = manifest(&[whole(1), parts(2)]);
    again.shards[1].object.version = "v2".to_owned();
    let again = again.content_id();
    assert_ne!(again, original);
    assert!(original.may_be_reuploaded(&again) && again.may_be_reuploaded(&original));
    let other = manifest(&[whole(1), parts(3)]).content_id();
    assert!(!original.may_be_reuploaded(&other), "the footers differ");
    let read = manifest(&[whole(1), whole(2)]).content_id();
    assert!(!original.may_be_reuploaded(&read) && !read.may_be_reuploaded(&original));
    assert!(!ContentId::default().may_be_reuploaded(&ContentId::default()));
}

/// The content of a dataset of two shards, whose second shard was read in part and has this version and digest.
fn content(version: &str, digest: Option<ShardDigest>) -> ContentId {
    let mut manifest = manifest(&[whole(1), digest]);
    manifest.shards[1].object.version = version.to_owned();
    manifest.content_id()
}

#[test]
fn checksums_of_the_store_identify_shards_that_are_not_read_completely() {
    let crc = |byte| checked(ChecksumAlgorithm::Crc64Nvme, 0, byte);
    let original = content("v1", crc(1));
    let again = content("v2", crc(1));
    assert_ne!(original, again);
    assert!(original.is_same_content(&again) && again.is_same_content(&original));
    let changed = content("v2", crc(2));
    assert!(!original.is_same_content(&changed) && !original.may_be_reuploaded(&changed), "other bytes");
    let other = content("v2", checked(ChecksumAlgorithm::Crc32c, 0, 1));
    assert!(!original.is_same_content(&other) && original.may_be_reuploaded(&other), "another algorithm");
    for unchecked in [content("v2", parts(2)), content("v2", parts(3))] {
        assert!(!original.is_same_content(&unchecked));
        assert_eq!(original.may_be_reuploaded(&unchecked), unchecked == content("v2", parts(2)));
    }
    assert!(!original.is_same_content(&content("v1", whole(1))));
    assert!(!ContentId::default().is_same_content(&ContentId::default()));
}

#[test]
fn a_checksum_of_a_multipart_upload_depends_on_its_parts() {
    let sha =
        |parts, byte| content(&format!("{parts} {byte}"), checked(ChecksumAlgorithm::Sha256, parts, byte));
    let again = content("v2", checked(ChecksumAlgorithm::Sha256, 3, 1));
    assert!(sha(3, 1).is_same_content(&again));
    for other in [sha(4, 1), sha(3, 2), sha(0, 1)] {
        assert!(!sha(3, 1).is_same_content(&other) && sha(3, 1).may_be_reuploaded(&other));
    }
}

#[test]
fn a_dataset_is_the_same_when_its_store_adds_checksums() {
    let (before, after) = (content("v1", parts(2)), content("v1", checked(ChecksumAlgorithm::Md5, 0, 1)));
    assert_ne!(before, after);
    assert!(before.is_same_content(&after) && after.is_same_content(&before));
    assert_eq!(after.without_checksums(), before);
    assert_eq!(before.without_checksums(), before);
}

#[test]
fn shards_without_checksums_keep_their_validators() {
    let digests = [parts(2), checked(ChecksumAlgorithm::Sha1, 0, 1)];
    let content = |versions: [&str; 2]| {
        let mut manifest = manifest(&digests);
        for (shard, version) in manifest.shards.iter_mut().zip(versions) {
            shard.object.version = version.to_owned();
        }
        manifest.content_id()
    };
    let original = content(["v1", "v1"]);
    assert!(original.is_same_content(&content(["v1", "v2"])));
    let again = content(["v2", "v1"]);
    assert!(!original.is_same_content(&again) && original.may_be_reuploaded(&again));
}

#[test]
fn an_object_without_a_time_and_a_tag_has_no_validator() {
    let object = |version: &str| ShardRef { version: version.to_owned(), ..shard("a", None).object };
    assert!(object("\"tag\"").has_validator() && object("2024-01-01T00:00:00+00:00").has_validator());
    assert!(!object(UNKNOWN_TIME).has_validator() && !object("").has_validator());
}

/// Every change of a manifest, with whether it changes the rows.
fn change(manifest: &mut Manifest, kind: u8) -> bool {
    let shard = &mut manifest.shards[0];
    match kind {
        0 => shard.digest = whole(9),
        1 => shard.index.blocks[0].rows += 1,
        2 => shard.index.blocks[1].offset += 1,
        3 => shard.index.blocks[0].bytes += 1,
        4 => shard.index.blocks[0].group += 1,
        5 => shard.index.blocks[1].row_bytes.push(7),
        6 => shard.index.blocks.truncate(1),
        7 => shard.object.size_bytes += 1,
        8 => shard.object.part += 1,
        9 => shard.digest = parts(1),
        10 => manifest.shards.reverse(),
        11 => shard.object.url.push('x'),
        12 => shard.object.version.push('x'),
        13 => shard.index.schema = None,
        14 => manifest.schema = Schema::new([("y", ColumnType::Utf8)]),
        _ => shard.index.defects.push(Defect { offset: 1, reason: "short".to_owned() }),
    }
    kind <= 10
}

proptest! {
    /// Two manifests have equal ids only if the same fields are equal.
    #[test]
    fn every_field_is_covered(one in 0u8..16, other in 0u8..16) {
        let original = manifest(&[whole(1), whole(2), whole(3)]);
        let mut changed = original.clone();
        let changes_rows = change(&mut changed, one);
        prop_assert_ne!(changed.index_id(), original.index_id());
        prop_assert_eq!(changed.content_id() != original.content_id(), changes_rows);
        let mut different = original.clone();
        change(&mut different, other);
        prop_assert_eq!(different.index_id() == changed.index_id(), one == other);
    }
}
