//! The row sequence of a job's passes over one dataset or a mix. The rows at any offset can be computed without the
//! preceding rows.

mod split_ends;

use std::ops::Range;
use std::sync::Arc;

use self::split_ends::{SplitEnds, portions_of_mix};
use crate::layout::Layout;
use crate::manifest::Manifest;
use crate::mix::{MixChange, Mixer};
use crate::order::{BlockTable, DealtRuns, PassOrder, Portion, Portions, RowRef};
use crate::pipeline::Pipeline;
use crate::random::mix64;

/// Computes the order of a job's rows.
#[derive(Debug)]
pub struct Sequence {
    /// The block table of each dataset.
    tables: Arc<Vec<BlockTable>>,
    /// How the passes are divided. `None` without compressed datasets or a shuffle window.
    division: Option<Division>,
    mixer: Option<Mixer>,
    /// The mix weight changes, in order.
    changes: Vec<MixChange>,
    seed: u64,
    window: u64,
}

/// How the passes over compressed datasets are divided among splits.
#[derive(Debug, Clone)]
struct Division {
    splits: SplitEnds,
    /// The runs of each dataset. `None` for a dataset that is not compressed.
    runs: Arc<Vec<Option<DealtRuns>>>,
}

/// The order of one pass. Clones share the order.
#[derive(Debug, Clone)]
pub struct SharedPass {
    /// The row orders of each dataset. A dataset that restarts within the pass has one order per restart.
    orders: Arc<Vec<Vec<PassOrder>>>,
    mixer: Option<Arc<Mixer>>,
}

impl Sequence {
    /// Creates the sequence of a job. `layout` is the layout of the job, with its mix weight changes. `manifest` must
    /// describe the pipeline's source.
    pub fn new(pipeline: &Pipeline, manifest: &Manifest, layout: &Layout) -> Self {
        let (seed, window) = (pipeline.seed, pipeline.shuffle.window);
        let mix = pipeline.source.mix.as_ref();
        let tables: Vec<BlockTable> = match mix {
            None => vec![BlockTable::new(manifest)],
            Some(mix) => {
                (0..mix.parts.len() as u32).map(|part| BlockTable::for_part(manifest, part)).collect()
            }
        };
        let rows: Vec<u64> = tables.iter().map(BlockTable::rows).collect();
        let is_divided = window > 0 && manifest.is_compressed() && !layout.unbounded;
        let is_divided = is_divided && !layout.has_undivided_windows();
        let division = is_divided.then(|| {
            let is_mix = rows.iter().filter(|rows| **rows > 0).count() > 1;
            let runs = |(part, table)| {
                let deal = || DealtRuns::new(table, layout.runs.lanes as usize, is_mix);
                manifest.is_part_compressed(part).then(deal)
            };
            Division {
                splits: SplitEnds::new(layout),
                runs: Arc::new((0..).zip(&tables).map(runs).collect()),
            }
        });
        let mixer = mix.and_then(|mix| Mixer::new(mix, &rows));
        let changes = layout.mix_changes.clone();
        Self { tables: Arc::new(tables), division, mixer, changes, seed, window }
    }

    /// The number of rows of all datasets. Row ids are below this number.
    pub fn dataset_rows(&self) -> u64 {
        self.tables.iter().map(BlockTable::rows).sum()
    }

    /// The mix weight changes, in order.
    pub fn changes(&self) -> &[MixChange] {
        &self.changes
    }

    /// Returns a sequence of the same datasets with different mix weight changes.
    pub fn with_mix_changes(&self, changes: &[MixChange]) -> Self {
        let (tables, mixer) = (Arc::clone(&self.tables), self.mixer.clone());
        Self { tables, division: self.division.clone(), mixer, changes: changes.to_vec(), ..*self }
    }

    /// Returns the order of pass `pass`, counted over all epochs. Takes O(blocks + splits) time.
    pub fn pass(&self, pass: u32) -> SharedPass {
        let mixer = self.mixer.as_ref().map(|mixer| Arc::new(mixer_of_pass(mixer, &self.changes, pass)));
        let max_repeats = self.mixer.as_ref().map_or(1, Mixer::max_part_repeats);
        let portions = self.division.as_ref().map(|division| self.portions(division, mixer.as_deref(), pass));
        let order = |part: usize, repeat: u32| {
            // The first dataset of a mix has the same order as without the mix.
            let seed = if part == 0 { self.seed } else { mix64(self.seed ^ mix64(part as u64)) };
            let number = match repeat < max_repeats {
                true => pass * max_repeats + repeat,
                // With changed weights a dataset may restart more often than planned. Extra restarts have the highest bit
                // set.
                false => mix64(u64::from(pass) << 32 | u64::from(repeat)) as u32 | 1 << 31,
            };
            let table = &self.tables[part];
            let runs = self.division.as_ref().and_then(|division| division.runs[part].as_ref());
            match runs.zip(portions.as_ref()) {
                Some((runs, portions)) => {
                    let portions = portions.of(part, repeat as usize);
                    PassOrder::of_portions(table, seed, number, self.window, runs, portions)
                }
                None => PassOrder::new(table, seed, number, self.window),
            }
        };
        let repeats = |part: usize| mixer.as_ref().map_or(1, |mixer| mixer.part_repeats(part));
        let orders =
            (0..self.tables.len()).map(|part| (0..repeats(part)).map(|repeat| order(part, repeat)).collect());
        SharedPass { orders: Arc::new(orders.collect()), mixer }
    }

    /// Returns the portions of each dataset in a pass.
    fn portions(&self, division: &Division, mixer: Option<&Mixer>, pass: u32) -> PassPortions {
        let splits = division.splits.of_pass(pass);
        let Some((base, mixer)) = self.mixer.as_ref().zip(mixer) else {
            return PassPortions { all: vec![vec![splits]], planned: None };
        };
        let rows: Vec<u64> = self.tables.iter().map(BlockTable::rows).collect();
        let is_before = |change: &&MixChange| change.pass < pass || change.pass == pass && change.offset == 0;
        let before: Vec<MixChange> = self.changes.iter().take_while(is_before).cloned().collect();
        let planned = mixer_of_pass(base, &before, pass);
        let planned = (planned != *mixer).then(|| portions_of_mix(&splits, &planned, &rows));
        PassPortions { all: portions_of_mix(&splits, mixer, &rows), planned }
    }

    /// Returns the number of rows at the start of each shard that are among the first `count` rows of a pass, in the order of the
    /// shards; `None` for a mix and for compressed datasets. With a shuffle, only whole blocks count. Takes O(blocks) time.
    pub fn leading_rows(&self, pass: &SharedPass, count: u64) -> Option<Vec<(u32, u64)>> {
        let is_simple = pass.mixer.is_none() && self.division.is_none();
        is_simple.then(|| pass.orders[0][0].leading_rows(&self.tables[0], count))
    }

    /// Returns the rows at these offsets of a pass, in order.
    pub fn rows(&self, pass: &SharedPass, offsets: Range<u64>) -> Vec<RowRef> {
        let Some(mixer) = &pass.mixer else { return pass.orders[0][0].rows(&self.tables[0], offsets) };
        let mixed = mixer.rows(offsets);
        let mut rows: Vec<Option<RowRef>> = vec![None; mixed.len()];
        // The rows of each dataset are contiguous in the order of that dataset, so they are looked up together.
        for (part, (table, orders)) in self.tables.iter().zip(pass.orders.iter()).enumerate() {
            let own = || mixed.iter().enumerate().filter(|(_, row)| row.part == part);
            let Some(first) = own().next().map(|(_, row)| row.row) else { continue };
            let count = own().count() as u64;
            let mut found = Vec::with_capacity(count as usize);
            let mut from = first;
            while from < first + count {
                let repeat = from / table.rows();
                let base = repeat * table.rows();
                let to = (first + count).min(base + table.rows());
                found.extend(orders[repeat as usize].rows(table, from - base..to - base));
                from = to;
            }
            for ((index, _), row) in own().zip(found) {
                rows[index] = Some(row);
            }
        }
        rows.into_iter().flatten().collect()
    }
}

/// The portions of each dataset, for each time that the pass starts the dataset.
struct PassPortions {
    all: Vec<Vec<Vec<Portion>>>,
    /// The portions with the weights at the start of the pass, if the weights change during the pass.
    planned: Option<Vec<Vec<Vec<Portion>>>>,
}

impl PassPortions {
    fn of(&self, part: usize, repeat: usize) -> Portions<'_> {
        let all = portions_at(&self.all, part, repeat);
        let planned = self.planned.as_deref().map_or(all, |planned| portions_at(planned, part, repeat));
        Portions { all, planned }
    }
}

fn portions_at(portions: &[Vec<Vec<Portion>>], part: usize, repeat: usize) -> &[Portion] {
    portions.get(part).and_then(|portions| portions.get(repeat)).map_or(&[], Vec::as_slice)
}

/// Returns the mixer with the weight changes that affect a pass.
fn mixer_of_pass(mixer: &Mixer, changes: &[MixChange], pass: u32) -> Mixer {
    let before = changes.iter().take_while(|change| change.pass < pass).last();
    let within = changes.iter().filter(|change| change.pass == pass);
    let within: Vec<(u64, &[f64])> =
        within.map(|change| (change.offset, change.weights.as_slice())).collect();
    if before.is_none() && within.is_empty() {
        return mixer.clone();
    }
    mixer.with_changes(before.map(|change| change.weights.as_slice()), within)
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
        let shard = |(part, rows): (usize, &u32)| {
            Shard::new(
                ShardRef {
                    url: format!("file:///{part}"),
                    size_bytes: 1,
                    version: String::new(),
                    part: part as u32,
                    ..ShardRef::default()
                },
                ShardIndex {
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
                    ..ShardIndex::default()
                },
            )
        };
        Manifest { schema: Schema::default(), shards: parts.iter().enumerate().map(shard).collect() }
    }

    fn layout(pipeline: &Pipeline, manifest: &Manifest, changes: &[MixChange]) -> Layout {
        Layout { mix_changes: changes.to_vec(), ..Layout::new(pipeline, &manifest.summary(), 1, 1) }
    }

    fn pipeline(parts: usize, stop: MixStop, window: u64) -> Pipeline {
        let parts = (0..parts)
            .map(|part| MixPart { weight: 1.0 + part as f64, source: Source::text(format!("/{part}")) });
        let source = Source::mixed(Mix { parts: parts.collect(), stop });
        Pipeline::builder("p").source(source).seed(7).shuffle(window).batch(4).build().expect("sound")
    }

    proptest! {
        #[test]
        fn a_mix_contains_every_row_and_ranges_equal_the_whole_pass(
            rows in prop::collection::vec(1u32..40, 1..4), window in 0u64..20, pass in 0u32..3, cut: u64, restart: bool,
        ) {
            let stop = if restart { MixStop::Restart } else { MixStop::All };
            let (manifest, pipeline) = (manifest(&rows), pipeline(rows.len(), stop, window));
            let sequence = Sequence::new(&pipeline, &manifest, &layout(&pipeline, &manifest, &[]));
            let mixer = sequence.mixer.clone().expect("few rows");
            let order = sequence.pass(pass);
            let whole = sequence.rows(&order, 0..mixer.pass_rows());
            prop_assert_eq!(whole.len() as u64, mixer.pass_rows());
            let mut counts: BTreeMap<(u64, u32), u32> = BTreeMap::new();
            for row in &whole {
                *counts.entry((row.row_id, row.pass)).or_default() += 1;
            }
            prop_assert!(counts.values().all(|count| *count == 1), "a row appears once in one pass over its dataset");
            let distinct = whole.iter().map(|row| row.row_id).collect::<std::collections::BTreeSet<_>>();
            prop_assert_eq!(distinct.len() as u64, sequence.dataset_rows());
            let cut = cut % mixer.pass_rows();
            prop_assert_eq!(&sequence.rows(&order, cut..mixer.pass_rows())[..], &whole[cut as usize..]);
        }
    }

    proptest! {
        #[test]
        fn a_change_of_the_mix_preserves_earlier_rows_and_repeats_none(
            rows in prop::collection::vec(1u32..40, 2..4), places in prop::collection::vec(0u64..60, 1..4), weight in 0.1f64..9.0,
            restart: bool, pass in 0u32..3,
        ) {
            let stop = if restart { MixStop::Restart } else { MixStop::All };
            let (manifest, pipeline) = (manifest(&rows), pipeline(rows.len(), stop, 8));
            let mut places = places;
            places.sort_unstable();
            let changes: Vec<MixChange> = places
                .iter()
                .enumerate()
                .map(|(number, place)| {
                    let weights = (0..rows.len()).map(|part| weight + (part * number) as f64).collect();
                    MixChange { pass: 1, offset: *place, weights }
                })
                .collect();
            let sequence =
                |changes: &[MixChange]| Sequence::new(&pipeline, &manifest, &layout(&pipeline, &manifest, changes));
            let (before, after) = (sequence(&changes[..changes.len() - 1]), sequence(&changes));
            let length = after.mixer.clone().expect("few rows").pass_rows();
            let of = |sequence: &Sequence| sequence.rows(&sequence.pass(pass), 0..length);
            let (before, after) = (of(&before), of(&after));
            prop_assert_eq!(after.len() as u64, length);
            let same = match pass {
                0 => length,
                1 => places[places.len() - 1].min(length),
                _ => 0,
            };
            prop_assert_eq!(&before[..same as usize], &after[..same as usize]);
            let ids: std::collections::BTreeSet<(u64, u32)> = after.iter().map(|row| (row.row_id, row.pass)).collect();
            prop_assert_eq!(ids.len(), after.len(), "no row appears twice in one pass over its dataset");
        }
    }

    #[test]
    fn the_sequence_of_one_dataset_is_its_pass_order() {
        let manifest = manifest(&[33]);
        let plain =
            Pipeline::builder("p").source(Source::text("/0")).seed(7).shuffle(8).batch(4).build().unwrap();
        let sequence = Sequence::new(&plain, &manifest, &layout(&plain, &manifest, &[]));
        let table = BlockTable::new(&manifest);
        let expected = PassOrder::new(&table, 7, 2, 8).rows(&table, 3..20);
        assert_eq!(sequence.rows(&sequence.pass(2), 3..20), expected);
    }
}
