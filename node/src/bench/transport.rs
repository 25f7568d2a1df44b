//! `feedline bench transport`: batches from one process to another, by every way there is, next to the limits of the
//! machine. Turns are interleaved, so that a noisy minute hits all subjects alike; medians are reported.

mod ours;
mod peer;
mod raw;
mod report;

use std::time::{Duration, Instant};

use clap::Args;

pub(crate) use self::peer::{PeerArgs, run as run_peer};
use self::report::{Report, SubjectReport};
use crate::cli::ReportFormat;
use crate::failure::Failure;
use crate::output;
use crate::process_metrics::cpu_time;

/// One batch of the transport measurement: uint8.
const BATCH_SHAPE: [i32; 4] = [128, 224, 224, 3];
/// Size of a raw socket's writes and reads.
const RAW_WRITE_BYTES: usize = 256 << 10;

/// What `feedline bench transport` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Example:\n  feedline bench transport --turns 9 --report json")]
pub(crate) struct TransportArgs {
    /// Turns of each subject; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) turns: u32,
    /// Bytes that a turn moves, such as 2GiB.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = crate::size::parse_bytes)]
    pub(crate) bytes: u64,
    /// Splits that are fetched at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) splits: u32,
    /// How the report looks; json ends standard output with one object on one line.
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) report: ReportFormat,
}

/// What one turn of one subject took.
#[derive(Debug, Clone, Copy)]
struct Turn {
    bytes: u64,
    wall: Duration,
    /// CPU time of this process, which receives.
    receiver_cpu: Duration,
    /// CPU time of the process that sends.
    sender_cpu: Duration,
}

/// Whoever moves bytes: a limit of the machine, or Feedline by one transport.
enum Subject {
    Copy(raw::Copy),
    Raw(raw::Receiver),
    Ours(ours::Receiver),
}

impl Subject {
    fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => "memory copy, 64 MiB warm",
            Self::Raw(receiver) => receiver.name(),
            Self::Ours(receiver) => receiver.name(),
        }
    }

    /// Moves about `bytes`.
    async fn turn(&mut self, bytes: u64) -> Result<Turn, Failure> {
        let sender_before = self.sender_cpu()?;
        let (cpu, started) = (cpu_time(), Instant::now());
        let bytes = match self {
            Self::Copy(copy) => copy.turn(bytes),
            Self::Raw(receiver) => receiver.turn(bytes)?,
            Self::Ours(receiver) => receiver.turn(bytes).await?,
        };
        let (wall, receiver_cpu) = (started.elapsed(), cpu_time() - cpu);
        let sender_cpu = self.sender_cpu()?.saturating_sub(sender_before);
        Ok(Turn { bytes, wall, receiver_cpu, sender_cpu })
    }

    fn sender_cpu(&mut self) -> Result<Duration, Failure> {
        match self {
            Self::Copy(_) => Ok(Duration::ZERO),
            Self::Raw(receiver) => receiver.peer.cpu(),
            Self::Ours(receiver) => receiver.peer.cpu(),
        }
    }
}

/// Measures and prints.
pub(crate) async fn run(args: TransportArgs) -> Result<(), Failure> {
    let mut subjects =
        vec![Subject::Copy(raw::Copy::new()), Subject::Raw(raw::tcp()?), Subject::Raw(raw::unix()?)];
    subjects.extend(ours::all(args.splits)?.into_iter().map(Subject::Ours));
    let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); subjects.len()];
    for subject in &mut subjects {
        // Connects, allocates and faults pages in.
        subject.turn(args.bytes / 8).await?;
    }
    for _ in 0..args.turns {
        for (subject, turns) in subjects.iter_mut().zip(&mut turns) {
            turns.push(subject.turn(args.bytes).await?);
        }
    }
    let measured =
        subjects.iter().zip(&turns).map(|(subject, turns)| SubjectReport::new(subject.name(), turns));
    let report = Report::new(measured.collect(), args.turns, ours::batch_bytes());
    output::print(&match args.report {
        ReportFormat::Text => report.to_text(),
        ReportFormat::Json => report.to_json().map_err(Failure::failed)?,
    })?;
    Ok(())
}
