//! `feedline make-data`: generates datasets for tests and benchmarks, or packs the files of a directory into a dataset.
//!
//! An implementation of [`rows::RowSource`] produces Arrow record batches of bounded size, and [`writer`] encodes them,
//! so each kind of dataset works with each file format that can represent it. [`graph`] writes graphs, which have no rows.

mod columnar;
mod format;
mod graph;
mod image_folder;
mod images;
mod output;
pub(crate) mod photo;
mod rows;
mod shard_writer;
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

use anyhow::{Result, bail, ensure};
use clap::Args;
use feedline_command::Failure;
use feedline_command::output::value_name;

use self::format::{DatasetKind, FileFormat};
use self::graph::{GeneratedGraph, GeneratedGraphArgs};
use self::output::{Output, OutputTotals};
use self::rows::RowSource;

/// Default number of shards; fewer if the dataset has fewer rows.
const DEFAULT_SHARDS: u64 = 4;

/// Arguments of `feedline make-data`.
#[derive(Args, Debug, Clone)]
pub struct MakeDataArgs {
    /// Kind of the dataset.
    kind: DatasetKind,
    /// Directory to write to; it must be empty or not exist.
    out: PathBuf,
    /// Number of rows [default: with --from, all rows of the directory]. With --from and a larger number, rows repeat.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rows: Option<u64>,
    /// Format of the files.
    #[arg(long, value_name = "FORMAT")]
    format: FileFormat,
    /// Directory of image files, or of line-aligned text files, to pack into the dataset instead of generated rows.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Number of files [default: 4, or one per row if there are fewer rows].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=99_999))]
    shards: Option<u64>,
    /// Seed of the generated rows; the same seed generates the same bytes.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Height and width of generated images in pixels [default: random, about 375 x 500 and 500 x 375].
    #[arg(long, num_args = 2, value_names = ["H", "W"], value_parser = clap::value_parser!(u16).range(8..=8192))]
    size: Option<Vec<u16>>,
    /// Write to a directory that is not empty, and replace the files that make-data wrote there before.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    graph: GeneratedGraphArgs,
}

/// Writes the dataset and prints one line about it.
///
/// # Errors
/// Returns an error if the flags are wrong, or a file cannot be read or written.
pub fn run(args: &MakeDataArgs) -> Result<(), Failure> {
    make(args).map_err(|error| {
        let is_io = error.chain().any(|cause| cause.is::<std::io::Error>());
        if is_io { Failure::Failed(error) } else { Failure::InvalidUsage(error) }
    })
}

fn make(args: &MakeDataArgs) -> Result<()> {
    let started = Instant::now();
    check(args)?;
    let (content, written) = match args.kind {
        DatasetKind::Graph => make_graph(args)?,
        _ => make_rows(args)?,
    };
    println!(
        "wrote {content} as {} to {}: {} in {:.1} MB, {:.1} s",
        value_name(&args.format),
        args.out.display(),
        if written.files == 1 { "1 file".into() } else { format!("{} files", written.files) },
        written.bytes as f64 / 1e6,
        started.elapsed().as_secs_f64(),
    );
    Ok(())
}

/// Writes a dataset of rows. Returns its content in words.
fn make_rows(args: &MakeDataArgs) -> Result<(String, OutputTotals)> {
    let mut rows = build_rows(args)?;
    let shards = shard_count(args, rows.count())?;
    let mut output = Output::open(&args.out, args.force)?;
    if args.format == FileFormat::Files {
        writer::write_files(&mut output, rows.as_mut())?;
    } else {
        writer::write_shards(&mut output, rows.as_mut(), args.kind, args.format, shards)?;
    }
    Ok((format!("{} rows of {}", rows.count(), value_name(&args.kind)), output.commit()?))
}

/// Writes a graph. Returns its content in words.
fn make_graph(args: &MakeDataArgs) -> Result<(String, OutputTotals)> {
    let graph = GeneratedGraph::new(&args.graph, args.seed)?;
    let mut output = Output::open(&args.out, args.force)?;
    output.replace_files(&graph::FILE_NAMES);
    graph::write(&graph, args.format, &mut output)?;
    Ok((format!("a graph of {} nodes and {} edges", graph.nodes(), graph.edges()), output.commit()?))
}

/// Rejects flags that contradict each other.
fn check(args: &MakeDataArgs) -> Result<()> {
    use FileFormat::{Arrow, Csv, Files, Jsonl, Npy, Parquet, Text, TfRecord, WebDataset};
    let supported: &[FileFormat] = match args.kind {
        DatasetKind::Images => &[TfRecord, WebDataset, Files, Parquet, Arrow],
        DatasetKind::Text => &[TfRecord, WebDataset, Parquet, Arrow, Jsonl, Csv, Text],
        DatasetKind::Table => &[TfRecord, Parquet, Arrow, Jsonl, Csv],
        DatasetKind::Graph => &[Parquet, Npy],
    };
    ensure!(
        supported.contains(&args.format),
        "{} cannot be written as {}: choose one of {}",
        value_name(&args.kind),
        value_name(&args.format),
        supported.iter().map(value_name).collect::<Vec<_>>().join(", ")
    );
    if args.kind == DatasetKind::Graph {
        ensure!(
            args.rows.is_none() && args.from.is_none() && args.shards.is_none() && args.size.is_none(),
            "--rows, --from, --shards and --size cannot be used with `graph`: use --nodes and --edges"
        );
        return Ok(());
    }
    ensure!(
        args.graph == GeneratedGraphArgs::default(),
        "the flags under `Graphs` cannot be used with `{}`: remove them, or choose `graph`",
        value_name(&args.kind)
    );
    ensure!(
        args.kind != DatasetKind::Table || args.from.is_none(),
        "--from cannot be used with `table`: remove --from, or choose images or text"
    );
    ensure!(
        args.size.is_none() || (args.kind == DatasetKind::Images && args.from.is_none()),
        "--size applies to generated images only: remove --size, or remove --from"
    );
    ensure!(
        args.format != FileFormat::Files || args.shards.is_none(),
        "--shards cannot be used with --format files, which writes one file per row: remove --shards"
    );
    ensure!(
        args.from.is_some() || args.rows.is_some(),
        "--rows is missing: specify the number of rows to generate"
    );
    Ok(())
}

/// Opens the row source for the dataset.
fn build_rows(args: &MakeDataArgs) -> Result<Box<dyn RowSource>> {
    let generated = args.rows.unwrap_or_default();
    Ok(match (args.kind, &args.from) {
        (DatasetKind::Images, Some(folder)) => Box::new(image_folder::ImageFolder::open(folder, args.rows)?),
        (DatasetKind::Images, None) => {
            let size = args.size.as_deref().map(|size| [size[0], size[1]]);
            Box::new(images::GeneratedImages::new(generated, args.seed, size))
        }
        (DatasetKind::Text, Some(folder)) => Box::new(text_folder::TextFolder::open(folder, args.rows)?),
        (DatasetKind::Text, None) => Box::new(text::GeneratedText::new(generated, args.seed)),
        (DatasetKind::Table, _) => Box::new(table::GeneratedTable::new(generated, args.seed)),
        (DatasetKind::Graph, _) => bail!("a graph has no rows: use --nodes and --edges"),
    })
}

/// Returns the number of files.
fn shard_count(args: &MakeDataArgs, rows: u64) -> Result<u64> {
    let shards = args.shards.unwrap_or(DEFAULT_SHARDS.min(rows));
    ensure!(shards <= rows, "cannot divide {rows} rows into {shards} shards: lower --shards");
    Ok(shards)
}
