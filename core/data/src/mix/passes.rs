//! Rows and rounds of a pass over a pipeline's dataset or mix.

use super::Mixer;
use crate::manifest::DatasetSummary;
use crate::pipeline::Pipeline;

impl Pipeline {
    /// Rows of one pass over a dataset: those that it has, unless a mix ends before or goes over some of them again. More than can be
    /// counted are [`u64::MAX`].
    pub fn pass_rows(&self, dataset: &DatasetSummary) -> u64 {
        let Some(mix) = &self.source.mix else { return dataset.rows };
        let rows = rows_of_parts(mix.parts.len(), dataset);
        Mixer::new(mix, &rows).map_or(u64::MAX, |mixer| mixer.pass_rows())
    }

    /// How often the dataset that is gone over most often is begun in a pass.
    pub fn rounds_of_pass(&self, dataset: &DatasetSummary) -> u32 {
        let Some(mix) = &self.source.mix else { return 1 };
        let rows = rows_of_parts(mix.parts.len(), dataset);
        Mixer::new(mix, &rows).map_or(u32::MAX, |mixer| mixer.rounds())
    }
}

/// Rows of each dataset of a mix; the last ones may have no shards, and a mix of one is a dataset.
fn rows_of_parts(parts: usize, dataset: &DatasetSummary) -> Vec<u64> {
    let mut rows = if dataset.part_rows.is_empty() { vec![dataset.rows] } else { dataset.part_rows.clone() };
    rows.resize(parts, 0);
    rows
}
