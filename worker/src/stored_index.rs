//! Stores dataset indexes in the worker's cache directory, so that the worker fetches each index only once. Several workers may
//! share the directory, and may be killed during a write.

use std::fs::{self, DirEntry, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedline_data::manifest::Manifest;
use feedline_proto::decode_manifest;

/// Separates the name of an index from the random suffix of an incomplete file. [`crate::stored_index_patterns`] contains it too.
const PART_SEPARATOR: &str = ".part-";
/// Suffix of a complete index.
const SUFFIX: &str = ".manifest";
/// Age at which an incomplete file or an unused index is deleted.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The path of a dataset's index.
pub(crate) fn path(folder: &Path, key: &str, reference: &str) -> PathBuf {
    folder.join(format!("{key}-{reference}{SUFFIX}"))
}

/// Reads an index. Returns `None` if the index is missing, is damaged or another index, or has an unsupported version. The
/// reference is a hash of the whole index, unless an earlier release wrote it. Blocks.
pub(crate) fn load(file: &Path, reference: &str) -> Option<Manifest> {
    let manifest = decode_manifest(&fs::read(file).ok()?);
    if let Err(reason) = &manifest {
        let file = file.display();
        tracing::warn!(%file, reason, "cannot read a saved index from the cache directory; fetching the index again");
    }
    manifest.ok().filter(|manifest| manifest.is_index(reference))
}

/// Writes an index atomically. Deletes incomplete files of killed workers, and indexes of the same source that have not been
/// written or read for a day. Blocks.
pub(crate) fn save(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let key = name.split_once('-').map_or("", |(key, _)| key);
    remove_abandoned(folder, key);
    let mut prefix = file.file_stem().unwrap_or_default().to_owned();
    prefix.push(PART_SEPARATOR);
    let mut part = tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    part.write_all(bytes)?;
    part.persist(file)?;
    Ok(())
}

fn remove_abandoned(folder: &Path, key: &str) {
    let is_abandoned = |entry: &DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !is_part(&name) && !is_index_of(&name, key) {
            return false;
        }
        let metadata = entry.metadata().ok();
        let used =
            metadata.and_then(|metadata| Some(metadata.modified().ok()?.max(metadata.accessed().ok()?)));
        used.and_then(|used| used.elapsed().ok()).is_some_and(|age| age > ABANDONED_AFTER)
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(is_abandoned) {
        // A file that cannot be deleted only uses disk space.
        let _ = fs::remove_file(entry.path());
    }
}

/// Whether a file has the name of an index of this source.
fn is_index_of(name: &str, key: &str) -> bool {
    let reference = name.strip_suffix(SUFFIX).and_then(|name| name.strip_prefix(key)?.strip_prefix('-'));
    is_hash(key) && reference.is_some_and(is_hash)
}

fn is_hash(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a file has the name of an incomplete index. Other files in the directory may belong to the user.
fn is_part(name: &str) -> bool {
    let index = name.split_once(PART_SEPARATOR).and_then(|(index, _)| index.split_once('-'));
    index.is_some_and(|(key, reference)| is_hash(key) && is_hash(reference))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::time::SystemTime;

    use feedline_data::manifest::{Shard, ShardIndex, ShardRef};
    use feedline_data::schema::Schema;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn indexes_of_the_earlier_release_are_read_and_those_of_another_version_are_rejected_with_both_versions()
    {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/golden/ef04d0d/worker");
        let indexes: Vec<String> =
            names(&folder).into_iter().filter(|name| name.ends_with(".manifest")).collect();
        assert_eq!(indexes.len(), 3);
        for name in indexes {
            let fingerprint = name.trim_end_matches(".manifest").rsplit('-').next().unwrap();
            assert!(load(&folder.join(&name), fingerprint).is_some(), "{name}");
            assert!(load(&folder.join(&name), "another").is_none(), "{name}");
            // The last value of a field counts: field 1 is the version.
            let newer = [fs::read(folder.join(&name)).unwrap().as_slice(), &[0x08, 99]].concat();
            let reason = decode_manifest(&newer).unwrap_err();
            assert!(reason.contains("version 99") && reason.contains("version 1"), "{reason}");
        }
    }

    #[test]
    fn concurrent_saves_of_an_index_leave_one_complete_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path(), "0a", "1b");
        let written: Vec<Vec<u8>> = (1..=8).map(|by| vec![by; usize::from(by) * 5_000]).collect();
        std::thread::scope(|scope| {
            for body in &written {
                let file = &file;
                scope.spawn(move || {
                    for _ in 0..20 {
                        save(file, body).unwrap();
                        let found = fs::read(file).unwrap();
                        assert!(found.iter().all(|byte| *byte == found[0]), "the file mixes two indexes");
                        assert_eq!(found.len(), usize::from(found[0]) * 5_000, "the file is incomplete");
                    }
                });
            }
        });
        assert_eq!(names(folder.path()), ["0a-1b.manifest"]);
    }

    #[test]
    fn unfinished_files_of_killed_workers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let long_ago = SystemTime::now() - ABANDONED_AFTER * 2;
        for name in ["0a-1b.part-7", "0a-2c.part-NeW", "big.tar.part-1", "0a-3d.manifest", "0b-1b.manifest"] {
            let file = File::create(folder.path().join(name)).unwrap();
            if name != "0a-2c.part-NeW" {
                file.set_times(FileTimes::new().set_accessed(long_ago).set_modified(long_ago)).unwrap();
            }
        }
        save(&path(folder.path(), "0a", "1b"), b"index").unwrap();
        let left = ["0a-1b.manifest", "0a-2c.part-NeW", "0b-1b.manifest", "big.tar.part-1"];
        assert_eq!(names(folder.path()), left, "an old index of the source is removed");
    }

    #[test]
    fn a_damaged_index_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let index =
            ShardIndex { blocks: Vec::new(), schema: None, defects: Vec::new(), ..ShardIndex::default() };
        let object = ShardRef {
            url: "file:///d/0".to_owned(),
            size_bytes: 10,
            version: "1".to_owned(),
            ..ShardRef::default()
        };
        let manifest = Manifest { schema: Schema::default(), shards: vec![Shard::simulated(object, index)] };
        let reference = manifest.index_id();
        let file = path(folder.path(), "0a", &reference);
        let bytes = feedline_proto::encode_manifest(&manifest);
        save(&file, &bytes).unwrap();
        assert_eq!(load(&file, &reference), Some(manifest));
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            fs::write(&file, &damaged).unwrap();
            assert_eq!(load(&file, &reference), None, "byte {place}");
        }
    }

    #[test]
    fn pipelines_must_not_read_unfinished_files() {
        let patterns = crate::stored_index_patterns(Path::new(""));
        assert!(patterns.contains(&PathBuf::from(format!("*{PART_SEPARATOR}*"))), "{patterns:?}");
    }
}
