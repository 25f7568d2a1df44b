//! Tests of the index store: saved indexes are loaded unchanged, or loading is an error.

use std::fs;

use feedline_data::manifest::{Block, Shard, ShardIndex, ShardRef};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use tempfile::TempDir;

use super::*;

fn manifest(rows: u32) -> Arc<Manifest> {
    let mut schema = Schema::default();
    schema.set("x", ColumnType::Scalar(ScalarType::Int64));
    let shard = Shard::simulated(
        ShardRef {
            url: "file:///d/0".to_owned(),
            size_bytes: 10,
            version: "1".to_owned(),
            ..ShardRef::default()
        },
        ShardIndex {
            blocks: vec![Block { rows, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() }],
            schema: Some(schema.clone()),
            defects: Vec::new(),
            ..ShardIndex::default()
        },
    );
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
    store.save("k", &manifest(5), &[]).unwrap();
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert_eq!(later.load("k").unwrap(), Some(manifest(5)));
    assert_eq!(later.manifest("k", &manifest(5).index_id()).unwrap(), manifest(5));
}

#[test]
fn damage_is_an_error_with_a_remedy() {
    let (folder, store) = store();
    store.save("k", &manifest(5), &[]).unwrap();
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
fn an_index_of_an_earlier_release_is_built_again() {
    let (folder, store) = store();
    store.save("k", &manifest(5), &[]).unwrap();
    let path = folder.path().join("k.index");
    let mut bytes = fs::read(&path).unwrap();
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    assert_eq!(store.load("k").unwrap(), None);
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    // A job that the earlier release opened continues with it.
    assert_eq!(later.manifest("k", &manifest(5).index_id()).unwrap(), manifest(5));
    later.save("k", &manifest(5), &[]).unwrap();
    assert_eq!(later.load("k").unwrap(), Some(manifest(5)));
}

#[test]
fn a_lost_or_corrupted_index_is_written_again() {
    let (folder, store) = store();
    let path = folder.path().join("k.index");
    store.save("k", &manifest(5), &[]).unwrap();
    fs::remove_file(&path).unwrap();
    let reopened = |store: &IndexStore| {
        store.save("k", &manifest(5), &[]).unwrap();
        IndexStore::open(folder.path().to_owned()).unwrap().load("k").unwrap()
    };
    assert_eq!(reopened(&store), Some(manifest(5)), "it was removed");
    fs::write(&path, b"FEEDIDX?").unwrap();
    store.load("k").unwrap_err();
    assert_eq!(reopened(&store), Some(manifest(5)), "it was corrupted");
}

/// The names of all index files.
fn files(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_running_job_keeps_its_index_while_other_jobs_build_new_ones() {
    let (folder, store) = store();
    let ids: Vec<String> = (0..6).map(|rows| manifest(rows).index_id()).collect();
    store.save("k", &manifest(1), &[]).unwrap();
    for rows in 2..6 {
        store.save("k", &manifest(rows), &[ids[1].clone()]).unwrap();
    }
    let mut expected =
        vec!["k.index".to_owned(), format!("k-{}.index", ids[1]), format!("k-{}.index", ids[4])];
    expected.sort();
    assert_eq!(files(&folder), expected, "the latest, the one in use, and the previous one");
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert_eq!(later.load("k").unwrap(), Some(manifest(5)));
    for rows in [1, 4, 5] {
        assert_eq!(later.manifest("k", &ids[rows as usize]).unwrap(), manifest(rows));
    }
    let message = later.manifest("k", &ids[2]).unwrap_err();
    assert!(message.contains("no longer stored"), "{message}");
    later.manifest("k", "none").unwrap_err();
    // The job has ended.
    store.save("k", &manifest(2), &[]).unwrap();
    let mut expected = vec!["k.index".to_owned(), format!("k-{}.index", ids[5])];
    expected.sort();
    assert_eq!(files(&folder), expected);
}

/// A coordinator may be killed after it has retained the latest index and before it writes the next one.
#[test]
fn an_index_that_is_already_retained_is_not_damaged() {
    let (folder, store) = store();
    store.save("k", &manifest(5), &[]).unwrap();
    let earlier = folder.path().join(format!("k-{}.index", manifest(5).index_id()));
    fs::hard_link(folder.path().join("k.index"), &earlier).unwrap();
    store.save("k", &manifest(6), &[]).unwrap();
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert_eq!(later.manifest("k", &manifest(5).index_id()).unwrap(), manifest(5));
    assert_eq!(later.load("k").unwrap(), Some(manifest(6)));
}

#[test]
fn an_index_of_shards_that_were_written_again_replaces_the_earlier_one() {
    let (folder, store) = store();
    store.save("k", &manifest(5), &[]).unwrap();
    let mut again = (*manifest(5)).clone();
    again.shards[0].object.version = "2".to_owned();
    again.shards[0].digest = manifest(5).shards[0].digest;
    assert_eq!(
        (again.content_id(), again.fingerprint()),
        (manifest(5).content_id(), manifest(5).fingerprint())
    );
    store.save("k", &Arc::new(again.clone()), &[]).unwrap();
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert_eq!(later.load("k").unwrap().as_deref(), Some(&again));
}

#[test]
fn a_file_that_another_process_replaced_is_written_again() {
    let (folder, store) = store();
    store.save("k", &manifest(5), &[]).unwrap();
    let other = IndexStore::open(folder.path().to_owned()).unwrap();
    other.save("k", &manifest(6), &[]).unwrap();
    store.save("k", &manifest(5), &[]).unwrap();
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert_eq!(later.load("k").unwrap(), Some(manifest(5)));
    assert_eq!(later.manifest("k", &manifest(6).index_id()).unwrap(), manifest(6));
}

#[test]
fn the_index_of_a_start_position_is_found_by_its_content() {
    let (folder, store) = store();
    store.save("k", &manifest(5), &[]).unwrap();
    store.save("k", &manifest(6), &[]).unwrap();
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    let saved = load_saved(&later, "k", &manifest(5).content_id()).unwrap();
    assert_eq!((saved.latest, saved.of_start), (Some(manifest(6)), Some(manifest(5))));
    let saved = load_saved(&later, "k", &manifest(6).content_id()).unwrap();
    assert_eq!((saved.latest, saved.of_start), (Some(manifest(6)), None), "it is the latest");
    let saved = load_saved(&later, "k", &ContentId::default()).unwrap();
    assert_eq!(
        (saved.latest, saved.of_start),
        (Some(manifest(6)), None),
        "an earlier release saved the position"
    );
    assert!(load_saved(&later, "k", &manifest(9).content_id()).unwrap().of_start.is_none());
}

/// A job of an earlier release refers to its index by fingerprint. The shards may have been overwritten with equal sizes.
#[test]
fn a_job_of_an_earlier_release_keeps_its_index() {
    let (folder, store) = store();
    let mut old = (*manifest(5)).clone();
    old.shards[0].digest = None;
    let (old, fingerprint) = (Arc::new(old), manifest(5).fingerprint());
    store.save("k", &old, &[]).unwrap();
    store.save("k", &manifest(5), std::slice::from_ref(&fingerprint)).unwrap();
    store.save("k", &manifest(6), std::slice::from_ref(&fingerprint)).unwrap();
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert_eq!(later.manifest("k", &fingerprint).unwrap(), old);
    assert_eq!(store.manifest("k", &fingerprint).unwrap(), old);
}

#[test]
fn a_damaged_earlier_index_is_an_error_that_names_the_file() {
    let (folder, store) = store();
    store.save("k", &manifest(5), &[]).unwrap();
    store.save("k", &manifest(6), &[]).unwrap();
    let id = manifest(5).index_id();
    let path = folder.path().join(format!("k-{id}.index"));
    let bytes = fs::read(&path).unwrap();
    for place in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let later = IndexStore::open(folder.path().to_owned()).unwrap();
        let message = later.manifest("k", &id).unwrap_err();
        assert!(message.contains(path.to_str().unwrap()), "{message}");
        assert!(later.find_content("k", &manifest(5).content_id()).is_none());
    }
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
                    store.save("k", &manifest(1 + (thread + round) % 2), &[]).unwrap();
                }
            });
        }
    });
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert!(later.load("k").unwrap().is_some_and(|found| [manifest(1), manifest(2)].contains(&found)));
}

#[test]
fn only_the_latest_indexes_of_growing_sources_are_retained() {
    let (folder, store) = store();
    let key = |number: usize| format!("{}{number:064x}", "a".repeat(16));
    let other_tenant = format!("{}{:064x}", "b".repeat(16), 7);
    store.save(&other_tenant, &manifest(1), &[]).unwrap();
    store.save("k", &manifest(1), &[]).unwrap();
    let in_use = [key(0)];
    // The modification times order the files.
    let set_age = |number: usize| {
        let file =
            fs::File::options().append(true).open(folder.path().join(format!("{}.index", key(number))));
        let age = std::time::Duration::from_secs(10_000 - number as u64);
        file.unwrap().set_modified(std::time::SystemTime::now() - age).unwrap();
    };
    for number in 0..=recorded::MAX_UNUSED_RECORDED + 1 {
        store.save(&key(number), &manifest(1), &in_use).unwrap();
        set_age(number);
    }
    // A job resumes with an old index.
    let later = IndexStore::open(folder.path().to_owned()).unwrap();
    assert!(later.load(&key(1)).unwrap().is_some());
    later.save(&key(1), &manifest(1), &in_use).unwrap();
    later.save(&key(1000), &manifest(1), &in_use).unwrap();
    later.save(&key(1001), &manifest(1), &in_use).unwrap();
    let remain = |number: usize| later.load(&key(number)).unwrap().is_some();
    assert!(remain(0), "a job uses it");
    assert!(remain(1), "a job has used it recently");
    assert!(!remain(2) && !remain(3) && remain(4), "the oldest are removed");
    assert!(remain(1000) && remain(1001));
    assert!(later.load(&other_tenant).unwrap().is_some() && later.load("k").unwrap().is_some());
}

#[test]
fn simultaneous_loads_share_one_read() {
    const READERS: usize = 8;
    let (_folder, store) = store();
    store.save("k", &manifest(5), &[]).unwrap();
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
    store.save("k", &manifest(6), &[]).unwrap();
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
        let manifest = store.read(key).unwrap().unwrap();
        assert!(!manifest.shards.is_empty(), "{key}");
        assert_eq!(store.load(key).unwrap(), None, "{key}: the dataset is indexed again");
        assert_eq!(store.manifest(key, &manifest.fingerprint()).unwrap(), manifest, "{key}");
        let mut bytes = fs::read(&copy).unwrap();
        bytes[MAGIC.len()] = 99;
        fs::write(&copy, &bytes).unwrap();
        let reason = IndexStore::open(folder.path().to_owned()).unwrap().load(key).unwrap_err();
        assert!(reason.contains("version 99") && reason.contains("up to 2"), "{reason}");
    }
}
