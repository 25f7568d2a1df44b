//! Merges the reads of a job that wait for the same store: ranges of one object that are close to each other share a request,
//! also if different groups or blocks need them. A range that is being read is not requested again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use feedline_data::ids::JobId;
use tokio::sync::oneshot;

use crate::error::SourceError;

/// Identifies the version of an object that a job reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ObjectVersion {
    pub(crate) job: JobId,
    /// The address of the store's client, because indexing tasks have no job. Different credentials have different clients.
    pub(crate) client: usize,
    pub(crate) part: u32,
    pub(crate) url: String,
    pub(crate) version: String,
}

type ReadResult = Result<Bytes, SourceError>;

/// The reads of all objects that wait or are in flight. Each of them belongs to a caller that waits for it.
#[derive(Debug, Default)]
pub(crate) struct MergedReads {
    objects: Mutex<HashMap<ObjectVersion, Vec<Arc<MergedRead>>>>,
}

/// One request for the ranges of several callers.
#[derive(Debug)]
pub(crate) struct MergedRead {
    state: Mutex<ReadState>,
}

#[derive(Debug)]
struct ReadState {
    range: Range<u64>,
    /// Whether the request was sent, so that its range no longer grows.
    is_sent: bool,
    callers: Vec<(Range<u64>, oneshot::Sender<ReadResult>)>,
}

/// How a caller obtains its range.
pub(crate) enum ReadTurn<'a> {
    /// The caller sends the request.
    Owner(OwnedRead<'a>),
    /// The request of another caller contains the range. The sender is dropped if that caller stops.
    Follower(oneshot::Receiver<ReadResult>),
}

/// The read of the caller that sends the request.
pub(crate) struct OwnedRead<'a> {
    reads: &'a MergedReads,
    object: ObjectVersion,
    read: Arc<MergedRead>,
}

impl MergedReads {
    /// Adds the range to a read that waits, if the read then has at most `max_bytes` and no gap above `max_gap` bytes, or
    /// starts a new read. A range within a read in flight is shared too.
    pub(crate) fn join(
        &self,
        object: &ObjectVersion,
        range: &Range<u64>,
        max_gap: u64,
        max_bytes: u64,
    ) -> ReadTurn<'_> {
        let mut objects = self.lock();
        let reads = objects.entry(object.clone()).or_default();
        for read in reads.iter() {
            if let Some(receiver) = read.join(range, max_gap, max_bytes) {
                return ReadTurn::Follower(receiver);
            }
        }
        let state = ReadState { range: range.clone(), is_sent: false, callers: Vec::new() };
        let read = Arc::new(MergedRead { state: Mutex::new(state) });
        reads.push(Arc::clone(&read));
        ReadTurn::Owner(OwnedRead { reads: self, object: object.clone(), read })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectVersion, Vec<Arc<MergedRead>>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MergedRead {
    fn lock(&self) -> MutexGuard<'_, ReadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(
        &self,
        range: &Range<u64>,
        max_gap: u64,
        max_bytes: u64,
    ) -> Option<oneshot::Receiver<ReadResult>> {
        let mut state = self.lock();
        let is_inside = state.range.start <= range.start && range.end <= state.range.end;
        let union = state.range.start.min(range.start)..state.range.end.max(range.end);
        let is_near = range.start <= state.range.end.saturating_add(max_gap)
            && state.range.start <= range.end.saturating_add(max_gap);
        if !is_inside && (state.is_sent || !is_near || union.end - union.start > max_bytes) {
            return None;
        }
        state.range = union;
        let (sender, receiver) = oneshot::channel();
        state.callers.push((range.clone(), sender));
        Some(receiver)
    }

    /// The range that the callers need so far.
    pub(crate) fn range(&self) -> Range<u64> {
        self.lock().range.clone()
    }

    /// Returns the range to request. The range no longer changes.
    pub(crate) fn send(&self) -> Range<u64> {
        let mut state = self.lock();
        state.is_sent = true;
        state.range.clone()
    }
}

impl OwnedRead<'_> {
    pub(crate) fn read(&self) -> Arc<MergedRead> {
        Arc::clone(&self.read)
    }

    /// Passes the result to the other callers. Returns the bytes of `range`.
    pub(crate) fn finish(self, range: &Range<u64>, result: ReadResult) -> ReadResult {
        self.remove();
        let mut state = self.read.lock();
        let start = state.range.start;
        let slice = |wanted: &Range<u64>| match &result {
            Ok(bytes) => Ok(part(bytes, (wanted.start - start) as usize..(wanted.end - start) as usize)),
            Err(error) => Err(error.clone()),
        };
        for (wanted, caller) in state.callers.drain(..) {
            // The caller may have stopped.
            let _ = caller.send(slice(&wanted));
        }
        slice(range)
    }

    fn remove(&self) {
        let mut objects = self.reads.lock();
        if let Some(reads) = objects.get_mut(&self.object) {
            reads.retain(|read| !Arc::ptr_eq(read, &self.read));
            if reads.is_empty() {
                objects.remove(&self.object);
            }
        }
    }
}

/// Returns a range of a buffer. A small part is copied, because it would keep the whole buffer in memory.
fn part(bytes: &Bytes, range: Range<usize>) -> Bytes {
    if 2 * range.len() < bytes.len() { Bytes::copy_from_slice(&bytes[range]) } else { bytes.slice(range) }
}

impl Drop for OwnedRead<'_> {
    fn drop(&mut self) {
        self.remove();
        // The other callers try again.
        self.read.lock().callers.clear();
    }
}

#[cfg(test)]
mod tests;
