//! The application of a consumer: the rows that it has consumed, and its checkpoints.

use std::collections::BTreeMap;
use std::ops::Range;

use feedline_data::consumer::{AssembledBatch, RunKind};
use feedline_data::layout::{SplitRef, StreamPosition};

use super::messages::Rows;

/// Rows of one split in an entry.
#[derive(Debug, Clone)]
pub(crate) struct Portion {
    pub(crate) split: SplitRef,
    pub(crate) input: Range<u32>,
    pub(crate) rows: Vec<u64>,
}

/// A batch, or skipped rows.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) stream: u32,
    pub(crate) kind: RunKind,
    pub(crate) portions: Vec<Portion>,
    /// The position of the stream after the entry.
    pub(crate) position: StreamPosition,
}

impl Entry {
    pub(crate) fn rows(&self) -> Vec<u64> {
        self.portions.iter().flat_map(|portion| portion.rows.iter().copied()).collect()
    }
}

/// Consumes batches; its state is durable up to the last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Application {
    entries: Vec<Entry>,
    durable: usize,
    /// Deterministic mode: durable position of each stream.
    pub(crate) positions: BTreeMap<u32, StreamPosition>,
    /// Relaxed mode: durable offset of each split.
    pub(crate) offsets: BTreeMap<SplitRef, u32>,
}

impl Application {
    pub(crate) fn consume(&mut self, stream: u32, position: StreamPosition, assembled: AssembledBatch<Rows>) {
        let portion = |part: &feedline_data::consumer::PieceSlice<Rows>| Portion {
            split: part.split,
            input: part.input_range.clone(),
            rows: part.payload[part.rows.start as usize..part.rows.end as usize].to_vec(),
        };
        let portions = assembled.parts.iter().map(portion).collect();
        self.entries.push(Entry { stream, kind: assembled.kind, portions, position });
    }

    pub(crate) fn consumed(&self) -> usize {
        self.entries.len()
    }

    /// The number of consumed rows.
    pub(crate) fn rows(&self) -> u64 {
        let portions = self.entries.iter().flat_map(|entry| &entry.portions);
        portions.map(|portion| portion.rows.len() as u64).sum()
    }

    pub(crate) fn undurable(&self) -> usize {
        self.entries.len() - self.durable
    }

    pub(crate) fn checkpoint(&mut self) {
        for entry in &self.entries[self.durable..] {
            self.positions.insert(entry.stream, entry.position);
            for portion in &entry.portions {
                self.offsets.insert(portion.split, portion.input.end);
            }
        }
        self.durable = self.entries.len();
    }

    /// Loses all entries after the last checkpoint.
    pub(crate) fn crash(&mut self) {
        self.entries.truncate(self.durable);
    }

    /// Relaxed mode: handles a split that this consumer lost because it was silent for too long. Other consumers receive the
    /// rows from `offset` onwards, so the consumer's own entries for these rows do not count.
    pub(crate) fn roll_back(&mut self, split: SplitRef, offset: u32) {
        self.crash();
        for entry in &mut self.entries {
            entry.portions.retain(|portion| portion.split != split || portion.input.end <= offset);
        }
        self.offsets.remove(&split);
    }

    pub(crate) fn into_entries(self) -> Vec<Entry> {
        self.entries
    }
}
