//! `feedline bench transport`: sends batches from one process to another over every transport, compared with the limits
//! of the machine. Repetitions of all subjects are interleaved, so that noise affects them equally. The report shows
//! medians.

mod peer;
mod raw;
mod report;
mod sender;
mod worker;

use std::time::{Duration, Instant};

use clap::Args;
use feedline_command::output::ReportFormat;
use feedline_command::{Failure, process_cpu_time};

use self::report::{Measurement, TransportReport, TransportSubjectReport};
pub(super) use self::sender::{PeerArgs, run as run_peer};

/// Arguments of `feedline bench transport`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Example:\n  feedline bench transport --turns 9 --report json")]
pub(super) struct TransportArgs {
    /// Repetitions of each subject; the report shows the median.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Bytes to send in one repetition, such as 2GiB.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = feedline_command::size::parse_bytes)]
    bytes: u64,
    /// Splits to fetch at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    splits: u32,
    /// Format of the report; json prints one object on one line.
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT", default_value_t)]
    report: ReportFormat,
}

/// A method of transferring bytes that is measured.
enum TransportSubject {
    /// A copy within the memory of this process.
    Copy(raw::MemoryCopy),
    /// A raw socket.
    Raw(raw::RawReceiver),
    /// Feedline over one transport.
    Worker(worker::WorkerReceiver),
}

impl TransportSubject {
    fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => "memory copy, 64 MiB warm",
            Self::Raw(receiver) => receiver.name(),
            Self::Worker(receiver) => receiver.name(),
        }
    }

    /// Transfers about `bytes`. Measures the time, and the CPU time of both processes.
    async fn measure(&mut self, bytes: u64) -> Result<Measurement, Failure> {
        let sender_before = self.sender_cpu_time()?;
        let (cpu_before, started) = (process_cpu_time(), Instant::now());
        let bytes = match self {
            Self::Copy(copy) => copy.copy(bytes),
            Self::Raw(receiver) => receiver.receive(bytes)?,
            Self::Worker(receiver) => receiver.receive(bytes).await?,
        };
        let (wall, receiver_cpu) = (started.elapsed(), process_cpu_time() - cpu_before);
        let sender_cpu = self.sender_cpu_time()?.saturating_sub(sender_before);
        Ok(Measurement { bytes, wall, receiver_cpu, sender_cpu })
    }

    fn sender_cpu_time(&mut self) -> Result<Duration, Failure> {
        match self {
            Self::Copy(_) => Ok(Duration::ZERO),
            Self::Raw(receiver) => receiver.peer.cpu_time(),
            Self::Worker(receiver) => receiver.peer.cpu_time(),
        }
    }
}

/// Runs the benchmark and prints its report.
pub(super) async fn run(args: TransportArgs, cores: u32) -> Result<(), Failure> {
    let mut subjects = vec![
        TransportSubject::Copy(raw::MemoryCopy::new()),
        TransportSubject::Raw(raw::connect_tcp()?),
        TransportSubject::Raw(raw::connect_unix()?),
    ];
    subjects.extend(worker::connect_all(args.splits)?.into_iter().map(TransportSubject::Worker));
    let mut measurements: Vec<Vec<Measurement>> = vec![Vec::new(); subjects.len()];
    for subject in &mut subjects {
        // Warm up: the first transfer connects, allocates buffers and faults in their pages.
        subject.measure(args.bytes / 8).await?;
    }
    for _ in 0..args.turns {
        for (subject, measurements) in subjects.iter_mut().zip(&mut measurements) {
            measurements.push(subject.measure(args.bytes).await?);
        }
    }
    let reports = subjects
        .iter()
        .zip(&measurements)
        .map(|(subject, measurements)| TransportSubjectReport::new(subject.name(), measurements));
    let report = TransportReport::new(reports.collect(), args.turns, worker::batch_bytes(), cores);
    args.report.print(&report, TransportReport::to_text)
}
