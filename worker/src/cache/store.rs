//! Rows in the object store: segments of records, one folder for each prefix, shared by all workers of a cluster.
//!
//! Every life of a worker writes segments of its own, and finds those of all others by listing the folder. The index of
//! a segment lists its rows (`store/segment.rs`); what was damaged is as if it had not been kept. Two workers that make a
//! row at the same time both keep it, and either copy serves.
//!
//! Nothing is ever deleted here: other clusters may use the same place. Who wants rows to go deletes their objects, or
//! has the store do so by age; a row whose object has gone is made again.
//!
//! The limit holds for all objects under the URL as they were listed last, so several workers may pass it by what they
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

/// Segments that are uploaded at a time. Those that wait for it count in what may wait.
const UPLOADS: usize = 2;
/// Segments that one `get` reads at a time, and one look at their indexes.
const READS: usize = 16;
/// Bytes of a segment's end that are read first: most often the whole index.
const TAIL_BYTES: u64 = 256 << 10;
/// How often other workers' segments are looked for, and rows that have waited long are uploaded.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Listings take at most this part of the time, so a large one is requested less often.
const LOOK_SHARE: u32 = 20;

#[derive(Debug)]
pub(super) struct StoreTier {
    shared: Arc<Shared>,
}

/// What the tier shares with the tasks that upload and look.
#[derive(Debug)]
struct Shared {
    stores: Arc<Stores>,
    /// The folder's, as it was given.
    url: String,
    /// Differs for every life of every worker.
    life: u64,
    /// Segments that this life has written.
    written: AtomicU64,
    known: Mutex<SegmentCatalog>,
    /// Where its tasks run: known once a prefix was opened. Rows come from threads that are none of it.
    runtime: OnceLock<Handle>,
    uploads: TaskTracker,
    upload_turns: Semaphore,
}

impl StoreTier {
    /// Makes no request yet.
    pub(super) fn new(place: StoreCacheSettings, stores: Arc<Stores>) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let uploads = TaskTracker::new();
        // So that it can be waited for whenever it is empty.
        uploads.close();
        let shared = Shared {
            stores,
            url: place.url,
            // The hash's keys are random: clocks and process ids alone may agree on two hosts.
            life: RandomState::new().hash_one((now, std::process::id())),
            written: AtomicU64::new(0),
            known: Mutex::new(SegmentCatalog::new(place.limit_bytes)),
            runtime: OnceLock::new(),
            uploads,
            upload_turns: Semaphore::new(UPLOADS),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Finds the rows that all workers have kept so far.
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

    /// Keeps rows of a prefix that was opened.
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

    /// Bytes that it may hold.
    pub(super) fn room_bytes(&self) -> u64 {
        self.shared.lock().limit_bytes()
    }

    /// Uploads everything that waits.
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

/// The background's life: ends with the tier.
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
        self.known.lock().expect("no code panics while it holds what is known of the store's cache")
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
        let _turn = self.upload_turns.acquire().await.expect("the turns are never closed");
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
                    tracing::warn!(%url, %error, "rows cannot be kept in the store; it is tried again every 30 s");
                }
            }
        }
    }

    /// Finds what other workers have kept for the prefixes that are worked on.
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
                    tracing::warn!(%url, reason, "an object in the cache is not read");
                    self.lock().on_found(object, &[]);
                }
                // The next look comes back to it.
                Err(error) if error.is_retryable() => self.on_failed_read(error),
                Err(error) => {
                    let (url, error) = (self.object_url(&object.name), reason(error));
                    tracing::warn!(%url, %error, "an object in the cache cannot be read: it is left alone");
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

    /// The rows of a segment, or why it cannot be used.
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

    /// The sound ones of these rows, each with its place among those asked for.
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
                    tracing::warn!(%url, %error, "an object of the cache cannot be read: its rows are made again");
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
                tracing::warn!(%url, row = entry.row, "a row of the cache is damaged and is made again");
                self.lock().forget_row(prefix, entry.row);
            }
        }
        sound
    }

    /// Rows in the store are let be for a while, so that a store that does not answer holds up few groups.
    fn on_failed_read(&self, error: SourceError) {
        if self.lock().reads.begin(Instant::now()) {
            let (url, error) = (&self.url, reason(error));
            tracing::warn!(%url, %error, "kept rows cannot be read from the store; it is tried again every 30 s");
        }
    }
}

fn folder_name(prefix: Prefix) -> String {
    format!("{prefix:032x}")
}

/// The prefix of an object that is named as a segment is; nothing else is ours.
fn prefix_of(name: &str) -> Option<Prefix> {
    let (folder, file) = name.split_once('/')?;
    let prefix = Prefix::from_str_radix(folder, 16).ok().filter(|prefix| folder_name(*prefix) == folder)?;
    (file.ends_with(".rows") && !file.contains('/')).then_some(prefix)
}

/// An error without the object's URL, which is logged beside it.
fn reason(error: SourceError) -> String {
    match error {
        SourceError::Url { reason, .. } | SourceError::Store { reason, .. } => reason,
        SourceError::NotFound { .. } => "it does not exist".to_owned(),
        other => other.to_string(),
    }
}

/// Reads every row of any bytes, as an object's.
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
