//! The streams of a consumer. They are indexed by id, by the order of their next batches, and by their number of complete splits. With
//! these indexes, the cost of a batch does not depend on the number of streams.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use feedline_data::layout::Layout;

use super::stream_state::{BatchOrder, StreamState};

/// The index keys of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexKeys {
    /// `None` if the stream is finished.
    order: Option<BatchOrder>,
    complete_splits: usize,
}

/// Streams and their indexes. All changes of a stream use [`Self::update`], which updates the indexes.
#[derive(Debug, Default)]
pub(super) struct ConsumerStreams {
    streams: Vec<StreamState>,
    keys: Vec<IndexKeys>,
    index_of: HashMap<u32, usize>,
    by_order: BTreeSet<(BatchOrder, usize)>,
    /// The number of streams for each number of complete splits.
    by_complete_splits: BTreeMap<usize, usize>,
}

impl ConsumerStreams {
    pub(super) fn new(streams: Vec<StreamState>, layout: &Layout) -> Self {
        let mut table = Self::default();
        streams.into_iter().for_each(|stream| table.push(stream, layout));
        table
    }

    pub(super) fn push(&mut self, stream: StreamState, layout: &Layout) {
        let (index, keys) = (self.streams.len(), keys_of(&stream, layout));
        self.index_of.insert(stream.id, index);
        self.streams.push(stream);
        self.keys.push(keys);
        self.add_keys(index, keys);
    }

    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub(super) fn as_slice(&self) -> &[StreamState] {
        &self.streams
    }

    pub(super) fn get(&self, index: usize) -> &StreamState {
        &self.streams[index]
    }

    pub(super) fn index_of(&self, id: u32) -> Option<usize> {
        self.index_of.get(&id).copied()
    }

    pub(super) fn get_by_id(&self, id: u32) -> Option<&StreamState> {
        self.index_of(id).map(|index| &self.streams[index])
    }

    /// Returns the index of the stream that delivers the next batch. `None` if all streams are finished.
    pub(super) fn next_index(&self) -> Option<usize> {
        self.by_order.first().map(|(_, index)| *index)
    }

    /// The largest number of complete splits of one stream.
    pub(super) fn max_complete_splits(&self) -> usize {
        self.by_complete_splits.last_key_value().map_or(0, |(splits, _)| *splits)
    }

    /// Changes one stream.
    pub(super) fn update<R>(
        &mut self,
        index: usize,
        layout: &Layout,
        change: impl FnOnce(&mut StreamState) -> R,
    ) -> R {
        let result = change(&mut self.streams[index]);
        let keys = keys_of(&self.streams[index], layout);
        if keys != self.keys[index] {
            self.remove_keys(index, self.keys[index]);
            self.keys[index] = keys;
            self.add_keys(index, keys);
        }
        result
    }

    /// Removes the streams for which `keep` returns `false`.
    pub(super) fn retain(&mut self, layout: &Layout, keep: impl FnMut(&StreamState) -> bool) {
        let before = self.streams.len();
        let mut streams = std::mem::take(&mut self.streams);
        streams.retain(keep);
        if streams.len() == before {
            self.streams = streams;
        } else {
            *self = Self::new(streams, layout);
        }
    }

    fn add_keys(&mut self, index: usize, keys: IndexKeys) {
        if let Some(order) = keys.order {
            self.by_order.insert((order, index));
        }
        *self.by_complete_splits.entry(keys.complete_splits).or_default() += 1;
    }

    fn remove_keys(&mut self, index: usize, keys: IndexKeys) {
        if let Some(order) = keys.order {
            self.by_order.remove(&(order, index));
        }
        if let Some(streams) = self.by_complete_splits.get_mut(&keys.complete_splits) {
            *streams -= 1;
            if *streams == 0 {
                self.by_complete_splits.remove(&keys.complete_splits);
            }
        }
    }
}

fn keys_of(stream: &StreamState, layout: &Layout) -> IndexKeys {
    let order = (!stream.is_finished()).then(|| stream.batch_order(layout));
    IndexKeys { order, complete_splits: stream.complete_splits() }
}
