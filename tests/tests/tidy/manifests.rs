//! Checks of the manifests: tests and builds share all crates, rustdoc runs only for crates whose documentation contains
//! examples, and each fuzz target is documented.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{TextFile, metadata, refuse, root, sources};

#[test]
fn tests_enable_no_feature_that_builds_lack() {
    let metadata = metadata();
    let dependencies: Vec<&Value> =
        items(&metadata["packages"]).flat_map(|package| items(&package["dependencies"])).collect();
    let (tested, shipped): (Vec<&Value>, Vec<&Value>) =
        dependencies.into_iter().partition(|dependency| dependency["kind"] == "dev");
    let names: BTreeSet<&str> = shipped.iter().map(|dependency| text(&dependency["name"])).collect();
    let enabled: BTreeSet<(&str, &str)> =
        shipped.iter().flat_map(|dependency| features(dependency)).collect();
    let is_extra = |feature: &(&str, &str)| names.contains(feature.0) && !enabled.contains(feature);
    let extra = tested.into_iter().flat_map(features).filter(is_extra);
    refuse(
        extra.map(|(package, feature)| format!("{package}: {feature}")),
        "remove the feature from [dev-dependencies], because it builds the crate and all crates above it a second time",
    );
}

#[test]
fn documentation_is_tested_only_where_it_contains_examples() {
    let metadata = metadata();
    let root = Path::new(text(&metadata["workspace_root"]));
    let with_examples: Vec<TextFile> = sources().filter(has_example).collect();
    let mut found = Vec::new();
    for package in items(&metadata["packages"]) {
        let manifest = Path::new(text(&package["manifest_path"]));
        let folder = manifest
            .parent()
            .and_then(|folder| folder.strip_prefix(root).ok())
            .expect("the package is in the workspace");
        let source = folder.join("src");
        let has_examples = with_examples.iter().any(|file| Path::new(&file.path).starts_with(&source));
        let library =
            items(&package["targets"]).find(|target| items(&target["kind"]).any(|kind| kind == "lib"));
        if library.is_some_and(|library| library["doctest"] != has_examples) {
            found.push(format!("{}: doctest = {has_examples}", folder.display()));
        }
    }
    refuse(found, "set the value under [lib] in the Cargo.toml");
}

#[test]
fn every_fuzz_target_is_on_the_page_of_results() {
    let page = fs::read_to_string(root().join("docs/reliability.md")).expect("the page is in the repository");
    let mut found = Vec::new();
    for file in sources() {
        let name = file.path.strip_prefix("fuzz/fuzz_targets/").and_then(|name| name.strip_suffix(".rs"));
        let Some(target) = name else { continue };
        if !page.contains(&format!("| `{target}` |")) {
            found.push(format!("docs/reliability.md: {target}"));
        }
    }
    refuse(found, "add a row to one of the tables under `Results`");
}

fn has_example(file: &TextFile) -> bool {
    file.text.lines().any(|line| line.trim_start().starts_with("/// ```") || line.starts_with("//! ```"))
}

/// Returns the name of a dependency with each of its features.
fn features(dependency: &Value) -> impl Iterator<Item = (&str, &str)> {
    items(&dependency["features"]).map(move |feature| (text(&dependency["name"]), text(feature)))
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
