//! WebDataset tar files. A row is a sample, which consists of adjacent members with the same key.

mod sample;
mod tar;

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::{Defect, ShardIndex, ShardRef};
use feedline_data::schema::{ColumnType, MAX_COLUMNS, ScalarType};

use crate::content::{ContentBlocks, ContentWindow};
use crate::error::SourceError;
use crate::limits::MAX_SAMPLE_MEMBERS;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleMethod, SampleTraits};
use crate::rows::{self, SplitError};
use crate::select::{ResolvedColumn, Selection};

use sample::{KEY, key_and_extension, too_many_members};
use tar::{HEADER_BYTES, TarEntry, TarReader, padded_bytes};

/// Number of rows whose members determine the columns.
const SAMPLED_ROWS: u64 = 16;

/// Reads WebDataset tar files.
pub(super) struct WebDatasetReader;

#[async_trait]
impl FormatReader for WebDatasetReader {
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits::of_rows(SampleMethod::FirstRows)
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let mut window = ContentWindow::open(object).await?;
        let mut samples = SampleGrouper::default();
        let defect = find_samples(&mut window, &mut samples).await?;
        let schema = match samples.rows {
            0 => None,
            _ => Some(selection.schema(object.shard(), &samples.columns())?),
        };
        let builder = samples.builder.unwrap_or_else(|| ContentBlocks::new(&window, 0));
        let (blocks, compression) = builder.finish(&window);
        Ok(ShardIndex { blocks, schema, defects: defect.into_iter().collect(), compression, graph: None })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let rows = rows::fetch(object, read, split).await?;
        sample::decode(&rows, read, selection)
    }
}

/// Finds the samples of a shard. Returns the first defect.
async fn find_samples(
    window: &mut ContentWindow<'_>,
    samples: &mut SampleGrouper,
) -> Result<Option<Defect>, SourceError> {
    let mut tar = TarReader::default();
    let mut defect = None;
    // `member` is the offset of the current member with its extension headers. `at` is the offset of the current header.
    let (mut member, mut at) = (0, 0);
    loop {
        window.fill(at, HEADER_BYTES as u64).await?;
        let header = window.bytes(at);
        let step = match (header.is_empty(), window.error()) {
            (true, None) => break,
            (true, Some(reason)) => Err(reason),
            (false, _) => tar.on_header(header, window.max_remaining(at)),
        };
        let stepped = match step {
            Ok(TarEntry::End) => {
                window.finish().await?;
                defect = window.error().map(|reason| Defect { offset: member, reason });
                break;
            }
            Ok(TarEntry::Truncated { name }) => {
                samples.on_truncated(&name);
                Err(tar::truncated(&name))
            }
            Ok(TarEntry::Extension { bytes }) => {
                let body = window.read_from(at + HEADER_BYTES as u64, bytes).await?;
                let body = body.get(..bytes as usize).ok_or_else(tar::truncated_extension);
                body.and_then(|body| tar.on_extension(body)).map(|()| bytes)
            }
            Ok(TarEntry::Skip { bytes }) => {
                member = at + padded_bytes(bytes);
                Ok(bytes)
            }
            Ok(TarEntry::Member { name, bytes }) => {
                let end = at + padded_bytes(bytes);
                let seen = samples.on_member(&name, member, end, window);
                match seen {
                    Ok(()) if !window.reaches(end).await? => Err(tar::truncated(&name)),
                    seen => {
                        member = end;
                        seen.map(|()| bytes)
                    }
                }
            }
            Err(reason) => Err(reason),
        };
        match stepped {
            Ok(bytes) => at += padded_bytes(bytes),
            Err(reason) => {
                samples.drop_last();
                defect = Some(Defect { offset: member, reason: window.error().unwrap_or(reason) });
                break;
            }
        }
    }
    let closed = samples.close(window).err().map(|reason| Defect { offset: member, reason });
    Ok(defect.or(closed))
}

/// Groups the members of a shard into samples.
#[derive(Default)]
struct SampleGrouper {
    /// Created at the first header of the first sample.
    builder: Option<ContentBlocks>,
    rows: u64,
    key: Option<String>,
    /// Number of members in the current sample.
    members: usize,
    /// The end offset of the current sample.
    end: u64,
    extensions: Vec<String>,
    /// Whether the current sample is complete although the archive is truncated.
    is_sample_complete: bool,
}

impl SampleGrouper {
    fn on_member(
        &mut self,
        name: &str,
        start: u64,
        end: u64,
        window: &ContentWindow<'_>,
    ) -> Result<(), String> {
        let Some((key, extension)) = key_and_extension(name) else { return Ok(()) };
        if self.key.as_deref() != Some(key) {
            // Entries between two samples, such as directories, belong to the earlier sample.
            self.end = start;
            self.close(window)?;
            self.key = Some(key.to_owned());
            self.members = 0;
        }
        self.members += 1;
        if self.members > MAX_SAMPLE_MEMBERS {
            return Err(too_many_members(key));
        }
        self.builder.get_or_insert_with(|| ContentBlocks::new(window, start));
        self.end = end;
        let extension = extension.to_lowercase();
        if self.rows < SAMPLED_ROWS && !self.extensions.contains(&extension) {
            if self.extensions.len() == MAX_COLUMNS {
                return Err(format!(
                    "the first samples exceed the limit of {MAX_COLUMNS} extensions: check the member names"
                ));
            }
            self.extensions.push(extension);
        }
        Ok(())
    }

    /// Ends the current sample.
    fn close(&mut self, window: &ContentWindow<'_>) -> Result<(), String> {
        let (Some(_), Some(builder)) = (self.key.take(), &mut self.builder) else { return Ok(()) };
        builder.push(self.end - builder.end(), window)?;
        self.rows += 1;
        Ok(())
    }

    /// Handles a truncated member. If the member belongs to the next sample, the current sample is complete.
    fn on_truncated(&mut self, name: &str) {
        self.is_sample_complete =
            key_and_extension(name).is_none_or(|(key, _)| self.key.as_deref() != Some(key));
    }

    /// Drops the current sample if members of it may be missing.
    fn drop_last(&mut self) {
        if !self.is_sample_complete {
            self.key = None;
        }
    }

    fn columns(&self) -> Vec<ResolvedColumn> {
        let mut extensions = self.extensions.clone();
        extensions.sort();
        let mut found: Vec<ResolvedColumn> = extensions
            .into_iter()
            .map(|extension| (extension.clone(), Ok(extension_type(&extension))))
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
    tar::each_member(bytes, |member| {
        let Some((member_key, _)) = key_and_extension(&member.name) else { return };
        if key.as_deref() != Some(member_key) {
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
