//! Real test data next to the repository, if it exists: photographs, sentence pairs and graphs.

use std::path::PathBuf;

/// Returns the directory of the real data: `FEEDLINE_SHARED_DATA`, otherwise `../shared/data` relative to the
/// repository. If the data is missing, prints that `what` is skipped.
#[expect(clippy::disallowed_methods, reason = "tests find real data through the environment")]
fn shared(kind: &str, what: &str) -> Option<PathBuf> {
    let beside = crate::root().join("../shared/data");
    let folder = std::env::var_os("FEEDLINE_SHARED_DATA").map_or(beside, PathBuf::from).join(kind);
    if let Ok(folder) = folder.canonicalize() {
        return Some(folder);
    }
    skip(&format!("{what} needs {} (set FEEDLINE_SHARED_DATA)", folder.display()));
    None
}

/// Prints that a test is skipped. In continuous integration, fails it instead.
///
/// # Panics
/// Panics if the environment variable `CI` is set.
#[expect(clippy::disallowed_methods, reason = "continuous integration must not skip a test")]
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("skipped: {reason}");
}

/// Returns the directory of 400 photographs.
pub fn photographs(what: &str) -> Option<PathBuf> {
    shared("images", what)
}

/// Returns the files of 29,000 sentence pairs.
pub fn sentences(what: &str) -> Option<PathBuf> {
    shared("text", what)
}

/// Returns the directory of graphs: Cora, and in `debian` the packages of Debian.
pub fn graphs(what: &str) -> Option<PathBuf> {
    shared("graph", what)
}

/// Returns the Python with Pillow, NumPy and tokenizers that `make test` installs. If it is missing, prints that `what`
/// is skipped.
pub fn python(what: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let target = test.ancestors().nth(3)?;
    let found = [target.to_owned(), crate::root().join("target")]
        .into_iter()
        .map(|target| target.join("venv/bin/python"))
        .find(|python| python.exists());
    if found.is_none() {
        skip(&format!("{what} needs target/venv: run `make python`"));
    }
    found
}
