//! Tests of tar indexing and reading.

use feedline_data::pipeline::Format;

use crate::testing::{Fixture, fixture, lines, tar, tar_member};

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
        // Truncation between two members cannot be detected. Any other truncation is a defect, and its sample is omitted.
        let is_between = length % 1024 == 0 || length > 3 * 2048;
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
