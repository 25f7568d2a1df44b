//! The in-memory index of the rows of one prefix on disk.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::folders::segment_files;
use crate::cache::format_version::{magic, version_mismatch};
use crate::cache::rows::CachedRow;

/// The format version of segments on disk.
const VERSION: u8 = 1;
/// The first bytes of a segment.
pub(super) const MAGIC: [u8; 8] = magic(VERSION);
/// Size of the header of a row: id (8 bytes), length (4) and checksum (8).
pub(super) const RECORD_HEADER_BYTES: u64 = 20;

#[derive(Debug, Default)]
pub(super) struct DiskIndex {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    segments: BTreeMap<u32, Segment>,
    /// The number of the next segment.
    next: u32,
    rows: HashMap<u64, RowLocation>,
}

#[derive(Debug)]
struct Segment {
    file: Arc<File>,
    path: PathBuf,
    /// The ids of the rows in this segment. Other segments may contain the same rows.
    rows: Vec<u64>,
}

/// The location of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowLocation {
    pub(super) segment: u32,
    pub(super) length: u32,
    /// The offset of the row's header in the segment.
    pub(super) offset: u64,
}

impl DiskIndex {
    /// Builds the index of the segments in the directory of a prefix.
    pub(super) fn load(folder: &Path) -> io::Result<Self> {
        let index = Self::default();
        for found in segment_files(folder)? {
            let file = match File::open(&found.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => Arc::new(file?),
            };
            if let Some(reason) = version_error(&file) {
                tracing::warn!(file = %found.path.display(), reason, "cannot read a segment of the disk cache");
            }
            let segment = index.add_segment(Arc::clone(&file), found.path);
            index.add_rows(read_locations(&file, segment)?);
        }
        Ok(index)
    }

    /// Reads a row. `None` if the row is missing or corrupted.
    pub(super) fn read(&self, row: u64) -> Option<Bytes> {
        let state = lock(&self.state);
        let location = *state.rows.get(&row)?;
        let file = Arc::clone(&state.segments.get(&location.segment)?.file);
        drop(state);
        let mut record = vec![0; (RECORD_HEADER_BYTES + u64::from(location.length)) as usize];
        let read = file.read_exact_at(&mut record, location.offset);
        let (head, bytes) = record.split_at(RECORD_HEADER_BYTES as usize);
        let sound = read.is_ok() && head[12..] == xxh3_64_with_seed(bytes, row).to_le_bytes();
        if !sound {
            tracing::warn!(row, "recomputing a corrupted row of the disk cache");
            lock(&self.state).rows.remove(&row);
            return None;
        }
        Some(Bytes::from(record).slice(RECORD_HEADER_BYTES as usize..))
    }

    /// Reads every row.
    pub(super) fn read_all(&self) {
        let rows: Vec<u64> = lock(&self.state).rows.keys().copied().collect();
        rows.into_iter().for_each(|row| drop(self.read(row)));
    }

    /// Removes from `rows` the rows that the index already contains.
    pub(super) fn retain_new(&self, rows: &mut Vec<CachedRow>) {
        let state = lock(&self.state);
        rows.retain(|(row, _)| !state.rows.contains_key(row));
    }

    /// Adds an empty segment. Returns its number.
    pub(super) fn add_segment(&self, file: Arc<File>, path: PathBuf) -> u32 {
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.segments.insert(number, Segment { file, path, rows: Vec::new() });
        number
    }

    /// Adds the locations of rows. Ignores rows in segments that were removed.
    pub(super) fn add_rows(&self, locations: Vec<(u64, RowLocation)>) {
        let mut state = lock(&self.state);
        let State { segments, rows, .. } = &mut *state;
        for (row, location) in locations {
            if let Some(segment) = segments.get_mut(&location.segment) {
                segment.rows.push(row);
                rows.insert(row, location);
            }
        }
    }

    /// Removes a deleted segment and its rows.
    pub(super) fn remove_segment(&self, path: &Path) {
        let mut state = lock(&self.state);
        let State { segments, rows, .. } = &mut *state;
        let Some(number) =
            segments.iter().find(|(_, segment)| segment.path == path).map(|(number, _)| *number)
        else {
            return;
        };
        let segment = segments.remove(&number);
        for row in segment.iter().flat_map(|segment| &segment.rows) {
            if rows.get(row).is_some_and(|location| location.segment == number) {
                rows.remove(row);
            }
        }
        // Release the lock before closing the file, because freeing the blocks of a deleted file takes time.
        drop(state);
        drop(segment);
    }

    /// Removes segments whose files are missing.
    pub(super) fn remove_deleted_segments(&self) {
        let state = lock(&self.state);
        let paths: Vec<PathBuf> = state.segments.values().map(|segment| segment.path.clone()).collect();
        drop(state);
        for path in paths.iter().filter(|path| !path.exists()) {
            self.remove_segment(path);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a part of the disk cache")
}

fn version_error(file: &File) -> Option<String> {
    let mut start = [0; MAGIC.len()];
    file.read_exact_at(&mut start, 0).ok().and_then(|()| version_mismatch(&start, VERSION))
}

/// Reads the locations of the complete rows of a segment.
fn read_locations(file: &File, segment: u32) -> io::Result<Vec<(u64, RowLocation)>> {
    let size = file.metadata()?.len();
    let mut found = Vec::new();
    let mut magic = [0; MAGIC.len()];
    if size < MAGIC.len() as u64 || file.read_exact_at(&mut magic, 0).is_err() || magic != MAGIC {
        return Ok(found);
    }
    let mut offset = MAGIC.len() as u64;
    let mut head = [0; RECORD_HEADER_BYTES as usize];
    while offset + RECORD_HEADER_BYTES <= size {
        file.read_exact_at(&mut head, offset)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = head;
        let row = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let length = u32::from_le_bytes([i, j, k, l]);
        let end = offset + RECORD_HEADER_BYTES + u64::from(length);
        if end > size {
            break;
        }
        found.push((row, RowLocation { segment, length, offset }));
        offset = end;
    }
    Ok(found)
}
