//! Shared code of the integration tests: runs the binary, starts roles as processes, finds and compresses test data, and reads the
//! sources.

pub mod chaos;
pub mod compress;
pub mod data;
pub mod disk;
pub mod embedded;
pub mod http;
pub mod link;
pub mod process;
pub mod running;
pub mod source;
pub mod store;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The environment variable of the user's cache directory.
pub const CACHE_HOME: &str = "XDG_CACHE_HOME";

/// Returns the directory with the programs of the build, such as `target/debug`.
pub(crate) fn build_directory() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    // Tests are in target/PROFILE/deps, programs in target/PROFILE.
    let folder = test.parent().expect("the test is in a directory");
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    folder.to_owned()
}

/// Returns the path of the binary under test, which `make build` builds.
pub fn feedline() -> PathBuf {
    let binary = build_directory().join("feedline");
    assert!(binary.exists(), "{} is missing: run `make build` first", binary.display());
    binary
}

/// Creates a directory that replaces the user's cache directory, so that tests do not share a cache.
pub fn cache_home() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the repository").to_owned()
}

/// A finished call of the binary.
#[derive(Debug)]
pub struct Call {
    /// Exit status; -1 after a signal.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Call {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Call {
    /// Parses the JSON report at the end of standard output, after a successful call.
    pub fn report(&self) -> Value {
        assert_eq!(self.status, 0, "the run failed\n{}\n{}", self.stdout, self.stderr);
        self.last_json()
    }

    /// Parses the JSON object at the end of standard output, for any exit status.
    pub fn last_json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}\n{}", self.stderr))
    }
}

/// Runs the binary and waits for its exit. After twenty minutes it is killed, and the test fails.
pub fn call(arguments: &[&str]) -> Call {
    call_in(Path::new("."), cache_home().path(), arguments)
}

/// Runs the binary in a directory, with `cache` as the user's cache directory.
fn call_in(directory: &Path, cache: &Path, arguments: &[&str]) -> Call {
    let mut command = Command::new("timeout");
    command.arg("--signal=KILL").arg("1200").arg(feedline()).args(arguments).current_dir(directory);
    command.env(CACHE_HOME, cache);
    command.output().expect("the binary starts").into()
}

/// A temporary directory for pipeline files and data.
pub struct Scratch {
    directory: TempDir,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Creates an empty directory.
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the directory that replaces the user's cache directory.
    pub fn cache(&self) -> PathBuf {
        self.path().join("cache")
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> String {
        self.path().join(name).to_str().expect("temporary paths are text").to_owned()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path().join(name), text).expect("the scratch directory is writable");
        self.file(name)
    }

    /// Generates data with `feedline make-data` in the directory `name`.
    pub fn make_data(&self, kind: &str, name: &str, arguments: &[&str]) {
        let out = self.file(name);
        let mut all = vec!["make-data", kind, &out];
        all.extend(arguments);
        let call = call(&all);
        assert_eq!(call.status, 0, "make-data failed: {}", call.stderr);
    }

    /// Runs the binary in the directory.
    pub fn call(&self, arguments: &[&str]) -> Call {
        call_in(self.path(), &self.cache(), arguments)
    }

    /// Runs a pipeline file with `--report json --audit` and returns the report.
    pub fn run(&self, file: &str, arguments: &[&str]) -> Value {
        let mut all = vec!["run", file, "--report", "json", "--audit"];
        all.extend(arguments);
        self.call(&all).report()
    }
}

/// Timeout of a condition. It is long enough for a busy machine.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two checks of a condition.
const POLL_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two processes that check a condition.
const CALL_PAUSE: Duration = Duration::from_millis(100);

/// Polls until `poll` returns a value. Panics with `what` after two minutes.
pub fn wait_for<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    wait_with_pauses(what, POLL_PAUSE, poll)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a condition of other processes cannot be waited for without a pause"
)]
fn wait_with_pauses<T>(what: &str, pause: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + CONDITION_TIMEOUT;
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(Instant::now() < deadline, "timeout after two minutes: {what}");
        std::thread::sleep(pause);
    }
}

/// Waits until the consumers of a coordinator have reported `rows` delivered rows.
pub fn wait_for_rows(url: &str, rows: u64) {
    wait_with_pauses("a row", CALL_PAUSE, || {
        let call = call(&["job", "list", "--coordinator", url, "--json"]);
        let delivered = |job: &Value| job["delivered"]["rows"].as_u64().unwrap_or_default();
        let jobs: Vec<Value> = serde_json::from_str(&call.stdout).unwrap_or_default();
        (jobs.iter().map(delivered).sum::<u64>() >= rows).then_some(())
    });
}

/// Asserts that a report shows that each row was delivered exactly once.
pub fn assert_clean(report: &Value) {
    assert_clean_with_skipped(report, 0);
}

/// Asserts that a report shows that each row was delivered or skipped exactly once, and that `skipped` rows were skipped. Rows that were
/// replaced were delivered.
pub fn assert_clean_with_skipped(report: &Value, skipped: u64) {
    let audit = &report["audit"];
    assert_eq!(audit["missing"], 0, "{report}");
    assert_eq!(audit["repeated"], 0, "{report}");
    assert_eq!(audit["skipped"], skipped, "{report}");
    let count = |name: &str| audit[name].as_u64().expect("the audit counts rows");
    assert_eq!(count("expected"), count("once") + skipped, "{report}");
}
