//! `feedline bench`: measures the limits of this machine, and Feedline on it, in one run.

mod decisions;
mod engine;
mod kernel;
mod load_threads;
mod padding;
mod throttle;
mod transport;

use clap::{Args, Subcommand};
use feedline_command::Failure;

use crate::host::ToolHost;

/// Arguments of `feedline bench`.
#[derive(Args, Debug, Clone)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

/// The benchmark to run.
#[derive(Subcommand, Debug, Clone)]
enum BenchCommand {
    /// Decodes, crops and resizes JPEGs: a plain loop on one core and on several, compared with a whole job.
    Kernel(kernel::KernelArgs),
    /// Sends constant batches from one process to another, compared with a memory copy and raw sockets.
    Transport(transport::TransportArgs),
    /// Measures how fast coordinators commit decisions, with workers and consumers that only send reports.
    Decisions(decisions::DecisionsArgs),
    /// Measures the CPU time per batch of a worker's engine, with one stream and with many streams, and the time that
    /// threads wait for its lock.
    Engine(engine::EngineArgs),
    /// Measures the padding of text batches and the spread of the consumers' step sizes, with and without coordinated
    /// batches.
    Padding(padding::PaddingArgs),
    /// The proxy of the benchmark of throttled stores, which `benches/throttle.py` starts.
    #[command(hide = true)]
    ThrottleProxy(throttle::ThrottleArgs),
    /// The sending process of `transport`; it exits when its standard input closes.
    #[command(hide = true)]
    TransportPeer(transport::PeerArgs),
}

/// Runs a benchmark and prints its report.
///
/// # Errors
/// Returns an error if the flags are wrong, or the benchmark fails.
pub async fn run(args: BenchArgs, host: &dyn ToolHost) -> Result<(), Failure> {
    match args.command {
        BenchCommand::Kernel(args) => kernel::run(args, host).await,
        BenchCommand::Transport(args) => transport::run(args, host.cores()).await,
        BenchCommand::Decisions(args) => decisions::run(args, host).await,
        BenchCommand::Engine(args) => engine::run(args).await,
        BenchCommand::Padding(args) => padding::run(&args),
        BenchCommand::ThrottleProxy(args) => throttle::run(args).await,
        BenchCommand::TransportPeer(args) => transport::run_peer(args).await,
    }
}
