//! The choice of the rows of features that are held in memory.

use std::collections::BTreeMap;

use super::{PartEntry, PartState, TableState, total};
use crate::graphs::hot_rows::{FeatureSize, choose_hot_rows};
use crate::graphs::part::{LoadedPart, PartKey, PartRequest};

impl TableState {
    /// Chooses how many rows of each requested feature are loaded. Parts in memory keep their size. If the others do not fit beside the
    /// parts in use, the features among them share the memory. A topology that does not fit is mapped from a disk, if `can_map` is set.
    pub(super) fn fit(&self, requests: &[PartRequest], limit: u64, can_map: bool) -> Vec<PartRequest> {
        let mut requests = requests.to_vec();
        // Equal parts count once.
        let mut distinct: BTreeMap<PartKey, PartRequest> = BTreeMap::new();
        for request in &mut requests {
            if let Some(entry) = self.parts.get(&request.key) {
                request.adopt(entry.bytes, entry.hot_rows);
            }
            distinct.insert(request.key, request.clone());
        }
        let bytes: BTreeMap<PartKey, u64> =
            distinct.iter().map(|(key, request)| (*key, request.bytes)).collect();
        let others = self.others(&bytes).filter(|entry| !entry.is_unused()).map(|entry| entry.bytes);
        let room = limit.saturating_sub(total(others));
        if total(bytes.values().copied()) <= room {
            return requests;
        }
        let can_shrink = |request: &&PartRequest| {
            let is_new = !self.parts.contains_key(&request.key);
            is_new && request.can_be_cold()
        };
        for request in requests.iter_mut().filter(|request| request.rows.is_none()) {
            if can_map && request.bytes > room && !self.parts.contains_key(&request.key) {
                request.bytes = 0;
                distinct.insert(request.key, request.clone());
            }
        }
        let fixed = distinct.values().filter(|request| !can_shrink(request)).map(|request| request.bytes);
        let room = room.saturating_sub(total(fixed));
        let features: Vec<&PartRequest> = distinct.values().filter(can_shrink).collect();
        let sizes = features.iter().filter_map(|request| request.rows.as_ref());
        let sizes: Vec<FeatureSize> = sizes.map(|rows| rows.size.clone()).collect();
        let hot = choose_hot_rows(&sizes, room);
        let chosen: BTreeMap<PartKey, u64> = features.iter().map(|request| request.key).zip(hot).collect();
        for request in &mut requests {
            if let Some(hot) = chosen.get(&request.key) {
                request.set_hot_rows(*hot);
            }
        }
        requests
    }

    /// Removes the features whose rows could not be read, also those that jobs use, so that they are loaded again.
    pub(super) fn remove_failed(&mut self) -> Vec<LoadedPart> {
        let failed = self.parts.iter().filter(|(_, entry)| entry.has_failed());
        let keys: Vec<PartKey> = failed.map(|(key, _)| *key).collect();
        let mut removed = Vec::new();
        for key in keys {
            if let Some(PartEntry { state: PartState::Loaded(part), .. }) = self.parts.remove(&key) {
                removed.push(part);
            }
        }
        removed
    }

    /// Removes the requested features that are loaded and that no job uses, if rows that are not in memory can be read.
    pub(super) fn remove_unused_features(&mut self, requests: &[PartRequest]) -> Vec<LoadedPart> {
        let mut removed = Vec::new();
        for request in requests.iter().filter(|request| request.can_be_cold()) {
            if !self.parts.get(&request.key).is_some_and(PartEntry::is_unused) {
                continue;
            }
            if let Some(PartEntry { state: PartState::Loaded(part), .. }) = self.parts.remove(&request.key) {
                removed.push(part);
            }
        }
        removed
    }
}

impl PartEntry {
    /// Whether rows of a loaded feature could not be read.
    fn has_failed(&self) -> bool {
        matches!(&self.state, PartState::Loaded(part) if part.has_failed())
    }
}
