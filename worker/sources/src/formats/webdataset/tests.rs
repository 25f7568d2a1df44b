//! Tests of tar indexing and reading.

use std::io::Write;

use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::BlockRead;
use crate::testing::{All, Fixture, fixture, lines, tar, tar_link, tar_member, tar_member_with};

fn shard(bytes: &[u8]) -> Fixture {
    fixture(bytes, Format::WebDataset, &[])
}

fn samples(count: usize, bytes: usize) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|row| format!("dir.x/{row:04}")).collect();
    let image = vec![b'j'; bytes];
    let mut members = Vec::new();
    for (row, name) in names.iter().enumerate() {
        members.push((format!("{name}.jpg"), image.clone()));
        members.push((format!("{name}.cls"), format!("{row}\n").into_bytes()));
    }
    let members: Vec<(&str, &[u8])> =
        members.iter().map(|(name, body)| (name.as_str(), body.as_slice())).collect();
    tar(&members)
}

#[tokio::test]
async fn members_that_share_a_key_are_one_row() {
    let bytes = tar(&[
        ("a/1.jpg", b"J1"),
        ("a/1.txt", b"one"),
        ("a/2.JPG", b"J2"),
        ("a/2.cls", b" 7\n"),
        ("README", b"no extension"),
        ("b/2.seg.json", b"{}"),
    ]);
    let all = shard(&bytes).read_all().await;
    assert_eq!(all.columns(), "cls: int64, jpg: bytes, seg.json: text, txt: text, __key__: text");
    assert_eq!(all.rows(), ["null|J1|null|one|a/1", "7|J2|null|null|a/2", "null|null|{}|null|b/2"]);
    assert_eq!((all.failures().len(), all.index.defects.len()), (0, 0));
}

#[tokio::test]
async fn long_names_pax_names_and_folders_are_read() {
    let long = format!("{}/x.txt", "d".repeat(150));
    let record = format!(" path={}\n", long.replace("x.", "y."));
    let pax = format!("{}{record}", record.len() + 3);
    let mut bytes = tar_member(b'5', "folder.txt/", b"");
    bytes.extend(tar_member(b'L', "././@LongLink", format!("{long}\0").as_bytes()));
    bytes.extend(tar_member(b'0', &long[..100], b"by gnu"));
    bytes.extend(tar_member(b'x', "pax", pax.as_bytes()));
    bytes.extend(tar_member(b'0', "short", b"by pax"));
    bytes.extend([0; 1024]);
    let all = shard(&bytes).read_all().await;
    let folder = "d".repeat(150);
    assert_eq!(all.rows(), [format!("by gnu|{folder}/x"), format!("by pax|{folder}/y")]);
    assert_eq!(all.index.blocks[0].offset, 512);
}

#[tokio::test]
async fn selected_rows_equal_those_of_whole_blocks() {
    let fixture = shard(&samples(300, 9_000));
    let all = fixture.read_all().await;
    assert_eq!(all.rows().len(), 300);
    let shard = fixture.index().await.unwrap();
    assert!(shard.index.blocks.len() > 2);
    let rows = [0, 3, 4, 50];
    let some = fixture.read(&shard, 1, Some(&rows)).await.unwrap();
    let whole = lines(&all.blocks[1].batch);
    assert_eq!(lines(&some.batch), rows.map(|row| whole[row as usize].clone()));
    assert!(some.store_bytes < all.blocks[1].store_bytes);
    // Near rows share a request, and the distant row has its own.
    assert_eq!(some.store_requests, 2);
}

#[tokio::test]
async fn truncation_at_every_byte_preserves_complete_samples() {
    let bytes = samples(3, 10);
    for length in 0..bytes.len() {
        let all = shard(&bytes[..length]).read_all().await;
        let rows = all.rows();
        // Truncation between two samples cannot be detected, nor one within the first sample between two members. Any other
        // truncation is a defect, and its sample is omitted.
        let is_between = length % 2048 == 0 || length == 1024 || length > 3 * 2048;
        assert_eq!(all.index.defects.is_empty(), is_between, "{length}");
        if length < 3 * 2048 && !is_between {
            // A truncated header may be of a member of the sample before it, so that sample is omitted.
            let whole = if length % 2048 < 512 { (length / 2048).saturating_sub(1) } else { length / 2048 };
            assert_eq!(rows.len(), whole, "{length}");
        }
        for (row, text) in rows.iter().enumerate().take(length / 2048) {
            assert_eq!(*text, format!("{row}|jjjjjjjjjj|dir.x/{row:04}"));
        }
    }
    let index = shard(&bytes[..2048 + 1024 + 700]).index().await.unwrap().index;
    assert_eq!((index.rows(), index.defects[0].offset), (1, 2048 + 1024));
    assert!(index.defects[0].reason.contains("`dir.x/0001.cls` is truncated"));
    let index = shard(&bytes[..2048 + 1024]).index().await.unwrap().index;
    assert_eq!((index.rows(), index.defects[0].offset), (1, 2048 + 1024));
    let expected = "the archive has no end, and its last sample `dir.x/0001` has fewer members";
    assert!(index.defects[0].reason.starts_with(expected), "{:?}", index.defects);
}

#[tokio::test]
async fn the_last_sample_of_an_archive_with_an_end_may_have_fewer_members() {
    let bytes = tar(&[("1.jpg", b"J"), ("1.txt", b"t"), ("2.jpg", b"K")]);
    assert_eq!(shard(&bytes).index().await.unwrap().index.defects, []);
    // One block of zeros is an end.
    let one_block = &bytes[..bytes.len() / 512 * 512 - 512];
    assert_eq!(shard(one_block).index().await.unwrap().index.defects, []);
}

#[tokio::test]
async fn values_that_cannot_be_read_fail_their_row() {
    let all = shard(&tar(&[("1.cls", b"x"), ("1.txt", b"t"), ("2.cls", b"2"), ("2.txt", b"\xff\xff")]))
        .read_all()
        .await;
    let reasons: Vec<String> = all.failures().into_iter().map(|it| it.reason).collect();
    assert_eq!(reasons.len(), 2);
    assert!(reasons[0].contains("`1.cls`") && reasons[1].contains("UTF-8"), "{reasons:?}");
    assert_eq!(all.rows(), ["null|t|1", "2|null|2"]);
    let twice = shard(&tar(&[("1.cls", b"1"), ("1.cls", b"2")])).read_all().await;
    assert!(twice.failures()[0].reason.contains("two members"));
}

#[tokio::test]
async fn data_that_is_not_tar_is_rejected() {
    let shard_index = shard(&[7; 2000]).index().await.unwrap().index;
    assert!(shard_index.blocks.is_empty() && shard_index.defects[0].reason.contains("not a tar file"));
    assert_eq!(shard(b"").read_all().await.rows().len(), 0);
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// The texts of all failures and defects, and the rows. They are the same if the shard is compressed.
async fn errors(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
    let plain = errors_of(bytes).await;
    assert_eq!(errors_of(&gzip(bytes)).await, plain, "the compressed shard differs");
    plain
}

async fn errors_of(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
    let all = shard(bytes).read_all().await;
    let reasons = all.failures().into_iter().map(|failure| failure.reason);
    let defects = all.index.defects.iter().map(|defect| format!("{}: {}", defect.offset, defect.reason));
    (reasons.chain(defects).collect(), all.rows())
}

#[tokio::test]
async fn archives_after_each_other_are_read() {
    let (first, second) = (samples(3, 10), samples(2, 9_000));
    for zeros in [0, 512, 700, 10 << 10, 300 << 10] {
        let mut bytes = first.clone();
        bytes.resize(bytes.len() / 512 * 512 + zeros / 512 * 512, 0);
        let offset = bytes.len() as u64;
        bytes.extend(&second);
        bytes.resize(bytes.len() + zeros, 0);
        let all = shard(&bytes).read_all().await;
        assert_eq!((all.rows().len(), all.index.defects.len(), all.failures().len()), (5, 0, 0), "{zeros}");
        assert!(all.rows()[3].starts_with("0|jjj") && all.rows()[4].ends_with("|dir.x/0001"));
        let compressed = shard(&gzip(&bytes)).read_all().await;
        assert_eq!((compressed.rows(), compressed.index.defects.len()), (all.rows(), 0), "{zeros}");
        // A row does not contain many zeros.
        let last = all.index.blocks.last().unwrap();
        assert_eq!(last.offset == offset, zeros >= 300 << 10, "{zeros}");
    }
}

#[tokio::test]
async fn samples_of_two_archives_are_not_joined() {
    let one = tar(&[("1.jpg", b"J"), ("1.txt", b"t")]);
    let (errors_of_same, rows) = errors(&[one.clone(), one].concat()).await;
    assert_eq!((errors_of_same.len(), rows), (0, vec!["J|t|1".to_owned(); 2]));
    let (reasons, rows) = errors(&[tar(&[("1.jpg", b"J")]), tar(&[("1.txt", b"t")])].concat()).await;
    assert_eq!(rows, ["null|null|null"; 2]);
    assert_eq!(reasons, [divided("1", 2048), divided("1", 0)]);
}

fn divided(key: &str, other: u64) -> String {
    format!(
        "the members of the sample `{key}` are not adjacent, and others are at byte {other}: write the archive with \
         `tar --sort=name`"
    )
}

#[tokio::test]
async fn data_after_the_end_is_a_defect() {
    let archive = samples(2, 10);
    let end = archive.len();
    for junk in [&b"x"[..], &[7; 511], &[7; 512], &[7; 2000]] {
        let (reasons, rows) = errors(&[&archive[..], junk].concat()).await;
        assert_eq!(rows.len(), 2);
        let expected = format!("{end}: data after the end of the archive is not another archive");
        assert!(reasons[0].starts_with(&expected), "{reasons:?}");
    }
    // One block of zeros is the end too, and the members after it are read.
    let member = |name: &str| tar_member(b'0', name, b"1");
    let bytes = [member("1.cls"), vec![0; 512], member("2.cls"), vec![0; 100]].concat();
    let (reasons, rows) = errors(&bytes).await;
    assert_eq!((reasons.len(), rows), (0, vec!["1|1".to_owned(), "1|2".to_owned()]));
    // A header that zeros replace leaves the body of the member.
    let bytes = [member("1.cls"), vec![0; 512], member("2.cls")[512..].to_vec(), member("3.cls")].concat();
    let (reasons, rows) = errors(&bytes).await;
    assert!(rows == ["1|1"] && reasons[0].starts_with("1536: data after the end"), "{reasons:?}");
    // An extension header without its member is not the end.
    let (reasons, _) =
        errors(&[member("1.cls"), tar_member(b'L', "x", b"long\0"), vec![0; 1024]].concat()).await;
    assert!(reasons[0].starts_with("1024: a member is missing after its extension header"), "{reasons:?}");
}

#[tokio::test]
async fn archives_without_samples_have_no_rows() {
    let folder = [tar_member(b'5', "a.b/", b""), vec![0; 1024]].concat();
    for bytes in [vec![0; 10_240], vec![0; 100], folder, tar(&[("README", b"x"), ("._1.txt", b"x")])] {
        let all = shard(&bytes).read_all().await;
        assert_eq!((all.rows().len(), all.index.defects.len(), all.index.schema), (0, 0, None));
    }
}

#[tokio::test]
async fn parts_of_divided_samples_fail() {
    let bytes = tar(&[
        ("0.jpg", b"J"),
        ("0.txt", b"t"),
        ("1.jpg", b"J"),
        ("2.jpg", b"K"),
        ("2.txt", b"u"),
        ("3.txt", b"t"),
        ("1.txt", b"t"),
        ("3.jpg", b"J"),
    ]);
    let all = shard(&bytes).read_all().await;
    let null = "null|null|null";
    assert_eq!(all.rows(), ["J|t|0", null, "K|u|2", null, null, null]);
    let failures: Vec<(u64, String)> =
        all.failures().into_iter().map(|failure| (failure.offset, failure.reason)).collect();
    let expected = [
        (2048, divided("1", 6144)),
        (5120, divided("3", 7168)),
        (6144, divided("1", 2048)),
        (7168, divided("3", 5120)),
    ];
    assert_eq!(failures, expected);
    // A member that was added again to the archive is not a complete sample.
    let again = [("1.jpg", &b"J"[..]), ("1.txt", b"t"), ("2.jpg", b"J"), ("1.txt", b"u")];
    assert_eq!(errors(&tar(&again)).await.0, [divided("1", 3072), divided("1", 0)]);
    // Complete samples may have the same key. Samples of different archives may lack optional members.
    let complete = [("1.jpg", &b"J"[..]), ("2.jpg", b"K"), ("1.jpg", b"L")];
    assert_eq!(
        errors(&tar(&complete)).await,
        (Vec::new(), ["J|1", "K|2", "L|1"].map(str::to_owned).to_vec())
    );
    let optional =
        [tar(&[("1.jpg", b"J"), ("1.txt", b"t")]), tar(&[("2.jpg", b"K"), ("1.jpg", b"L")])].concat();
    let (reasons, rows) = errors(&optional).await;
    assert_eq!((reasons.len(), rows.len()), (0, 3));
}

/// Samples of 200 KiB, of which the sample `half` is divided.
fn large_archive() -> Vec<u8> {
    let body = |row: u32| (0..50_000_u32).flat_map(move |at| at.wrapping_mul(at ^ row).to_le_bytes());
    let bodies: Vec<Vec<u8>> = (0..60).map(|row| body(row).collect()).collect();
    let names: Vec<String> = (0..60).map(|row| format!("{row:02}.bin")).collect();
    let mut members: Vec<(&str, &[u8])> =
        names.iter().zip(&bodies).map(|(name, body)| (name.as_str(), body.as_slice())).collect();
    members.insert(20, ("half.txt", b"t"));
    members.insert(41, ("half.cls", b"1"));
    tar(&members)
}

#[tokio::test]
async fn parts_of_divided_samples_in_large_compressed_archives_fail() {
    let content = large_archive();
    let plain = shard(&content).read_all().await;
    assert_eq!((plain.rows().len(), plain.failures().len()), (62, 2));
    // zstd writes one frame, so that the rows form a long run.
    for (bytes, has_run) in [(gzip(&content), false), (zstd::encode_all(&content[..], 1).unwrap(), true)] {
        let all = shard(&bytes).read_all().await;
        assert!(all.rows() == plain.rows(), "the rows differ");
        let reasons = |all: &All| -> Vec<(u64, String)> {
            all.failures().into_iter().map(|failure| (failure.offset, failure.reason)).collect()
        };
        assert_eq!(reasons(&all), reasons(&plain));
        let groups: Vec<u32> = all.index.blocks.iter().map(|block| block.group & 3).collect();
        let last = groups.iter().filter(|group| **group == 2).count();
        assert_eq!(last == 1, has_run, "{groups:?}");
        assert!(all.index.runs().any(|run| run.len() > 2), "{groups:?}");
    }
}

#[tokio::test]
async fn an_archive_with_many_divided_samples_has_a_defect_at_the_first() {
    let mut names = vec!["first.jpg".to_owned()];
    for extension in ["jpg", "txt"] {
        names.extend((0..520).map(|row| format!("{row:04}.{extension}")));
    }
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let (reasons, rows) = errors(&tar(&members)).await;
    assert_eq!(rows, ["|first"]);
    assert_eq!(reasons, [format!("512: {}", divided("0000", 521 * 512))]);
    let (reasons, rows) = errors(&tar(&members[..521 + 510])).await;
    assert_eq!((rows.len(), reasons.len()), (521 + 510, 2 * 510));
}

#[tokio::test]
async fn members_without_content_fail_their_row() {
    let file = |name: &str| tar_member(b'0', name, b"f");
    let pax = |key: &str, value: &str| {
        let record = format!(" {key}={value}\n");
        tar_member(b'x', "pax", format!("{}{record}", record.len() + 2).as_bytes())
    };
    for (name, member, reason) in [
        (
            "hard",
            tar_link(b'1', "1.jpg", "0.jpg"),
            "a hard link to `0.jpg`: write the archive with `tar --hard-dereference`",
        ),
        (
            "symbolic",
            tar_link(b'2', "1.jpg", "/x"),
            "a symbolic link to `/x`: write the archive with `tar --dereference`",
        ),
        ("device", tar_member(b'3', "1.jpg", b""), "a device"),
        ("block", tar_member(b'4', "1.jpg", b""), "a device"),
        ("pipe", tar_member(b'6', "1.jpg", b""), "a named pipe"),
        ("sparse", tar_member(b'S', "1.jpg", b"map"), "a sparse file: write the archive without `--sparse`"),
        ("volume", tar_member(b'M', "1.jpg", b"rest"), "another volume"),
        ("unknown", tar_member(b'Z', "1.jpg", b"?"), "the unknown type `Z`"),
        ("pax", [pax("GNU.sparse.major", "1"), tar_member(b'0', "1.jpg", b"map")].concat(), "a sparse file"),
        (
            "long target",
            [tar_member(b'K', "x", b"far\0"), tar_link(b'1', "1.jpg", "f")].concat(),
            "a hard link to `far`",
        ),
        (
            "pax target",
            [pax("linkpath", "far"), tar_link(b'2', "1.jpg", "f")].concat(),
            "a symbolic link to `far`",
        ),
    ] {
        let bytes = [file("0.jpg"), file("0.txt"), member, file("2.jpg"), vec![0; 1024]].concat();
        let all = shard(&bytes).read_all().await;
        let failures = all.failures();
        assert_eq!((failures.len(), all.rows().len()), (1, 3), "{name}");
        assert!(
            failures[0].reason.contains(reason) && failures[0].reason.contains("`1.jpg`"),
            "{failures:?}"
        );
        assert_eq!(all.rows()[2], "f|null|2", "{name}");
    }
}

#[tokio::test]
async fn names_that_are_not_utf8_remain_different_and_fail_their_row() {
    let latin = |byte: u8| tar_member_with(b'0', "1.txt", b"t", |header| header[0] = byte);
    let bytes = [latin(0xe8), latin(0xe9), tar_member(b'0', "2.txt", b"t")].concat();
    let (reasons, rows) = errors(&bytes).await;
    assert_eq!((reasons.len(), rows.len(), rows[2].as_str()), (2, 3, "t|2"));
    assert!(reasons[1].starts_with("member `\\xe9.txt`: the name of the member is not UTF-8"), "{reasons:?}");
}

#[tokio::test]
async fn a_hard_link_within_a_sample_has_the_content_of_its_target() {
    let bytes = [
        tar_member(b'0', "1.txt", b"same"),
        tar_link(b'1', "1.json", "1.txt"),
        tar_member(b'0', "2.txt", b"other"),
        tar_link(b'1', "2.json", "1.txt"),
    ];
    let all = shard(&bytes.concat()).read_all().await;
    assert_eq!(all.rows(), ["same|same|1", "null|other|2"]);
    assert!(all.failures()[0].reason.contains("member `2.json`: the member is a hard link to `1.txt`"));
}

#[tokio::test]
async fn a_sparse_map_of_several_blocks_is_skipped() {
    let continued = |is_continued: u8| {
        tar_member_with(b'S', "1.bin", b"", |header| {
            header[482] = is_continued;
            header[124..135].copy_from_slice(b"00000000003");
        })
    };
    let map = |is_continued: u8| {
        let mut block = vec![0; 512];
        block[504] = is_continued;
        block
    };
    let mut body = b"abc".to_vec();
    body.resize(512, 0);
    let next = tar_member(b'0', "2.bin", b"x");
    for blocks in [vec![continued(0)], vec![continued(1), map(0)], vec![continued(1), map(1), map(0)]] {
        let bytes = [blocks.concat(), body.clone(), next.clone()].concat();
        let all = shard(&bytes).read_all().await;
        assert_eq!((all.rows(), all.failures().len()), (vec!["null|1".to_owned(), "x|2".to_owned()], 1));
    }
    for blocks in [vec![continued(1)], vec![continued(1), map(0)], vec![continued(1), map(1)]] {
        let all = shard(&blocks.concat()).read_all().await;
        assert!(
            all.rows().is_empty() && all.index.defects[0].reason.contains("truncated"),
            "{:?}",
            all.index
        );
    }
}

#[tokio::test]
async fn columns_of_members_are_unambiguous() {
    let (reasons, rows) = errors(&tar(&[("1.JPG", b"J"), ("1.jpg", b"K"), ("2.Jpg", b"L")])).await;
    assert_eq!(reasons, ["the sample has two members for the column `jpg`, `1.JPG` and `1.jpg`"]);
    assert_eq!(rows[1], "L|2");
    let (reasons, _) = errors(&tar(&[("1.__key__", b"other"), ("1.txt", b"t")])).await;
    assert_eq!(reasons, ["the member `1.__key__` has the name of the column with the keys"]);
}

#[tokio::test]
async fn numbers_and_checksums_of_other_writers_are_read() {
    let base_256 = tar_member_with(b'0', "1.txt", b"base", |header| {
        header[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
    });
    let mut signed = tar_member(b'0', "\u{e9}.txt", b"signed");
    let sum: i64 = signed[..512]
        .iter()
        .enumerate()
        .map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { i64::from(byte as i8) })
        .sum();
    signed[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let (reasons, rows) = errors(&[base_256, signed].concat()).await;
    assert_eq!((reasons.len(), rows), (0, vec!["base|1".to_owned(), "signed|\u{e9}".to_owned()]));
    for field in [*b"-0000000001\0", *b"+0000000001\0", *b"0000000009 \0", [0xff; 12], *b"00000\xff00001\0"] {
        let bytes = tar_member_with(b'0', "1.txt", b"x", |header| header[124..136].copy_from_slice(&field));
        let (reasons, rows) = errors(&bytes).await;
        assert!(rows.is_empty() && reasons[0].contains("invalid number"), "{reasons:?}");
    }
    let global = [tar_member(b'g', "pax", b"10 path=x\n"), tar_member(b'0', "1.txt", b"x")].concat();
    assert!(errors(&global).await.0[0].contains("sets `path` for all members"));
}

#[tokio::test]
async fn extensions_of_all_samples_are_columns() {
    let mut members: Vec<(String, &[u8])> =
        (0..40).map(|row| (format!("{row:04}.txt"), b"x".as_slice())).collect();
    members.push(("9999.txt".to_owned(), b"y"));
    members.push(("9999.CLS".to_owned(), b"5"));
    let members: Vec<(&str, &[u8])> = members.iter().map(|(name, body)| (name.as_str(), *body)).collect();
    let bytes = tar(&members);
    let all = shard(&bytes).read_all().await;
    assert_eq!(all.columns(), "cls: int64, txt: text, __key__: text");
    assert_eq!(all.rows().last().unwrap(), "5|y|9999");
    let named = fixture(&bytes, Format::WebDataset, &[("label", "cls")]).read_all().await;
    assert_eq!(named.index.columns.ignored, ["txt"]);
    assert_eq!(named.rows().last().unwrap(), "5");
}

#[tokio::test]
async fn integers_are_widened_exactly_or_fail_their_row() {
    let fixture = shard(&tar(&[("1.cls", b"7"), ("2.cls", b"9007199254740993")]));
    let indexed = fixture.index().await.unwrap();
    let schema = Schema::new([("cls", ColumnType::Scalar(ScalarType::Float64)), ("v", ColumnType::Image)]);
    let read = BlockRead {
        shard: &indexed.object,
        block: &indexed.index.blocks[0],
        index: None,
        schema: &schema,
        rows: None,
    };
    let rows = fixture.dataset.read_block(&read).await.unwrap();
    assert_eq!(lines(&rows.batch), ["7|null", "null|null"]);
    assert_eq!(rows.failures[0].reason, "column `cls`: float64 does not represent 9007199254740993 exactly");
}
