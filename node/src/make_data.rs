//! `feedline make-data`: makes or packs data sets to try and to measure with.
//!
//! [`rows::Rows`] says what the rows are (generated, or read from a folder), [`writer`] how they become files. Both
//! sides meet in Arrow record batches of bounded size, so any kind goes with any format that suits it.

mod columnar;
mod image_folder;
mod images;
mod output;
pub(crate) mod photo;
mod rows;
mod table;
mod tar;
#[cfg(test)]
mod tests;
mod text;
mod text_folder;
mod tfrecord;
mod writer;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use output::Output;
use rows::Rows;

/// Shards of a data set when neither the user nor the number of rows says otherwise.
const DEFAULT_SHARDS: u64 = 4;

/// What `feedline make-data` is asked for.
#[derive(Args, Debug, Clone)]
pub(crate) struct MakeDataArgs {
    /// What the rows are.
    kind: Kind,
    /// Folder to write to; must be empty or not exist yet.
    out: PathBuf,
    /// Rows to write; with --from, all there are by default, and the rows repeat when more are asked for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rows: Option<u64>,
    /// How the rows are encoded.
    #[arg(long, value_name = "FORMAT")]
    format: FileFormat,
    /// Folder of image files, or of line-aligned text files, to pack instead of generating rows.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Files to spread the rows over [default: 4, or one per row when there are fewer].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=99_999))]
    shards: Option<u64>,
    /// Seed of the generated rows: the same seed gives the same bytes.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Height and width of generated images in pixels [default: varied, about 375 x 500 and 500 x 375].
    #[arg(long, num_args = 2, value_names = ["H", "W"], value_parser = clap::value_parser!(u16).range(8..=8192))]
    size: Option<Vec<u16>>,
    /// Write into a folder that is not empty, replacing what make-data wrote there before.
    #[arg(long)]
    force: bool,
}

/// Kinds of data sets.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// JPEG photographs with a label and a file name.
    Images,
    /// Sentence pairs in two languages.
    Text,
    /// Numbers, a group and a payload.
    Table,
}

impl Kind {
    /// The word on the command line, which also opens the names of the files written.
    fn name(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Text => "text",
            Self::Table => "table",
        }
    }
}

/// Encodings of a data set's files; the names are those of a pipeline's `format`.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "lower")]
enum FileFormat {
    /// TFRecord files of tf.train.Example.
    TfRecord,
    /// Tar files; members that share a key are one row.
    WebDataset,
    /// One file per image.
    Files,
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC files.
    Arrow,
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values with a header line.
    Csv,
    /// One sentence per line, in the first language only.
    Text,
}

impl FileFormat {
    /// The word on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::TfRecord => "tfrecord",
            Self::WebDataset => "webdataset",
            Self::Files => "files",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Text => "text",
        }
    }

    /// The ending of the files written.
    fn extension(self) -> &'static str {
        match self {
            Self::WebDataset => "tar",
            Self::Text => "txt",
            other => other.name(),
        }
    }
}

/// Makes the data set and prints one line about it.
pub(crate) fn run(args: MakeDataArgs) -> Result<()> {
    let started = Instant::now();
    check(&args)?;
    let mut rows = build_rows(&args)?;
    let shards = shard_count(&args, rows.count())?;
    let mut output = Output::open(&args.out, args.force)?;
    if args.format == FileFormat::Files {
        writer::write_files(&mut output, rows.as_mut())?;
    } else {
        writer::write_shards(&mut output, rows.as_mut(), args.kind, args.format, shards)?;
    }
    let written = output.commit()?;
    println!(
        "wrote {} rows of {} as {} to {}: {} in {:.1} MB, {:.1} s",
        rows.count(),
        args.kind.name(),
        args.format.name(),
        args.out.display(),
        if written.files == 1 { "1 file".into() } else { format!("{} files", written.files) },
        written.bytes as f64 / 1e6,
        started.elapsed().as_secs_f64(),
    );
    Ok(())
}

/// Refuses what does not go together.
fn check(args: &MakeDataArgs) -> Result<()> {
    use FileFormat::{Arrow, Csv, Files, Jsonl, Parquet, Text, TfRecord, WebDataset};
    let suited: &[FileFormat] = match args.kind {
        Kind::Images => &[TfRecord, WebDataset, Files, Parquet, Arrow],
        Kind::Text => &[TfRecord, WebDataset, Parquet, Arrow, Jsonl, Csv, Text],
        Kind::Table => &[TfRecord, Parquet, Arrow, Jsonl, Csv],
    };
    ensure!(
        suited.contains(&args.format),
        "{} cannot be written as {}: choose one of {}",
        args.kind.name(),
        args.format.name(),
        suited.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
    );
    ensure!(
        args.kind != Kind::Table || args.from.is_none(),
        "a table is always generated: leave out --from, or make images or text from a folder"
    );
    ensure!(
        args.size.is_none() || (args.kind == Kind::Images && args.from.is_none()),
        "--size is for generated images: leave it out, as packed files are kept byte for byte"
    );
    ensure!(
        args.format != FileFormat::Files || args.shards.is_none(),
        "--shards does not go with --format files, which writes one file per row: leave it out"
    );
    ensure!(args.from.is_some() || args.rows.is_some(), "say how many rows to generate with --rows");
    Ok(())
}

/// The rows asked for.
fn build_rows(args: &MakeDataArgs) -> Result<Box<dyn Rows>> {
    let generated = args.rows.unwrap_or_default();
    Ok(match (args.kind, &args.from) {
        (Kind::Images, Some(folder)) => Box::new(image_folder::ImageFolder::open(folder, args.rows)?),
        (Kind::Images, None) => {
            let size = args.size.as_deref().map(|size| [size[0], size[1]]);
            Box::new(images::GeneratedImages::new(generated, args.seed, size))
        }
        (Kind::Text, Some(folder)) => Box::new(text_folder::TextFolder::open(folder, args.rows)?),
        (Kind::Text, None) => Box::new(text::GeneratedText::new(generated, args.seed)),
        (Kind::Table, _) => Box::new(table::GeneratedTable::new(generated, args.seed)),
    })
}

/// How many files the rows are spread over.
fn shard_count(args: &MakeDataArgs, rows: u64) -> Result<u64> {
    let shards = args.shards.unwrap_or(DEFAULT_SHARDS.min(rows));
    ensure!(
        shards <= rows,
        "{shards} shards need at least as many rows, and there are {rows}: lower --shards"
    );
    Ok(shards)
}
