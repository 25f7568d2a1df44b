//! The probability that the draws of one target select an edge, given the probabilities of the hops in which the target
//! enters the batch.

use feedline_data::graph::GraphLayout;

/// Lower limit of the probability of a source to miss a target, by which other probabilities are divided.
const MIN_MISSED: f64 = 1e-9;

/// The law of the edges of one target. Its buffers are reused from target to target.
#[derive(Debug)]
pub(super) struct RowLaw {
    layout: GraphLayout,
    /// The probability that the target enters in each hop. Hop 0 are the seeds.
    entries: Vec<f64>,
    /// The probability that the draws of the hop after it miss an edge.
    misses: Vec<f64>,
    /// A buffer for the entries without one source.
    without: Vec<f64>,
}

impl RowLaw {
    pub(super) fn new(layout: GraphLayout) -> Self {
        Self { layout, entries: Vec::new(), misses: Vec::new(), without: Vec::new() }
    }

    /// Replaces the entries. Returns false if the target is never in the batch.
    pub(super) fn set_entries(&mut self, entries: impl Iterator<Item = f32>) -> bool {
        self.entries.clear();
        self.entries.extend(entries.map(f64::from));
        self.entries.iter().any(|entry| *entry > 0.0)
    }

    /// Replaces the probabilities that the draws of a hop miss an edge.
    pub(super) fn set_misses(&mut self, misses: impl Iterator<Item = f64>) {
        self.misses.clear();
        self.misses.extend(misses);
    }

    /// Returns the logarithm of the probability that the target does not add the source of an edge to the batch.
    pub(super) fn ln_missed(&self) -> f64 {
        (-self.selected(&self.entries)).ln_1p()
    }

    /// Returns the same if the source can add the target: `selected` contains, by hop and node, the probability that a node selects
    /// one edge. The target enters without this source.
    pub(super) fn ln_missed_without(&mut self, selected: &[Vec<f32>], source: u32) -> f64 {
        let mut without = std::mem::take(&mut self.without);
        let selected = selected.iter().map(|hop| hop.get(source as usize).copied().map_or(0.0, f64::from));
        remove_source(&self.entries, selected.map(|selected| 1.0 - selected), &mut without);
        let ln_missed = (-self.selected(&without)).ln_1p();
        self.without = without;
        ln_missed
    }

    /// Returns the probability that the draws select an edge if the target enters without one of `degree` equal sources.
    pub(super) fn selected_without_mean(&mut self, degree: u64) -> f64 {
        let mut without = std::mem::take(&mut self.without);
        let seed = self.entries.first().copied().unwrap_or(0.0);
        let included = self.entries.iter().scan(0.0_f64, |included, entry| {
            *included += entry;
            Some(*included)
        });
        // The probability of one source to miss the target is the root of the probability of all sources.
        let share = 1.0 / degree as f64;
        let missed = included.skip(1).map(|included| ((1.0 - included).max(0.0) / (1.0 - seed)).powf(share));
        remove_source(&self.entries, missed, &mut without);
        let selected = self.selected(&without);
        self.without = without;
        selected
    }

    /// Returns the probability that the draws of a target with these entries select an edge.
    ///
    /// A target enters in one hop only, so the probabilities of these hops are added. The later hops of a target draw
    /// independently, so their probabilities to miss an edge are multiplied.
    fn selected(&self, entries: &[f64]) -> f64 {
        let (mut missed, mut selected) = (1.0, 0.0);
        for (entry, miss) in entries.iter().zip(&self.misses).rev() {
            missed = match self.layout {
                GraphLayout::Subgraph => *miss,
                GraphLayout::Blocks => missed * miss,
            };
            selected += entry * (1.0 - missed);
        }
        f64::min(selected, 1.0)
    }
}

/// Computes the entries of a target without one of its sources. `missed` are the probabilities that this source does not add the
/// target up to each hop after the seeds.
fn remove_source(entries: &[f64], missed: impl Iterator<Item = f64>, without: &mut Vec<f64>) {
    let seed = entries.first().copied().unwrap_or(0.0);
    without.clear();
    without.push(seed);
    let (mut included, mut before) = (seed, seed);
    for (entry, missed) in entries.iter().skip(1).zip(missed) {
        included += entry;
        let absent = (1.0 - included).max(0.0) / missed.max(MIN_MISSED);
        let after = (1.0 - absent).max(before);
        without.push(after - before);
        before = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(layout: GraphLayout) -> f64 {
        let mut law = RowLaw::new(layout);
        assert!(law.set_entries([0.5, 0.25].into_iter()));
        law.set_misses([0.8, 0.5].into_iter());
        law.ln_missed().exp()
    }

    #[test]
    fn a_target_is_expanded_in_one_hop_or_in_all_later_hops() {
        let once = missed(GraphLayout::Subgraph);
        assert!((once - (1.0 - 0.5 * 0.2 - 0.25 * 0.5)).abs() < 1e-12, "{once}");
        let again = missed(GraphLayout::Blocks);
        assert!((again - (1.0 - 0.5 * (1.0 - 0.8 * 0.5) - 0.25 * 0.5)).abs() < 1e-12, "{again}");
    }

    #[test]
    fn a_target_outside_the_batch_has_no_law() {
        let mut law = RowLaw::new(GraphLayout::Subgraph);
        assert!(!law.set_entries([0.0, 0.0].into_iter()));
        assert!(law.set_entries([1.0].into_iter()));
        law.set_misses([0.0].into_iter());
        assert_eq!(law.ln_missed(), f64::NEG_INFINITY, "the source is always in the batch");
    }

    /// The source adds the target with the probability 0.5 in the first hop, and the other sources with the probability 0.25.
    #[test]
    fn a_target_does_not_add_the_source_that_added_it() {
        let mut law = RowLaw::new(GraphLayout::Subgraph);
        law.set_entries([0.0, 0.625].into_iter());
        law.set_misses([0.0, 0.75].into_iter());
        assert!((law.ln_missed().exp() - (1.0 - 0.625 * 0.25)).abs() < 1e-12);
        let without = law.ln_missed_without(&[vec![0.0, 0.5]], 1);
        assert!((without.exp() - (1.0 - 0.25 * 0.25)).abs() < 1e-12);
        assert_eq!(law.ln_missed_without(&[vec![0.0, 0.5]], 0), law.ln_missed());
        assert_eq!(law.ln_missed_without(&[vec![]], 7), law.ln_missed(), "the source does not exist");
        // Two equal sources miss the target with the probability 0.375 together.
        let mean = law.selected_without_mean(2);
        assert!((mean - (1.0 - 0.375_f64.sqrt()) * 0.25).abs() < 1e-12, "{mean}");
        assert_eq!(law.selected_without_mean(1), 0.0, "nothing else adds the target");
    }

    #[test]
    fn a_seed_does_not_need_a_source() {
        let mut law = RowLaw::new(GraphLayout::Blocks);
        law.set_entries([1.0, 0.0].into_iter());
        law.set_misses([0.5, 0.5].into_iter());
        assert!((law.selected_without_mean(3) - 0.75).abs() < 1e-12);
    }
}
