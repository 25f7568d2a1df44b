//! The store tier: one directory per prefix in the object store, with segment objects. All workers of a cluster share the directories.
//!
//! Each worker process writes its own segments, and finds the segments of other workers by listing the directories. A segment
//! contains an index of its rows (`store/segment.rs`). Corrupted segments are ignored. If two workers compute the same row
//! concurrently, both store it, and readers use either copy.
//!
//! The tier never deletes objects, because other clusters may use the same directory. Users delete objects themselves, or let the
//! store expire them. If an object is missing, its rows are computed again.
//!
//! The limit applies to the size of all objects at the last listing. Several workers may exceed it by the bytes that they write
//! between two listings.

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
use self::segment::{SegmentEntry, SegmentFooter, build_segment, rejection_reason, verified_row};
use super::rows::{CachedRow, Prefix};
use crate::settings::StoreCacheSettings;

/// Maximum number of concurrent uploads. Rows of segments that wait for an upload count as pending.
const MAX_CONCURRENT_UPLOADS: usize = 2;
/// Maximum number of segments that one `get` or one listing reads concurrently.
const MAX_CONCURRENT_READS: usize = 16;
/// Number of bytes that are read from the end of a segment to find its index. They usually contain the whole index.
const FOOTER_READ_BYTES: u64 = 256 << 10;
/// Minimum interval between listings. At the same interval, rows that have been pending for too long are uploaded.
const LISTING_INTERVAL: Duration = Duration::from_secs(2);
/// Listings use at most this fraction of the time: 1 / `LISTING_TIME_DIVISOR`. A slow listing is repeated less often.
const LISTING_TIME_DIVISOR: u32 = 20;

#[derive(Debug)]
pub(super) struct StoreTier {
    shared: Arc<StoreTierState>,
}

/// The state that the tier shares with its background tasks.
#[derive(Debug)]
struct StoreTierState {
    stores: Arc<Stores>,
    /// The URL of the cache, as the user wrote it.
    url: String,
    /// A unique id of this process, which is part of the names of its segments.
    writer_id: u64,
    /// Number of segments that this process has created.
    segment_count: AtomicU64,
    catalog: Mutex<SegmentCatalog>,
    /// The runtime of the background tasks, which is set when a prefix is opened. Callers of `put` run outside of the runtime.
    runtime: OnceLock<Handle>,
    uploads: TaskTracker,
    upload_permits: Semaphore,
}

impl StoreTier {
    /// Creates the tier. Makes no requests.
    pub(super) fn new(settings: StoreCacheSettings, stores: Arc<Stores>) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let uploads = TaskTracker::new();
        // A closed tracker still accepts tasks. Its `wait` returns when no task is running.
        uploads.close();
        let shared = StoreTierState {
            stores,
            url: settings.url,
            // The hasher has random keys. The clock and the process id alone could be equal on two hosts.
            writer_id: RandomState::new().hash_one((now, std::process::id())),
            segment_count: AtomicU64::new(0),
            catalog: Mutex::new(SegmentCatalog::new(settings.limit_bytes)),
            runtime: OnceLock::new(),
            uploads,
            upload_permits: Semaphore::new(MAX_CONCURRENT_UPLOADS),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Loads the index of the rows that all workers have stored.
    pub(super) async fn open(&self, prefix: Prefix) -> Result<(), String> {
        self.start_background_task(Handle::current());
        self.shared.list_segments(&BTreeSet::from([prefix])).await.map_err(|error| {
            let (url, reason) = (&self.shared.url, reason_without_url(error));
            format!("cannot list the cache in {url}: {reason}; choose another --cache-store")
        })?;
        self.shared.lock().open(prefix);
        Ok(())
    }

    pub(super) async fn get(&self, prefix: Prefix, rows: Vec<u64>) -> Vec<Option<Bytes>> {
        let (mut found, reads) = self.shared.lock().find(prefix, &rows, Instant::now());
        let reads = reads.into_iter().map(|read| self.shared.read(prefix, read));
        let mut reads = futures::stream::iter(reads).buffer_unordered(MAX_CONCURRENT_READS);
        while let Some(rows) = reads.next().await {
            for (position, bytes) in rows {
                found[position] = Some(bytes);
            }
        }
        found
    }

    /// Stores rows of an opened prefix.
    pub(super) fn put(&self, prefix: Prefix, rows: Vec<CachedRow>) {
        let Some(runtime) = self.shared.runtime.get() else { return };
        let batches = self.shared.lock().push(prefix, rows, Instant::now());
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

    pub(super) fn pending_bytes(&self) -> u64 {
        self.shared.lock().pending_bytes
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.shared.lock().held_bytes()
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.shared.lock().limit_bytes
    }

    /// Uploads all pending rows.
    pub(super) async fn flush(&self) {
        let batches = self.shared.lock().take_all();
        self.shared.spawn_uploads(&Handle::current(), batches);
        self.shared.uploads.wait().await;
    }

    fn start_background_task(&self, runtime: Handle) {
        self.shared.runtime.get_or_init(|| {
            runtime.spawn(run_background_task(Arc::downgrade(&self.shared)));
            runtime
        });
    }
}

/// Uploads pending rows and lists segments of other workers, until the tier is dropped.
async fn run_background_task(tier: Weak<StoreTierState>) {
    let mut next_listing = Instant::now() + LISTING_INTERVAL;
    loop {
        tokio::time::sleep(LISTING_INTERVAL).await;
        let Some(shared) = tier.upgrade() else { return };
        let start = Instant::now();
        let batches = shared.lock().take_old(start);
        shared.spawn_uploads(&Handle::current(), batches);
        if start >= next_listing {
            shared.refresh().await;
            next_listing = Instant::now() + LISTING_INTERVAL.max(start.elapsed() * LISTING_TIME_DIVISOR);
        }
    }
}

impl StoreTierState {
    fn lock(&self) -> MutexGuard<'_, SegmentCatalog> {
        self.catalog.lock().expect("no thread panics while it holds the catalog of the store tier")
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
        let _permit = self.upload_permits.acquire().await.expect("the semaphore of uploads is never closed");
        let SegmentUpload { prefix, rows, bytes } = batch;
        let number = self.segment_count.fetch_add(1, Ordering::Relaxed);
        let name: Arc<str> =
            format!("{}/{:016x}-{number:04}.rows", folder_name(prefix), self.writer_id).into();
        let (segment, entries) = build_segment(prefix, &rows);
        self.lock().on_upload(prefix, &name, &segment, &entries);
        drop(rows);
        match self.stores.put(&self.object_url(&name), segment).await {
            Ok(()) => self.lock().on_uploaded(prefix, name, bytes, &entries),
            Err(error) => {
                if self.lock().on_upload_failed(prefix, bytes, &entries, Instant::now()) {
                    let (url, error) = (&self.url, reason_without_url(error));
                    tracing::warn!(%url, %error, "cannot upload cached rows to the object store; retrying in 30 s");
                }
            }
        }
    }

    /// Lists the segments of active prefixes.
    async fn refresh(&self) {
        let watched_prefixes = self.lock().watched_prefixes();
        if !watched_prefixes.is_empty()
            && let Err(error) = self.list_segments(&watched_prefixes).await
        {
            self.on_failed_read(error);
        }
    }

    /// Lists all objects, and reads the indexes of new segments of these prefixes.
    async fn list_segments(&self, prefixes: &BTreeSet<Prefix>) -> Result<(), SourceError> {
        let written_bytes = self.lock().written_bytes;
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
        let reads = new.into_iter().map(|object| async move {
            let index = self.read_index(&object).await;
            (object, index)
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(MAX_CONCURRENT_READS);
        while let Some((object, index)) = reads.next().await {
            let entries = match index {
                // The next listing retries this segment.
                Err(error) if error.is_retryable() => {
                    self.on_failed_read(error);
                    continue;
                }
                Err(error) => Err(reason_without_url(error)),
                Ok(entries) => entries,
            };
            let entries = entries.unwrap_or_else(|reason| {
                let url = self.object_url(&object.name);
                tracing::warn!(%url, reason, "ignoring an unusable cache object");
                Vec::new()
            });
            self.lock().on_index_read(object, &entries);
        }
        Ok(())
    }

    /// Reads the index of a segment. The inner error is the reason why the segment cannot be used.
    async fn read_index(
        &self,
        object: &ListedObject,
    ) -> Result<Result<Vec<SegmentEntry>, String>, SourceError> {
        let tail = object.bytes.saturating_sub(FOOTER_READ_BYTES)..object.bytes;
        let last = self.read_range(object, tail.clone()).await?;
        let Some(footer) = SegmentFooter::parse(&last, object.bytes) else {
            return Ok(Err(rejection_reason(&last)));
        };
        let index = if footer.index.start < tail.start {
            self.read_range(object, footer.index.clone()).await?
        } else {
            last.slice((footer.index.start - tail.start) as usize..(footer.index.end - tail.start) as usize)
        };
        Ok(footer
            .entries(object.prefix, &index)
            .ok_or_else(|| "the index of the segment is corrupted".to_owned()))
    }

    async fn read_range(&self, object: &ListedObject, range: Range<u64>) -> Result<Bytes, SourceError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let parts = self.stores.get_ranges(&self.object_url(&object.name), &[range]).await?;
        Ok(parts.into_iter().next().unwrap_or_default())
    }

    /// Reads rows of one segment. Returns the intact rows, each with its position in the request.
    async fn read(&self, prefix: Prefix, read: SegmentRead) -> Vec<(usize, Bytes)> {
        let SegmentRead { segment, name, rows } = read;
        let url = self.object_url(&name);
        let ranges: Vec<Range<u64>> = rows.iter().map(|(_, entry)| entry.record()).collect();
        let records = match self.stores.get_ranges(&url, &ranges).await {
            Ok(records) => records,
            Err(error) => {
                let can_retry = error.is_retryable();
                self.lock().remove_segment(prefix, segment, &name, can_retry);
                if can_retry {
                    self.on_failed_read(error);
                } else {
                    let error = reason_without_url(error);
                    tracing::warn!(%url, %error, "cannot read a cache object; recomputing its rows");
                }
                return Vec::new();
            }
        };
        self.lock().reads.end();
        let mut undamaged = Vec::with_capacity(rows.len());
        for ((position, entry), record) in rows.into_iter().zip(records) {
            if let Some(bytes) = verified_row(&record, entry.row) {
                undamaged.push((position, bytes));
            } else {
                tracing::warn!(%url, row = entry.row, "recomputing a corrupted cached row");
                self.lock().remove_row(prefix, entry.row);
            }
        }
        undamaged
    }

    /// Pauses reads after a failure, so that a store that does not respond delays only a few groups.
    fn on_failed_read(&self, error: SourceError) {
        if self.lock().reads.begin(Instant::now()) {
            let (url, error) = (&self.url, reason_without_url(error));
            tracing::warn!(%url, %error, "cannot read cached rows from the object store; retrying in 30 s");
        }
    }
}

fn folder_name(prefix: Prefix) -> String {
    format!("{prefix:032x}")
}

/// Parses the prefix from the name of a segment. Returns `None` for other objects, which do not belong to the cache.
fn prefix_of(name: &str) -> Option<Prefix> {
    let (folder, file) = name.split_once('/')?;
    let prefix = Prefix::from_str_radix(folder, 16).ok().filter(|prefix| folder_name(*prefix) == folder)?;
    (file.ends_with(".rows") && !file.contains('/')).then_some(prefix)
}

/// Returns the reason for an error without the object URL, which the log entry already contains.
fn reason_without_url(error: SourceError) -> String {
    match error {
        SourceError::Url { reason, .. }
        | SourceError::Store { reason, .. }
        | SourceError::Denied { reason, .. } => reason,
        SourceError::NotFound { .. } => "the object does not exist".to_owned(),
        other => other.to_string(),
    }
}

/// Parses arbitrary bytes as a segment and reads its rows.
pub(super) fn read_arbitrary_bytes(bytes: &[u8]) {
    let object = Bytes::copy_from_slice(bytes);
    let part = |range: Range<u64>| object.get(range.start as usize..range.end as usize);
    let Some(footer) = SegmentFooter::parse(bytes, bytes.len() as u64) else { return };
    let index = part(footer.index.clone()).and_then(|index| footer.entries(1, index));
    for entry in index.into_iter().flatten() {
        let range = entry.record();
        drop(verified_row(&object.slice(range.start as usize..range.end as usize), entry.row));
    }
}

#[cfg(test)]
mod tests;
