//! The rows in the store as a worker knows them: pending rows, the segment of each other row, and the total size. Makes
//! no requests and receives the time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::segment::{FRAME_BYTES, SegmentEntry, row_bytes};
use crate::cache::rows::{CachedRow, Prefix};

/// A segment is uploaded at this size.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Rows that wait to be uploaded take at most this; further ones are not kept.
const WAITING_BYTES: u64 = 4 * SEGMENT_BYTES;
/// Rows that wait longer are uploaded though their segment is not full, so that other workers find them.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// After a failure no request is made for this time.
const REST: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct SegmentCatalog {
    limit_bytes: u64,
    prefixes: BTreeMap<Prefix, Kept>,
    active: Arc<BTreeSet<Prefix>>,
    /// All objects of the cache when they were listed last.
    listed_bytes: u64,
    /// What this worker has uploaded in its life, and the part of it that a listing has counted for sure.
    written_bytes: u64,
    counted_bytes: u64,
    /// Bytes of pending rows, as they will be in segments.
    waiting_bytes: u64,
    /// A row has not found room, and since then there has not been more of it.
    full: bool,
    pub(super) reads: StoreBackoff,
    pub(super) writes: StoreBackoff,
}

/// The rows of one prefix.
#[derive(Debug, Default)]
struct Kept {
    /// Objects that were looked at, or are ours: nothing new is in them.
    seen: HashSet<Arc<str>>,
    segments: Vec<Arc<str>>,
    rows: HashMap<u64, Place>,
    /// Rows that are not in the store yet.
    waiting: HashMap<u64, Bytes>,
    /// Those of them that are not being uploaded.
    pending: Option<Pending>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    segment: u32,
    length: u32,
    /// Of the record.
    offset: u64,
}

#[derive(Debug)]
struct Pending {
    rows: Vec<CachedRow>,
    /// Of the segment that they will be.
    bytes: u64,
    since: Instant,
}

/// Rows to be uploaded as a segment of this number of bytes.
#[derive(Debug)]
pub(super) struct SegmentUpload {
    pub(super) prefix: Prefix,
    pub(super) rows: Vec<CachedRow>,
    pub(super) bytes: u64,
}

/// Rows to be read of one segment, each with its place among those asked for.
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

/// A time without requests after one that failed.
#[derive(Debug, Default)]
pub(super) struct StoreBackoff {
    until: Option<Instant>,
}

impl StoreBackoff {
    pub(super) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether this is the first failure since a request has succeeded.
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

    /// Bytes in the store: never too few of this worker's.
    pub(super) fn held_bytes(&self) -> u64 {
        self.listed_bytes + self.written_bytes - self.counted_bytes
    }

    fn fits(&self, bytes: u64) -> bool {
        self.held_bytes() + self.waiting_bytes + bytes <= self.limit_bytes
    }

    pub(super) fn has_room(&self, now: Instant) -> bool {
        !self.full && self.fits(1) && self.waiting_bytes < WAITING_BYTES && !self.writes.is_on(now)
    }

    /// From now on this prefix is followed while it is active.
    pub(super) fn open(&mut self, prefix: Prefix) {
        self.prefixes.entry(prefix).or_default();
    }

    /// Prefixes whose new segments are looked for.
    pub(super) fn followed(&self) -> BTreeSet<Prefix> {
        self.active.iter().copied().filter(|prefix| self.prefixes.contains_key(prefix)).collect()
    }

    /// Names the prefixes that are worked on, and takes the pending rows of the others.
    pub(super) fn set_active(&mut self, active: Arc<BTreeSet<Prefix>>) -> Vec<SegmentUpload> {
        self.active = Arc::clone(&active);
        self.take(|prefix, _| !active.contains(&prefix))
    }

    pub(super) fn take_all(&mut self) -> Vec<SegmentUpload> {
        self.take(|_, _| true)
    }

    /// Takes what has waited long.
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

    /// Keeps rows that are not known yet, as far as there is room: the segments to be uploaded now.
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
            if self.waiting_bytes > 0 && self.waiting_bytes + size > WAITING_BYTES {
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

    /// Many prefixes can fill what may wait while no segment of theirs is full: then the largest goes.
    fn take_largest(&mut self) -> Option<SegmentUpload> {
        let size = |(prefix, kept): (&Prefix, &Kept)| Some((kept.pending.as_ref()?.bytes, *prefix));
        let sizes: Vec<(u64, Prefix)> = self.prefixes.iter().filter_map(size).collect();
        if sizes.iter().map(|(bytes, _)| bytes).sum::<u64>() < self.waiting_bytes {
            return None;
        }
        let (_, largest) = *sizes.iter().max()?;
        self.prefixes.get_mut(&largest)?.take(largest)
    }

    /// Rows of a segment that is being uploaded: they are views of it from now on, so that they are held once.
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

    /// Whether it is the first that failed.
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

    /// Takes over a listing of all objects; `written_bytes` is as it was when that began.
    pub(super) fn on_listed(&mut self, bytes: u64, written_bytes: u64) {
        let held_before = self.held_bytes();
        (self.listed_bytes, self.counted_bytes) = (bytes, written_bytes);
        self.full &= self.held_bytes() >= held_before;
    }

    pub(super) fn is_new(&self, prefix: Prefix, name: &str) -> bool {
        self.prefixes.get(&prefix).is_none_or(|kept| !kept.seen.contains(name))
    }

    /// Takes over an object that was looked at, with the rows in it.
    pub(super) fn on_found(&mut self, object: ListedObject, entries: &[SegmentEntry]) {
        let kept = self.prefixes.entry(object.prefix).or_default();
        if kept.seen.insert(Arc::clone(&object.name)) && !entries.is_empty() {
            kept.add(object.name, entries);
        }
    }

    /// The rows that wait here, and where the others are to be read.
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

    /// Lets a row be made again.
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

    /// Where two segments have a row, the first serves.
    fn add(&mut self, name: Arc<str>, entries: &[SegmentEntry]) {
        let segment = self.segments.len() as u32;
        self.segments.push(name);
        for &SegmentEntry { row, offset, length } in entries {
            self.rows.entry(row).or_insert(Place { segment, length, offset });
        }
    }
}
