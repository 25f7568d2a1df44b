//! WebDataset tar files. A row is a sample, which consists of adjacent members with the same key.

mod divided_rows;
mod member_types;
mod repeated_keys;
mod sample;
mod scan;
mod tar;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::{ColumnNotes, Defect, ShardIndex, ShardRef};
use feedline_data::schema::{ColumnType, MAX_COLUMNS, ScalarType};

use crate::content::{ContentBlocks, ContentWindow};
use crate::error::SourceError;
use crate::limits::MAX_SAMPLE_MEMBERS;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleMethod, SampleTraits};
use crate::rows::{self, SplitError};
use crate::select::{InferenceNotes, ResolvedColumn, Selection};

use repeated_keys::DividedSamples;
use sample::{KEY, key_and_extension, too_many_members};
use scan::{MemberVisitor, scan};

/// Maximum number of bytes between two samples that are read with the earlier sample.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// Reads WebDataset tar files.
pub(super) struct WebDatasetReader;

#[async_trait]
impl FormatReader for WebDatasetReader {
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits::of_rows(SampleMethod::FirstRows)
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let samples = find_samples(object, selection, u64::MAX).await?;
        let (mut index, keys) = samples.into_index(object)?;
        match repeated_keys::divided_samples(object, keys).await? {
            DividedSamples::None => {}
            DividedSamples::Few(divided) => divided_rows::separate(&mut index, &divided),
            DividedSamples::Many(sample) => {
                // The rows before the first part are complete.
                let before = find_samples(object, selection, sample.first_part).await?;
                index = before.into_index(object)?.0;
                if index.defects.is_empty() {
                    index.defects = vec![sample.into()];
                }
            }
        }
        Ok(index)
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let rows = rows::fetch(object, read, split).await?;
        sample::decode(&rows, read, selection, divided_rows::part_of(read.block))
    }
}

/// The samples of a shard.
struct ShardSamples<'a> {
    samples: SampleGrouper<'a>,
    defect: Option<Defect>,
    window: ContentWindow<'a>,
}

/// Finds the samples of a shard up to the byte `end` of its content.
async fn find_samples<'a>(
    object: &'a Object,
    selection: &'a Selection,
    end: u64,
) -> Result<ShardSamples<'a>, SourceError> {
    let mut window = ContentWindow::open(object).await?;
    let mut samples = SampleGrouper::new(selection);
    let defect = scan(&mut window, end, &mut samples).await?;
    Ok(ShardSamples { samples, defect, window })
}

impl ShardSamples<'_> {
    /// Returns the index of the shard, and the hashes of the keys of its samples.
    fn into_index(self, object: &Object) -> Result<(ShardIndex, Vec<u64>), SourceError> {
        let Self { samples, defect, window } = self;
        let (schema, columns) = match samples.rows {
            0 => (None, ColumnNotes::default()),
            _ => {
                let (schema, mut columns) = samples.selection.resolve_inferred(
                    object.shard(),
                    &samples.columns(),
                    &InferenceNotes::default(),
                )?;
                // The key is not a member, so it is not listed as ignored.
                columns.ignored.retain(|name| name != KEY);
                (Some(schema), columns)
            }
        };
        let builder = samples.builder.unwrap_or_else(|| ContentBlocks::new(&window, 0));
        let (blocks, compression) = builder.finish(&window);
        let defects = defect.into_iter().collect();
        Ok((
            ShardIndex { blocks, schema, defects, columns, compression, ..ShardIndex::default() },
            samples.keys,
        ))
    }
}

/// Groups the members of a shard into samples.
struct SampleGrouper<'a> {
    selection: &'a Selection,
    /// Created at the first header of the first sample.
    builder: Option<ContentBlocks>,
    rows: u64,
    key: Option<String>,
    /// Number of members in the current sample.
    members: usize,
    /// Number of members in the sample before it.
    previous_members: usize,
    /// The end offset of the current sample.
    end: u64,
    /// The extensions of all members, in lower case.
    extensions: BTreeSet<String>,
    /// Hashes of the keys of all samples.
    keys: Vec<u64>,
    /// Whether the archive of the current sample has ended.
    has_archive_ended: bool,
    /// Whether the current sample is complete although the archive is truncated.
    is_sample_complete: bool,
}

impl<'a> SampleGrouper<'a> {
    fn new(selection: &'a Selection) -> Self {
        Self {
            selection,
            builder: None,
            rows: 0,
            key: None,
            members: 0,
            previous_members: 0,
            end: 0,
            extensions: BTreeSet::new(),
            keys: Vec::new(),
            has_archive_ended: false,
            is_sample_complete: false,
        }
    }
}

impl MemberVisitor for SampleGrouper<'_> {
    fn on_member(&mut self, name: &str, bytes: Range<u64>, window: &ContentWindow<'_>) -> Result<(), String> {
        let Some((key, extension)) = key_and_extension(name) else { return Ok(()) };
        if self.has_archive_ended || self.key.as_deref() != Some(key) {
            self.close_before(bytes.start, window)?;
            self.key = Some(key.to_owned());
            self.keys.push(repeated_keys::key_hash(key));
            self.previous_members = std::mem::take(&mut self.members);
        }
        self.members += 1;
        if self.members > MAX_SAMPLE_MEMBERS {
            return Err(too_many_members(key));
        }
        self.builder.get_or_insert_with(|| ContentBlocks::new(window, bytes.start));
        self.end = bytes.end;
        if self.extensions.contains(extension) {
            return Ok(());
        }
        let extension = extension.to_lowercase();
        if extension == KEY {
            return Ok(());
        }
        if self.extensions.len() < MAX_COLUMNS || self.selection.names(&extension) {
            self.extensions.insert(extension);
        } else if self.selection.reads(&extension) && !self.extensions.contains(&extension) {
            return Err(format!(
                "the samples exceed the limit of {MAX_COLUMNS} extensions: check the member names"
            ));
        }
        Ok(())
    }

    fn on_archive_end(&mut self) {
        self.has_archive_ended = true;
    }

    /// An archive that was cut between two members has no end.
    fn on_content_end(&mut self) -> Result<(), String> {
        match &self.key {
            Some(key) if !self.has_archive_ended && self.members < self.previous_members => Err(format!(
                "the archive has no end, and its last sample `{key}` has fewer members than the sample before it: write the file again"
            )),
            _ => Ok(()),
        }
    }

    /// If the member belongs to the next sample, the current sample is complete.
    fn on_truncated(&mut self, name: &str) {
        self.is_sample_complete =
            key_and_extension(name).is_none_or(|(key, _)| self.key.as_deref() != Some(key));
    }

    /// Drops the current sample if members of it may be missing.
    fn close(&mut self, is_complete: bool, window: &ContentWindow<'_>) -> Result<(), String> {
        if !is_complete && !self.is_sample_complete && !self.has_archive_ended {
            self.key = None;
        }
        self.close_sample(window)
    }
}

impl SampleGrouper<'_> {
    /// Ends the current sample before another sample, which starts at `start`.
    fn close_before(&mut self, start: u64, window: &ContentWindow<'_>) -> Result<(), String> {
        self.has_archive_ended = false;
        let can_skip = self.builder.as_ref().is_some_and(ContentBlocks::can_skip);
        if start - self.end <= MAX_GAP_BYTES || !can_skip {
            // Entries between two samples, such as directories, and blocks of zeros belong to the earlier sample.
            self.end = start;
            return self.close_sample(window);
        }
        self.close_sample(window)?;
        self.builder.iter_mut().for_each(|builder| builder.skip_to(start));
        Ok(())
    }

    /// Ends the current sample.
    fn close_sample(&mut self, window: &ContentWindow<'_>) -> Result<(), String> {
        let (Some(_), Some(builder)) = (self.key.take(), &mut self.builder) else { return Ok(()) };
        builder.push(self.end - builder.end(), window)?;
        self.rows += 1;
        Ok(())
    }

    fn columns(&self) -> Vec<ResolvedColumn> {
        let mut found: Vec<ResolvedColumn> = self
            .extensions
            .iter()
            .map(|extension| (extension.clone(), Ok(extension_type(extension))))
            .collect();
        found.push((KEY.to_owned(), Ok(ColumnType::Utf8)));
        found
    }
}

fn extension_type(extension: &str) -> ColumnType {
    match extension.rsplit('.').next() {
        Some("txt" | "text" | "json") => ColumnType::Utf8,
        Some("cls" | "cls2") => ColumnType::Scalar(ScalarType::Int64),
        _ => ColumnType::Binary,
    }
}

/// Returns the spans of all samples in a block.
fn split(bytes: &[u8]) -> Result<Vec<Range<usize>>, SplitError> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut key: Option<String> = None;
    // An archive may end between two members without a sample.
    let mut has_archive_ended = false;
    tar::each_member(bytes, |member| {
        has_archive_ended |= member.is_after_end;
        let Some((member_key, _)) = key_and_extension(&member.name) else { return };
        if has_archive_ended || key.as_deref() != Some(member_key) {
            has_archive_ended = false;
            if let Some(last) = spans.last_mut() {
                last.end = member.start;
            }
            spans.push(member.start..bytes.len());
            key = Some(member_key.to_owned());
        }
    })?;
    Ok(spans)
}

#[cfg(test)]
mod tests;
