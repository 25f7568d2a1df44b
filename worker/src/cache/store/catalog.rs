//! The catalog of the store tier: pending rows, the segment of each other row, and the total size. The catalog makes
//! no requests, and the time is an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feedline_data::memory::CACHE_WRITE_QUEUE_BYTES;
use tokio::time::Instant;

use super::segment::{FRAME_BYTES, SegmentEntry, row_bytes};
use crate::cache::rows::{CachedRow, Prefix};

/// A segment is uploaded at this size.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Rows that are pending for longer are uploaded before their segment is full, so that other workers find them.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// After a failure no request is made for this time.
const REST: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct SegmentCatalog {
    limit_bytes: u64,
    prefixes: BTreeMap<Prefix, Kept>,
    active: Arc<BTreeSet<Prefix>>,
    /// The size of all objects at the last listing.
    listed_bytes: u64,
    /// Bytes that this worker has uploaded, and how many of them a listing has certainly counted.
    written_bytes: u64,
    counted_bytes: u64,
    /// Bytes of pending rows in their segments.
    waiting_bytes: u64,
    /// Whether a row did not fit, and no capacity was freed since.
    full: bool,
    pub(super) reads: StoreBackoff,
    pub(super) writes: StoreBackoff,
}

/// The rows of one prefix.
#[derive(Debug, Default)]
struct Kept {
    /// Objects that were read, or written by this worker.
    seen: HashSet<Arc<str>>,
    segments: Vec<Arc<str>>,
    rows: HashMap<u64, Place>,
    /// Rows that are not in the store yet.
    waiting: HashMap<u64, Bytes>,
    /// Pending rows that are not being uploaded.
    pending: Option<Pending>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    segment: u32,
    length: u32,
    /// The offset of the record.
    offset: u64,
}

#[derive(Debug)]
struct Pending {
    rows: Vec<CachedRow>,
    /// The size of their future segment.
    bytes: u64,
    since: Instant,
}

/// Rows for one new segment of this number of bytes.
#[derive(Debug)]
pub(super) struct SegmentUpload {
    pub(super) prefix: Prefix,
    pub(super) rows: Vec<CachedRow>,
    pub(super) bytes: u64,
}

/// Rows to read from one segment, each with its index in the request.
#[derive(Debug)]
pub(super) struct SegmentRead {
    pub(super) segment: u32,
    pub(super) name: Arc<str>,
    pub(super) rows: Vec<(usize, SegmentEntry)>,
}

/// An object that may be a segment.
#[derive(Debug)]
pub(super) struct ListedObject {
    pub(super) prefix: Prefix,
    pub(super) name: Arc<str>,
    pub(super) bytes: u64,
}

/// A pause of requests after a failure.
#[derive(Debug, Default)]
pub(super) struct StoreBackoff {
    until: Option<Instant>,
}

impl StoreBackoff {
    pub(super) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether this is the first failure since the last success.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.until.replace(now + REST).is_none()
    }

    pub(super) fn end(&mut self) {
        self.until = None;
    }
}

impl SegmentCatalog {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            prefixes: BTreeMap::new(),
            active: Arc::default(),
            listed_bytes: 0,
            written_bytes: 0,
            counted_bytes: 0,
            waiting_bytes: 0,
            full: false,
            reads: StoreBackoff::default(),
            writes: StoreBackoff::default(),
        }
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Bytes in the store. Never less than the bytes of this worker.
    pub(super) fn held_bytes(&self) -> u64 {
        self.listed_bytes + self.written_bytes - self.counted_bytes
    }

    fn fits(&self, bytes: u64) -> bool {
        self.held_bytes() + self.waiting_bytes + bytes <= self.limit_bytes
    }

    pub(super) fn has_room(&self, now: Instant) -> bool {
        !self.full && self.fits(1) && self.waiting_bytes < CACHE_WRITE_QUEUE_BYTES && !self.writes.is_on(now)
    }

    /// Follows a prefix from now on while it is active.
    pub(super) fn open(&mut self, prefix: Prefix) {
        self.prefixes.entry(prefix).or_default();
    }

    /// The prefixes whose new segments are listed.
    pub(super) fn followed(&self) -> BTreeSet<Prefix> {
        self.active.iter().copied().filter(|prefix| self.prefixes.contains_key(prefix)).collect()
    }

    /// Sets the active prefixes. Returns the pending rows of the other prefixes.
    pub(super) fn set_active(&mut self, active: Arc<BTreeSet<Prefix>>) -> Vec<SegmentUpload> {
        self.active = Arc::clone(&active);
        self.take(|prefix, _| !active.contains(&prefix))
    }

    pub(super) fn take_all(&mut self) -> Vec<SegmentUpload> {
        self.take(|_, _| true)
    }

    /// Returns rows that are pending for too long.
    pub(super) fn take_old(&mut self, now: Instant) -> Vec<SegmentUpload> {
        self.take(|_, pending| now.duration_since(pending.since) >= LONGEST_WAIT)
    }

    fn take(&mut self, which: impl Fn(Prefix, &Pending) -> bool) -> Vec<SegmentUpload> {
        let mut batches = Vec::new();
        for (&prefix, kept) in &mut self.prefixes {
            if kept.pending.as_ref().is_some_and(|pending| which(prefix, pending)) {
                batches.extend(kept.take(prefix));
            }
        }
        batches
    }

    /// Adds new rows, as far as the tier has capacity. Returns the segments to upload now.
    pub(super) fn keep(&mut self, prefix: Prefix, rows: Vec<CachedRow>, now: Instant) -> Vec<SegmentUpload> {
        let mut batches = Vec::new();
        if self.writes.is_on(now) {
            return batches;
        }
        self.open(prefix);
        for (row, bytes) in rows {
            let kept = &self.prefixes[&prefix];
            let is_known = kept.rows.contains_key(&row) || kept.waiting.contains_key(&row);
            if is_known || u32::try_from(bytes.len()).is_err() {
                continue;
            }
            let frame_bytes = if kept.pending.is_some() { 0 } else { FRAME_BYTES };
            let size = frame_bytes + row_bytes(bytes.len());
            if !self.fits(size) {
                self.full = true;
                break;
            }
            if self.waiting_bytes > 0 && self.waiting_bytes + size > CACHE_WRITE_QUEUE_BYTES {
                batches.extend(self.take_largest());
                break;
            }
            self.waiting_bytes += size;
            let kept = self.prefixes.entry(prefix).or_default();
            kept.waiting.insert(row, bytes.clone());
            let pending = kept.pending.get_or_insert(Pending { rows: Vec::new(), bytes: 0, since: now });
            pending.rows.push((row, bytes));
            pending.bytes += size;
            if pending.bytes >= SEGMENT_BYTES {
                batches.extend(kept.take(prefix));
            }
        }
        batches
    }

    /// Many prefixes can fill the write queue while none of their segments is full. Then the largest is uploaded.
    fn take_largest(&mut self) -> Option<SegmentUpload> {
        let size = |(prefix, kept): (&Prefix, &Kept)| Some((kept.pending.as_ref()?.bytes, *prefix));
        let sizes: Vec<(u64, Prefix)> = self.prefixes.iter().filter_map(size).collect();
        if sizes.iter().map(|(bytes, _)| bytes).sum::<u64>() < self.waiting_bytes {
            return None;
        }
        let (_, largest) = *sizes.iter().max()?;
        self.prefixes.get_mut(&largest)?.take(largest)
    }

    /// Rows of a segment that is being uploaded. They become views of the segment, so that their bytes exist once.
    pub(super) fn on_upload(
        &mut self,
        prefix: Prefix,
        name: &Arc<str>,
        segment: &Bytes,
        entries: &[SegmentEntry],
    ) {
        let kept = self.prefixes.entry(prefix).or_default();
        kept.seen.insert(Arc::clone(name));
        for entry in entries {
            let end = entry.record().end as usize;
            kept.waiting.insert(entry.row, segment.slice(end - entry.length as usize..end));
        }
    }

    pub(super) fn on_uploaded(
        &mut self,
        prefix: Prefix,
        name: Arc<str>,
        bytes: u64,
        entries: &[SegmentEntry],
    ) {
        self.let_go(prefix, bytes, entries);
        self.written_bytes += bytes;
        self.writes.end();
        self.prefixes.entry(prefix).or_default().add(name, entries);
    }

    /// Whether this is the first failed upload.
    pub(super) fn on_upload_failed(
        &mut self,
        prefix: Prefix,
        bytes: u64,
        entries: &[SegmentEntry],
        now: Instant,
    ) -> bool {
        self.let_go(prefix, bytes, entries);
        self.full = false;
        self.writes.begin(now)
    }

    fn let_go(&mut self, prefix: Prefix, bytes: u64, entries: &[SegmentEntry]) {
        self.waiting_bytes -= bytes;
        let kept = self.prefixes.entry(prefix).or_default();
        for entry in entries {
            kept.waiting.remove(&entry.row);
        }
    }

    /// Applies a listing of all objects; `written_bytes` is the value when the listing began.
    pub(super) fn on_listed(&mut self, bytes: u64, written_bytes: u64) {
        let held_before = self.held_bytes();
        (self.listed_bytes, self.counted_bytes) = (bytes, written_bytes);
        self.full &= self.held_bytes() >= held_before;
    }

    pub(super) fn is_new(&self, prefix: Prefix, name: &str) -> bool {
        self.prefixes.get(&prefix).is_none_or(|kept| !kept.seen.contains(name))
    }

    /// Adds the rows of an object that was read.
    pub(super) fn on_found(&mut self, object: ListedObject, entries: &[SegmentEntry]) {
        let kept = self.prefixes.entry(object.prefix).or_default();
        if kept.seen.insert(Arc::clone(&object.name)) && !entries.is_empty() {
            kept.add(object.name, entries);
        }
    }

    /// The pending rows, and the segments of the other rows.
    pub(super) fn find(
        &self,
        prefix: Prefix,
        rows: &[u64],
        now: Instant,
    ) -> (Vec<Option<Bytes>>, Vec<SegmentRead>) {
        let mut found = vec![None; rows.len()];
        let mut reads: BTreeMap<u32, SegmentRead> = BTreeMap::new();
        let Some(kept) = self.prefixes.get(&prefix) else { return (found, Vec::new()) };
        for (place, row) in rows.iter().enumerate() {
            if let Some(bytes) = kept.waiting.get(row) {
                found[place] = Some(bytes.clone());
            } else if let Some(&Place { segment, length, offset }) = kept.rows.get(row)
                && !self.reads.is_on(now)
            {
                let name = &kept.segments[segment as usize];
                let new = || SegmentRead { segment, name: Arc::clone(name), rows: Vec::new() };
                let wanted = &mut reads.entry(segment).or_insert_with(new).rows;
                wanted.push((place, SegmentEntry { row: *row, offset, length }));
            }
        }
        (found, reads.into_values().collect())
    }

    /// Removes a row, so that it is computed again.
    pub(super) fn forget_row(&mut self, prefix: Prefix, row: u64) {
        if let Some(kept) = self.prefixes.get_mut(&prefix) {
            kept.rows.remove(&row);
        }
    }

    /// Forgets a segment's rows, so that they are computed again unless the next listing finds them.
    pub(super) fn forget_segment(&mut self, prefix: Prefix, segment: u32, name: &str, look_again: bool) {
        if let Some(kept) = self.prefixes.get_mut(&prefix) {
            kept.rows.retain(|_, place| place.segment != segment);
            if look_again {
                kept.seen.remove(name);
            }
        }
    }
}

impl Kept {
    fn take(&mut self, prefix: Prefix) -> Option<SegmentUpload> {
        let Pending { rows, bytes, .. } = self.pending.take()?;
        Some(SegmentUpload { prefix, rows, bytes })
    }

    /// If two segments contain the same row, the first is used.
    fn add(&mut self, name: Arc<str>, entries: &[SegmentEntry]) {
        let segment = self.segments.len() as u32;
        self.segments.push(name);
        for &SegmentEntry { row, offset, length } in entries {
            self.rows.entry(row).or_insert(Place { segment, length, offset });
        }
    }
}
