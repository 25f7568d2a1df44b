//! Tests of sections of compressed shards that other cores decode: the index, the rows and the defects are those of one core.

use feedline_data::compression::Codec;
use feedline_data::manifest::{Shard, ShardDigest, ShardIndex};
use feedline_data::pipeline::{Format, Source};
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use proptest::prelude::*;
use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::timeout;

use super::codecs::{bzip2_file, xz_blocks, zstd_frames};
use super::{archive, gzip, json_lines, records};
use crate::testing::{Fixture, path, write_settled};
use crate::{Dataset, Stores};

/// A member of a gzip file with its size in the header. `size` is the size that the header states.
fn member(data: &[u8], content: &[u8], size: Option<usize>) -> Vec<u8> {
    let size = (size.unwrap_or(18 + data.len() + 8) - 1) as u16;
    let header = [31, 139, 8, 4, 0, 0, 0, 0, 0, 255, 6, 0, b'B', b'C', 2, 0];
    let mut crc = Crc::new();
    crc.update(content);
    let trailer = [crc.sum().to_le_bytes(), crc.amount().to_le_bytes()].concat();
    [&header[..], &size.to_le_bytes(), data, &trailer].concat()
}

fn bgzip(content: &[u8]) -> Vec<u8> {
    let deflated = |part: &[u8]| {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(1));
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap()
    };
    content.chunks(30_000).flat_map(|part| member(&deflated(part), part, None)).collect()
}

/// Files with many sections: of one stream, and of several.
fn files(content: &[u8]) -> Vec<(Codec, Vec<u8>)> {
    let halves = || content.chunks(content.len() / 2 + 1);
    vec![
        (Codec::Gzip, bgzip(content)),
        (Codec::Zstd, zstd_frames(content, 40_000)),
        // The windows and blocks of these frames are larger.
        (
            Codec::Zstd,
            [zstd_frames(&content[..30_000], 9_000), zstd_frames(&content[30_000..], 150_000)].concat(),
        ),
        (Codec::Bzip2, bzip2_file(content, 1)),
        (Codec::Xz, xz_blocks(content, 50_000)),
        (Codec::Bzip2, halves().flat_map(|part| bzip2_file(part, 1)).collect()),
        (Codec::Xz, halves().flat_map(|part| xz_blocks(part, 30_000)).collect()),
    ]
}

/// A shard for a worker with a number of cores, and small sections.
fn shard(file: &[u8], format: Format, cores: usize) -> (Fixture, Arc<Stores>) {
    let directory = tempfile::tempdir().unwrap();
    write_settled(&directory.path().join("shard"), file);
    let source = Source { url: vec![path(directory.path(), "shard")], ..Source::new(format, "") };
    let stores = Stores::new(Vec::new());
    stores.decoders().set_cores(cores);
    stores.decoders().set_section_bytes(8 << 10);
    let dataset = Dataset::new(source, Arc::clone(&stores)).unwrap();
    (Fixture { directory, dataset }, stores)
}

/// The shard, without its version, and the number of sections that were used.
async fn index(file: &[u8], format: Format, cores: usize) -> (ShardIndex, Option<ShardDigest>, u64) {
    let (fixture, stores) = shard(file, format, cores);
    let Shard { index, digest, .. } = fixture.index().await.unwrap();
    // Threads whose sections are not needed end soon.
    let release = async {
        while stores.decoders().used_bytes() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(600), release).await.expect("all memory is released");
    (index, digest, stores.decoders().decoded_sections())
}

#[tokio::test]
async fn an_index_does_not_depend_on_the_number_of_cores() {
    for (format, content) in [
        (Format::Text, json_lines(9_000)),
        (Format::TfRecord, records(1_000)),
        (Format::WebDataset, archive(200)),
    ] {
        for (codec, file) in files(&content) {
            let (one, digest, none) = index(&file, format, 1).await;
            assert!(one.defects.is_empty() && none == 0, "{format:?} {codec:?}: {:?}", one.defects);
            let (four, same_digest, sections) = index(&file, format, 4).await;
            assert!(one == four && digest == same_digest, "{format:?} {codec:?} differs");
            assert!(sections >= 3, "{format:?} {codec:?}: {sections} sections");
        }
    }
}

#[tokio::test]
async fn rows_of_a_shard_with_sections_are_those_of_its_content() {
    let content = json_lines(6_000);
    let expected: Vec<&str> = str::from_utf8(&content).unwrap().lines().collect();
    for (codec, file) in files(&content) {
        let (fixture, _) = shard(&file, Format::Text, 3);
        assert!(fixture.read_all().await.rows() == expected, "{codec:?} differs");
    }
}

#[tokio::test]
async fn a_false_start_of_a_section_changes_nothing() {
    let content = json_lines(3_000);
    let (start, rest) = content.split_at(20_000);
    let (inner, rest) = rest.split_at(rest.len() / 3);
    // Stored blocks contain members, and the header of the first one states that its member ends where they begin.
    let inner = [b"before.\n\n", &bgzip(inner)[..]].concat();
    let stored = |(number, part): (usize, &[u8])| {
        let length = part.len() as u16;
        let data = [&[1], &length.to_le_bytes()[..], &(!length).to_le_bytes(), part].concat();
        member(&data, part, (number == 0).then_some(18 + 5 + 9))
    };
    let outer: Vec<u8> = inner.chunks(40_000).enumerate().flat_map(stored).collect();
    let file = [bgzip(start), outer, bgzip(rest)].concat();
    let (one, digest, _) = index(&file, Format::Text, 1).await;
    let (four, same_digest, _) = index(&file, Format::Text, 4).await;
    let content_bytes = (start.len() + inner.len() + rest.len()) as u64;
    assert_eq!(one.compression.as_ref().map(|one| one.content_bytes), Some(content_bytes));
    assert!(one == four && digest == same_digest, "{:?}, {:?}", one.defects, four.defects);
}

#[tokio::test]
async fn a_defect_of_the_content_has_the_same_index_and_digest_on_each_number_of_cores() {
    for at in [20_000, 300_000, 600_000] {
        let mut content = records(400);
        assert!(content.len() > 700_000);
        content[at..at + 4_000].fill(b'x');
        for (codec, file) in files(&content) {
            let (mut one, digest, _) = index(&file, Format::TfRecord, 1).await;
            assert_eq!(one.defects.len(), 1, "{codec:?}");
            for cores in [2, 7] {
                let (mut more, same_digest, _) = index(&file, Format::TfRecord, cores).await;
                // Some cores have decoders for data after the defect.
                for index in [&mut one, &mut more] {
                    index.compression.as_mut().unwrap().decoder_bytes = 0;
                }
                assert!(one == more, "{codec:?}: {:?}, {:?}", one.compression, more.compression);
                assert_eq!(digest, same_digest, "{codec:?}");
            }
            assert_eq!(digest, Some(ShardDigest::of_bytes(&file)), "{codec:?}");
        }
    }
}

#[tokio::test]
async fn a_frame_may_state_any_size() {
    let content = json_lines(9_000);
    for size in [1 << 40, u64::MAX - 1_000] {
        let mut file = zstd_frames(&content, 40_000);
        // A frame with a window of 1 MiB, 8 bytes for the size of its content, and blocks of a repeated byte.
        file.extend(0xfd2f_b528_u32.to_le_bytes());
        file.extend([0xc0, 0x50]);
        file.extend(u64::to_le_bytes(size));
        file.extend([2, 0, 16, b' '].repeat(20_000));
        file.extend(zstd_frames(&content, 40_000));
        let (fixture, _) = shard(&file, Format::Text, 4);
        let index = fixture.index().await.unwrap().index;
        let rows = content.iter().filter(|&&byte| byte == b'\n').count() as u64;
        assert_eq!((index.rows(), index.defects.len()), (rows, 1), "{:?}", index.defects);
    }
}

#[tokio::test]
async fn sections_begin_again_when_memory_is_free_again() {
    let content = json_lines(30_000);
    for (codec, file) in files(&content) {
        let (one, ..) = index(&file, Format::Text, 1).await;
        let (fixture, stores) = shard(&file, Format::Text, 4);
        // Not enough for four sections.
        stores.decoders().set_limit(24 << 20);
        let few = fixture.index().await.unwrap().index;
        assert!(one == few, "{codec:?} differs");
        assert!(stores.decoders().decoded_sections() > 0, "{codec:?}");
    }
}

#[tokio::test]
async fn a_cancelled_index_frees_the_memory_and_the_threads_of_its_sections() {
    let content = json_lines(9_000);
    let (cores, limit_bytes) = (4, 64 << 20);
    for (codec, file) in files(&content) {
        let (fixture, stores) = shard(&file, Format::Text, cores);
        let decoders = stores.decoders();
        decoders.set_limit(limit_bytes);
        let has_sections = async {
            while decoders.decoded_sections() == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = fixture.index() => panic!("{codec:?} has no sections"),
            () = has_sections => {}
        }
        let release = async {
            while decoders.used_bytes() > 0 || decoders.section_threads().available_permits() < cores {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(600), release).await.expect("the threads end and release their memory");
        assert!(decoders.sections().try_acquire(limit_bytes).is_some(), "{codec:?}");
    }
}

#[tokio::test]
async fn without_memory_for_sections_one_core_decodes_the_shard() {
    let content = json_lines(6_000);
    for (codec, file) in files(&content) {
        let (fixture, stores) = shard(&file, Format::Text, 4);
        stores.decoders().set_limit(1 << 10);
        let (one, ..) = index(&file, Format::Text, 1).await;
        let few = fixture.index().await.unwrap().index;
        assert_eq!((one.blocks, stores.decoders().decoded_sections()), (few.blocks, 0), "{codec:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn damaged_shards_have_the_same_rows_and_defects(
        number in 0_usize..7,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        end in any::<prop::sample::Index>(),
        is_truncated: bool,
    ) {
        static FILES: LazyLock<Vec<(Codec, Vec<u8>)>> = LazyLock::new(|| files(&json_lines(5_000)));
        let (codec, mut file) = FILES[number].clone();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] ^= byte;
        }
        if is_truncated {
            file.truncate(end.index(file.len()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let both = runtime.block_on(async {
            let mut found = Vec::new();
            for cores in [1, 4] {
                let (fixture, _) = shard(&file, Format::Text, cores);
                let indexed = fixture.index().await;
                found.push(indexed.map(|shard| (shard.index, shard.digest)).map_err(|error| error.to_string()));
            }
            found
        });
        prop_assert_eq!(&both[0], &both[1], "{:?}", codec);
    }
}

/// Members that do not state their size have no sections.
#[tokio::test]
async fn ordinary_members_are_decoded_by_one_core() {
    let content = json_lines(6_000);
    let file: Vec<u8> = content.chunks(30_000).flat_map(gzip).collect();
    let (index, _, sections) = index(&file, Format::Text, 4).await;
    assert_eq!((index.rows(), sections), (6_000, 0));
}
