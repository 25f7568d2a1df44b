//! Excludes listed shards by the columns of their directories, so that their files are never read.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringViewArray};
use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::Source;
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_operators::select_by_columns;
use feedline_sources::SourceError;

/// Maximum number of values of a column in an error message.
const MAX_SHOWN_VALUES: usize = 8;

/// Removes the shards of datasets with a filter whose columns exclude all of their rows.
pub(crate) fn exclude(shards: Vec<ShardRef>, source: &Source) -> Result<Vec<ShardRef>, SourceError> {
    let datasets = source.datasets();
    if datasets.iter().all(|dataset| dataset.shard_filter.is_none()) {
        return Ok(shards);
    }
    let mut parts: Vec<Vec<ShardRef>> = datasets.iter().map(|_| Vec::new()).collect();
    for shard in shards {
        if let Some(part) = parts.get_mut(shard.part as usize) {
            part.push(shard);
        }
    }
    let kept = parts.into_iter().zip(datasets).map(|(shards, dataset)| match &dataset.shard_filter {
        Some(predicate) => exclude_part(shards, dataset, predicate),
        None => Ok(shards),
    });
    Ok(kept.collect::<Result<Vec<_>, _>>()?.concat())
}

fn exclude_part(
    shards: Vec<ShardRef>,
    source: &Source,
    predicate: &str,
) -> Result<Vec<ShardRef>, SourceError> {
    let mut schema = Schema::default();
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    for (column, name) in column_names(&shards, source) {
        if let Some(array) = column_of(&shards, &name) {
            let is_text = array.as_any().is::<StringViewArray>();
            let column_type = if is_text { ColumnType::Utf8 } else { ColumnType::Scalar(ScalarType::Int64) };
            schema.set(&column, column_type);
            columns.push((column, array));
        }
    }
    let selected = select_by_columns(predicate, &schema, &columns, shards.len());
    if !shards.is_empty() && !selected.contains(&true) {
        let reason = format!(
            "the filter `{predicate}` excludes all {} shards: the directories have {}; correct the filter",
            shards.len(),
            values_shown(&shards)
        );
        return Err(SourceError::Url { url: source.url.join(", "), reason });
    }
    let kept =
        shards.into_iter().zip(selected).filter_map(|(shard, is_selected)| is_selected.then_some(shard));
    Ok(kept.collect())
}

/// The columns of the shards' values with their names in the data.
fn column_names(shards: &[ShardRef], source: &Source) -> Vec<(String, String)> {
    let names: BTreeSet<&str> =
        shards.iter().flat_map(|shard| &shard.values).map(|value| value.name.as_str()).collect();
    if source.features.is_empty() {
        return names.into_iter().map(|name| (name.to_owned(), name.to_owned())).collect();
    }
    let renamed = source.features.iter().filter(|(_, name)| names.contains(name.as_str()));
    renamed.map(|(column, name)| (column.clone(), name.clone())).collect()
}

/// The values of one column with a row per shard; `None` if a value is not of the column's type.
fn column_of(shards: &[ShardRef], name: &str) -> Option<ArrayRef> {
    let values: Vec<_> =
        shards.iter().map(|shard| shard.values.iter().find(|value| value.name == name)).collect();
    let is_text = values.iter().flatten().any(|value| value.integer.is_none());
    let texts = values.iter().map(|value| value.and_then(|value| value.text.as_deref()));
    if is_text {
        return Some(Arc::new(texts.collect::<StringViewArray>()));
    }
    let numbers: Option<Vec<Option<i64>>> =
        texts.map(|text| text.map_or(Some(None), |text| text.parse().ok().map(Some))).collect();
    Some(Arc::new(Int64Array::from(numbers?)))
}

fn values_shown(shards: &[ShardRef]) -> String {
    let mut all = BTreeSet::new();
    for value in shards.iter().flat_map(|shard| &shard.values) {
        all.insert(format!("{}={}", value.name, value.text.as_deref().unwrap_or("null")));
        if all.len() > MAX_SHOWN_VALUES {
            break;
        }
    }
    let more = if all.len() > MAX_SHOWN_VALUES { ", ..." } else { "" };
    all.into_iter().take(MAX_SHOWN_VALUES).collect::<Vec<_>>().join(", ") + more
}

#[cfg(test)]
mod tests {
    use feedline_data::manifest::ShardValue;

    use super::*;

    fn shard(part: u32, year: i64) -> ShardRef {
        ShardRef {
            url: format!("/{year}"),
            part,
            values: vec![ShardValue::int64("year", year)].into(),
            ..ShardRef::default()
        }
    }

    fn kept(source: &Source, years: &[i64]) -> Result<Vec<String>, String> {
        let shards = years.iter().map(|&year| shard(0, year)).collect();
        let kept = exclude(shards, source).map_err(|error| error.to_string())?;
        Ok(kept.into_iter().map(|shard| shard.url).collect())
    }

    fn filtered(predicate: &str) -> Source {
        Source { shard_filter: Some(predicate.to_owned()), ..Source::text("/") }
    }

    #[test]
    fn shards_are_excluded_by_their_values() {
        assert_eq!(kept(&Source::text("/"), &[1, 2]).unwrap().len(), 2);
        assert_eq!(kept(&filtered("year > 1 AND length(text) = 3"), &[1, 2, 3]).unwrap(), ["/2", "/3"]);
        assert_eq!(kept(&filtered("length(text) = 3"), &[1, 2]).unwrap().len(), 2);
        let renamed = filtered("y = 2").feature("y", "year").feature("t", "text");
        assert_eq!(kept(&renamed, &[1, 2]).unwrap(), ["/2"]);
        let message = kept(&filtered("year = 9"), &[1, 2]).unwrap_err();
        assert!(message.contains("excludes all 2 shards: the directories have year=1, year=2;"), "{message}");
    }

    #[test]
    fn each_dataset_of_a_mix_has_its_own_filter() {
        use feedline_data::pipeline::{Mix, MixPart, MixStop};
        let part = |source| MixPart { weight: 1.0, source };
        let parts = vec![part(Source::text("/")), part(filtered("year = 2"))];
        let source = Source::mixed(Mix { parts, stop: MixStop::All });
        let kept = exclude(vec![shard(0, 1), shard(1, 1), shard(1, 2)], &source).unwrap();
        assert_eq!(kept, [shard(0, 1), shard(1, 2)]);
    }
}
