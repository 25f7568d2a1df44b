//! `feedline bench padding`: how much of the batches of a text is padding, and how far consumers' steps lie apart, with batches
//! as they come and with coordinated ones. Batches are made by the functions that workers use; a step is taken to last as
//! long as it has elements, padding included.

use std::path::PathBuf;

use clap::Args;
use feedline_data::coordinated::{CoordinatedStep, deal_buckets, deal_evenly, pack_rows};
use feedline_data::permutation::Permutation;

use crate::failure::Failure;
use crate::output;

/// Longest lengths of the buckets, in words.
const BOUNDARIES: [u32; 6] = [8, 12, 16, 20, 28, 64];

/// What `feedline bench padding` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  feedline bench padding multi30k.train.en multi30k.train.de")]
pub(crate) struct PaddingArgs {
    /// Files of lines; those of the same number are one row, as long as the longest of them in words.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Consumers.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    consumers: u32,
    /// Elements of a full batch, padding included.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    tokens: u32,
}

/// What one way of making batches costs.
struct Cost {
    name: &'static str,
    steps: usize,
    /// Elements of rows, and of batches.
    own: u64,
    all: u64,
    /// Sums over steps of the longest consumer's elements, and of the mean over consumers.
    longest: u64,
    mean: f64,
}

pub(crate) fn run(args: &PaddingArgs) -> Result<(), Failure> {
    let lengths = shuffled(&read_lengths(&args.files)?);
    let streams = args.consumers;
    let longest = lengths.iter().copied().max().unwrap_or(1);
    let size = (args.tokens / longest).max(1);
    let sizes = |boundary: &u32| (args.tokens / boundary).max(1);
    let mut boundaries: Vec<u32> = BOUNDARIES.into_iter().filter(|&boundary| boundary < longest).collect();
    boundaries.push(longest);
    let bucket_sizes: Vec<u32> = boundaries.iter().map(sizes).collect();
    let packed = pack_rows(&lengths, 1, longest);
    let plain = deal_evenly(lengths.len() as u32, size, streams);
    let buckets = deal_buckets(&lengths, &boundaries, &bucket_sizes, streams);
    let packs = deal_evenly(packed.len() as u32, size, streams);
    let of = |row: u32| lengths[row as usize];
    let own_longest = |rows: &[u32], _: &CoordinatedStep| rows.iter().map(|&row| of(row)).max().unwrap_or(0);
    let step_longest = |_: &[u32], step: &CoordinatedStep| {
        step.streams.iter().flatten().map(|&row| of(row)).max().unwrap_or(0)
    };
    let own: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
    let costs = [
        Cost::of("batch, as they come", own, &plain, own_longest),
        Cost::of("bucket_by_length", own, &buckets, step_longest),
        Cost::of("pack", own, &packs, |_, _| longest),
    ];
    let mut text = format!(
        "{} rows of {own} words, the longest {longest}; {streams} consumers, batches of {} elements at most\n\n",
        lengths.len(),
        args.tokens.max(longest)
    );
    text.push_str(
        "| batches | steps | padding | slowest consumer's step over the mean |\n|---|---|---|---|\n",
    );
    costs.iter().for_each(|cost| text.push_str(&cost.line()));
    Ok(output::print(&text)?)
}

impl Cost {
    /// `width` is the length that a stream's rows of a step are filled to.
    fn of(
        name: &'static str,
        own: u64,
        steps: &[CoordinatedStep],
        width: impl Fn(&[u32], &CoordinatedStep) -> u32,
    ) -> Self {
        let mut cost = Self { name, steps: steps.len(), own, all: 0, longest: 0, mean: 0.0 };
        for step in steps {
            let elements = |rows: &Vec<u32>| rows.len() as u64 * u64::from(width(rows, step));
            let of_streams: Vec<u64> = step.streams.iter().map(elements).collect();
            let all: u64 = of_streams.iter().sum();
            cost.all += all;
            cost.longest += of_streams.iter().copied().max().unwrap_or(0);
            cost.mean += all as f64 / of_streams.len().max(1) as f64;
        }
        cost
    }

    fn line(&self) -> String {
        let padding = 100.0 * (1.0 - self.own as f64 / self.all.max(1) as f64);
        let over = 100.0 * (self.longest as f64 / self.mean.max(1.0) - 1.0);
        format!("| {} | {} | {padding:.1} % | {over:.1} % |\n", self.name, self.steps)
    }
}

fn read_lengths(files: &[PathBuf]) -> Result<Vec<u32>, Failure> {
    let mut lengths: Vec<u32> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::wrong_use(format!("{}: {error}; name a file of lines", file.display()))
        })?;
        for (row, line) in text.lines().enumerate() {
            let words = line.split_whitespace().count() as u32;
            match lengths.get_mut(row) {
                Some(length) => *length = words.max(*length),
                None => lengths.push(words),
            }
        }
    }
    Ok(lengths)
}

/// The rows in another order, always the same: files are often sorted.
fn shuffled(lengths: &[u32]) -> Vec<u32> {
    let order = Permutation::new(lengths.len() as u64, 1);
    (0..lengths.len() as u64).map(|place| lengths[order.apply(place) as usize]).collect()
}
