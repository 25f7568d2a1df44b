//! Lists the dataset, and checks the names and sizes of its shards.

use std::collections::BTreeMap;

use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::{Format, PipelinePart};
use feedline_worker::sample::{Dataset, SourceError};
use futures::StreamExt;

use super::checks::Check;
use super::finding::Finding;
use crate::size::{format_bytes, format_count};

/// Maximum number of URLs of the source that are listed concurrently.
const CONCURRENT_LISTINGS: usize = 32;
/// Minimum number of shards of a dataset of many small objects. With the formats `files` and `imagefolder`, each object is a row.
const MANY_SHARDS: usize = 64;
const MANY_FILES: usize = 100_000;
/// Maximum median size of a dataset of many small objects.
const SMALL_BYTES: u64 = 1 << 20;
/// Minimum size of the largest shard, and its minimum ratio to the median, of skewed shards.
const SKEWED_BYTES: u64 = 64 << 20;
const SKEW: u64 = 10;
/// Maximum fraction of the objects with another extension, as one in this number.
const RARE_EXTENSION: usize = 10;

/// The shards of a dataset, and the findings of its listing.
#[derive(Debug, Default)]
pub(crate) struct ListedDataset {
    /// The shards in listing order, without duplicates.
    pub(crate) shards: Vec<ShardRef>,
    /// The findings.
    pub(crate) findings: Vec<Finding>,
}

/// Lists all URLs of the source.
pub(crate) async fn list(dataset: &Dataset, is_mix: bool) -> ListedDataset {
    let part = PipelinePart::Source(if is_mix { "mix" } else { "url" });
    let lists = dataset.url_groups().into_iter().map(|(number, urls)| async move {
        match dataset.list_group(number, urls).await {
            Ok(shards) => Ok(shards),
            Err(error) => {
                let url = error.url().or(urls.first().map(String::as_str)).unwrap_or_default();
                Err(listing_finding(dataset, number, url, &error).await.in_part(part))
            }
        }
    });
    let mut lists = futures::stream::iter(lists).buffered(CONCURRENT_LISTINGS);
    let (mut listed, mut seen) = (ListedDataset::default(), std::collections::HashSet::new());
    while let Some(result) = lists.next().await {
        match result {
            Ok(shards) => listed
                .shards
                .extend(shards.into_iter().filter(|shard| seen.insert((shard.part, shard.url.clone())))),
            Err(finding) => listed.findings.push(finding),
        }
    }
    listed
}

async fn listing_finding(dataset: &Dataset, part: u32, url: &str, error: &SourceError) -> Finding {
    let finding = Finding::of_source(error, url);
    if finding.check != Check::NoMatch {
        return finding;
    }
    match dataset.nearest_url(part, url).await {
        Some(nearest) => {
            let message = format!("{}; the nearest match is `{nearest}`", finding.message);
            Finding { message, ..finding }
        }
        None => finding,
    }
}

/// Checks the names and sizes of the shards of one dataset.
pub(crate) fn check_shards(shards: &[&ShardRef], format: Format) -> Vec<Finding> {
    let Some(first) = shards.first() else { return Vec::new() };
    let mut findings = Vec::new();
    // Partitions of a topic have no size, and the description of a graph is beside its seeds.
    if matches!(format, Format::Kafka | Format::Graph) {
        return findings;
    }
    let has_file_rows = matches!(format, Format::Files | Format::ImageFolder);
    if !has_file_rows {
        findings.extend(check_extensions(shards));
        findings.extend(check_skew(shards));
        let empty = shards.iter().filter(|shard| shard.size_bytes == 0);
        let sentence =
            |shard: &ShardRef| format!("`{}` is empty: write the shard again, or remove it", shard.url);
        findings.extend(empty.map(|shard| Finding::new(Check::EmptyShard, sentence(shard)).at(shard)));
    }
    let many = if has_file_rows { MANY_FILES } else { MANY_SHARDS };
    let median = median_bytes(shards);
    if shards.len() >= many && median < SMALL_BYTES {
        let fix = match format {
            Format::Files | Format::ImageFolder => {
                "pack the files into tar files, and read them as `webdataset`"
            }
            _ => "write fewer and larger shards, of 64 MiB to 1 GiB",
        };
        let message = format!(
            "the median of {} is {}, so reading them is limited by requests: {fix}",
            format_count(shards.len() as u64, "object"),
            format_bytes(median as f64),
        );
        findings.push(Finding::new(Check::SmallShards, message).at(first));
    }
    findings
}

fn median_bytes(shards: &[&ShardRef]) -> u64 {
    let mut sizes: Vec<u64> = shards.iter().map(|shard| shard.size_bytes).collect();
    sizes.sort_unstable();
    sizes[sizes.len() / 2]
}

fn check_skew(shards: &[&ShardRef]) -> Option<Finding> {
    let largest = shards.iter().max_by_key(|shard| shard.size_bytes)?;
    let median = median_bytes(shards).max(1);
    let ratio = largest.size_bytes / median;
    (largest.size_bytes >= SKEWED_BYTES && ratio >= SKEW).then(|| {
        let message = format!(
            "`{}` has {}, {ratio} times the median of the shards: divide the dataset into shards of equal size",
            largest.url,
            format_bytes(largest.size_bytes as f64)
        );
        Finding::new(Check::SkewedShards, message).at(largest)
    })
}

/// Reports rare extensions, which often belong to files such as a README.
fn check_extensions(shards: &[&ShardRef]) -> Option<Finding> {
    let mut counts: BTreeMap<String, Vec<&ShardRef>> = BTreeMap::new();
    for shard in shards {
        counts.entry(extension(&shard.url)).or_default().push(shard);
    }
    let (common, with_common) = counts.iter().max_by_key(|(_, shards)| shards.len())?;
    let others = shards.len() - with_common.len();
    if others == 0 || others * RARE_EXTENSION > shards.len() {
        return None;
    }
    let example = counts.iter().find(|(other, _)| *other != common).map(|(_, shards)| shards[0])?;
    let (objects, has) = (format_count(others as u64, "object"), if others == 1 { "has" } else { "have" });
    let message = format!(
        "{objects} {has} another extension than `{common}`, such as `{}`: select the shards with a pattern such as `*{common}`",
        example.url
    );
    Some(Finding::new(Check::MixedExtensions, message).at(example))
}

/// The extension of a name from its last dot, such as `.parquet`.
fn extension(url: &str) -> String {
    let name = url.rsplit('/').next().unwrap_or_default();
    name.rfind('.').map(|dot| name[dot..].to_lowercase()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(sizes: &[(&str, u64)]) -> Vec<ShardRef> {
        let shard = |(name, size_bytes): &(&str, u64)| ShardRef {
            url: format!("s3://b/{name}"),
            size_bytes: *size_bytes,
            version: String::new(),
            ..ShardRef::default()
        };
        sizes.iter().map(shard).collect()
    }

    fn names(shards: &[ShardRef], format: Format) -> Vec<&'static str> {
        let shards: Vec<&ShardRef> = shards.iter().collect();
        check_shards(&shards, format).iter().map(|finding| finding.check.name()).collect()
    }

    #[test]
    fn equal_shards_of_normal_size_have_no_findings() {
        let names_of_shards: Vec<String> = (0..100).map(|number| format!("{number}.parquet")).collect();
        let sizes: Vec<(&str, u64)> = names_of_shards.iter().map(|name| (name.as_str(), 200 << 20)).collect();
        assert!(names(&shards(&sizes), Format::Parquet).is_empty());
        assert!(names(&[], Format::Parquet).is_empty());
    }

    #[test]
    fn empty_small_skewed_and_stray_shards_are_found() {
        let empty = shards(&[("a.tar", 0), ("b.tar", 5)]);
        assert_eq!(names(&empty, Format::WebDataset), ["empty-shard"]);
        let small: Vec<(&str, u64)> = vec![("a.tar", 1000); 64];
        assert_eq!(names(&shards(&small), Format::WebDataset), ["small-shards"]);
        assert!(names(&shards(&small), Format::Files).is_empty());
        let skewed = shards(&[("a.tar", 1 << 20), ("b.tar", 1 << 20), ("c.tar", 900 << 20)]);
        assert_eq!(names(&skewed, Format::WebDataset), ["skewed-shards"]);
        let mut stray: Vec<(&str, u64)> = vec![("a.tar", 5); 20];
        stray.push(("README.md", 5));
        assert_eq!(names(&shards(&stray), Format::WebDataset), ["mixed-extensions"]);
        assert!(names(&shards(&stray), Format::Files).is_empty());
        assert!(names(&shards(&stray), Format::ImageFolder).is_empty());
        let partitions = shards(&[("topic/0", 0), ("topic/1", 0)]);
        assert!(names(&partitions, Format::Kafka).is_empty());
    }
}
