//! Comparison of an index with the shards in the store, and with a later index.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;

use super::shard_changes::ShardChanges;
use super::{Manifest, Shard, ShardRef};
use crate::urls::without_commit;

/// Maximum number of shards of each kind that a message names.
const MAX_NAMED_SHARDS: usize = 3;

/// The part of an index that is still valid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexReuse {
    /// For each listed shard, the number of the indexed shard with the same URL and validator; `None` for a shard that must be
    /// indexed.
    pub indexed: Vec<Option<usize>>,
    /// The shards that changed.
    pub changes: ShardChanges,
    /// Whether a shard with a valid index has other values, such as another label of its class, or is read at another commit.
    pub has_new_values: bool,
}

impl IndexReuse {
    /// Whether the index describes exactly the listed shards, in this order.
    pub fn is_complete(&self, indexed_shards: usize) -> bool {
        !self.has_new_values
            && self.indexed.len() == indexed_shards
            && self.indexed.iter().enumerate().all(|(listed, indexed)| *indexed == Some(listed))
    }
}

/// Identifies a file in all commits of the Hub of Hugging Face: the dataset of the mix, and the URL without the commit.
fn key(object: &ShardRef) -> (u32, Cow<'_, str>) {
    (object.part, without_commit(&object.url))
}

impl Manifest {
    /// For each of the later shards, the number of the same shard in this index. A file on the Hub is the same one in each commit.
    /// Equal URLs come first, because a source may read several commits. No two shards have the same number.
    fn numbers_of<'a>(&'a self, later: &[&'a ShardRef]) -> Vec<Option<usize>> {
        let objects = || self.shards.iter().map(|shard| &shard.object).enumerate();
        // A source may list a shard several times.
        let mut known: HashMap<(u32, &'a str), VecDeque<usize>> = HashMap::new();
        for (number, object) in objects() {
            known.entry((object.part, object.url.as_str())).or_default().push_back(number);
        }
        let same_url =
            |object: &&'a ShardRef| known.get_mut(&(object.part, object.url.as_str()))?.pop_front();
        let mut numbers: Vec<Option<usize>> = later.iter().map(same_url).collect();
        let is_paired = self.paired(&numbers);
        let mut others: HashMap<(u32, Cow<'_, str>), VecDeque<usize>> = HashMap::new();
        for (number, object) in objects().filter(|(number, _)| !is_paired[*number]) {
            others.entry(key(object)).or_default().push_back(number);
        }
        for (number, object) in numbers.iter_mut().zip(later).filter(|(number, _)| number.is_none()) {
            *number = others.get_mut(&key(object)).and_then(VecDeque::pop_front);
        }
        numbers
    }

    /// For each shard of this index, whether its number is in the list.
    fn paired(&self, numbers: &[Option<usize>]) -> Vec<bool> {
        let mut is_paired = vec![false; self.shards.len()];
        numbers.iter().flatten().for_each(|number| is_paired[*number] = true);
        is_paired
    }

    /// Compares the shards in the store with the indexed shards. Shards without a digest or a validator are indexed again, but
    /// are not counted as changed.
    pub fn reuse_for(&self, listed: &[ShardRef]) -> IndexReuse {
        // Most datasets do not change.
        if self.shards.iter().map(|shard| &shard.object).eq(listed) && self.shards.iter().all(can_reuse) {
            return IndexReuse { indexed: (0..listed.len()).map(Some).collect(), ..IndexReuse::default() };
        }
        let numbers = self.numbers_of(&listed.iter().collect::<Vec<_>>());
        let (mut changes, mut has_new_values) = (ShardChanges::default(), false);
        let mut indexed = Vec::with_capacity(listed.len());
        for (object, number) in listed.iter().zip(&numbers) {
            let Some(number) = *number else {
                changes.added += 1;
                indexed.push(None);
                continue;
            };
            let shard = &self.shards[number];
            // Values, such as the label of a class, and the commit come from the listing and not from the index of the shard.
            let is_unchanged = shard.object.is_same_object(object);
            changes.rewritten += u64::from(!is_unchanged);
            has_new_values |=
                is_unchanged && (shard.object.values != object.values || shard.object.url != object.url);
            let has_same_columns = shard.object.has_columns_of(object);
            indexed.push((is_unchanged && has_same_columns && can_reuse(shard)).then_some(number));
        }
        changes.removed = (self.shards.len() - numbers.iter().flatten().count()) as u64;
        IndexReuse { indexed, changes, has_new_values }
    }

    /// Names the shards whose content differs in a later index of the same source. Empty if the contents are equal.
    pub fn describe_changes(&self, later: &Self) -> String {
        let numbers = self.numbers_of(&later.shards.iter().map(|shard| &shard.object).collect::<Vec<_>>());
        let earlier = numbers.iter().map(|number| number.map(|number| &self.shards[number]));
        let (mut rewritten, mut added) = (Vec::new(), Vec::new());
        for (shard, earlier) in later.shards.iter().zip(earlier) {
            match earlier {
                None => added.push(shard),
                Some(earlier) if !earlier.has_same_content(shard) => rewritten.push(shard),
                Some(_) => {}
            }
        }
        let is_paired = self.paired(&numbers);
        let removed = self.shards.iter().zip(is_paired).filter(|(_, is_paired)| !is_paired);
        let removed = removed.map(|(shard, _)| shard).collect();
        let parts = [("rewritten", rewritten), ("added", added), ("removed", removed)];
        let parts = parts.map(|(what, shards)| NamedShards { what, shards });
        let parts = parts.iter().filter(|part| !part.shards.is_empty());
        parts.map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl Manifest {
    /// Whether checksums of the store prove that a shard has other bytes in a later index of the same source.
    pub fn has_other_checksums(&self, later: &Self) -> bool {
        let numbers = self.numbers_of(&later.shards.iter().map(|shard| &shard.object).collect::<Vec<_>>());
        let digest = |shard: &Shard| shard.digest;
        later.shards.iter().zip(numbers).any(|(shard, number)| {
            let earlier = number.and_then(|number| digest(&self.shards[number]));
            earlier.zip(digest(shard)).is_some_and(|(earlier, later)| earlier.proves_other_bytes(&later))
        })
    }
}

/// Whether the index of a shard can be used as long as its validator is the same.
fn can_reuse(shard: &Shard) -> bool {
    shard.digest.is_some() && shard.object.has_validator()
}

/// What happened to some shards.
struct NamedShards<'a> {
    what: &'static str,
    shards: Vec<&'a Shard>,
}

impl fmt::Display for NamedShards<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, shards } = self;
        write!(
            f,
            "{} {} {what} (",
            shards.len(),
            if shards.len() == 1 { "shard was" } else { "shards were" }
        )?;
        for (number, shard) in shards.iter().take(MAX_NAMED_SHARDS).enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(f, "{separator}{}", shard.object.url)?;
        }
        let others = shards.len().saturating_sub(MAX_NAMED_SHARDS);
        if others > 0 {
            write!(f, " and {others} more")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests;
