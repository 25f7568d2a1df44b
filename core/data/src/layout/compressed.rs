//! The size of splits of compressed datasets, and the lanes of their long runs.

use crate::manifest::DatasetSummary;
use crate::mix::Mixer;
use crate::pipeline::{Mix, Pipeline};
use crate::runs::{MixedRuns, PartRuns, RunLayout, SplitLimits};

/// Minimum size of a compressed dataset's rows in a split in bytes, if the dataset is large enough. The blocks at both ends are
/// decompressed for the neighbouring splits too.
const MIN_BYTES_PER_DATASET: u64 = 24 << 20;
/// Minimum number of splits per stream of a dataset with long runs, if it is large enough.
const MIN_SPLITS_PER_STREAM_OF_RUNS: u64 = 20;
/// Maximum size of a shuffle window in bytes. A split has the rows of whole windows.
const MAX_WINDOW_BYTES: u64 = 256 << 20;

/// Maximum number of splits of a pass in which each shuffle window is in one split. The order of such a pass needs memory for each
/// split.
const MAX_DIVIDED_SPLITS: u64 = 1 << 20;

/// The runs of a dataset without long runs.
static NO_RUNS: PartRuns =
    PartRuns { is_compressed: false, long_rows: 0, decoder_bytes: 0, run_rows: 0, lane_rows: Vec::new() };

/// Returns the minimum size of a split in bytes.
pub(super) fn min_split_bytes(dataset: &DatasetSummary) -> u64 {
    let datasets = dataset.part_runs.iter().filter(|part| part.is_compressed).count().max(1);
    (MIN_BYTES_PER_DATASET * datasets as u64).min(MAX_WINDOW_BYTES)
}

/// Returns the number of rows of a split that leaves enough splits of long runs.
fn max_rows_of_runs(dataset: &DatasetSummary, pass_rows: u64, streams: u32) -> u64 {
    // The splits after the full rounds do not belong to lanes. Each of them may decompress a run of each dataset.
    let datasets = dataset.part_runs.iter().filter(|part| part.long_rows > 0).count().max(1) as u64;
    (pass_rows / (MIN_SPLITS_PER_STREAM_OF_RUNS * datasets * u64::from(streams))).max(1)
}

/// Returns the number of rows of a split that has a whole shuffle window of each compressed dataset, a multiple of the batch size.
/// Windows of a mix may be divided, so that there are enough splits.
pub(super) fn rows_of_windows(pipeline: &Pipeline, dataset: &DatasetSummary, streams: u32) -> u64 {
    let (batch, window) = (u64::from(pipeline.batch_size()), pipeline.shuffle.window);
    let pass_rows = pipeline.pass_rows(dataset);
    let epoch_rows = pass_rows.saturating_mul(u64::from(pipeline.repeat_count()));
    let mean_row_bytes = (dataset.bytes / dataset.rows.max(1)).max(1);
    let whole = match &pipeline.source.mix {
        Some(mix) => {
            let shares = shares(mix).zip(parts(mix, dataset)).filter(|(_, part)| part.is_compressed);
            let smallest = shares.map(|(share, _)| share).fold(1.0, f64::min);
            let limit = max_rows_of_runs(dataset, pass_rows, streams);
            ((window as f64 / smallest) as u64).min(limit).max(window)
        }
        None => window,
    };
    let whole = whole.min(MAX_WINDOW_BYTES / mean_row_bytes).clamp(batch, epoch_rows.max(batch));
    whole.checked_next_multiple_of(batch).unwrap_or(whole)
}

/// Whether the order of a pass would need too much memory if each shuffle window were in one split. Only the `window` of `pack`
/// and `bucket_by_length` makes such small splits.
pub(super) fn has_too_many_splits(pass_rows: u64, split_rows: u64) -> bool {
    pass_rows / split_rows.max(1) > MAX_DIVIDED_SPLITS
}

/// Selects the lanes of long runs and the size of splits. Without long runs, the size is that of `limits`.
pub(super) fn run_layout(
    pipeline: &Pipeline,
    dataset: &DatasetSummary,
    streams: u32,
    limits: SplitLimits,
) -> (RunLayout, u64) {
    let pass_rows = pipeline.pass_rows(dataset);
    if dataset.runs.is_empty() {
        return (RunLayout::default(), limits.without_runs());
    }
    let wanted = limits.wanted.min(max_rows_of_runs(dataset, pass_rows, streams)).max(limits.min);
    let limits = SplitLimits { wanted, ..limits };
    let is_shuffled = pipeline.shuffle.window > 0;
    let is_mix = !dataset.part_rows.is_empty();
    let (runs, split_rows) = match &pipeline.source.mix {
        Some(mix) if is_shuffled && is_mix => RunLayout::of_mix(&mixed_runs(mix, dataset), pass_rows, limits),
        Some(mix) if is_mix => {
            let passes = pipeline.repeat_count();
            RunLayout::of_sequential_mix(&mixed_runs(mix, dataset), pass_rows, passes, limits)
        }
        _ if is_shuffled => RunLayout::shuffled(&dataset.runs, dataset.rows, limits),
        _ => RunLayout::sequential(&dataset.runs, dataset.rows, limits),
    };
    if is_shuffled && has_too_many_splits(pass_rows, split_rows) {
        return (RunLayout::default(), limits.without_runs());
    }
    (runs, split_rows)
}

/// The shares of the datasets of a mix in its rows, while no dataset is exhausted.
fn shares(mix: &Mix) -> impl Iterator<Item = f64> + '_ {
    let sum: f64 = mix.parts.iter().map(|part| part.weight).sum();
    mix.parts.iter().map(move |part| part.weight / sum)
}

/// The runs of the datasets of a mix.
fn parts<'a>(mix: &Mix, dataset: &'a DatasetSummary) -> impl Iterator<Item = &'a PartRuns> + use<'a> {
    (0..mix.parts.len()).map(|part| dataset.part_runs.get(part).unwrap_or(&NO_RUNS))
}

fn mixed_runs<'a>(mix: &Mix, dataset: &'a DatasetSummary) -> Vec<MixedRuns<'a>> {
    let rows = crate::mix::part_rows(mix.parts.len(), dataset);
    let delivered =
        Mixer::new(mix, &rows).map_or_else(|| rows.clone(), |mixer| mixer.counts_before(mixer.pass_rows()));
    let pass_rows = delivered.iter().sum::<u64>().max(1) as f64;
    let shares =
        shares(mix).zip(&delivered).map(|(share, delivered)| share.max(*delivered as f64 / pass_rows));
    let parts = parts(mix, dataset).zip(shares).zip(rows.iter().zip(&delivered));
    parts
        .map(|((runs, share), (rows, delivered))| MixedRuns {
            runs,
            rows: *rows.min(delivered),
            long_rows: (u128::from(runs.long_rows) * u128::from(*delivered) / u128::from((*rows).max(1)))
                as u64,
            share,
        })
        .collect()
}
