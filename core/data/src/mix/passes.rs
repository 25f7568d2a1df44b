//! The number of rows in a pass over a pipeline's dataset or mix.

use super::Mixer;
use crate::manifest::DatasetSummary;
use crate::pipeline::Pipeline;

impl Pipeline {
    /// Returns the number of rows of one pass, saturating at [`u64::MAX`]. For a mix the number depends on `stop`.
    pub fn pass_rows(&self, dataset: &DatasetSummary) -> u64 {
        let Some(mix) = &self.source.mix else { return dataset.rows };
        let rows = part_rows(mix.parts.len(), dataset);
        Mixer::new(mix, &rows).map_or(u64::MAX, |mixer| mixer.pass_rows())
    }

    /// Returns the number of times that a pass starts the most repeated dataset of a mix.
    pub fn max_part_repeats(&self, dataset: &DatasetSummary) -> u32 {
        let Some(mix) = &self.source.mix else { return 1 };
        let rows = part_rows(mix.parts.len(), dataset);
        Mixer::new(mix, &rows).map_or(u32::MAX, |mixer| mixer.max_part_repeats())
    }
}

/// Returns the number of rows of each dataset of a mix. The summary omits trailing datasets without shards, and its list is
/// empty if all shards belong to the first dataset.
pub(crate) fn part_rows(parts: usize, dataset: &DatasetSummary) -> Vec<u64> {
    let mut rows = if dataset.part_rows.is_empty() { vec![dataset.rows] } else { dataset.part_rows.clone() };
    rows.resize(parts, 0);
    rows
}
