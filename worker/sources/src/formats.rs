//! The source formats. Each format has one module and one match arm in [`create_reader`].

mod arrow_ipc;
mod bisect;
mod csv;
mod files;
mod jsonl;
pub(crate) mod lines;
mod npy;
mod parquet;
mod text;
mod tfrecord;
mod webdataset;

use feedline_data::pipeline::Format;

use crate::reader::FormatReader;

/// Creates a reader for one dataset of this format.
pub(crate) fn create_reader(format: Format) -> Box<dyn FormatReader> {
    match format {
        Format::TfRecord => Box::new(tfrecord::TfRecordReader),
        Format::WebDataset => Box::new(webdataset::WebDatasetReader),
        Format::Files => Box::new(files::FilesReader),
        Format::Parquet => Box::<parquet::ParquetReader>::default(),
        Format::Arrow => Box::<arrow_ipc::ArrowReader>::default(),
        Format::Jsonl => Box::new(jsonl::JsonlReader),
        Format::Csv => Box::<csv::CsvReader>::default(),
        Format::Npy => Box::<npy::NpyReader>::default(),
        Format::Text => Box::new(text::TextReader),
    }
}
