//! `feedline bench padding`: measures the fraction of padding in text batches, and the spread of the consumers' step
//! costs, with plain and with coordinated batches. The benchmark forms batches with the same functions as workers. The
//! cost of a step is its number of elements, including padding.

use std::path::PathBuf;

use clap::Args;
use feedline_command::Failure;
use feedline_command::output::print;
use feedline_data::coordinated::{CoordinatedStep, deal_buckets, deal_evenly, pack_rows};
use feedline_data::permutation::Permutation;

/// Maximum row length of each bucket, in words.
const BOUNDARIES: [u32; 6] = [8, 12, 16, 20, 28, 64];

/// Arguments of `feedline bench padding`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  feedline bench padding multi30k.train.en multi30k.train.de")]
pub(super) struct PaddingArgs {
    /// Line-aligned text files. Lines with the same line number form one row. The length of a row is the number of
    /// words in its longest line.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Number of consumers.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    consumers: u32,
    /// Elements of a full batch, including padding.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    tokens: u32,
}

/// The cost of a batching method.
struct PaddingCost {
    name: &'static str,
    steps: usize,
    /// Elements of all rows, without padding.
    row_elements: u64,
    /// Elements of all batches, including padding.
    batch_elements: u64,
    /// Elements that the slowest consumer of each step processes, summed over all steps.
    slowest_elements: u64,
    /// Mean elements per consumer and step, summed over all steps.
    mean_elements: f64,
}

/// Measures all batching methods and prints a table.
pub(super) fn run(args: &PaddingArgs) -> Result<(), Failure> {
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
        PaddingCost::of("batch, in the order of rows", own, &plain, own_longest),
        PaddingCost::of("bucket_by_length", own, &buckets, step_longest),
        PaddingCost::of("pack", own, &packs, |_, _| longest),
    ];
    let mut text = format!(
        "{} rows with {own} words in total, at most {longest} words per row; {streams} consumers, batches of at most {} elements\n\n",
        lengths.len(),
        args.tokens.max(longest)
    );
    text.push_str(
        "| batches | steps | padding | slowest consumer's step above the mean |\n|---|---|---|---|\n",
    );
    costs.iter().for_each(|cost| text.push_str(&cost.line()));
    Ok(print(&text)?)
}

impl PaddingCost {
    /// Computes the cost of a batching method. `width` returns the length to which the rows of a stream are padded in a
    /// step.
    fn of(
        name: &'static str,
        row_elements: u64,
        steps: &[CoordinatedStep],
        width: impl Fn(&[u32], &CoordinatedStep) -> u32,
    ) -> Self {
        let mut cost = Self {
            name,
            steps: steps.len(),
            row_elements,
            batch_elements: 0,
            slowest_elements: 0,
            mean_elements: 0.0,
        };
        for step in steps {
            let elements = |rows: &Vec<u32>| rows.len() as u64 * u64::from(width(rows, step));
            let of_streams: Vec<u64> = step.streams.iter().map(elements).collect();
            let all: u64 = of_streams.iter().sum();
            cost.batch_elements += all;
            cost.slowest_elements += of_streams.iter().copied().max().unwrap_or(0);
            cost.mean_elements += all as f64 / of_streams.len().max(1) as f64;
        }
        cost
    }

    fn line(&self) -> String {
        let padding = 100.0 * (1.0 - self.row_elements as f64 / self.batch_elements.max(1) as f64);
        let over = 100.0 * (self.slowest_elements as f64 / self.mean_elements.max(1.0) - 1.0);
        format!("| {} | {} | {padding:.1} % | {over:.1} % |\n", self.name, self.steps)
    }
}

fn read_lengths(files: &[PathBuf]) -> Result<Vec<u32>, Failure> {
    let mut lengths: Vec<u32> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::invalid_usage(format!(
                "cannot read {}: {error}; pass the path of a text file",
                file.display()
            ))
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

/// Shuffles the rows with a fixed seed, because the rows of files are often sorted.
fn shuffled(lengths: &[u32]) -> Vec<u32> {
    let order = Permutation::new(lengths.len() as u64, 1);
    (0..lengths.len() as u64).map(|index| lengths[order.apply(index) as usize]).collect()
}
