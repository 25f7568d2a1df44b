//! Computes the origin of each row of a batch, which is its shard and its index in the shard, without requests to the coordinator.

use std::collections::VecDeque;

use feedline_data::layout::{Layout, SplitRef};
use feedline_data::manifest::Manifest;
use feedline_data::mix::MixChange;
use feedline_data::pipeline::Pipeline;
use feedline_data::sequence::{Sequence, SharedPass};

use crate::batch::BatchInfo;

/// Number of passes whose row order is cached, because a batch may contain rows of two passes.
const CACHED_ORDERS: usize = 2;

/// The location of a row in the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Index of the shard in [`Origins::shards`].
    pub shard: u32,
    /// Index of the row in its shard.
    pub row: u64,
}

/// Computes the origins of a job's rows.
#[derive(Debug)]
pub struct Origins {
    layout: Layout,
    sequence: Sequence,
    shards: Vec<String>,
    /// Row id of the first row of each shard.
    first_row_ids: Vec<u64>,
    cached_orders: VecDeque<(u32, SharedPass)>,
}

impl Origins {
    /// Creates the origins of a job with this layout, manifest and pipeline.
    pub fn new(layout: Layout, manifest: &Manifest, pipeline: &Pipeline) -> Self {
        let mut first = 0;
        let first_row_ids = manifest.shards.iter().map(|shard| {
            let start = first;
            first += shard.index.rows();
            start
        });
        Self {
            sequence: Sequence::new(pipeline, manifest, &layout),
            layout,
            first_row_ids: first_row_ids.collect(),
            shards: manifest.shards.iter().map(|shard| shard.object.url.clone()).collect(),
            cached_orders: VecDeque::new(),
        }
    }

    /// Sets all changes of the mix weights since the start of the job.
    pub fn set_mix(&mut self, changes: &[MixChange]) {
        if self.sequence.changes() != changes {
            self.sequence = self.sequence.with_mix_changes(changes);
            self.cached_orders.clear();
        }
    }

    /// The URLs of the dataset's shards, in the order of the manifest.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Returns the origins of the rows of a batch, in order. In a coordinated job, returns the origins of all input rows, including
    /// rows in packed rows. The last batch of a round also has the origins of the rows that operators have removed. Takes O(rows of
    /// the batch), and for the first batch of each pass O(blocks of the dataset).
    pub fn rows(&mut self, info: &BatchInfo) -> Vec<Origin> {
        let mut origins = Vec::with_capacity(info.rows as usize);
        if self.layout.coordinated {
            return info.row_ids.iter().map(|id| self.origin_of(*id)).collect();
        }
        if info.kept.is_empty() {
            for (split, offsets) in &info.inputs {
                for offset in offsets.clone() {
                    origins.push(self.origin_at(*split, offset));
                }
            }
        }
        for (split, offsets) in &info.kept {
            for offset in offsets {
                origins.push(self.origin_at(*split, *offset));
            }
        }
        origins
    }

    fn origin_at(&mut self, split: SplitRef, offset: u32) -> Origin {
        let place = self.layout.split_range(split).start + u64::from(offset);
        let pass = split.epoch * self.layout.passes + (place / self.layout.dataset_rows) as u32;
        let place = place % self.layout.dataset_rows;
        let known = self.cached_orders.iter().position(|(of, _)| *of == pass);
        let known = known.unwrap_or_else(|| {
            self.cached_orders.truncate(CACHED_ORDERS - 1);
            self.cached_orders.push_front((pass, self.sequence.pass(pass)));
            0
        });
        let found = self.sequence.rows(&self.cached_orders[known].1, place..place + 1)[0];
        self.origin_of(found.row_id)
    }

    fn origin_of(&self, row_id: u64) -> Origin {
        // If several shards have the same first row, all of them except the last are empty.
        let shard = self.first_row_ids.partition_point(|start| *start <= row_id).saturating_sub(1);
        Origin { shard: shard as u32, row: row_id - self.first_row_ids[shard] }
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::manifest::{Block, Shard, ShardIndex, ShardRef};
    use feedline_data::pipeline::Source;
    use feedline_data::schema::Schema;

    use super::*;
    use crate::testing::layout;

    fn manifest(rows_of_shards: &[u32]) -> Manifest {
        let shard = |(number, rows): (usize, &u32)| {
            Shard::new(
                ShardRef {
                    url: format!("file:///d/{number}"),
                    size_bytes: 1,
                    version: "1".to_owned(),
                    ..ShardRef::default()
                },
                ShardIndex {
                    blocks: vec![Block { rows: *rows, offset: 0, bytes: 1, group: 0, row_bytes: Vec::new() }],
                    schema: None,
                    defects: Vec::new(),
                    ..ShardIndex::default()
                },
            )
        };
        Manifest { schema: Schema::default(), shards: rows_of_shards.iter().enumerate().map(shard).collect() }
    }

    fn pipeline(window: u64) -> Pipeline {
        Pipeline::builder("p").source(Source::text("d")).seed(7).shuffle(window).batch(4).build().unwrap()
    }

    #[test]
    fn origins_follow_storage_order_and_removed_rows() {
        let layout = Layout { passes: 2, ..layout(10, 4, 1, 2) };
        let mut origins = Origins::new(layout.clone(), &manifest(&[3, 7]), &pipeline(0));
        assert_eq!(origins.shards(), ["file:///d/0", "file:///d/1"]);
        let split = layout.locate(0, Default::default()).expect("the stream has rows").0;
        let all = BatchInfo { rows: 4, inputs: vec![(split, 1..5)], ..BatchInfo::default() };
        let found: Vec<(u32, u64)> =
            origins.rows(&all).iter().map(|origin| (origin.shard, origin.row)).collect();
        assert_eq!(found, [(0, 1), (0, 2), (1, 0), (1, 1)]);
        let kept = BatchInfo { rows: 1, kept: vec![(split, vec![3])], ..all };
        assert_eq!(origins.rows(&kept), [Origin { shard: 1, row: 0 }]);
    }

    #[test]
    fn every_row_of_every_pass_has_one_origin() {
        let layout = Layout { passes: 2, ..layout(23, 4, 3, 2) };
        let mut origins = Origins::new(layout.clone(), &manifest(&[9, 14]), &pipeline(8));
        for epoch in 0..layout.epochs {
            let mut found = Vec::new();
            for stream in 0..layout.streams {
                for ordinal in 0..layout.splits(stream) {
                    let split = SplitRef { epoch, ordinal, stream };
                    let rows = layout.split_len(split);
                    let info = BatchInfo { rows, inputs: vec![(split, 0..rows)], ..BatchInfo::default() };
                    found.extend(origins.rows(&info));
                }
            }
            found.sort_unstable();
            let shard = |shard, rows| (0..rows).flat_map(move |row| [Origin { shard, row }; 2]);
            assert_eq!(found, shard(0, 9).chain(shard(1, 14)).collect::<Vec<_>>(), "epoch {epoch}");
        }
    }
}
