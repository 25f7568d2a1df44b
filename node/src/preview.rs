//! `feedline preview`: prints the first rows of a pipeline after its operators, and the columns of its batches, or writes
//! them to an HTML page.

mod page;
mod picture;
mod rows;
mod text;
mod tokens;
mod value;

use std::path::{Path, PathBuf};

use clap::Args;

use self::rows::PreviewedRows;
use crate::cli::{FunctionArgs, StoreArgs, SwitchArg};
use crate::failure::{Failure, reason};
use crate::lint::RETRY_BUDGET;
use crate::{output, pipeline_file, signals, store_access};

/// Arguments of `feedline preview`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline preview pipeline.yaml\n  \
    feedline preview pipeline.yaml --rows 3 --raw\n  \
    feedline preview pipeline.yaml --rows 32 --out page.html")]
pub(crate) struct PreviewArgs {
    /// Pipeline file; its relative paths start at the working directory.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Number of rows, in storage order.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rows: u32,
    /// Show the rows before the operators.
    #[arg(long)]
    raw: bool,
    /// Write the rows to this HTML page, which shows images, and needs no other files.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    #[command(flatten)]
    stores: StoreArgs,
    #[command(flatten)]
    functions: FunctionArgs,
}

/// Reads the rows and prints them.
pub(crate) async fn run(args: PreviewArgs) -> Result<(), Failure> {
    let pipeline = pipeline_file::load(&args.file)?;
    let access = store_access::for_preflight(&args.stores, RETRY_BUDGET)?;
    let functions = args.functions.settings(SwitchArg::On);
    let stop = signals::watch()?;
    let previewed = tokio::select! {
        previewed = rows::read(&pipeline, access, functions, args.rows, args.raw) => previewed?,
        () = stop.cancelled() => {
            return Err(Failure::Interrupted("interrupted before the rows were read".to_owned()));
        }
    };
    let Some(path) = args.out else { return Ok(output::print(&text::render(&previewed))?) };
    write_page(&path, &previewed)?;
    Ok(output::print(&format!("wrote {} rows to {}\n", previewed.rows.len(), path.display()))?)
}

fn write_page(path: &Path, previewed: &PreviewedRows) -> Result<(), Failure> {
    std::fs::write(path, page::render(previewed)).map_err(|error| {
        Failure::failed(format!("cannot write {}: {}; pass a writable path", path.display(), reason(&error)))
    })
}
