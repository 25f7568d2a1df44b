//! Datasets of the Hugging Face library `datasets`: a repository on the Hub or in a directory, a directory of `save_to_disk`, or
//! a directory of the datasets cache.
//!
//! The listing selects the files of one configuration and split. Each file is a shard, and is read by the reader of its
//! extension. The features of Parquet and Arrow files are in their schemas, which their readers use for every dataset.

mod card;
mod choice;
mod directory;
mod file_kind;
mod patterns;
mod repository;
mod saved;

use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::pipeline::Source;

use super::arrow_ipc::ArrowReader;
use super::csv::CsvReader;
use super::jsonl::JsonlReader;
use super::parquet::ParquetReader;
use super::text::TextReader;
use super::webdataset::WebDatasetReader;
use crate::cache::ShardCacheMemory;
use crate::error::SourceError;
use crate::list::{self, ShardSelectors};
use crate::location::Location;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleTraits};
use crate::select::Selection;
use crate::stores::ScopedStores;
use crate::table_roots::TableRoots;
use crate::tables;

use choice::Choice;
use directory::Directory;
use file_kind::FileKind;

/// Reads Hugging Face datasets.
pub(super) struct HuggingFaceReader {
    choice: Choice,
    parquet: ParquetReader,
    arrow: ArrowReader,
    csv: CsvReader,
}

impl HuggingFaceReader {
    pub(super) fn new(source: &Source, memory: &ShardCacheMemory) -> Self {
        let choice = Choice { config: source.config.clone(), split: source.split.clone() };
        Self {
            choice,
            parquet: ParquetReader::new(memory),
            arrow: ArrowReader::new(memory),
            csv: CsvReader::new(memory),
        }
    }

    /// The reader of a shard.
    fn reader(&self, shard: &ShardRef) -> Result<&dyn FormatReader, SourceError> {
        let reader: &dyn FormatReader = match FileKind::of(&shard.url) {
            Some(FileKind::Parquet) => &self.parquet,
            Some(FileKind::Arrow) => &self.arrow,
            Some(FileKind::Csv) => &self.csv,
            Some(FileKind::Json) => &JsonlReader,
            Some(FileKind::Text) => &TextReader,
            Some(FileKind::WebDataset) => &WebDatasetReader,
            None => {
                let reason = format!(
                    "the format huggingface reads files with the extensions {}: list such files under `source.url`",
                    FileKind::EXTENSIONS
                );
                return Err(SourceError::unsupported(shard, reason));
            }
        };
        Ok(reader)
    }

    /// Lists one URL: the files of a directory, or the objects of a pattern or file.
    async fn list_one(
        &self,
        reads: &ScopedStores,
        url: &str,
        location: Location,
    ) -> Result<Vec<ShardRef>, SourceError> {
        let has_pattern = list::is_pattern(reads, &location);
        if has_pattern || FileKind::of(&location.rest).is_some() && !location.rest.ends_with('/') {
            if self.choice.config.is_some() || self.choice.split.is_some() {
                let reason = "`source.config` and `source.split` select files of a directory: write the directory of the dataset, \
                              or remove both keys";
                return Err(SourceError::Url { url: url.to_owned(), reason: reason.to_owned() });
            }
            return tables::list(reads, &[location.url()]).await;
        }
        let directory = Directory::list(reads, url, location).await?;
        if let Some(shards) = saved::shards(reads, &directory, &self.choice).await? {
            return Ok(shards);
        }
        let shards = repository::shards(reads, &directory, &self.choice).await?;
        let mut tables = TableRoots::default();
        directory.files.values().for_each(|file| tables.observe(&file.url));
        tables::reject(&tables, shards.iter())?;
        Ok(shards)
    }
}

#[async_trait]
impl FormatReader for HuggingFaceReader {
    fn sample_traits(&self, shard: &ShardRef) -> SampleTraits {
        self.reader(shard).map_or_else(|_| SampleTraits::default(), |reader| reader.sample_traits(shard))
    }

    async fn list(&self, reads: &ScopedStores, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        let (mut shards, mut selectors) = (Vec::new(), ShardSelectors::default());
        for url in urls {
            let location = reads.pin(Location::parse(url)?, url).await?;
            let selector: Arc<str> = location.url().trim_end_matches('/').into();
            for shard in self.list_one(reads, url, location).await? {
                selectors.add(&shard, Some(selector.clone()))?;
                shards.push(shard);
            }
        }
        Ok(shards)
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        self.reader(object.shard())?.index(object, selection).await
    }

    async fn peak_bytes(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<u64, SourceError> {
        self.reader(read.shard)?.peak_bytes(object, read, selection).await
    }

    async fn fetch(&self, object: &Arc<Object>, read: &BlockRead<'_>) -> Result<Option<u64>, SourceError> {
        self.reader(read.shard)?.fetch(object, read).await
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        self.reader(read.shard)?.read(object, read, selection).await
    }
}

#[cfg(test)]
mod tests;
