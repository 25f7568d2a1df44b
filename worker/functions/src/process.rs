//! A Python process that calls one function. Starts the process, exchanges messages, and kills it when it exceeds a limit.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use feedline_common::child_processes::{RegisteredChild, start_child};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::FunctionSettings;
use crate::region::SharedRegion;

/// The source code of the Python side, which is sent through the socket.
const RUNNER: &str = include_str!("../python/feedline_runner.py");
/// Receives the source code from the socket and runs it.
const BOOTSTRAP: &str = "import socket as s;i=s.socket(fileno=0);\
    n=int.from_bytes(i.recv(4,s.MSG_WAITALL),'little');c=i.recv(n,s.MSG_WAITALL);i.detach();\
    exec(compile(c,'feedline_runner.py','exec'))";
/// Environment variables of every function process: no modules from the working directory, a deterministic set order,
/// and one thread per library, because there is one process per core. The worker's environment overrides them.
const FIXED_ENVIRONMENT: [(&str, &str); 5] = [
    ("PYTHONSAFEPATH", "1"),
    ("PYTHONHASHSEED", "0"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
];
/// Interval at which limits are checked during a call.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum size of a message from a function process. A message contains the locations of columns, or an error.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Maximum number of lines that one process writes to the worker's log.
const MAX_LOG_LINES: usize = 1_000;
/// Maximum length of a log line in bytes.
const MAX_LOG_LINE_BYTES: u64 = 4_096;

/// Limits of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimits<'a> {
    pub(crate) time: Duration,
    pub(crate) memory_bytes: u64,
    /// Set when the caller no longer waits.
    pub(crate) cancel: &'a AtomicBool,
}

/// The reason for the exit of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessExit {
    /// The process exited by itself, or another process killed it.
    Exited(String),
    /// The process exceeded its time limit and was killed.
    TimeLimit(Duration),
    /// The process exceeded its memory limit and was killed.
    MemoryLimit(u64),
    /// The call was cancelled and the process was killed.
    Cancelled,
}

impl std::fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(reason) => f.write_str(reason),
            Self::TimeLimit(time) => write!(f, "took more than {} s", time.as_secs()),
            Self::MemoryLimit(bytes) => write!(f, "used more than {}", format_memory(*bytes)),
            Self::Cancelled => f.write_str("was cancelled"),
        }
    }
}

/// Formats a number of bytes with a unit.
fn format_memory(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{} GiB of memory", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB of memory", bytes >> 20),
        _ => format!("{bytes} bytes of memory"),
    }
}

/// A process and its shared memory regions.
#[derive(Debug)]
pub(crate) struct FunctionProcess {
    child: Child,
    _registration: RegisteredChild,
    socket: UnixStream,
    /// Input columns.
    pub(crate) input: SharedRegion,
    /// Output columns.
    pub(crate) output: SharedRegion,
    /// Bytes of both regions. They also count in the total of all processes.
    held_bytes: HeldBytes,
    /// Whether the process group was killed. Its id may then belong to another group.
    is_killed: bool,
}

/// A number of bytes that is added to a shared total.
#[derive(Debug)]
struct HeldBytes {
    own: u64,
    all: Arc<AtomicU64>,
}

impl HeldBytes {
    fn update(&mut self, bytes: u64) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.own, bytes), Ordering::Relaxed);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.update(0);
    }
}

impl FunctionProcess {
    /// Starts a process and sends the function that `load` describes. The calling thread must outlive the process. The bytes of
    /// its regions are added to `all_bytes`.
    ///
    /// # Errors
    /// Returns a message if the interpreter cannot be started.
    pub(crate) fn start(
        settings: &FunctionSettings,
        name: &str,
        load: &Value,
        all_bytes: &Arc<AtomicU64>,
    ) -> Result<Self, String> {
        let python = settings.python.display();
        let cannot = |error: io::Error| {
            format!(
                "cannot start Python as `{python}` on this worker: {error}; set the interpreter with --python PATH"
            )
        };
        let (socket, other) = UnixStream::pair().map_err(cannot)?;
        let mut command = Command::new(&settings.python);
        command
            .args(["-c", BOOTSTRAP])
            .env_clear()
            .envs(FIXED_ENVIRONMENT)
            .envs(settings.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let started = start_child(|| {
            let child = command.spawn()?;
            let id = child.id();
            Ok((child, id))
        });
        let (mut child, registration) = started.map_err(cannot)?;
        // The command holds the other end of the socket, which must close when the process exits.
        drop(command);
        if let Some(lines) = child.stderr.take() {
            let name = name.to_owned();
            // Without this thread, the process would block on a full pipe, so a failure is an error.
            let reader = std::thread::Builder::new().name("feedline-pylog".to_owned());
            reader.spawn(move || log_lines(&name, lines)).map_err(cannot)?;
        }
        let (input, output) =
            (SharedRegion::create().map_err(cannot)?, SharedRegion::create().map_err(cannot)?);
        let held_bytes = HeldBytes { own: 0, all: Arc::clone(all_bytes) };
        let mut process =
            Self { child, _registration: registration, socket, input, output, held_bytes, is_killed: false };
        process.send_function(load).map_err(|error| cannot(process.prefer_exit_status(error)))?;
        Ok(process)
    }

    /// Sends the runner's source code, and then the function with the descriptors of the regions.
    fn send_function(&mut self, load: &Value) -> io::Result<()> {
        self.socket.set_read_timeout(Some(POLL_INTERVAL))?;
        self.socket.set_write_timeout(Some(Duration::from_secs(10)))?;
        self.socket.write_all(&(RUNNER.len() as u32).to_le_bytes())?;
        self.socket.write_all(RUNNER.as_bytes())?;
        let message = load.to_string();
        let descriptors = [self.input.as_fd(), self.output.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("the control message has no space for the descriptors"));
        }
        let head = (message.len() as u32).to_le_bytes();
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL)?;
        self.socket.write_all(message.as_bytes())
    }

    /// Returns the exit status of the process as an error if it has exited, because it is more informative than a socket error.
    fn prefer_exit_status(&mut self, error: io::Error) -> io::Error {
        match self.child.try_wait() {
            Ok(Some(status)) => io::Error::other(format!("the process {}", describe_exit(status))),
            _ => error,
        }
    }

    /// Sends a message and waits for the answer. Kills a process that exceeds its limits.
    pub(crate) fn call(&mut self, message: &Value, limits: CallLimits<'_>) -> Result<Value, ProcessExit> {
        self.update_held_bytes();
        let text = message.to_string();
        let sent = self.socket.write_all(&(text.len() as u32).to_le_bytes());
        let answer = match sent.and_then(|()| self.socket.write_all(text.as_bytes())) {
            Ok(()) => self.receive_answer(limits),
            Err(_) => Err(self.wait_for_exit()),
        };
        self.update_held_bytes();
        answer
    }

    fn update_held_bytes(&mut self) {
        self.held_bytes.update(self.input.allocated_bytes() + self.output.allocated_bytes());
    }

    /// Waits for a message. Kills a process that exceeds its limits.
    pub(crate) fn receive_answer(&mut self, limits: CallLimits<'_>) -> Result<Value, ProcessExit> {
        let deadline = Instant::now() + limits.time;
        let mut head = [0; 4];
        self.read(&mut head, deadline, limits)?;
        let bytes = u32::from_le_bytes(head) as usize;
        if bytes > MAX_MESSAGE_BYTES {
            self.kill();
            return Err(ProcessExit::Exited(format!(
                "sent a message of {bytes} bytes, more than the maximum of {MAX_MESSAGE_BYTES}"
            )));
        }
        let mut body = vec![0; bytes];
        self.read(&mut body, deadline, limits)?;
        serde_json::from_slice(&body).map_err(|error| {
            self.kill();
            ProcessExit::Exited(format!("sent an invalid message: {error}"))
        })
    }

    fn read(
        &mut self,
        into: &mut [u8],
        deadline: Instant,
        limits: CallLimits<'_>,
    ) -> Result<(), ProcessExit> {
        let mut filled = 0;
        let mut last_check = Instant::now();
        while filled < into.len() {
            match self.socket.read(&mut into[filled..]) {
                Ok(0) => return Err(self.wait_for_exit()),
                Ok(more) => filled += more,
                Err(error) if is_timeout(&error) => {}
                Err(_) => return Err(self.wait_for_exit()),
            }
            if filled < into.len() && last_check.elapsed() >= POLL_INTERVAL {
                last_check = Instant::now();
                self.check_limits(deadline, limits)?;
            }
        }
        // A short call may also have exceeded the memory limit.
        if crate::memory::exceeds_limit(self.child.id(), limits.memory_bytes) {
            self.kill();
            return Err(ProcessExit::MemoryLimit(limits.memory_bytes));
        }
        Ok(())
    }

    /// Checks the limits of a running call.
    fn check_limits(&mut self, deadline: Instant, limits: CallLimits<'_>) -> Result<(), ProcessExit> {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.kill();
            return Err(ProcessExit::Exited(describe_exit(status)));
        }
        let exit = if limits.cancel.load(Ordering::Relaxed) {
            ProcessExit::Cancelled
        } else if Instant::now() >= deadline {
            ProcessExit::TimeLimit(limits.time)
        } else if crate::memory::exceeds_limit(self.child.id(), limits.memory_bytes) {
            ProcessExit::MemoryLimit(limits.memory_bytes)
        } else {
            return Ok(());
        };
        self.kill();
        Err(exit)
    }

    /// Waits for the exit of a process that has closed its socket, and kills it after two seconds.
    fn wait_for_exit(&mut self) -> ProcessExit {
        // A crashing process closes its socket before its exit status is available.
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.kill();
                    return ProcessExit::Exited(describe_exit(status));
                }
                Ok(None) if Instant::now() < deadline => self.wait_briefly(),
                _ => {
                    self.kill();
                    return ProcessExit::Exited("closed its connection to the worker".to_owned());
                }
            }
        }
    }

    /// Waits briefly. The socket is closed, so there is no event to wait for.
    fn wait_briefly(&self) {
        std::thread::park_timeout(Duration::from_millis(2));
    }

    /// Kills the process and its process group.
    fn kill(&mut self) {
        if std::mem::replace(&mut self.is_killed, true) {
            return;
        }
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for FunctionProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a read ended without data because of a timeout or an interrupt.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Describes the exit of a process, as a predicate of "the function".
fn describe_exit(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}{}", signal_name(signal)),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "exited with an unknown status".to_owned(),
    }
}

/// Returns the name of a common signal in parentheses.
fn signal_name(signal: i32) -> &'static str {
    match Signal::from_named_raw(signal) {
        Some(Signal::SEGV) => " (segmentation fault)",
        Some(Signal::ABORT) => " (abort)",
        Some(Signal::BUS) => " (bus error)",
        Some(Signal::FPE) => " (arithmetic error)",
        Some(Signal::ILL) => " (illegal instruction)",
        Some(Signal::KILL) => " (killed, for example because the system is out of memory)",
        Some(Signal::TERM) => " (termination)",
        _ => "",
    }
}

/// Writes the output of the function to the worker's log, up to a maximum number of lines.
fn log_lines(name: &str, lines: ChildStderr) {
    let mut lines = BufReader::new(lines);
    let mut line = Vec::new();
    for written in 0_usize.. {
        line.clear();
        match lines.by_ref().take(MAX_LOG_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if written < MAX_LOG_LINES => {
                let text = String::from_utf8_lossy(&line);
                tracing::info!(target: "feedline_functions", function = name, "{}", text.trim_end());
            }
            Ok(_) if written == MAX_LOG_LINES => {
                tracing::warn!(
                    function = name,
                    "the function printed {MAX_LOG_LINES} lines; its further output is discarded"
                );
            }
            Ok(_) => {}
        }
    }
}
