//! Rows on disk: segments of records, one folder for each prefix.
//!
//! Workers may share a folder: each claims a part of it, the first that no other holds, and finds there what a worker
//! before it kept. Every life writes segments of its own and reads those of all. A record says its length and carries a
//! checksum: what was cut off or damaged is as if it had not been kept.

mod folders;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::oneshot;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::folders::{claim, folder_bytes, folder_name, newest, prefix_folders};
use super::{Prefix, Row};
use crate::RowCacheSettings;

/// First bytes of a segment: its name and version.
const MAGIC: [u8; 8] = *b"FLROWS\0\x01";
/// Bytes in front of a row: its id, length and checksum.
const HEAD_BYTES: u64 = 20;
/// A segment is closed at this size.
const SEGMENT_BYTES: u64 = 256 << 20;
/// Rows that wait to be written take at most this; further ones are not kept.
const WAITING_BYTES: u64 = 32 << 20;
/// Chunks of rows that wait at most.
const WAITING_ORDERS: usize = 1024;

#[derive(Debug)]
pub(super) struct DiskTier {
    shared: Arc<Shared>,
    writer: mpsc::SyncSender<Order>,
    /// The claim on its part of the folder; or why there is none.
    claim: Result<File, String>,
}

/// What the writer and the readers share.
#[derive(Debug)]
struct Shared {
    /// Its part of the folder.
    folder: PathBuf,
    limit_bytes: u64,
    /// Differs for every life of every worker.
    life: u64,
    prefixes: Mutex<BTreeMap<Prefix, Arc<Kept>>>,
    active: Mutex<Arc<BTreeSet<Prefix>>>,
    held_bytes: AtomicU64,
    waiting_bytes: AtomicU64,
    /// There was no room, or writing failed.
    full: AtomicBool,
}

/// The rows of one prefix.
#[derive(Debug, Default)]
struct Kept {
    state: Mutex<KeptState>,
}

#[derive(Debug, Default)]
struct KeptState {
    segments: Vec<Arc<File>>,
    rows: HashMap<u64, Place>,
}

/// Where a row lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    segment: u32,
    length: u32,
    /// Of the record.
    offset: u64,
}

enum Order {
    Keep(Prefix, Vec<Row>),
    Flush(oneshot::Sender<()>),
}

/// A segment that is being written.
struct Open {
    kept: Arc<Kept>,
    segment: u32,
    file: Arc<File>,
    bytes: u64,
}

impl DiskTier {
    pub(super) fn new(place: RowCacheSettings) -> io::Result<Self> {
        let (folder, claim) = match claim(&place.folder) {
            Ok((folder, claim)) => (folder, Ok(claim)),
            Err(error) => {
                let message = format!(
                    "the cache in {} cannot be used: {error}; choose another --cache-dir",
                    place.folder.display()
                );
                (place.folder.clone(), Err(message))
            }
        };
        let held_bytes = prefix_folders(&folder).iter().map(|(_, folder)| folder_bytes(folder)).sum();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let shared = Arc::new(Shared {
            life: now.as_nanos() as u64 ^ u64::from(std::process::id()) << 40,
            folder,
            limit_bytes: place.limit_bytes,
            prefixes: Mutex::default(),
            active: Mutex::default(),
            held_bytes: AtomicU64::new(held_bytes),
            waiting_bytes: AtomicU64::new(0),
            full: AtomicBool::new(false),
        });
        let (writer, orders) = mpsc::sync_channel(WAITING_ORDERS);
        let writing = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("feedline-cache".to_owned())
            .spawn(move || write(&writing, &orders))?;
        Ok(Self { shared, writer, claim })
    }

    /// Finds the rows that earlier lives have kept.
    pub(super) async fn open(&self, prefix: Prefix) -> Result<(), String> {
        self.claim.as_ref().map_err(String::clone)?;
        if self.shared.kept(prefix).is_some() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || shared.load(prefix)).await;
        read.map_err(|error| error.to_string())?.map(drop).map_err(|error| {
            let folder = self.shared.folder.display();
            format!("the cache in {folder} cannot be read: {error}; choose another --cache-dir")
        })
    }

    pub(super) async fn get(&self, prefix: Prefix, rows: Vec<u64>) -> Vec<Option<Bytes>> {
        let (count, Some(kept)) = (rows.len(), self.shared.kept(prefix)) else {
            return vec![None; rows.len()];
        };
        let read = move || rows.into_iter().map(|row| kept.read(row)).collect();
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| vec![None; count])
    }

    pub(super) fn put(&self, prefix: Prefix, rows: Vec<Row>) {
        let bytes: u64 = rows.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        if self.waiting_bytes() + bytes > WAITING_BYTES && self.waiting_bytes() > 0 {
            return;
        }
        self.shared.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.writer.try_send(Order::Keep(prefix, rows)).is_err() {
            self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.shared.full.load(Ordering::Relaxed) && self.waiting_bytes() < WAITING_BYTES
    }

    pub(super) fn set_active(&self, active: Arc<BTreeSet<Prefix>>) {
        *lock(&self.shared.active) = active;
        self.shared.full.store(false, Ordering::Relaxed);
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.shared.waiting_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.shared.held_bytes.load(Ordering::Relaxed)
    }

    pub(super) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        let writer = self.writer.clone();
        let sent = tokio::task::spawn_blocking(move || writer.send(Order::Flush(done))).await;
        if sent.is_ok_and(|sent| sent.is_ok()) {
            let _ = wait.await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds a part of the disk cache")
}

/// The writer's life: ends with the last sender.
fn write(shared: &Shared, orders: &mpsc::Receiver<Order>) {
    let mut open: Option<Open> = None;
    while let Ok(order) = orders.recv() {
        match order {
            Order::Flush(done) => drop(done.send(())),
            Order::Keep(prefix, rows) => {
                let bytes: u64 = rows.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                if !shared.full.load(Ordering::Relaxed)
                    && let Err(error) = shared.keep(&mut open, prefix, rows)
                {
                    open = None;
                    shared.full.store(true, Ordering::Relaxed);
                    let folder = shared.folder.display();
                    tracing::warn!(%folder, %error, "rows are no longer kept on disk");
                }
                shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
    }
}

impl Shared {
    fn kept(&self, prefix: Prefix) -> Option<Arc<Kept>> {
        lock(&self.prefixes).get(&prefix).cloned()
    }

    fn folder(&self, prefix: Prefix) -> PathBuf {
        self.folder.join(folder_name(prefix))
    }

    fn load(&self, prefix: Prefix) -> io::Result<Arc<Kept>> {
        let folder = self.folder(prefix);
        std::fs::create_dir_all(&folder)?;
        let mut state = KeptState::default();
        let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        paths.sort();
        for path in paths {
            state.add_segment(File::open(&path)?)?;
        }
        let new = || Arc::new(Kept { state: Mutex::new(state) });
        Ok(Arc::clone(lock(&self.prefixes).entry(prefix).or_insert_with(new)))
    }

    /// Appends rows that are not there yet, as far as there is room.
    fn keep(&self, open: &mut Option<Open>, prefix: Prefix, mut rows: Vec<Row>) -> io::Result<()> {
        // Its folder may have been deleted while the job had no work here.
        let kept = match self.kept(prefix) {
            Some(kept) => kept,
            None => self.load(prefix)?,
        };
        rows.retain(|(row, _)| !lock(&kept.state).rows.contains_key(row));
        let mut buffer = Vec::new();
        let mut places = Vec::new();
        let segment = match open {
            Some(open) if Arc::ptr_eq(&open.kept, &kept) && open.bytes < SEGMENT_BYTES => open,
            _ => open.insert(self.create(prefix, &kept)?),
        };
        for (row, bytes) in rows {
            let record = HEAD_BYTES + bytes.len() as u64;
            if !self.make_room(prefix, buffer.len() as u64 + record) {
                self.full.store(true, Ordering::Relaxed);
                break;
            }
            let Ok(length) = u32::try_from(bytes.len()) else { continue };
            let offset = segment.bytes + buffer.len() as u64;
            places.push((row, Place { segment: segment.segment, length, offset }));
            buffer.extend(row.to_le_bytes());
            buffer.extend(length.to_le_bytes());
            buffer.extend(xxh3_64_with_seed(&bytes, row).to_le_bytes());
            buffer.extend_from_slice(&bytes);
        }
        (&*segment.file).write_all(&buffer)?;
        segment.bytes += buffer.len() as u64;
        self.held_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        lock(&kept.state).rows.extend(places);
        Ok(())
    }

    fn create(&self, prefix: Prefix, kept: &Arc<Kept>) -> io::Result<Open> {
        let mut state = lock(&kept.state);
        let segment = state.segments.len() as u32;
        let path = self.folder(prefix).join(format!("{:016x}-{segment:04}.rows", self.life));
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        (&file).write_all(&MAGIC)?;
        let file = Arc::new(file);
        state.segments.push(Arc::clone(&file));
        drop(state);
        self.held_bytes.fetch_add(MAGIC.len() as u64, Ordering::Relaxed);
        Ok(Open { kept: Arc::clone(kept), segment, file, bytes: MAGIC.len() as u64 })
    }

    /// Deletes the rows of prefixes that no job is worked on with, the longest unused first, until there is room.
    fn make_room(&self, wanted: Prefix, bytes: u64) -> bool {
        let fits = || self.held_bytes.load(Ordering::Relaxed) + bytes <= self.limit_bytes;
        if fits() {
            return true;
        }
        let active = Arc::clone(&lock(&self.active));
        let idle = prefix_folders(&self.folder).into_iter();
        let idle = idle.filter(|(prefix, _)| *prefix != wanted && !active.contains(prefix));
        let mut idle: Vec<(SystemTime, Prefix, PathBuf)> =
            idle.map(|(prefix, folder)| (newest(&folder), prefix, folder)).collect();
        idle.sort();
        for (_, prefix, folder) in idle {
            let freed = folder_bytes(&folder);
            if std::fs::remove_dir_all(&folder).is_ok() {
                self.held_bytes
                    .fetch_sub(freed.min(self.held_bytes.load(Ordering::Relaxed)), Ordering::Relaxed);
                lock(&self.prefixes).remove(&prefix);
            }
            if fits() {
                return true;
            }
        }
        false
    }
}

impl Kept {
    /// A row, unless it is not there or is damaged.
    fn read(&self, row: u64) -> Option<Bytes> {
        let state = lock(&self.state);
        let place = *state.rows.get(&row)?;
        let file = Arc::clone(state.segments.get(place.segment as usize)?);
        drop(state);
        let mut record = vec![0; (HEAD_BYTES + u64::from(place.length)) as usize];
        let read = file.read_exact_at(&mut record, place.offset);
        let (head, bytes) = record.split_at(HEAD_BYTES as usize);
        let sound = read.is_ok() && head[12..] == xxh3_64_with_seed(bytes, row).to_le_bytes();
        if !sound {
            tracing::warn!(row, "a row of the disk cache is damaged and is made again");
            lock(&self.state).rows.remove(&row);
            return None;
        }
        Some(Bytes::from(record).slice(HEAD_BYTES as usize..))
    }
}

impl KeptState {
    /// Takes over the whole records of a segment.
    fn add_segment(&mut self, file: File) -> io::Result<()> {
        let size = file.metadata()?.len();
        let mut magic = [0; MAGIC.len()];
        if size < MAGIC.len() as u64 || file.read_exact_at(&mut magic, 0).is_err() || magic != MAGIC {
            return Ok(());
        }
        let segment = self.segments.len() as u32;
        let mut offset = MAGIC.len() as u64;
        let mut head = [0; HEAD_BYTES as usize];
        while offset + HEAD_BYTES <= size {
            file.read_exact_at(&mut head, offset)?;
            let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = head;
            let row = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let length = u32::from_le_bytes([i, j, k, l]);
            let end = offset + HEAD_BYTES + u64::from(length);
            if end > size {
                break;
            }
            self.rows.insert(row, Place { segment, length, offset });
            offset = end;
        }
        self.segments.push(Arc::new(file));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
