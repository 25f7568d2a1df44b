//! Counts the files that an addition touches: the files of its commit, without tests, documents and generated files.

use std::path::Path;

use super::checkout::run;

/// The kinds of additions, with the maximum number of files that each should touch.
pub const ADDITIONS: [(&str, usize); 4] = [("operator", 4), ("rpc", 6), ("format", 5), ("flag", 3)];

/// An addition and the files that it touched.
pub struct Touched {
    /// `operator`, `rpc`, `format` or `flag`.
    pub kind: String,
    /// The commit.
    pub commit: String,
    /// The files that count.
    pub files: Vec<String>,
}

/// Reads the commits given as `kind=commit`. If none is given, reads the commits with a trailer `Adds: kind`.
pub fn touched(root: &Path, given: &[String]) -> Result<Vec<Touched>, String> {
    let mut pairs = Vec::new();
    for pair in given {
        let Some((kind, commit)) = pair.split_once('=') else {
            return Err(format!("invalid addition `{pair}`: expected KIND=COMMIT, such as operator=1a2b3c4"));
        };
        pairs.push((kind.to_owned(), commit.to_owned()));
    }
    if given.is_empty() {
        let format = "--format=%h %(trailers:key=Adds,valueonly,separator=%x20)";
        let log = run(root, "git", &["log", format])?;
        for line in log.lines() {
            let mut words = line.split_whitespace();
            if let Some(commit) = words.next() {
                pairs.extend(words.map(|kind| (kind.to_owned(), commit.to_owned())));
            }
        }
    }
    pairs.into_iter().map(|(kind, commit)| read(root, kind, commit)).collect()
}

fn read(root: &Path, kind: String, commit: String) -> Result<Touched, String> {
    if !ADDITIONS.iter().any(|(known, _)| *known == kind) {
        return Err(format!("unknown addition `{kind}`: expected operator, rpc, format or flag"));
    }
    let listed = run(root, "git", &["show", "--format=", "--name-only", &commit, "--"])?;
    let files = listed.lines().filter(|path| counts(path)).map(str::to_owned).collect();
    Ok(Touched { kind, commit, files })
}

/// Files that tests generate.
const GENERATED: [&str; 1] = ["client/python/feedline/_operators.py"];

/// Whether a file counts: it is not a test, test data, a fuzzer, a document, an example or a generated file.
fn counts(path: &str) -> bool {
    let folders = ["tests", "testdata", "benches", "fuzz", "docs", "examples"];
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let is_aside = folder.split('/').any(|part| folders.contains(&part));
    let is_test = name == "tests.rs" || name.ends_with("_test.py") || name.starts_with("test_");
    !(is_aside || is_test || GENERATED.contains(&path) || name.ends_with(".md") || name.ends_with(".lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_documents_and_generated_files_do_not_count() {
        let paths = [
            "core/data/src/pipeline.rs",
            "core/data/src/pipeline/tests.rs",
            "tests/tests/processes/formats.rs",
            "client/python/tests/test_a.py",
            "docs/pipelines.md",
            "CHANGELOG.md",
            "Cargo.lock",
            "client/python/feedline/_operators.py",
            "Makefile",
        ];
        let counted: Vec<_> = paths.into_iter().filter(|path| counts(path)).collect();
        assert_eq!(counted, ["core/data/src/pipeline.rs", "Makefile"]);
    }
}
