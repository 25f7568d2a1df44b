//! Shared code of the integration tests: run the binary, start roles as processes, find real data, read the sources.

pub mod chaos;
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

/// Names the user's cache directory; a path that is not absolute counts as none.
pub const CACHE_HOME: &str = "XDG_CACHE_HOME";

/// The binary under test; `make build` builds it.
pub fn feedline() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    // Tests lie in target/PROFILE/deps, programs in target/PROFILE.
    let folder = test.parent().expect("it lies in a folder");
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let binary = folder.join("feedline");
    assert!(binary.exists(), "{} is missing: run `make build` first", binary.display());
    binary
}

/// A new folder to stand in for the user's cache directory: tests share nothing with each other, nor with the user.
pub fn cache_home() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lie in the repository").to_owned()
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
    /// The JSON report at the end of standard output.
    pub fn report(&self) -> Value {
        assert_eq!(self.status, 0, "the run failed\n{}\n{}", self.stdout, self.stderr);
        self.last_json()
    }

    /// The JSON object at the end of standard output, whatever the exit status.
    pub fn last_json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}\n{}", self.stderr))
    }
}

/// Calls the binary and waits for it. A call that lasts two minutes hangs: it is killed and the test fails.
pub fn call(arguments: &[&str]) -> Call {
    call_in(Path::new("."), cache_home().path(), arguments)
}

/// Calls the binary in a directory, with this one in place of the user's cache directory.
fn call_in(directory: &Path, cache: &Path, arguments: &[&str]) -> Call {
    let mut command = Command::new("timeout");
    command.arg("--signal=KILL").arg("120").arg(feedline()).args(arguments).current_dir(directory);
    command.env(CACHE_HOME, cache);
    command.output().expect("the binary starts").into()
}

/// A scratch directory with a pipeline file.
pub struct Scratch {
    directory: TempDir,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// An empty one.
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What stands in for the user's cache directory where the binary is called here.
    pub fn cache(&self) -> PathBuf {
        self.path().join("cache")
    }

    /// A path in it, as text.
    pub fn file(&self, name: &str) -> String {
        self.path().join(name).to_str().expect("temporary paths are text").to_owned()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path().join(name), text).expect("the scratch directory is writable");
        self.file(name)
    }

    /// Makes data with `feedline make-data` in the folder `name`.
    pub fn make_data(&self, kind: &str, name: &str, arguments: &[&str]) {
        let out = self.file(name);
        let mut all = vec!["make-data", kind, &out];
        all.extend(arguments);
        let call = call(&all);
        assert_eq!(call.status, 0, "make-data failed: {}", call.stderr);
    }

    /// Calls the binary here.
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

/// Asks again and again until there is an answer; fails after half a minute, naming what was waited for.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not come within half a minute");
    }
}

/// Waits until the consumers of a coordinator's jobs have told it of `rows` delivered rows.
pub fn wait_for_rows(url: &str, rows: u64) {
    wait_for("a row", || {
        let call = call(&["job", "list", "--coordinator", url, "--json"]);
        let delivered = |job: &Value| job["delivered"]["rows"].as_u64().unwrap_or_default();
        let jobs: Vec<Value> = serde_json::from_str(&call.stdout).unwrap_or_default();
        (jobs.iter().map(delivered).sum::<u64>() >= rows).then_some(())
    });
}

/// Checks that a report says that every row came once.
pub fn assert_clean(report: &Value) {
    let audit = &report["audit"];
    assert_eq!(audit["missing"], 0, "{report}");
    assert_eq!(audit["repeated"], 0, "{report}");
    assert_eq!(audit["expected"], audit["once"], "{report}");
}
