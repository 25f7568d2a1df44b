//! The files and the crates of a checkout: what git and cargo list.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A checkout that is read into memory.
#[derive(Debug, Default)]
pub struct Checkout {
    /// Text files by their path relative to the root.
    pub files: BTreeMap<String, String>,
    /// The crates that cargo builds, test targets included.
    pub targets: Vec<Target>,
}

/// A crate that cargo builds.
#[derive(Debug, Clone)]
pub struct Target {
    /// The package's name, such as `feedline-data`.
    pub package: String,
    /// The directory of the package, relative to the root of the checkout.
    pub folder: String,
    /// The name in paths, such as `feedline_data`.
    pub name: String,
    /// The crate's first file.
    pub file: String,
    /// The kind of the crate.
    pub kind: TargetKind,
}

/// The kind of a crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// A library.
    Library,
    /// A binary or a build script.
    Binary,
    /// A test, a bench or an example.
    Test,
}

impl Target {
    /// A library in a directory that has the library's name.
    pub fn library(name: &str, file: &str) -> Self {
        Self {
            package: name.replace('_', "-"),
            folder: name.into(),
            name: name.into(),
            file: file.into(),
            kind: TargetKind::Library,
        }
    }

    /// Whether users run this code.
    pub fn is_product(&self) -> bool {
        let is_aside = self.folder.split('/').next().is_some_and(|part| ["tests", "fuzz"].contains(&part));
        self.kind != TargetKind::Test && !is_aside
    }
}

impl Checkout {
    /// Reads the checkout at `root`: the files that git tracks or would add, and the targets of the workspace.
    pub fn read(root: &Path) -> Result<Self, String> {
        let listed = run(root, "git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        let mut files = BTreeMap::new();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            // Binary files and files that are deleted but still tracked have no text.
            if let Ok(text) = std::fs::read_to_string(root.join(path)) {
                files.insert(path.to_owned(), text);
            }
        }
        if !files.keys().any(|path| path.ends_with(".rs")) {
            return Err(format!("{}: git lists no Rust file; pass the root of a checkout", root.display()));
        }
        Ok(Self { files, targets: targets(root)? })
    }

    /// Returns the package whose directory contains the path, or `None` if no package does.
    pub fn package_of(&self, path: &str) -> Option<&str> {
        let holds = |target: &&Target| path.starts_with(&format!("{}/", target.folder));
        let deepest = self.targets.iter().filter(holds).max_by_key(|target| target.folder.len());
        deepest.map(|target| target.package.as_str())
    }
}

/// Runs a program in `root` and returns its standard output.
pub fn run(root: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{program} {}` failed: {}", arguments.join(" "), stderr.trim()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{program} wrote text that is not UTF-8"))
}

fn targets(root: &Path) -> Result<Vec<Target>, String> {
    let cargo = std::env!("CARGO");
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&run(root, cargo, &arguments)?)
        .map_err(|error| format!("cargo metadata wrote invalid JSON: {error}"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let base = format!("{}/", text(&metadata["workspace_root"]));
    let relative = |path: &Value| text(path).strip_prefix(&base).unwrap_or_default().to_owned();
    let mut targets = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let manifest = relative(&package["manifest_path"]);
        for target in package["targets"].as_array().into_iter().flatten() {
            targets.push(Target {
                package: text(&package["name"]),
                folder: manifest.trim_end_matches("Cargo.toml").trim_end_matches('/').to_owned(),
                name: text(&target["name"]).replace('-', "_"),
                file: relative(&target["src_path"]),
                kind: target_kind(target["kind"][0].as_str().unwrap_or_default()),
            });
        }
    }
    Ok(targets)
}

fn target_kind(kind: &str) -> TargetKind {
    match kind {
        "test" | "bench" | "example" => TargetKind::Test,
        "bin" | "custom-build" => TargetKind::Binary,
        _ => TargetKind::Library,
    }
}
