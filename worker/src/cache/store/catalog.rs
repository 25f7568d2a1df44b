//! The catalog of the store tier: the pending rows, the locations of the stored rows, and the total size. The catalog makes no
//! requests, and receives the time as an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feedline_common::backoff::spread;
use feedline_data::memory::CACHE_WRITE_QUEUE_BYTES;
use tokio::time::Instant;

use super::segment::{EMPTY_SEGMENT_BYTES, SegmentEntry, stored_row_bytes};
use crate::cache::rows::{CachedRow, Prefix};

/// Segment size that triggers an upload.
const UPLOAD_SEGMENT_BYTES: u64 = 8 << 20;
/// Maximum time that a row stays pending. After that time, its segment is uploaded even if it is small, so that other
/// workers find the row.
const MAX_PENDING_TIME: Duration = Duration::from_secs(30);
/// Minimum time for which requests pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct SegmentCatalog {
    pub(super) limit_bytes: u64,
    prefixes: BTreeMap<Prefix, PrefixRows>,
    active: Arc<BTreeSet<Prefix>>,
    /// The size of all objects at the last listing.
    listed_bytes: u64,
    /// Bytes that this worker has uploaded.
    pub(super) written_bytes: u64,
    /// The part of `written_bytes` that `listed_bytes` includes.
    listed_written_bytes: u64,
    /// Size of the pending rows in their future segments.
    pub(super) pending_bytes: u64,
    /// Whether a row was rejected and no capacity has become free since.
    is_full: bool,
    pub(super) reads: StoreBackoff,
    pub(super) writes: StoreBackoff,
}

/// The rows of one prefix.
#[derive(Debug, Default)]
struct PrefixRows {
    /// Names of the objects that this worker has read or written.
    known_objects: HashSet<Arc<str>>,
    /// Names of the segments. [`StoredRowLocation::segment`] is an index into this list.
    segments: Vec<Arc<str>>,
    rows: HashMap<u64, StoredRowLocation>,
    /// Rows that are not in the store yet, including rows that are being uploaded.
    pending_rows: HashMap<u64, Bytes>,
    /// The pending rows that are not being uploaded yet.
    next_segment: Option<PendingSegment>,
}

#[derive(Debug, Clone, Copy)]
struct StoredRowLocation {
    segment: u32,
    length: u32,
    /// The offset of the row's header in the segment.
    offset: u64,
}

#[derive(Debug)]
struct PendingSegment {
    rows: Vec<CachedRow>,
    /// The size of the future segment.
    bytes: u64,
    since: Instant,
}

/// A segment to upload.
#[derive(Debug)]
pub(super) struct SegmentUpload {
    pub(super) prefix: Prefix,
    pub(super) rows: Vec<CachedRow>,
    /// The size of the segment.
    pub(super) bytes: u64,
}

/// Rows to read from one segment.
#[derive(Debug)]
pub(super) struct SegmentRead {
    pub(super) segment: u32,
    pub(super) name: Arc<str>,
    /// The locations of the rows, each with its position in the request.
    pub(super) rows: Vec<(usize, SegmentEntry)>,
}

/// A listed object with the name of a segment.
#[derive(Debug)]
pub(super) struct ListedObject {
    pub(super) prefix: Prefix,
    pub(super) name: Arc<str>,
    pub(super) bytes: u64,
}

/// A pause in requests after a failure.
#[derive(Debug, Default)]
pub(super) struct StoreBackoff {
    until: Option<Instant>,
}

impl StoreBackoff {
    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Starts a pause. Returns whether this is the first failure since the last success.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.until.replace(now + spread(RETRY_PAUSE)).is_none()
    }

    pub(super) fn end(&mut self) {
        self.until = None;
    }
}

impl SegmentCatalog {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, ..Self::default() }
    }

    /// Size of the objects in the store: the size at the last listing, plus this worker's uploads since then.
    pub(super) fn held_bytes(&self) -> u64 {
        self.listed_bytes + self.written_bytes - self.listed_written_bytes
    }

    fn fits(&self, bytes: u64) -> bool {
        self.held_bytes() + self.pending_bytes + bytes <= self.limit_bytes
    }

    pub(super) fn has_room(&self, now: Instant) -> bool {
        !self.is_full
            && self.fits(1)
            && self.pending_bytes < CACHE_WRITE_QUEUE_BYTES
            && !self.writes.is_active(now)
    }

    /// Adds a prefix. While the prefix is active, its segments are listed.
    pub(super) fn open(&mut self, prefix: Prefix) {
        self.prefixes.entry(prefix).or_default();
    }

    /// The opened prefixes that are active.
    pub(super) fn watched_prefixes(&self) -> BTreeSet<Prefix> {
        self.active.iter().copied().filter(|prefix| self.prefixes.contains_key(prefix)).collect()
    }

    /// Sets the active prefixes. Returns the pending rows of the inactive prefixes.
    pub(super) fn set_active(&mut self, active: Arc<BTreeSet<Prefix>>) -> Vec<SegmentUpload> {
        self.active = Arc::clone(&active);
        self.take(|prefix, _| !active.contains(&prefix))
    }

    pub(super) fn take_all(&mut self) -> Vec<SegmentUpload> {
        self.take(|_, _| true)
    }

    /// Returns the pending rows of segments that have waited for [`MAX_PENDING_TIME`].
    pub(super) fn take_old(&mut self, now: Instant) -> Vec<SegmentUpload> {
        self.take(|_, next_segment| now.duration_since(next_segment.since) >= MAX_PENDING_TIME)
    }

    fn take(&mut self, which: impl Fn(Prefix, &PendingSegment) -> bool) -> Vec<SegmentUpload> {
        let mut batches = Vec::new();
        for (&prefix, stored) in &mut self.prefixes {
            if stored.next_segment.as_ref().is_some_and(|next_segment| which(prefix, next_segment)) {
                batches.extend(stored.take(prefix));
            }
        }
        batches
    }

    /// Adds the new rows that fit into the tier. Returns the segments to upload now.
    pub(super) fn push(&mut self, prefix: Prefix, rows: Vec<CachedRow>, now: Instant) -> Vec<SegmentUpload> {
        let mut batches = Vec::new();
        if self.writes.is_active(now) {
            return batches;
        }
        self.open(prefix);
        for (row, bytes) in rows {
            let stored = &self.prefixes[&prefix];
            let is_known = stored.rows.contains_key(&row) || stored.pending_rows.contains_key(&row);
            if is_known || u32::try_from(bytes.len()).is_err() {
                continue;
            }
            let frame_bytes = if stored.next_segment.is_some() { 0 } else { EMPTY_SEGMENT_BYTES };
            let size = frame_bytes + stored_row_bytes(bytes.len());
            if !self.fits(size) {
                self.is_full = true;
                break;
            }
            if self.pending_bytes > 0 && self.pending_bytes + size > CACHE_WRITE_QUEUE_BYTES {
                batches.extend(self.take_largest());
                break;
            }
            self.pending_bytes += size;
            let stored = self.prefixes.entry(prefix).or_default();
            stored.pending_rows.insert(row, bytes.clone());
            let next_segment =
                stored.next_segment.get_or_insert(PendingSegment { rows: Vec::new(), bytes: 0, since: now });
            next_segment.rows.push((row, bytes));
            next_segment.bytes += size;
            if next_segment.bytes >= UPLOAD_SEGMENT_BYTES {
                batches.extend(stored.take(prefix));
            }
        }
        batches
    }

    /// Returns the largest pending segment if no segment is being uploaded. Many prefixes can fill the write queue before any of
    /// their segments has the upload size.
    fn take_largest(&mut self) -> Option<SegmentUpload> {
        let size =
            |(prefix, stored): (&Prefix, &PrefixRows)| Some((stored.next_segment.as_ref()?.bytes, *prefix));
        let sizes: Vec<(u64, Prefix)> = self.prefixes.iter().filter_map(size).collect();
        if sizes.iter().map(|(bytes, _)| bytes).sum::<u64>() < self.pending_bytes {
            return None;
        }
        let (_, largest) = *sizes.iter().max()?;
        self.prefixes.get_mut(&largest)?.take(largest)
    }

    /// Starts the upload of a segment. Replaces the pending rows with views of the segment, so that their bytes exist only once.
    pub(super) fn on_upload(
        &mut self,
        prefix: Prefix,
        name: &Arc<str>,
        segment: &Bytes,
        entries: &[SegmentEntry],
    ) {
        let stored = self.prefixes.entry(prefix).or_default();
        stored.known_objects.insert(Arc::clone(name));
        for entry in entries {
            let end = entry.record().end as usize;
            stored.pending_rows.insert(entry.row, segment.slice(end - entry.length as usize..end));
        }
    }

    pub(super) fn on_uploaded(
        &mut self,
        prefix: Prefix,
        name: Arc<str>,
        bytes: u64,
        entries: &[SegmentEntry],
    ) {
        self.remove_pending(prefix, bytes, entries);
        self.written_bytes += bytes;
        self.writes.end();
        self.prefixes.entry(prefix).or_default().add(name, entries);
    }

    /// Removes the pending rows of a failed upload. Returns whether this is the first failure since the last success.
    pub(super) fn on_upload_failed(
        &mut self,
        prefix: Prefix,
        bytes: u64,
        entries: &[SegmentEntry],
        now: Instant,
    ) -> bool {
        self.remove_pending(prefix, bytes, entries);
        self.is_full = false;
        self.writes.begin(now)
    }

    fn remove_pending(&mut self, prefix: Prefix, bytes: u64, entries: &[SegmentEntry]) {
        self.pending_bytes -= bytes;
        let stored = self.prefixes.entry(prefix).or_default();
        for entry in entries {
            stored.pending_rows.remove(&entry.row);
        }
    }

    /// Applies a listing of all objects. `written_bytes` is the value of [`Self::written_bytes`] at the start of the
    /// listing.
    pub(super) fn on_listed(&mut self, bytes: u64, written_bytes: u64) {
        let held_before = self.held_bytes();
        (self.listed_bytes, self.listed_written_bytes) = (bytes, written_bytes);
        self.is_full &= self.held_bytes() >= held_before;
    }

    pub(super) fn is_new(&self, prefix: Prefix, name: &str) -> bool {
        self.prefixes.get(&prefix).is_none_or(|stored| !stored.known_objects.contains(name))
    }

    /// Adds the rows of a listed object, and records that the object must not be read again. `entries` is empty if the
    /// object cannot be used.
    pub(super) fn on_index_read(&mut self, object: ListedObject, entries: &[SegmentEntry]) {
        let stored = self.prefixes.entry(object.prefix).or_default();
        if stored.known_objects.insert(Arc::clone(&object.name)) && !entries.is_empty() {
            stored.add(object.name, entries);
        }
    }

    /// Finds rows. Returns the pending rows by position, and the reads of the stored rows.
    pub(super) fn find(
        &self,
        prefix: Prefix,
        rows: &[u64],
        now: Instant,
    ) -> (Vec<Option<Bytes>>, Vec<SegmentRead>) {
        let mut found = vec![None; rows.len()];
        let mut reads: BTreeMap<u32, SegmentRead> = BTreeMap::new();
        let Some(stored) = self.prefixes.get(&prefix) else { return (found, Vec::new()) };
        for (position, row) in rows.iter().enumerate() {
            if let Some(bytes) = stored.pending_rows.get(row) {
                found[position] = Some(bytes.clone());
            } else if let Some(&StoredRowLocation { segment, length, offset }) = stored.rows.get(row)
                && !self.reads.is_active(now)
            {
                let name = &stored.segments[segment as usize];
                let new = || SegmentRead { segment, name: Arc::clone(name), rows: Vec::new() };
                let wanted = &mut reads.entry(segment).or_insert_with(new).rows;
                wanted.push((position, SegmentEntry { row: *row, offset, length }));
            }
        }
        (found, reads.into_values().collect())
    }

    /// Removes a row, so that it is computed again.
    pub(super) fn remove_row(&mut self, prefix: Prefix, row: u64) {
        if let Some(stored) = self.prefixes.get_mut(&prefix) {
            stored.rows.remove(&row);
        }
    }

    /// Removes the rows of a segment, so that they are computed again. With `can_retry`, the next listing reads the segment again.
    pub(super) fn remove_segment(&mut self, prefix: Prefix, segment: u32, name: &str, can_retry: bool) {
        if let Some(stored) = self.prefixes.get_mut(&prefix) {
            stored.rows.retain(|_, location| location.segment != segment);
            if can_retry {
                stored.known_objects.remove(name);
            }
        }
    }
}

impl PrefixRows {
    fn take(&mut self, prefix: Prefix) -> Option<SegmentUpload> {
        let PendingSegment { rows, bytes, .. } = self.next_segment.take()?;
        Some(SegmentUpload { prefix, rows, bytes })
    }

    /// Adds the rows of a segment. If two segments contain the same row, the first copy is used.
    fn add(&mut self, name: Arc<str>, entries: &[SegmentEntry]) {
        let segment = self.segments.len() as u32;
        self.segments.push(name);
        for &SegmentEntry { row, offset, length } in entries {
            self.rows.entry(row).or_insert(StoredRowLocation { segment, length, offset });
        }
    }
}
