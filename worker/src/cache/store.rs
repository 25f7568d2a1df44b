//! The store tier: segments of records in the object store, with one folder for each prefix, shared by all workers of
//! a cluster.
//!
//! Every life of a worker writes its own segments, and finds the segments of other workers by listing the folder.
//! Each segment has an index of its rows (`store/segment.rs`); damaged segments are ignored. If two workers compute
//! the same row at the same time, both store it, and either copy is used.
//!
//! The tier deletes nothing, since other clusters may use the same folder. Users delete objects themselves or let the
//! store expire them. A row whose object is missing is computed again.
//!
//! The limit applies to all objects under the URL at the last listing, so several workers may exceed it by what they
//! write between two listings.

mod catalog;
mod segment;

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use feedline_sources::{SourceError, Stores};
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use self::catalog::{ListedObject, SegmentCatalog, SegmentRead, SegmentUpload};
use self::segment::{SegmentEntry, SegmentFooter, build_segment, rejection, row_of};
use super::rows::{CachedRow, Prefix};
use crate::settings::StoreCacheSettings;

/// The number of concurrent uploads. Waiting segments count as pending rows.
const UPLOADS: usize = 2;
/// The number of segments that one `get`, or one read of indexes, reads at the same time.
const READS: usize = 16;
/// The number of bytes at the end of a segment that are read first: usually the whole index.
const TAIL_BYTES: u64 = 256 << 10;
/// The interval at which segments of other workers are listed, and long-pending rows are uploaded.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The largest share of the time that listings use is the reciprocal of this number, so a long listing is repeated
/// less often.
const LOOK_SHARE: u32 = 20;

#[derive(Debug)]
pub(super) struct StoreTier {
    shared: Arc<Shared>,
}

/// The state that the tier shares with its background tasks.
#[derive(Debug)]
struct Shared {
    stores: Arc<Stores>,
    /// The URL of the folder, as the user wrote it.
    url: String,
    /// A number that is unique to this life of this worker.
    life: u64,
    /// The number of segments that this life has written.
    written: AtomicU64,
    known: Mutex<SegmentCatalog>,
    /// The runtime of the background tasks, set when a prefix is opened. Rows arrive on threads outside the runtime.
    runtime: OnceLock<Handle>,
    uploads: TaskTracker,
    upload_turns: Semaphore,
}

impl StoreTier {
    /// Creates the tier without a request.
    pub(super) fn new(place: StoreCacheSettings, stores: Arc<Stores>) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let uploads = TaskTracker::new();
        // Closed at once, so that waiting returns whenever there is no task.
        uploads.close();
        let shared = Shared {
            stores,
            url: place.url,
            // The keys of the hasher are random: clocks and process ids alone may be equal on two hosts.
            life: RandomState::new().hash_one((now, std::process::id())),
            written: AtomicU64::new(0),
            known: Mutex::new(SegmentCatalog::new(place.limit_bytes)),
            runtime: OnceLock::new(),
            uploads,
            upload_turns: Semaphore::new(UPLOADS),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Finds the rows that all workers have stored.
    pub(super) async fn open(&self, prefix: Prefix) -> Result<(), String> {
        self.start(Handle::current());
        self.shared.look(&BTreeSet::from([prefix])).await.map_err(|error| {
            let (url, reason) = (&self.shared.url, reason(error));
            format!("the cache in {url} cannot be listed: {reason}; choose another --cache-store")
        })?;
        self.shared.lock().open(prefix);
        Ok(())
    }

    pub(super) async fn get(&self, prefix: Prefix, rows: Vec<u64>) -> Vec<Option<Bytes>> {
        let (mut found, reads) = self.shared.lock().find(prefix, &rows, Instant::now());
        let reads = reads.into_iter().map(|read| self.shared.read(prefix, read));
        let mut reads = futures::stream::iter(reads).buffer_unordered(READS);
        while let Some(rows) = reads.next().await {
            for (place, bytes) in rows {
                found[place] = Some(bytes);
            }
        }
        found
    }

    /// Stores rows of an opened prefix.
    pub(super) fn put(&self, prefix: Prefix, rows: Vec<CachedRow>) {
        let Some(runtime) = self.shared.runtime.get() else { return };
        let batches = self.shared.lock().keep(prefix, rows, Instant::now());
        self.shared.spawn_uploads(runtime, batches);
    }

    pub(super) fn has_room(&self) -> bool {
        self.shared.lock().has_room(Instant::now())
    }

    /// Uploads the pending rows of prefixes that became inactive.
    pub(super) fn set_active(&self, active: Arc<BTreeSet<Prefix>>) {
        let batches = self.shared.lock().set_active(active);
        if let Some(runtime) = self.shared.runtime.get() {
            self.shared.spawn_uploads(runtime, batches);
        }
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.shared.lock().waiting_bytes()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.shared.lock().held_bytes()
    }

    /// The capacity in bytes.
    pub(super) fn room_bytes(&self) -> u64 {
        self.shared.lock().limit_bytes()
    }

    /// Uploads all pending rows.
    pub(super) async fn flush(&self) {
        let batches = self.shared.lock().take_all();
        self.shared.spawn_uploads(&Handle::current(), batches);
        self.shared.uploads.wait().await;
    }

    fn start(&self, runtime: Handle) {
        self.shared.runtime.get_or_init(|| {
            runtime.spawn(keep_up(Arc::downgrade(&self.shared)));
            runtime
        });
    }
}

/// The background task. Ends when the tier is dropped.
async fn keep_up(tier: Weak<Shared>) {
    let mut next_look = Instant::now() + LOOK_EVERY;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(shared) = tier.upgrade() else { return };
        let begun = Instant::now();
        let batches = shared.lock().take_old(begun);
        shared.spawn_uploads(&Handle::current(), batches);
        if begun >= next_look {
            shared.refresh().await;
            next_look = Instant::now() + LOOK_EVERY.max(begun.elapsed() * LOOK_SHARE);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SegmentCatalog> {
        self.known.lock().expect("no code panics while it holds the catalog of the store tier")
    }

    fn object_url(&self, name: &str) -> String {
        format!("{}/{name}", self.url.trim_end_matches('/'))
    }

    fn spawn_uploads(self: &Arc<Self>, runtime: &Handle, batches: Vec<SegmentUpload>) {
        for batch in batches {
            let shared = Arc::clone(self);
            self.uploads.spawn_on(async move { shared.upload(batch).await }, runtime);
        }
    }

    async fn upload(&self, batch: SegmentUpload) {
        let _turn = self.upload_turns.acquire().await.expect("the semaphore of uploads is never closed");
        let SegmentUpload { prefix, rows, bytes } = batch;
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let name: Arc<str> = format!("{}/{:016x}-{number:04}.rows", folder_name(prefix), self.life).into();
        let (segment, entries) = build_segment(prefix, &rows);
        self.lock().on_upload(prefix, &name, &segment, &entries);
        drop(rows);
        match self.stores.put(&self.object_url(&name), segment).await {
            Ok(()) => self.lock().on_uploaded(prefix, name, bytes, &entries),
            Err(error) => {
                if self.lock().on_upload_failed(prefix, bytes, &entries, Instant::now()) {
                    let (url, error) = (&self.url, reason(error));
                    tracing::warn!(%url, %error, "cannot upload cached rows to the object store; the worker retries every 30 s");
                }
            }
        }
    }

    /// Finds rows of active prefixes that other workers have stored.
    async fn refresh(&self) {
        let followed = self.lock().followed();
        if !followed.is_empty()
            && let Err(error) = self.look(&followed).await
        {
            self.on_failed_read(error);
        }
    }

    /// Lists all objects, and reads the indexes of those of `prefixes` that are new.
    async fn look(&self, prefixes: &BTreeSet<Prefix>) -> Result<(), SourceError> {
        let written_bytes = self.lock().written_bytes();
        let (mut all_bytes, mut new) = (0, Vec::new());
        let found = |name: &str, bytes: u64| {
            all_bytes += bytes;
            if let Some(prefix) = prefix_of(name)
                && prefixes.contains(&prefix)
                && self.lock().is_new(prefix, name)
            {
                new.push(ListedObject { prefix, name: name.into(), bytes });
            }
        };
        self.stores.list_folder(&self.url, found).await?;
        self.lock().on_listed(all_bytes, written_bytes);
        let reads = new.into_iter().map(|object| self.read_index(object));
        let mut reads = futures::stream::iter(reads).buffer_unordered(READS);
        while let Some((object, index)) = reads.next().await {
            match index {
                Ok(Ok(entries)) => self.lock().on_found(object, &entries),
                Ok(Err(reason)) => {
                    let url = self.object_url(&object.name);
                    tracing::warn!(%url, reason, "skipped a cache object");
                    self.lock().on_found(object, &[]);
                }
                // The next listing retries this segment.
                Err(error) if error.is_retryable() => self.on_failed_read(error),
                Err(error) => {
                    let (url, error) = (self.object_url(&object.name), reason(error));
                    tracing::warn!(%url, %error, "cannot read a cache object; the worker ignores it");
                    self.lock().on_found(object, &[]);
                }
            }
        }
        Ok(())
    }

    async fn read_index(
        &self,
        object: ListedObject,
    ) -> (ListedObject, Result<Result<Vec<SegmentEntry>, String>, SourceError>) {
        let index = self.index_of(&object).await;
        (object, index)
    }

    /// The rows of a segment, or the reason why it cannot be used.
    async fn index_of(
        &self,
        object: &ListedObject,
    ) -> Result<Result<Vec<SegmentEntry>, String>, SourceError> {
        let tail = object.bytes.saturating_sub(TAIL_BYTES)..object.bytes;
        let last = self.read_range(object, tail.clone()).await?;
        let Some(footer) = SegmentFooter::parse(&last, object.bytes) else {
            return Ok(Err(rejection(&last)));
        };
        let index = if footer.index.start < tail.start {
            self.read_range(object, footer.index.clone()).await?
        } else {
            last.slice((footer.index.start - tail.start) as usize..(footer.index.end - tail.start) as usize)
        };
        Ok(footer.entries(object.prefix, &index).ok_or_else(|| "its index is damaged".to_owned()))
    }

    async fn read_range(&self, object: &ListedObject, range: Range<u64>) -> Result<Bytes, SourceError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let parts = self.stores.get_ranges(&self.object_url(&object.name), &[range]).await?;
        Ok(parts.into_iter().next().unwrap_or_default())
    }

    /// The undamaged rows, each with its index in the request.
    async fn read(&self, prefix: Prefix, read: SegmentRead) -> Vec<(usize, Bytes)> {
        let SegmentRead { segment, name, rows } = read;
        let url = self.object_url(&name);
        let ranges: Vec<Range<u64>> = rows.iter().map(|(_, entry)| entry.record()).collect();
        let records = match self.stores.get_ranges(&url, &ranges).await {
            Ok(records) => records,
            Err(error) => {
                let look_again = error.is_retryable();
                self.lock().forget_segment(prefix, segment, &name, look_again);
                if look_again {
                    self.on_failed_read(error);
                } else {
                    let error = reason(error);
                    tracing::warn!(%url, %error, "cannot read a cache object; its rows are computed again");
                }
                return Vec::new();
            }
        };
        self.lock().reads.end();
        let mut sound = Vec::with_capacity(rows.len());
        for ((place, entry), record) in rows.into_iter().zip(records) {
            if let Some(bytes) = row_of(&record, entry.row) {
                sound.push((place, bytes));
            } else {
                tracing::warn!(%url, row = entry.row, "a cached row is damaged and is computed again");
                self.lock().forget_row(prefix, entry.row);
            }
        }
        sound
    }

    /// Pauses requests after a failure, so that a store that does not answer delays only a few groups.
    fn on_failed_read(&self, error: SourceError) {
        if self.lock().reads.begin(Instant::now()) {
            let (url, error) = (&self.url, reason(error));
            tracing::warn!(%url, %error, "cannot read cached rows from the object store; the worker retries every 30 s");
        }
    }
}

fn folder_name(prefix: Prefix) -> String {
    format!("{prefix:032x}")
}

/// The prefix of an object with the name of a segment. Other objects do not belong to the cache.
fn prefix_of(name: &str) -> Option<Prefix> {
    let (folder, file) = name.split_once('/')?;
    let prefix = Prefix::from_str_radix(folder, 16).ok().filter(|prefix| folder_name(*prefix) == folder)?;
    (file.ends_with(".rows") && !file.contains('/')).then_some(prefix)
}

/// An error without the URL of the object, which the log entry contains already.
fn reason(error: SourceError) -> String {
    match error {
        SourceError::Url { reason, .. } | SourceError::Store { reason, .. } => reason,
        SourceError::NotFound { .. } => "it does not exist".to_owned(),
        other => other.to_string(),
    }
}

/// Reads every row of arbitrary bytes as an object.
#[cfg(feature = "fuzzing")]
pub(super) fn read_any(bytes: &[u8]) {
    let object = Bytes::copy_from_slice(bytes);
    let part = |range: Range<u64>| object.get(range.start as usize..range.end as usize);
    let Some(footer) = SegmentFooter::parse(bytes, bytes.len() as u64) else { return };
    let index = part(footer.index.clone()).and_then(|index| footer.entries(1, index));
    for entry in index.into_iter().flatten() {
        let range = entry.record();
        drop(row_of(&object.slice(range.start as usize..range.end as usize), entry.row));
    }
}

#[cfg(test)]
mod tests;
