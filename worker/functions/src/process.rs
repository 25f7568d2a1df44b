//! A Python process that calls one function: starting it, talking to it, and ending it when it exceeds its bounds.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::FunctionSettings;
use crate::region::SharedRegion;

/// The other end, which comes through the socket.
const RUNNER: &str = include_str!("../python/feedline_runner.py");
/// Reads it from there.
const BOOTSTRAP: &str = "import socket as s;i=s.socket(fileno=0);\
    n=int.from_bytes(i.recv(4,s.MSG_WAITALL),'little');c=i.recv(n,s.MSG_WAITALL);i.detach();\
    exec(compile(c,'feedline_runner.py','exec'))";
/// No modules from wherever the worker was started, and sets in the same order each time. A process is one of as many as there
/// are cores: libraries that would each use them all are told to use one, unless the worker's environment says otherwise.
const ALWAYS: [(&str, &str); 5] = [
    ("PYTHONSAFEPATH", "1"),
    ("PYTHONHASHSEED", "0"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
];
/// How often bounds are looked at while a call goes on.
const LOOK: Duration = Duration::from_millis(20);
/// Longest message of a process: columns by name and where they lie, or a sentence.
const MOST_MESSAGE_BYTES: usize = 16 << 20;
/// Lines, and bytes of each, that one process may write to the worker's log.
const MOST_LINES: usize = 1_000;
const MOST_LINE_BYTES: u64 = 4_096;

/// How long and how large a call may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimits<'a> {
    pub(crate) time: Duration,
    pub(crate) memory_bytes: u64,
    /// Whether nobody waits for it any more.
    pub(crate) is_given_up: &'a dyn CancelCheck,
}

/// Whether work is still wanted.
pub(crate) trait CancelCheck: std::fmt::Debug {
    fn is_cancelled(&self) -> bool;
}

/// Why a process is no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessExit {
    /// It ended by itself or by somebody else.
    Ended(String),
    /// It took more than its time, and was killed.
    Time(Duration),
    /// It used more than its memory, and was killed.
    Memory(u64),
    /// Nobody waited any more.
    GivenUp,
}

impl std::fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(how) => f.write_str(how),
            Self::Time(time) => write!(f, "took more than {} s", time.as_secs()),
            Self::Memory(bytes) => write!(f, "used more than {}", size(*bytes)),
            Self::GivenUp => f.write_str("was given up"),
        }
    }
}

/// Bytes as people write them.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{} GiB of memory", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB of memory", bytes >> 20),
        _ => format!("{bytes} bytes of memory"),
    }
}

/// A process with the regions that it shares.
#[derive(Debug)]
pub(crate) struct FunctionProcess {
    child: Child,
    socket: UnixStream,
    /// What the function is given.
    pub(crate) input: SharedRegion,
    /// What it returns.
    pub(crate) output: SharedRegion,
    /// What both take, among those of all processes.
    held: Held,
}

/// Bytes of one of many, as a part of their sum.
#[derive(Debug)]
struct Held {
    own: u64,
    all: Arc<AtomicU64>,
}

impl Held {
    fn set(&mut self, bytes: u64) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.own, bytes), Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl FunctionProcess {
    /// Starts a process for the function that `load` describes; the thread that does so must outlive it. What its regions take
    /// counts in `held_bytes`.
    ///
    /// # Errors
    /// One sentence when the interpreter cannot be started.
    pub(crate) fn start(
        settings: &FunctionSettings,
        name: &str,
        load: &Value,
        held_bytes: &Arc<AtomicU64>,
    ) -> Result<Self, String> {
        let python = settings.python.display();
        let cannot = |error: io::Error| {
            format!(
                "Python cannot be started as `{python}` on this worker: {error}; start it with --python PATH"
            )
        };
        let (socket, other) = UnixStream::pair().map_err(cannot)?;
        let mut child = Command::new(&settings.python)
            .args(["-c", BOOTSTRAP])
            .env_clear()
            .envs(ALWAYS)
            .envs(settings.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(cannot)?;
        if let Some(lines) = child.stderr.take() {
            let name = name.to_owned();
            // Without its thread the process would wait for a reader for ever, so that is an error.
            let reader = std::thread::Builder::new().name("feedline-pylog".to_owned());
            reader.spawn(move || log_lines(&name, lines)).map_err(cannot)?;
        }
        let (input, output) =
            (SharedRegion::create().map_err(cannot)?, SharedRegion::create().map_err(cannot)?);
        let held = Held { own: 0, all: Arc::clone(held_bytes) };
        let mut process = Self { child, socket, input, output, held };
        process.introduce(load).map_err(|error| cannot(process.why(error)))?;
        Ok(process)
    }

    /// Sends the runner, and then the function with the regions' descriptors.
    fn introduce(&mut self, load: &Value) -> io::Result<()> {
        self.socket.set_read_timeout(Some(LOOK))?;
        self.socket.set_write_timeout(Some(Duration::from_secs(10)))?;
        self.socket.write_all(&(RUNNER.len() as u32).to_le_bytes())?;
        self.socket.write_all(RUNNER.as_bytes())?;
        let message = load.to_string();
        let descriptors = [self.input.as_fd(), self.output.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("there is no room for descriptors"));
        }
        let head = (message.len() as u32).to_le_bytes();
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL)?;
        self.socket.write_all(message.as_bytes())
    }

    /// What the process said at its end tells more than a broken socket.
    fn why(&mut self, error: io::Error) -> io::Error {
        match self.child.try_wait() {
            Ok(Some(status)) => io::Error::other(format!("it {}", ended(status))),
            _ => error,
        }
    }

    /// Sends a message and waits for the answer, within bounds; a process that exceeds them is killed.
    pub(crate) fn call(&mut self, message: &Value, bounds: CallLimits<'_>) -> Result<Value, ProcessExit> {
        self.count_regions();
        let text = message.to_string();
        let sent = self.socket.write_all(&(text.len() as u32).to_le_bytes());
        let answer = match sent.and_then(|()| self.socket.write_all(text.as_bytes())) {
            Ok(()) => self.answer(bounds),
            Err(_) => Err(self.end()),
        };
        self.count_regions();
        answer
    }

    fn count_regions(&mut self) {
        self.held.set(self.input.held_bytes() + self.output.held_bytes());
    }

    /// Waits for a message.
    pub(crate) fn answer(&mut self, bounds: CallLimits<'_>) -> Result<Value, ProcessExit> {
        let deadline = Instant::now() + bounds.time;
        let mut head = [0; 4];
        self.read(&mut head, deadline, bounds)?;
        let bytes = u32::from_le_bytes(head) as usize;
        if bytes > MOST_MESSAGE_BYTES {
            self.kill();
            return Err(ProcessExit::Ended(format!("answered with a message of {bytes} bytes")));
        }
        let mut body = vec![0; bytes];
        self.read(&mut body, deadline, bounds)?;
        serde_json::from_slice(&body).map_err(|error| {
            self.kill();
            ProcessExit::Ended(format!("answered with something that is no message: {error}"))
        })
    }

    fn read(
        &mut self,
        into: &mut [u8],
        deadline: Instant,
        bounds: CallLimits<'_>,
    ) -> Result<(), ProcessExit> {
        let mut filled = 0;
        let mut looked = Instant::now();
        while filled < into.len() {
            match self.socket.read(&mut into[filled..]) {
                Ok(0) => return Err(self.end()),
                Ok(more) => filled += more,
                Err(error) if is_pause(&error) => {}
                Err(_) => return Err(self.end()),
            }
            if filled < into.len() && looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look(deadline, bounds)?;
            }
        }
        // A call that is over in a moment may have taken memory, too.
        if crate::memory::is_above(self.child.id(), bounds.memory_bytes) {
            self.kill();
            return Err(ProcessExit::Memory(bounds.memory_bytes));
        }
        Ok(())
    }

    /// Looks at the bounds of a call that goes on.
    fn look(&mut self, deadline: Instant, bounds: CallLimits<'_>) -> Result<(), ProcessExit> {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.kill();
            return Err(ProcessExit::Ended(ended(status)));
        }
        let death = if bounds.is_given_up.is_cancelled() {
            ProcessExit::GivenUp
        } else if Instant::now() >= deadline {
            ProcessExit::Time(bounds.time)
        } else if crate::memory::is_above(self.child.id(), bounds.memory_bytes) {
            ProcessExit::Memory(bounds.memory_bytes)
        } else {
            return Ok(());
        };
        self.kill();
        Err(death)
    }

    /// Ends a process that has closed its socket.
    fn end(&mut self) -> ProcessExit {
        // It may be about to end by itself, by the signal that says why: that is waited for.
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.kill();
                    return ProcessExit::Ended(ended(status));
                }
                Ok(None) if Instant::now() < deadline => self.pause(),
                _ => {
                    self.kill();
                    return ProcessExit::Ended("closed its connection to the worker".to_owned());
                }
            }
        }
    }

    /// Passes a moment: the socket is closed, so nothing else can be waited for.
    fn pause(&self) {
        std::thread::park_timeout(Duration::from_millis(2));
    }

    /// Ends the process and those that it has started.
    fn kill(&mut self) {
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

/// Whether nothing has come yet.
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// How a process ended, after "the function".
fn ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}{}", meaning(signal)),
        (None, Some(code)) => format!("ended its process with exit code {code}"),
        (None, None) => "ended its process".to_owned(),
    }
}

fn meaning(signal: i32) -> &'static str {
    match Signal::from_named_raw(signal) {
        Some(Signal::SEGV) => " (segmentation fault)",
        Some(Signal::ABORT) => " (abort)",
        Some(Signal::BUS) => " (bus error)",
        Some(Signal::FPE) => " (arithmetic error)",
        Some(Signal::ILL) => " (illegal instruction)",
        Some(Signal::KILL) => " (kill, as by a system that is out of memory)",
        Some(Signal::TERM) => " (termination)",
        _ => "",
    }
}

/// Writes what the function prints to the worker's log, as far as it is not too much.
fn log_lines(name: &str, lines: ChildStderr) {
    let mut lines = BufReader::new(lines);
    let mut line = Vec::new();
    for written in 0_usize.. {
        line.clear();
        match lines.by_ref().take(MOST_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if written < MOST_LINES => {
                let text = String::from_utf8_lossy(&line);
                tracing::info!(target: "feedline_functions", function = name, "{}", text.trim_end());
            }
            Ok(_) if written == MOST_LINES => {
                tracing::warn!(
                    function = name,
                    "it printed {MOST_LINES} lines; what it prints from now on is left out"
                );
            }
            Ok(_) => {}
        }
    }
}
