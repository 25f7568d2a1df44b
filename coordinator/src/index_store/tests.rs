//! Tests of the index store: saved indexes are loaded unchanged, or loading is an error.

use std::fs;

use feedline_data::manifest::{Block, Shard, ShardIndex, ShardRef};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use tempfile::TempDir;

use super::*;

fn manifest(rows: u32) -> Arc<Manifest> {
    let mut schema = Schema::default();
    schema.set("x", ColumnType::Scalar(ScalarType::Int64));
    let shard = Shard {
        object: ShardRef { url: "file:///d/0".to_owned(), size_bytes: 10, version: "1".to_owned(), part: 0 },
        index: ShardIndex {
            blocks: vec![Block { rows, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() }],
            schema: Some(schema.clone()),
            defects: Vec::new(),
        },
    };
    Arc::new(Manifest { schema, shards: vec![shard] })
}

fn store() -> (TempDir, IndexStore) {
    let folder = TempDir::new().unwrap();
    let store = IndexStore::open(folder.path().to_owned()).unwrap();
    (folder, store)
}

#[test]
fn an_index_is_saved_once_and_loaded_after_a_restart() {
    let (folder, store) = store();
    assert_eq!(store.load("k").unwrap(), None);
    store.save("k", &manifest(5)).unwrap();
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert_eq!(later.load("k").unwrap(), Some(manifest(5)));
    assert_eq!(later.manifest("k", &manifest(5).fingerprint()).unwrap(), manifest(5));
}

#[test]
fn damage_is_an_error_with_a_remedy() {
    let (folder, store) = store();
    store.save("k", &manifest(5)).unwrap();
    let path = folder.path().join("k.index");
    let bytes = fs::read(&path).unwrap();
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let message = store.load("k").unwrap_err();
        assert!(
            message.starts_with(&format!("cannot use the saved index {}: ", path.display())),
            "{message}"
        );
        assert!(message.ends_with("; remove the file or run `feedline index --rebuild`"), "{message}");
        fs::write(&path, &bytes[..place]).unwrap();
        store.load("k").unwrap_err();
    }
}

#[test]
fn a_lost_or_corrupted_index_is_written_again() {
    let (folder, store) = store();
    let path = folder.path().join("k.index");
    store.save("k", &manifest(5)).unwrap();
    fs::remove_file(&path).unwrap();
    let reopened = |store: &IndexStore| {
        store.save("k", &manifest(5)).unwrap();
        IndexStore::open(folder.path().to_owned()).unwrap().load("k").unwrap()
    };
    assert_eq!(reopened(&store), Some(manifest(5)), "it was removed");
    fs::write(&path, b"FEEDIDX?").unwrap();
    store.load("k").unwrap_err();
    assert_eq!(reopened(&store), Some(manifest(5)), "it was corrupted");
}

#[test]
fn a_running_job_keeps_its_index_while_another_job_builds_a_new_one() {
    let (folder, store) = store();
    store.save("k", &manifest(5)).unwrap();
    store.save("k", &manifest(6)).unwrap();
    let old = manifest(5).fingerprint();
    assert_eq!(store.manifest("k", &old).unwrap(), manifest(5));
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    let message = later.manifest("k", &old).unwrap_err();
    assert!(message.contains("indexed again while the job ran"), "{message}");
}

/// Jobs that are opened at the same time may have different indexes of a source that has changed.
#[test]
fn simultaneous_saves_under_one_key_succeed() {
    let (folder, store) = store();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..50 {
                    store.save("k", &manifest(1 + (thread + round) % 2)).unwrap();
                }
            });
        }
    });
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert!(later.load("k").unwrap().is_some_and(|found| [manifest(1), manifest(2)].contains(&found)));
}

#[test]
fn simultaneous_loads_share_one_read() {
    const READERS: usize = 8;
    let (_folder, store) = store();
    store.save("k", &manifest(5)).unwrap();
    let reads = std::sync::atomic::AtomicUsize::new(0);
    let wanting = |store: &IndexStore| {
        let loads = store.pending_loads.lock().unwrap();
        // The list holds one reference in addition to the references of the callers.
        loads.get("k").map_or(0, |load| Arc::strong_count(load) - 1)
    };
    let read = || {
        reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        while wanting(&store) < READERS {
            std::thread::yield_now();
        }
        store.read("k")
    };
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| assert_eq!(store.load_shared("k", read).unwrap(), Some(manifest(5))));
        }
    });
    assert_eq!(reads.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert!(store.pending_loads.lock().unwrap().is_empty(), "nothing is kept");
    store.save("k", &manifest(6)).unwrap();
    assert_eq!(store.load("k").unwrap(), Some(manifest(6)), "and a later one is read anew");
}

#[test]
fn indexes_of_the_earlier_release_are_read_and_those_of_another_version_are_rejected_with_both_versions() {
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/golden/ef04d0d/coordinator/index");
    let (folder, store) = store();
    for entry in fs::read_dir(golden).unwrap() {
        let name = entry.unwrap().path();
        let key = name.file_stem().unwrap().to_str().unwrap();
        let copy = folder.path().join(name.file_name().unwrap());
        fs::copy(&name, &copy).unwrap();
        assert!(store.load(key).unwrap().is_some_and(|manifest| !manifest.shards.is_empty()), "{key}");
        let mut bytes = fs::read(&copy).unwrap();
        bytes[MAGIC.len()] = 99;
        fs::write(&copy, &bytes).unwrap();
        let reason = IndexStore::open(folder.path().to_owned()).unwrap().load(key).unwrap_err();
        assert!(reason.contains("version 99") && reason.contains("version 1"), "{reason}");
    }
}
