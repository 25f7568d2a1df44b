//! Runs the binary in the background of a test, and waits for its output or exit.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::signal;
use crate::{CACHE_HOME, Call, cache_home, feedline, wait_for};

/// A running call of the binary.
#[derive(Debug)]
pub struct Running {
    id: u32,
    seen: Arc<CallMonitor>,
    /// Replaces the user's cache directory.
    _cache: TempDir,
}

/// The observed state of a call, with a notification for changes.
#[derive(Debug, Default)]
struct CallMonitor {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stderr: String,
    /// `Some` after the exit.
    call: Option<Call>,
}

impl Running {
    /// Starts a call of the binary, which is killed after five minutes.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_for(arguments, Duration::from_secs(300))
    }

    /// Starts a call of the binary, which is killed after this time.
    pub fn start_for(arguments: &[&str], longest: Duration) -> Self {
        let (mut command, cache) = (Command::new("timeout"), cache_home());
        // With --foreground, the process receives a signal once. Otherwise the whole group receives it too, and `feedline run`
        // interprets that as a second Ctrl-C.
        let longest = longest.as_secs().to_string();
        command.args(["--foreground", "--signal=KILL", &longest]).arg(feedline()).args(arguments);
        command.env(CACHE_HOME, cache.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let stderr = child.stderr.take().expect("piped above");
        let running = Self { id: child.id(), seen: Arc::default(), _cache: cache };
        let seen = Arc::clone(&running.seen);
        std::thread::spawn(move || seen.watch(child, stderr));
        running
    }

    /// Returns the process id of the binary, which is a child of `timeout`.
    pub fn program(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.id);
        wait_for("the program", || {
            std::fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok()
        })
    }

    /// Kills the process with SIGKILL.
    pub fn kill(self) {
        signal(self.program(), rustix::process::Signal::KILL);
        self.wait();
    }

    /// Whether the call has exited.
    pub fn has_ended(&self) -> bool {
        self.seen.lock().call.is_some()
    }

    /// Waits for the exit for at most `time`, and returns whether the call has exited. Tests call this between two
    /// faults, because the result must not depend on the progress of the run.
    pub fn ends_within(&self, time: Duration) -> bool {
        self.seen.wait(time, |state| state.call.is_some())
    }

    /// Waits until standard error contains `text`, for at most `time`, and returns whether it does.
    pub fn says_within(&self, text: &str, time: Duration) -> bool {
        self.seen.wait(time, |state| state.stderr.contains(text) || state.call.is_some());
        self.seen.lock().stderr.contains(text)
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        signal(self.id, rustix::process::Signal::INT);
    }

    /// Waits for the exit.
    pub fn wait(self) -> Call {
        let state = self.seen.lock();
        let mut state = self
            .seen
            .changed
            .wait_while(state, |state| state.call.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.call.take().expect("the call has exited")
    }
}

impl CallMonitor {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the condition is true, for at most `time`, and returns whether it is.
    fn wait(&self, time: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), time, |state| !is_so(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_so(&state)
    }

    /// Records output until the call exits.
    fn watch(self: Arc<Self>, mut child: Child, stderr: ChildStderr) {
        let mut stdout = child.stdout.take().expect("piped at the start");
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            // A test that waits for unreadable output fails.
            let _ = stdout.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            self.lock().stderr.push_str(&format!("{line}\n"));
            self.changed.notify_all();
        }
        let stdout = reader.join().expect("the reader does not panic");
        let status = child.wait().expect("the process was started here").code().unwrap_or(-1);
        let mut state = self.lock();
        let stderr = state.stderr.clone();
        state.call = Some(Call { status, stdout, stderr });
        self.changed.notify_all();
    }
}
