//! Selects shards, reads their footers or beginnings, and checks their contents and columns.

use std::collections::BTreeSet;

use feedline_data::manifest::{Manifest, Shard, ShardRef};
use feedline_data::pipeline::{PipelinePart, Source};
use feedline_data::schema::Schema;
use feedline_worker::sample::{Dataset, SampledShard, SourceError};
use futures::StreamExt;

use super::checks::Check;
use super::finding::Finding;
use crate::recompress;

/// Number of shards in a sample of all datasets, and minimum number for each dataset of a mix.
const SAMPLED_SHARDS: usize = 32;
const MIN_SAMPLED_SHARDS: usize = 4;
/// Maximum number of shards that are read concurrently.
const CONCURRENT_SHARDS: usize = 32;

/// The sampled shards that can be read.
#[derive(Debug, Default)]
pub(crate) struct ShardSample {
    /// The shards in listing order.
    pub(crate) shards: Vec<(ShardRef, SampledShard)>,
    /// The number of sampled shards, including unreadable shards.
    pub(crate) sampled: u64,
    /// Findings about single shards.
    pub(crate) findings: Vec<Finding>,
}

/// The number of rows of the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowCount {
    /// The number.
    pub(crate) rows: u64,
    /// Whether all shards were counted completely.
    pub(crate) is_exact: bool,
}

/// Selects the shards of a sample: the first, the last, the smallest and the largest shard of each dataset, and shards at
/// equal distances. Empty shards are excluded.
pub(crate) fn select(shards: &[ShardRef], all: bool) -> Vec<ShardRef> {
    let present = |shard: &&ShardRef| !shard.is_empty();
    if all {
        return shards.iter().filter(present).cloned().collect();
    }
    let parts: BTreeSet<u32> = shards.iter().map(|shard| shard.part).collect();
    let count = (SAMPLED_SHARDS / parts.len().max(1)).max(MIN_SAMPLED_SHARDS);
    let of_part = |part: u32| {
        let shards: Vec<&ShardRef> =
            shards.iter().filter(present).filter(|shard| shard.part == part).collect();
        select_part(&shards, count).into_iter().map(|index| shards[index].clone()).collect::<Vec<_>>()
    };
    parts.into_iter().flat_map(of_part).collect()
}

fn select_part(shards: &[&ShardRef], count: usize) -> BTreeSet<usize> {
    if shards.len() <= count {
        return (0..shards.len()).collect();
    }
    let by_size = |index: &usize| shards[*index].weight();
    let smallest = (0..shards.len()).min_by_key(by_size);
    let largest = (0..shards.len()).max_by_key(by_size);
    let spread = count - 2;
    let spread = (0..spread).map(|step| step * (shards.len() - 1) / (spread - 1));
    spread.chain(smallest).chain(largest).collect()
}

/// Reads the footers or beginnings of shards.
pub(crate) async fn read(dataset: &Dataset, shards: Vec<ShardRef>, fails_on_defects: bool) -> ShardSample {
    let mut sample = ShardSample { sampled: shards.len() as u64, ..ShardSample::default() };
    let reads = shards.into_iter().map(|shard| async move {
        let read = dataset.sample_shard(&shard).await;
        (shard, read)
    });
    let mut reads = futures::stream::iter(reads).buffered(CONCURRENT_SHARDS);
    while let Some((shard, read)) = reads.next().await {
        match read {
            Ok(sampled) => {
                sample.findings.extend(check_shard(&shard, &sampled, fails_on_defects));
                sample.shards.push((shard, sampled));
            }
            Err(error) => sample.findings.push(shard_finding(&error, &shard)),
        }
    }
    sample
}

fn shard_finding(error: &SourceError, shard: &ShardRef) -> Finding {
    let finding = Finding::of_source(error, &shard.url);
    match error {
        SourceError::MissingFeature { .. } => finding.in_part(PipelinePart::Source("features")),
        _ => finding,
    }
}

fn check_shard(shard: &ShardRef, sampled: &SampledShard, fails_on_defects: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    // The description of a graph is a shard without rows.
    let has_rows = sampled.index.rows() > 0 || sampled.index.graph.is_some();
    if !has_rows && sampled.index.defects.is_empty() {
        let message = format!("`{}` has no rows: write the shard again, or remove it", shard.url);
        findings.push(Finding::new(Check::EmptyShard, message).at(shard));
    }
    if let Some(codec) = sampled.long_run() {
        let message = recompress::long_run_message(codec, &shard.url);
        findings.push(Finding::new(Check::LongRun, message).at(shard));
    }
    for defect in &sampled.index.defects {
        let message = format!("`{}` at byte {}: {}", shard.url, defect.offset, defect.reason);
        findings.push(Finding::new(Check::DefectiveShard, message).at(shard).warning_if(!fails_on_defects));
    }
    findings
}

/// Merges the columns of the sampled shards, as the manifest of a job does. `None` if no shard has rows. `is_exact` is whether the
/// sample determines the columns.
pub(crate) fn merge_columns(
    sample: &ShardSample,
    source: &Source,
    is_exact: bool,
) -> Result<Option<Schema>, Finding> {
    let with_rows = sample.shards.iter().filter(|(_, sampled)| sampled.index.schema.is_some());
    let shards: Vec<Shard> =
        with_rows.map(|(object, sampled)| Shard::new(object.clone(), sampled.index.clone())).collect();
    if shards.is_empty() {
        return Ok(None);
    }
    let mut manifest =
        Manifest::build(shards).map_err(|sentence| Finding::new(Check::SchemaDifference, sentence))?;
    if let Some(sentence) = manifest.missing_column(source) {
        let sentence = match is_exact {
            true => sentence,
            false => format!(
                "{sentence}; only a sample was read, and later rows may have the column, so the operators are not checked"
            ),
        };
        let field = if source.mix.is_some() { "mix" } else { "features" };
        let finding = Finding::new(Check::MissingColumn, sentence).warning_if(!is_exact);
        return Err(finding.in_part(PipelinePart::Source(field)));
    }
    manifest.add_optional_columns(source);
    Ok(Some(manifest.schema))
}

/// Whether the sample determines the columns and their types: whether it contains all shards, and all rows of each shard whose
/// rows determine them.
pub(crate) fn are_columns_exact(shards: &[ShardRef], sample: &ShardSample) -> bool {
    let present = shards.iter().filter(|shard| !shard.is_empty()).count();
    let is_exact = |(shard, sampled): &(ShardRef, SampledShard)| {
        sampled.index.columns.is_fixed || sampled.is_whole(shard)
    };
    sample.shards.len() == present && sample.shards.iter().all(is_exact)
}

/// Reports columns that the pipeline reads and that only some shards have. They must be optional in formats in which all rows of
/// a shard have the same columns; rows of other formats have a null.
pub(crate) fn check_columns(sample: &ShardSample, source: &Source, read: &Schema) -> Vec<Finding> {
    let datasets = source.datasets();
    let mut findings = Vec::new();
    for (shard, sampled) in &sample.shards {
        let Some(schema) = &sampled.index.schema else { continue };
        let Some(dataset) = datasets.get(shard.part as usize) else { continue };
        // The columns of the other datasets of a mix are null.
        let of_dataset = sample.shards.iter().filter(|(other, _)| other.part == shard.part);
        let known: BTreeSet<&str> =
            of_dataset.filter_map(|(_, other)| other.index.schema.as_ref()).flat_map(Schema::names).collect();
        let is_missing = |name: &&str| {
            schema.get(name).is_none() && known.contains(*name) && !dataset.optional.contains(*name)
        };
        let Some(missing) = read.names().find(is_missing) else { continue };
        let is_required = sampled.index.columns.is_fixed;
        let fix = match is_required {
            true => "write the shard again with this column, or declare it optional under `source.features`",
            false => "its rows have a null",
        };
        let message = format!("`{}` has no column `{missing}`, which other shards have: {fix}", shard.url);
        findings.push(Finding::new(Check::SchemaDifference, message).at(shard).warning_if(!is_required));
    }
    findings
}

/// Returns the number of rows of the dataset, estimated from the sample unless the sample contains all shards.
pub(crate) fn count_rows(shards: &[ShardRef], sample: &ShardSample) -> RowCount {
    let present = shards.iter().filter(|shard| !shard.is_empty()).count();
    let is_exact = sample.shards.len() == present
        && sample.shards.iter().all(|(shard, sampled)| sampled.is_whole(shard));
    let rows = |(shard, sampled): &(ShardRef, SampledShard)| sampled.estimated_rows(shard);
    let sampled_rows: u64 = sample.shards.iter().map(rows).sum();
    if is_exact {
        return RowCount { rows: sampled_rows, is_exact };
    }
    let total = |weights: &mut dyn Iterator<Item = u64>| weights.map(u128::from).sum::<u128>();
    let sampled_weight = total(&mut sample.shards.iter().map(|(shard, _)| shard.weight())).max(1);
    let all_weight = total(&mut shards.iter().map(ShardRef::weight));
    RowCount { rows: (u128::from(sampled_rows) * all_weight / sampled_weight) as u64, is_exact }
}

/// Returns the mean number of rows of a block of the sample.
pub(crate) fn mean_block_rows(sample: &ShardSample) -> u64 {
    let blocks: u64 = sample.shards.iter().map(|(_, sampled)| sampled.index.blocks.len() as u64).sum();
    let rows: u64 = sample.shards.iter().map(|(_, sampled)| sampled.index.rows()).sum();
    rows / blocks.max(1)
}

#[cfg(test)]
mod tests {
    use feedline_data::graph::GraphSummary;
    use feedline_data::graph::description::GraphHash;
    use feedline_data::manifest::ShardIndex;

    use super::*;

    fn shards(count: u64, part: u32) -> Vec<ShardRef> {
        let shard = |number| ShardRef {
            url: format!("s3://b/{part}/{number}"),
            size_bytes: 10 + number % 7,
            part,
            ..ShardRef::default()
        };
        (0..count).map(shard).collect()
    }

    #[test]
    fn only_a_shard_that_should_have_rows_is_empty() {
        let checks = |index| {
            let sampled = SampledShard { index, indexed_bytes: 10, store_bytes: 10, store_requests: 1 };
            let findings = check_shard(&shards(1, 0)[0], &sampled, true);
            findings.iter().map(|finding| finding.check).collect::<Vec<_>>()
        };
        assert_eq!(checks(ShardIndex::default()), [Check::EmptyShard]);
        let topology = GraphHash(1);
        let graph = GraphSummary { topology, nodes: Vec::new(), relations: Vec::new(), seeds: Vec::new() };
        let description = ShardIndex { graph: Some(Box::new(graph)), ..ShardIndex::default() };
        assert_eq!(checks(description), []);
    }

    #[test]
    fn a_sample_contains_the_first_last_smallest_and_largest_shard_of_each_dataset() {
        let mut all = shards(1000, 0);
        all[400].size_bytes = 1;
        all[500].size_bytes = 0;
        all[600].size_bytes = 999;
        all.extend(shards(3, 1));
        let selected = select(&all, false);
        let has = |url: &str| selected.iter().any(|shard| shard.url == url);
        for url in ["s3://b/0/0", "s3://b/0/999", "s3://b/0/400", "s3://b/0/600", "s3://b/1/0", "s3://b/1/2"]
        {
            assert!(has(url), "{url}");
        }
        assert!(!has("s3://b/0/500") && selected.len() <= SAMPLED_SHARDS + 3);
        assert_eq!(select(&all, true).len(), 1002);
        assert_eq!(select(&[], false), []);
    }
}
