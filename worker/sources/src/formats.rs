//! The source formats. Each format has one module and one match arm in [`create_reader`].

mod arrayrecord;
mod arrow_ipc;
pub(crate) mod bisect;
mod csv;
mod decompress;
mod features;
mod files;
mod graph;
mod hugging_face;
mod image_folder;
pub(crate) mod jsonl;
pub(crate) mod lines;
mod litdata;
mod mds;
pub(crate) mod npy;
pub(crate) mod npz;
mod parquet;
mod samples;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod tfrecord;
mod webdataset;

use feedline_data::pipeline::{Format, Source};

use crate::reader::FormatReader;
use crate::stores::ScopedStores;

pub use self::parquet::read_parquet_pages;

/// Creates a reader for one dataset of this format.
pub(crate) fn create_reader(source: &Source, reads: &ScopedStores) -> Box<dyn FormatReader> {
    let memory = reads.cache_memory();
    match source.format {
        Format::TfRecord => Box::new(tfrecord::TfRecordReader),
        Format::WebDataset => Box::new(webdataset::WebDatasetReader),
        Format::Files => Box::new(files::FilesReader),
        Format::Parquet => Box::new(parquet::ParquetReader::new(memory)),
        Format::Arrow => Box::new(arrow_ipc::ArrowReader::new(memory)),
        Format::Jsonl => Box::new(jsonl::JsonlReader),
        Format::Csv => Box::new(csv::CsvReader::new(memory)),
        Format::Npy => Box::new(npy::NpyReader::new(memory)),
        Format::Npz => Box::new(npz::NpzReader::new(memory)),
        Format::ArrayRecord => Box::new(arrayrecord::ArrayRecordReader),
        Format::LitData => Box::new(litdata::LitDataReader::new(reads, &source.url)),
        Format::Mds => Box::new(mds::MdsReader::new(reads, &source.url)),
        Format::Text => Box::new(text::TextReader),
        Format::ImageFolder => Box::<image_folder::ImageFolderReader>::default(),
        // `DatasetPart` reads Kafka topics without a reader of objects.
        Format::Kafka => Box::new(text::TextReader),
        Format::HuggingFace => Box::new(hugging_face::HuggingFaceReader::new(source, memory)),
        Format::Graph => Box::new(graph::GraphSeedsReader::new(source, memory)),
    }
}
