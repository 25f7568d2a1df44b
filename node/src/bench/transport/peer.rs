//! The process that sends: `feedline bench transport-peer`. It tells its address on standard output, answers each line
//! on standard input with the CPU time it has used, and ends with its standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{ours, raw};
use crate::failure::{Failure, reason};
use crate::output;
use crate::process_metrics::cpu_time;

/// What `feedline bench transport-peer` is asked for.
#[derive(Args, Debug, Clone)]
pub(crate) struct PeerArgs {
    /// How it sends.
    #[arg(long, value_enum, value_name = "KIND")]
    kind: Kind,
}

/// How a peer sends.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Plain writes to a TCP socket.
    Tcp,
    /// Plain writes to a Unix socket.
    Unix,
    /// As a worker does.
    Worker,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Worker => "worker",
        }
    }
}

/// Runs the sending process until its standard input ends.
pub(crate) async fn run(args: PeerArgs) -> Result<(), Failure> {
    let mut folder = None;
    match args.kind {
        Kind::Tcp => say(&raw::serve_tcp()?)?,
        Kind::Unix => say(&raw::serve_unix()?)?,
        Kind::Worker => {
            let (url, opened) = ours::serve().await?;
            folder = Some(opened);
            say(&url)?;
        }
    }
    let ended = tokio::task::spawn_blocking(answer_lines).await;
    drop(folder);
    ended.map_err(|error| Failure::failed(format!("the peer stopped: {error}")))?
}

fn say(line: &str) -> anyhow::Result<()> {
    output::print(&format!("{line}\n"))
}

/// Answers every line with the CPU time in nanoseconds.
fn answer_lines() -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
        say(&cpu_time().as_nanos().to_string())?;
    }
    Ok(())
}

/// A sending process, as its starter sees it. It ends when this is dropped.
pub(super) struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Where it sends from.
    pub(super) address: String,
}

impl Peer {
    /// Starts this program again as a peer and waits until it tells its address.
    ///
    /// # Errors
    /// When it cannot be started, or ends at once.
    pub(super) fn start(kind: Kind) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::failed(format!("cannot start a second process: {}", reason(&error)))
        };
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["bench", "transport-peer", "--kind", kind.name()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| Failure::failed("the second process has no standard output"))?;
        let mut peer = Self { child, input, output: BufReader::new(output), address: String::new() };
        peer.address = peer.line()?;
        Ok(peer)
    }

    /// CPU time that it has used so far.
    pub(super) fn cpu(&mut self) -> Result<Duration, Failure> {
        if let Some(input) = &mut self.input {
            input.write_all(b"\n").and_then(|()| input.flush()).map_err(|_| ended())?;
        }
        self.line()?.parse().map(Duration::from_nanos).map_err(|_| ended())
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(bytes) if bytes > 0 => Ok(line.trim().to_owned()),
            _ => Err(ended()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its input, and tidies up before.
        self.input = None;
        let _ = self.child.wait();
    }
}

fn ended() -> Failure {
    Failure::failed("the sending process ended; run the command again")
}
