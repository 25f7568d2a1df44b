//! Starts and controls the sending process.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;
use feedline_command::Failure;
use feedline_command::failure::reason;
use feedline_command::output::value_name;

/// The method by which a sending process sends data.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SenderKind {
    /// Plain writes to a TCP socket.
    Tcp,
    /// Plain writes to a Unix socket.
    Unix,
    /// The gRPC server of a worker.
    Worker,
}

/// A running sending process. Dropping this value stops the process.
pub(super) struct SenderProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The address that the process listens on.
    pub(super) address: String,
}

impl SenderProcess {
    /// Starts this program again as a sending process, and waits until it prints its address.
    ///
    /// # Errors
    /// Returns an error if the process cannot be started, or exits before it prints its address.
    pub(super) fn start(kind: SenderKind) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::failed(format!("cannot start the sending process: {}", reason(&error)))
        };
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["bench", "transport-peer", "--kind", &value_name(&kind)]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| Failure::failed("the sending process has no standard output"))?;
        let mut process = Self { child, input, output: BufReader::new(output), address: String::new() };
        process.address = process.read_line()?;
        Ok(process)
    }

    /// Returns the CPU time that the process has used so far.
    pub(super) fn cpu_time(&mut self) -> Result<Duration, Failure> {
        if let Some(input) = &mut self.input {
            input.write_all(b"\n").and_then(|()| input.flush()).map_err(|_| exited())?;
        }
        self.read_line()?.parse().map(Duration::from_nanos).map_err(|_| exited())
    }

    fn read_line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(bytes) if bytes > 0 => Ok(line.trim().to_owned()),
            _ => Err(exited()),
        }
    }
}

impl Drop for SenderProcess {
    fn drop(&mut self) {
        // The process removes its sockets and exits when its standard input closes.
        self.input = None;
        let _ = self.child.wait();
    }
}

fn exited() -> Failure {
    Failure::failed("the sending process exited; run the command again")
}
