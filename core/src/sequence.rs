//! The row sequence of a job's passes: the order of one dataset, or of several that are mixed. Computable at any place.

use std::ops::Range;
use std::sync::Arc;

use crate::manifest::Manifest;
use crate::mix::Mixer;
use crate::order::{BlockTable, PassOrder, RowRef};
use crate::pipeline::Pipeline;
use crate::random::mix64;

/// What the order of a job's rows is computed from.
#[derive(Debug)]
pub struct Sequence {
    /// One for each dataset of a mix; else one.
    tables: Vec<BlockTable>,
    mixer: Option<Mixer>,
    seed: u64,
    window: u64,
}

/// The order of one pass. Clones share it.
#[derive(Debug, Clone)]
pub struct Pass {
    /// For each dataset its order in each of the times that it is gone over.
    orders: Arc<Vec<Vec<PassOrder>>>,
}

impl Sequence {
    /// The sequence of a job. The manifest must be that of the pipeline's source.
    pub fn new(pipeline: &Pipeline, manifest: &Manifest) -> Self {
        let (seed, window) = (pipeline.seed, pipeline.shuffle.window);
        let Some(mix) = &pipeline.source.mix else {
            return Self { tables: vec![BlockTable::new(manifest)], mixer: None, seed, window };
        };
        let tables: Vec<BlockTable> =
            (0..mix.parts.len()).map(|part| BlockTable::of_part(manifest, part as u32)).collect();
        let rows: Vec<u64> = tables.iter().map(BlockTable::rows).collect();
        Self { mixer: Mixer::new(mix, &rows), tables, seed, window }
    }

    /// Rows of the datasets together: row ids lie below it.
    pub fn dataset_rows(&self) -> u64 {
        self.tables.iter().map(BlockTable::rows).sum()
    }

    /// The order of pass `pass`, counted over all epochs. O(blocks of the datasets).
    pub fn pass(&self, pass: u32) -> Pass {
        let rounds = self.mixer.as_ref().map_or(1, Mixer::rounds);
        let order = |part: usize, round: u32| {
            // The first dataset has the order that it would have alone.
            let seed = if part == 0 { self.seed } else { mix64(self.seed ^ mix64(part as u64)) };
            PassOrder::new(&self.tables[part], seed, pass * rounds + round, self.window)
        };
        let rounds_of = |part: usize| match &self.mixer {
            Some(mixer) => mixer.rounds_of(part),
            None => 1,
        };
        let orders =
            (0..self.tables.len()).map(|part| (0..rounds_of(part)).map(|round| order(part, round)).collect());
        Pass { orders: Arc::new(orders.collect()) }
    }

    /// The rows at these places of a pass, in order.
    pub fn rows(&self, pass: &Pass, places: Range<u64>) -> Vec<RowRef> {
        let Some(mixer) = &self.mixer else { return pass.orders[0][0].rows(&self.tables[0], places) };
        let mixed = mixer.rows(places);
        let mut rows: Vec<Option<RowRef>> = vec![None; mixed.len()];
        // Each dataset's rows lie side by side, so they are looked up together.
        for (part, (table, orders)) in self.tables.iter().zip(pass.orders.iter()).enumerate() {
            let own = || mixed.iter().enumerate().filter(|(_, row)| row.part == part);
            let Some(first) = own().next().map(|(_, row)| row.row) else { continue };
            let count = own().count() as u64;
            let mut found = Vec::with_capacity(count as usize);
            let mut from = first;
            while from < first + count {
                let round = from / table.rows();
                let to = (first + count).min((round + 1) * table.rows());
                let base = round * table.rows();
                found.extend(orders[round as usize].rows(table, from - base..to - base));
                from = to;
            }
            for ((place, _), row) in own().zip(found) {
                rows[place] = Some(row);
            }
        }
        rows.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::manifest::{Block, Shard, ShardIndex, ShardRef};
    use crate::pipeline::{Mix, MixPart, MixStop, Source};
    use crate::schema::Schema;

    fn manifest(parts: &[u32]) -> Manifest {
        let shard = |(part, rows): (usize, &u32)| Shard {
            object: ShardRef {
                url: format!("file:///{part}"),
                size_bytes: 1,
                version: String::new(),
                part: part as u32,
            },
            index: ShardIndex {
                blocks: (0..rows.div_ceil(5))
                    .map(|block| Block {
                        rows: 5.min(rows - block * 5),
                        offset: 0,
                        bytes: 1,
                        group: 0,
                        row_bytes: Vec::new(),
                    })
                    .collect(),
                schema: None,
                defects: Vec::new(),
            },
        };
        Manifest { schema: Schema::default(), shards: parts.iter().enumerate().map(shard).collect() }
    }

    fn pipeline(parts: usize, stop: MixStop, window: u64) -> Pipeline {
        let parts = (0..parts)
            .map(|part| MixPart { weight: 1.0 + part as f64, source: Source::text(format!("/{part}")) });
        let source = Source::mixed(Mix { parts: parts.collect(), stop });
        Pipeline::builder("p").source(source).seed(7).shuffle(window).batch(4).build().expect("sound")
    }

    proptest! {
        #[test]
        fn a_mix_has_every_row_as_often_as_it_should_and_any_range_is_part_of_the_whole(
            rows in prop::collection::vec(1u32..40, 1..4), window in 0u64..20, pass in 0u32..3, cut: u64, restart: bool,
        ) {
            let stop = if restart { MixStop::Restart } else { MixStop::All };
            let (manifest, pipeline) = (manifest(&rows), pipeline(rows.len(), stop, window));
            let sequence = Sequence::new(&pipeline, &manifest);
            let mixer = sequence.mixer.clone().expect("few rows");
            let order = sequence.pass(pass);
            let whole = sequence.rows(&order, 0..mixer.pass_rows());
            prop_assert_eq!(whole.len() as u64, mixer.pass_rows());
            let mut counts: BTreeMap<(u64, u32), u32> = BTreeMap::new();
            for row in &whole {
                *counts.entry((row.row_id, row.pass)).or_default() += 1;
            }
            prop_assert!(counts.values().all(|count| *count == 1), "a row of one pass over its dataset comes once");
            let distinct = whole.iter().map(|row| row.row_id).collect::<std::collections::BTreeSet<_>>();
            prop_assert_eq!(distinct.len() as u64, sequence.dataset_rows());
            let cut = cut % mixer.pass_rows();
            prop_assert_eq!(&sequence.rows(&order, cut..mixer.pass_rows())[..], &whole[cut as usize..]);
        }
    }

    #[test]
    fn one_dataset_has_the_order_that_it_always_had() {
        let manifest = manifest(&[33]);
        let plain =
            Pipeline::builder("p").source(Source::text("/0")).seed(7).shuffle(8).batch(4).build().unwrap();
        let sequence = Sequence::new(&plain, &manifest);
        let table = BlockTable::new(&manifest);
        let expected = PassOrder::new(&table, 7, 2, 8).rows(&table, 3..20);
        assert_eq!(sequence.rows(&sequence.pass(2), 3..20), expected);
    }
}
