//! The sending process: `feedline bench transport-peer`. It prints its address, answers each line of standard input with
//! its CPU time in nanoseconds, and exits when standard input closes.

use std::io::BufRead;

use clap::Args;
use feedline_command::output::print;
use feedline_command::{Failure, process_cpu_time};

use super::peer::SenderKind;
use super::{raw, worker};

/// Arguments of `feedline bench transport-peer`.
#[derive(Args, Debug, Clone)]
pub(in crate::bench) struct PeerArgs {
    /// Method of sending.
    #[arg(long, value_enum, value_name = "KIND")]
    kind: SenderKind,
}

/// Runs the sending process until standard input closes.
pub(in crate::bench) async fn run(args: PeerArgs) -> Result<(), Failure> {
    let (address, sockets) = match args.kind {
        SenderKind::Tcp => (raw::serve_tcp()?, None),
        SenderKind::Unix => (raw::serve_unix()?, None),
        SenderKind::Worker => {
            let (url, sockets) = worker::serve().await?;
            (url, Some(sockets))
        }
    };
    print(&format!("{address}\n"))?;
    let answered = tokio::task::spawn_blocking(answer_lines).await;
    drop(sockets);
    answered.map_err(|error| Failure::failed(format!("the sending process stopped: {error}")))?
}

fn answer_lines() -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
        print(&format!("{}\n", process_cpu_time().as_nanos()))?;
    }
    Ok(())
}
