//! `feedline bench`: what this machine can do, and what Feedline does on it, measured in one run.

mod decisions;
mod kernel;
mod padding;
mod transport;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// What `feedline bench` is asked for.
#[derive(Args, Debug, Clone)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

/// What is measured.
#[derive(Subcommand, Debug, Clone)]
enum BenchCommand {
    /// Decodes, crops and resizes JPEGs: the bare loop on one core and on several, next to a whole job.
    Kernel(kernel::KernelArgs),
    /// Moves constant batches from one process to another, next to a memory copy and raw sockets.
    Transport(transport::TransportArgs),
    /// Lets coordinators decide as fast as they can, for workers and consumers that do nothing but report.
    Decisions(decisions::DecisionsArgs),
    /// How much of a text's batches is padding, and how far consumers' steps lie apart, coordinated and not.
    Padding(padding::PaddingArgs),
    /// The sending process of `transport`; it ends with its standard input.
    #[command(hide = true)]
    TransportPeer(transport::PeerArgs),
}

/// Measures and prints a report.
pub(crate) async fn run(args: BenchArgs) -> Result<(), Failure> {
    match args.command {
        BenchCommand::Kernel(args) => kernel::run(args).await,
        BenchCommand::Transport(args) => transport::run(args).await,
        BenchCommand::Decisions(args) => decisions::run(args).await,
        BenchCommand::Padding(args) => padding::run(&args),
        BenchCommand::TransportPeer(args) => transport::run_peer(args).await,
    }
}
