//! Finds samples whose members are not adjacent. The keys of a shard repeat if members of other samples are between the members of
//! a sample, or if the shard contains several complete samples with one key, for example of several archives.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use feedline_data::manifest::Defect;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::divided_rows::{DividedRow, OtherPart, divided_reason};
use super::sample::key_and_extension;
use super::scan::{MemberVisitor, scan};
use crate::content::ContentWindow;
use crate::error::SourceError;
use crate::limits::MAX_REPEATED_KEYS;
use crate::object::Object;

/// Maximum number of parts of divided samples that become rows.
const MAX_PARTS: usize = 1024;

/// The samples of a shard whose members are not adjacent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DividedSamples {
    None,
    /// The parts, by the number of their row in the shard.
    Few(BTreeMap<u64, DividedRow>),
    /// The first part in the shard of a divided sample.
    Many(DividedSample),
}

/// A sample whose members are in several parts of the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DividedSample {
    /// The byte offset of the first part.
    pub(super) first_part: u64,
    key: String,
    other_part: u64,
}

impl From<DividedSample> for Defect {
    fn from(sample: DividedSample) -> Self {
        let other = OtherPart { offset: Some(sample.other_part) };
        Self { offset: sample.first_part, reason: divided_reason(&sample.key, other) }
    }
}

pub(super) fn key_hash(key: &str) -> u64 {
    xxh3_64(key.as_bytes())
}

/// Returns the samples of the shard that are divided. `hashes` are the hashes of the keys of all samples. If no hash occurs twice,
/// there are none. Otherwise, reads the headers of the shard again.
pub(super) async fn divided_samples(
    object: &Object,
    mut hashes: Vec<u64>,
) -> Result<DividedSamples, SourceError> {
    hashes.sort_unstable();
    let repeated: HashSet<u64> =
        hashes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    drop(hashes);
    if repeated.is_empty() {
        return Ok(DividedSamples::None);
    }
    if repeated.len() > MAX_REPEATED_KEYS {
        let reason = format!(
            "more than {MAX_REPEATED_KEYS} keys occur several times: write the archive with `tar --sort=name`, or into several files"
        );
        return Err(SourceError::unsupported(object.shard(), reason));
    }
    let mut parts = PartComparison { repeated, ..PartComparison::default() };
    scan(&mut ContentWindow::open(object).await?, u64::MAX, &mut parts).await?;
    Ok(match parts.earliest {
        None => DividedSamples::None,
        Some(_) if parts.divided.len() <= MAX_PARTS => DividedSamples::Few(parts.divided),
        Some(earliest) => DividedSamples::Many(earliest),
    })
}

/// Compares the samples with the same key.
#[derive(Default)]
struct PartComparison {
    /// The hashes of the keys that occur several times.
    repeated: HashSet<u64>,
    /// The first sample with each of these keys, by a longer hash.
    first: HashMap<u128, Part>,
    /// The first of them in the latest archive that contains the key.
    first_of_archive: HashMap<u128, Part>,
    /// The number of archives before the current member.
    archive: u32,
    /// The number of samples before the current one.
    row: u64,
    key: String,
    current: Option<Part>,
    /// The bits of the extensions.
    extensions: HashMap<String, u32>,
    /// The parts of divided samples, by the number of their row: at most two more than [`MAX_PARTS`].
    divided: BTreeMap<u64, DividedRow>,
    /// The divided sample whose first part is the first in the shard.
    earliest: Option<DividedSample>,
}

/// Adjacent members with one key.
#[derive(Debug, Clone, Copy)]
struct Part {
    row: u64,
    offset: u64,
    /// The offset of the next part.
    end: u64,
    archive: u32,
    /// One bit per extension. Extensions beyond the number of bits have none.
    extensions: u64,
    /// The sum of the hashes of the extensions, which determines their set.
    extension_set: u128,
}

impl Part {
    /// Whether this and a later part are two complete samples. Within an archive, the extensions must be the same. Samples of
    /// different archives must have an extension in common, because optional members may be missing.
    fn is_other_sample(&self, later: &Self) -> bool {
        if self.archive == later.archive {
            self.extension_set == later.extension_set
        } else {
            self.extensions & later.extensions != 0
        }
    }
}

impl MemberVisitor for PartComparison {
    fn on_member(&mut self, name: &str, bytes: Range<u64>, _: &ContentWindow<'_>) -> Result<(), String> {
        let Some((key, extension)) = key_and_extension(name) else { return Ok(()) };
        if self.current.is_none_or(|part| part.archive != self.archive) || self.key != key {
            self.end_part(bytes.start);
            key.clone_into(&mut self.key);
            let (row, archive) = (self.row, self.archive);
            let (offset, end) = (bytes.start, u64::MAX);
            self.current = Some(Part { row, offset, end, archive, extensions: 0, extension_set: 0 });
        }
        let extension = extension.to_lowercase();
        let set = xxh3_128(extension.as_bytes());
        let next_bit = self.extensions.len() as u32;
        let bit = match self.extensions.get(&extension) {
            Some(bit) => Some(*bit),
            None if next_bit == u64::BITS => None,
            None => Some(*self.extensions.entry(extension).or_insert(next_bit)),
        };
        if let Some(part) = &mut self.current {
            part.extension_set = part.extension_set.wrapping_add(set);
            part.extensions |= bit.map_or(0, |bit| 1 << bit);
        }
        Ok(())
    }

    fn on_archive_end(&mut self) {
        self.archive = self.archive.saturating_add(1);
    }

    fn close(&mut self, _is_complete: bool, _: &ContentWindow<'_>) -> Result<(), String> {
        self.end_part(u64::MAX);
        Ok(())
    }
}

impl PartComparison {
    /// Ends the current part before the next one, which starts at the byte `end`.
    fn end_part(&mut self, end: u64) {
        let Some(part) = self.current.take() else { return };
        let part = Part { end, ..part };
        self.row += 1;
        if !self.repeated.contains(&key_hash(&self.key)) {
            return;
        }
        let key = xxh3_128(self.key.as_bytes());
        let first = *self.first.entry(key).or_insert(part);
        let of_archive = self.first_of_archive.entry(key).or_insert(part);
        if of_archive.archive != part.archive {
            *of_archive = part;
        }
        let is_divided = |other: &Part| {
            let is_known = self.divided.contains_key(&other.row);
            other.row != part.row && (is_known || !other.is_other_sample(&part))
        };
        let Some(first) = [first, *of_archive].into_iter().find(is_divided) else { return };
        if self.divided.len() <= MAX_PARTS {
            let divided = |part: Part, other: Part| {
                (part.row, DividedRow { bytes: part.offset..part.end, other_part: other.offset })
            };
            self.divided.extend([divided(first, part), divided(part, first)]);
        }
        if self.earliest.as_ref().is_none_or(|earliest| first.offset < earliest.first_part) {
            let (first_part, other_part) = (first.offset, part.offset);
            self.earliest = Some(DividedSample { first_part, key: self.key.clone(), other_part });
        }
    }
}
