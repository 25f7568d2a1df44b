//! A call that runs beside the test, and what a test can wait for while it runs.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::signal;
use crate::{CACHE_HOME, Call, cache_home, feedline, wait_for};

/// A call of the binary that has not been waited for.
#[derive(Debug)]
pub struct Running {
    id: u32,
    seen: Arc<Seen>,
    /// In place of the user's cache directory.
    _cache: TempDir,
}

/// What is known of a call, and who waits for more.
#[derive(Debug, Default)]
struct Seen {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stderr: String,
    /// Set once it has ended.
    call: Option<Call>,
}

impl Running {
    /// Starts a call of the binary. One that lasts two minutes hangs: it is killed.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_for(arguments, Duration::from_secs(120))
    }

    /// Starts a call of the binary, which is killed if it lasts longer than this.
    pub fn start_for(arguments: &[&str], longest: Duration) -> Self {
        let (mut command, cache) = (Command::new("timeout"), cache_home());
        // In the foreground `timeout` passes a signal on once; else the whole group gets it as well, which a run takes
        // for a second Ctrl-C.
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

    /// The process id of the binary itself, which `timeout` has started.
    pub fn program(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.id);
        wait_for("the program", || {
            std::fs::read_to_string(&children).ok()?.split_whitespace().next()?.parse().ok()
        })
    }

    /// `kill -9`.
    pub fn kill(self) {
        signal(self.program(), rustix::process::Signal::KILL);
        self.wait();
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.seen.lock().call.is_some()
    }

    /// Waits for its end, but no longer than `time`; whether it has ended. A test whose faults come at chosen times of a
    /// run uses this between them: where in its work a run is then is left to chance, and is to make no difference.
    pub fn ends_within(&self, time: Duration) -> bool {
        self.seen.wait(time, |state| state.call.is_some())
    }

    /// Waits until its standard error has `text`, but no longer than `time`; whether it has.
    pub fn says_within(&self, text: &str, time: Duration) -> bool {
        self.seen.wait(time, |state| state.stderr.contains(text) || state.call.is_some());
        self.seen.lock().stderr.contains(text)
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        signal(self.id, rustix::process::Signal::INT);
    }

    /// Waits for its end.
    pub fn wait(self) -> Call {
        let state = self.seen.lock();
        let mut state = self
            .seen
            .changed
            .wait_while(state, |state| state.call.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.call.take().expect("waited for above")
    }
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_so`, but no longer than `time`; whether it is.
    fn wait(&self, time: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), time, |state| !is_so(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_so(&state)
    }

    /// Follows the call to its end.
    fn watch(self: Arc<Self>, mut child: Child, stderr: ChildStderr) {
        let mut stdout = child.stdout.take().expect("piped at the start");
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            // What cannot be read is missed by whoever looks for it.
            let _ = stdout.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            self.lock().stderr.push_str(&format!("{line}\n"));
            self.changed.notify_all();
        }
        let stdout = reader.join().expect("it does not panic");
        let status = child.wait().expect("it was started here").code().unwrap_or(-1);
        let mut state = self.lock();
        let stderr = state.stderr.clone();
        state.call = Some(Call { status, stdout, stderr });
        self.changed.notify_all();
    }
}
