//! Checks of the repository: dependencies between crates, manifests, first lines, file lengths, forbidden calls, names in
//! documents, shared names, import cycles and phrases.
//!
//! This file builds forbidden words with `concat!`, so that it passes its own checks.

mod manifests;
mod reasons;
mod structure;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Recommended maximum of lines in a source file; longer files are printed.
const LINES_WANTED: usize = 400;
/// Maximum of lines in a source file; tests may be longer.
const LINES_MAX: usize = 500;
const TEST_LINES_MAX: usize = 800;

/// The crates of the workspace on which each crate depends, without the prefix `feedline-`, from the lowest layer to the
/// highest.
const LAYERS: [(&str, &[&str]); 28] = [
    ("feedline-common", &[]),
    ("feedline-contained", &[]),
    ("feedline-jpeg", &[]),
    ("feedline-kafka", &[]),
    ("feedline-memory", &[]),
    ("feedline-pinned", &[]),
    ("feedline-data", &[]),
    ("feedline-access", &["data"]),
    ("feedline-cluster", &["data"]),
    ("feedline-governor", &["data"]),
    ("feedline-planner", &["cluster", "data"]),
    ("feedline-proto", &["access", "common", "data", "memory"]),
    ("feedline-operators", &["contained", "data", "jpeg"]),
    ("feedline-functions", &["common", "data", "operators"]),
    ("feedline-compression", &["data"]),
    ("feedline-sources", &["access", "common", "compression", "contained", "data", "governor", "kafka"]),
    ("feedline-graph", &["contained", "data", "memory", "sources"]),
    ("feedline-client", &["access", "common", "data", "pinned", "proto"]),
    (
        "feedline-worker",
        &["access", "common", "data", "functions", "graph", "operators", "planner", "proto", "sources"],
    ),
    ("feedline-raft", &["cluster", "data"]),
    (
        "feedline-coordinator",
        &["access", "cluster", "common", "data", "governor", "planner", "proto", "raft"],
    ),
    ("feedline-kubernetes", &["access", "common", "coordinator", "data"]),
    ("feedline-command", &["client", "data"]),
    ("feedline-tools", &["access", "client", "command", "coordinator", "data", "proto", "worker"]),
    (
        "feedline-node",
        &[
            "access",
            "client",
            "cluster",
            "command",
            "common",
            "contained",
            "coordinator",
            "data",
            "graph",
            "kubernetes",
            "planner",
            "proto",
            "tools",
            "worker",
        ],
    ),
    // The Python package contains the embedded mode.
    ("feedline-python", &["client", "data", "node", "proto"]),
    (
        "feedline-fuzz-targets",
        &[
            "access",
            "compression",
            "contained",
            "coordinator",
            "data",
            "jpeg",
            "kafka",
            "operators",
            "proto",
            "raft",
            "sources",
            "worker",
        ],
    ),
    ("feedline-tests", &["access", "client", "coordinator", "data", "proto", "worker"]),
];

/// Crates without I/O, clocks and randomness.
const PURE: [&str; 4] = ["feedline-data", "feedline-cluster", "feedline-governor", "feedline-planner"];
/// Libraries that [`PURE`] crates may not use.
const OUTSIDE_WORLD: [&str; 6] = ["tokio", "tonic", "prost", "arrow", "rand", "object_store"];

#[test]
fn crates_depend_only_on_lower_layers() {
    let dependencies = dependencies();
    let mut found = Vec::new();
    let mut lower: BTreeSet<&str> = BTreeSet::new();
    for (package, allowed) in LAYERS {
        let used = dependencies.get(package).map(Vec::as_slice).unwrap_or_default();
        let used: BTreeSet<&str> =
            used.iter().filter_map(|dependency| dependency.strip_prefix("feedline-")).collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        found.extend(used.symmetric_difference(&allowed).map(|other| format!("{package}: {other}")));
        found.extend(allowed.difference(&lower).map(|other| format!("{package} is listed before {other}")));
        lower.insert(package.trim_start_matches("feedline-"));
    }
    let is_listed = |package: &str| LAYERS.iter().any(|(name, _)| *name == package);
    let unlisted = dependencies.keys().filter(|package| !is_listed(package));
    found.extend(unlisted.map(|package| format!("{package} is missing")));
    for package in PURE {
        let used = dependencies[package].iter().filter(|name| OUTSIDE_WORLD.contains(&name.as_str()));
        found.extend(used.map(|name| format!("{package} depends on {name}")));
    }
    refuse(found, "LAYERS differs from the manifests: move the code, inject it from node, or correct LAYERS");
}

#[test]
fn every_source_file_begins_with_its_purpose() {
    let silent = sources().filter(|file| !file.text.starts_with("//!")).map(|file| file.path);
    refuse(silent, "begin the file with a line `//! ...` that states what it owns");
}

#[test]
fn files_stay_short() {
    let mut found = Vec::new();
    for file in sources() {
        let lines = file.text.lines().count();
        let longest = if file.is_test() { TEST_LINES_MAX } else { LINES_MAX };
        if lines > longest {
            found.push(format!("{}: {lines} lines, at most {longest}", file.path));
        } else if lines > LINES_WANTED && !file.is_test() {
            println!("{}: {lines} lines, better at most {LINES_WANTED}", file.path);
        }
    }
    refuse(found, "split the file into parts with names, or move its tests to tests.rs");
}

#[test]
fn product_code_does_not_unwrap() {
    let calls = [concat!(".unwrap", "()"), concat!("todo", "!("), concat!("unimplemented", "!(")];
    let product = sources().filter(|file| !file.is_test());
    refuse(
        product.flat_map(|file| file.lines_with(&calls)),
        "return an error, or use expect(\"why it cannot happen\")",
    );
}

#[test]
fn no_test_is_ignored() {
    let marks = [concat!("#[", "ignore")];
    refuse(
        sources().flat_map(|file| file.all_lines_with(&marks)),
        "make the test fast and deterministic, or delete it",
    );
}

/// Only the functions that poll a condition pause. Elsewhere, a test would pause where it should wait for an
/// event.
#[test]
fn only_polling_functions_sleep() {
    let calls = [concat!("thread::", "sleep")];
    let others = sources().filter(|file| file.path != "tests/src/lib.rs");
    refuse(
        others.flat_map(|file| file.test_lines_with(&calls)),
        "poll the condition with `feedline_tests::wait_for`, or use a paused clock",
    );
}

#[test]
fn core_uses_no_clock_file_or_environment() {
    let names =
        ["SystemTime::now", "Instant::now", "std::env", "std::fs", "std::net", "std::thread", "rand::"];
    let is_core = |path: &str| path.starts_with("core/") && path.contains("/src/");
    let core = sources().filter(|file| is_core(&file.path));
    refuse(
        core.flat_map(|file| file.lines_with(&names)),
        "core takes time, seeds and data as arguments: pass the value in from above",
    );
}

#[test]
fn unsafe_code_is_confined_to_four_crates() {
    let marks = [
        concat!("unsafe", " {"),
        concat!("unsafe", " fn"),
        concat!("unsafe", " impl"),
        concat!("unsafe", " extern"),
    ];
    let leaves = ["worker/jpeg/", "worker/kafka/src/native", "proto/memory/", "client/pinned/"];
    let others = sources().filter(|file| !leaves.iter().any(|leaf| file.path.starts_with(leaf)));
    refuse(
        others.flat_map(|file| file.all_lines_with(&marks)),
        "only worker/jpeg, the native module of worker/kafka and client/pinned may call C, and only proto/memory may map memory: move the code there or do without",
    );
}

#[test]
fn every_queue_has_a_bound() {
    let calls = [concat!("unbounded_", "channel"), concat!("mpsc::", "unbounded")];
    refuse(
        sources().flat_map(|file| file.all_lines_with(&calls)),
        "use a bounded channel and say why its bound is what it is",
    );
}

#[test]
fn links_in_documents_have_targets() {
    let mut found = Vec::new();
    for file in files().filter(|file| file.path.ends_with(".md")) {
        let folder = root().join(Path::new(&file.path).parent().expect("a file is in a directory"));
        for link in file.text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            let target = link.split('#').next().unwrap_or_default();
            if !link.contains("://") && !link.starts_with("mailto:") && !folder.join(target).exists() {
                found.push(format!("{}: {link}", file.path));
            }
        }
    }
    refuse(found, "fix the link, or remove it");
}

#[test]
fn the_architecture_is_short_and_names_existing_files() {
    let path = "docs/ARCHITECTURE.md";
    let text = fs::read_to_string(root().join(path)).unwrap_or_default();
    assert!(!text.is_empty(), "{path} is missing: write the code map and the invariants there");
    let lines = text.lines().count();
    assert!(
        lines <= 250,
        "{path} has {lines} lines, more than 250: move what users want to know to another page"
    );
    let is_path = |name: &&str| {
        let plain = name.chars().all(|letter| letter.is_ascii_alphanumeric() || "/_-.".contains(letter));
        plain && name.contains('/') && (name.ends_with('/') || name.ends_with(".rs"))
    };
    let names = text.split('`').skip(1).step_by(2).filter(is_path);
    let gone = names.filter(|name| !root().join(name).exists()).map(|name| format!("{path}: {name}"));
    refuse(gone, "use the current name of the file or directory");
}

#[test]
fn files_contain_no_absolute_paths_of_a_machine() {
    let marks = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let written = files().filter(|file| !file.path.ends_with("Cargo.lock"));
    refuse(written.flat_map(|file| file.all_lines_with(&marks)), "use a path relative to the repository");
}

/// A text file of the repository.
struct TextFile {
    /// Relative to the repository.
    path: String,
    text: String,
}

impl TextFile {
    /// Whether all of it is test code.
    fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    /// `path:line: text` of the lines outside comments and `#[cfg(test)]` items that hold one of the words.
    fn lines_with(&self, words: &[&str]) -> Vec<String> {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut test_item = None;
        let product = self.text.lines().enumerate().filter(|(_, line)| {
            if line.trim() == "#[cfg(test)]" {
                test_item = Some(indent(line));
            }
            let skipped = test_item.is_some();
            if test_item == Some(indent(line)) && line.ends_with(['}', ';']) {
                test_item = None;
            }
            !skipped
        });
        self.matching(product, words)
    }

    /// The same, in test code only.
    fn test_lines_with(&self, words: &[&str]) -> Vec<String> {
        let product = if self.is_test() { Vec::new() } else { self.lines_with(words) };
        self.all_lines_with(words).into_iter().filter(|line| !product.contains(line)).collect()
    }

    /// The same, in test code too.
    fn all_lines_with(&self, words: &[&str]) -> Vec<String> {
        self.matching(self.text.lines().enumerate(), words)
    }

    fn matching<'a>(&self, lines: impl Iterator<Item = (usize, &'a str)>, words: &[&str]) -> Vec<String> {
        let code = |line: &str| !(self.path.ends_with(".rs") && line.trim_start().starts_with("//"));
        let hit = |line: &str| words.iter().any(|word| begins_at_name(line, word));
        let found = lines.filter(|(_, line)| code(line) && hit(line));
        found.map(|(number, line)| format!("{}:{}: {}", self.path, number + 1, line.trim())).collect()
    }
}

/// Whether the line holds the word, not as the end of a longer name (`rand::` is not in `operand::`).
fn begins_at_name(line: &str, word: &str) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let joined = |at: usize| word.starts_with(is_name) && line[..at].ends_with(is_name);
    line.match_indices(word).any(|(at, _)| !joined(at))
}

/// Fails with the findings and what to do about them.
fn refuse(found: impl IntoIterator<Item = String>, advice: &str) {
    let found: Vec<String> = found.into_iter().collect();
    assert!(found.is_empty(), "{advice}\n  {}\n", found.join("\n  "));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Rust sources, generated ones aside (they are in target).
fn sources() -> impl Iterator<Item = TextFile> {
    files().filter(|file| file.path.ends_with(".rs"))
}

/// Text files that git knows or would add, and that exist.
fn files() -> impl Iterator<Item = TextFile> {
    let listed =
        output(Command::new("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]));
    let paths: Vec<String> = listed.split('\0').filter(|path| !path.is_empty()).map(String::from).collect();
    assert!(
        paths.iter().any(|path| path.ends_with(".rs")),
        "git lists no sources: run the tests in a checkout"
    );
    paths.into_iter().filter_map(|path| {
        let text = fs::read_to_string(root().join(&path)).ok()?;
        Some(TextFile { path, text })
    })
}

/// Package -> its dependencies of every kind but for development.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let metadata = metadata();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let named = |package: &serde_json::Value| {
        let shipped =
            list(&package["dependencies"]).into_iter().filter(|dependency| dependency["kind"] != "dev");
        (text(&package["name"]), shipped.map(|dependency| text(&dependency["name"])).collect())
    };
    let packages: BTreeMap<_, Vec<String>> = list(&metadata["packages"]).iter().map(named).collect();
    assert!(packages["feedline-worker"].contains(&"feedline-data".into()), "the metadata tells dependencies");
    packages
}

/// What cargo reports about the packages of the workspace.
fn metadata() -> serde_json::Value {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let metadata = output(Command::new(env!("CARGO")).args(arguments));
    serde_json::from_str(&metadata).expect("cargo writes JSON")
}

fn output(command: &mut Command) -> String {
    let output = command.current_dir(root()).output().expect("git and cargo run wherever the tests do");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("git and cargo write UTF-8")
}
