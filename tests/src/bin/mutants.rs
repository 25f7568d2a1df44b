//! Runs mutations of the product, chosen by seed, against the unit tests of the mutated crates.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use clap::Parser;
use feedline_tests::source::checkout::run;
use feedline_tests::source::random::choose;
use serde_json::Value;

/// Choose mutations by seed, run the unit tests of the mutated crates on each mutation, and print how many mutations
/// the tests catch.
///
/// The mutations are those of `cargo mutants` in the given files. A mutation is caught if a unit test of its own crate
/// (`cargo test --lib`) fails or times out. A mutation that does not compile is unviable and is excluded from the
/// result. Logs of each mutation are in the directory `mutants.out` of the output directory.
#[derive(Parser)]
struct Arguments {
    /// The seed; the choice depends on it and on the files alone.
    seed: u64,
    /// Number of mutations to run.
    #[arg(long, default_value_t = 60)]
    count: usize,
    /// Directory for logs and builds.
    #[arg(long, default_value = "target/mutants")]
    output: String,
    /// Globs of the files to mutate.
    #[arg(required = true)]
    files: Vec<String>,
}

fn main() -> Result<(), String> {
    let arguments = Arguments::parse();
    let all = mutations(&arguments.files)?;
    let chosen: Vec<&String> =
        choose(arguments.seed, 0, arguments.count, all.len()).into_iter().map(|index| &all[index]).collect();
    println!("seed {}: {} of {} mutations", arguments.seed, chosen.len(), all.len());
    run_chosen(&arguments, &chosen)?;
    print_outcomes(&arguments.output, &chosen)
}

/// The names of all mutations, sorted.
fn mutations(files: &[String]) -> Result<Vec<String>, String> {
    let mut call = vec!["mutants", "--list", "--json"];
    call.extend(files.iter().flat_map(|file| ["--file", file]));
    let listed: Value = serde_json::from_str(&run(Path::new("."), "cargo", &call)?)
        .map_err(|error| format!("cargo mutants wrote invalid JSON: {error}"))?;
    let names = listed.as_array().into_iter().flatten().filter_map(|mutation| mutation["name"].as_str());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    if names.is_empty() {
        return Err(format!("no mutation in {}: expected globs of product files", files.join(" ")));
    }
    Ok(names)
}

fn run_chosen(arguments: &Arguments, chosen: &[&String]) -> Result<(), String> {
    let folder = std::path::absolute(&arguments.output)
        .map_err(|error| format!("invalid directory `{}`: {error}", arguments.output))?;
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let mut command = Command::new("cargo");
    // The mutated copies share a target directory, so that dependencies are compiled once.
    command.env("CARGO_TARGET_DIR", folder.join("build"));
    command.args(["mutants", "--colors", "never", "--output", &arguments.output]);
    // cargo-mutants 27 does not apply `--re` to mutations that delete a field, and would run those of all files.
    let files: BTreeSet<&str> = chosen.iter().filter_map(|name| name.split(':').next()).collect();
    command.args(files.into_iter().flat_map(|file| ["--file", file]));
    for name in chosen {
        command.args(["--re", &format!("^{}$", regex::escape(name))]);
    }
    let status = command.args(["--", "--lib"]).status();
    let status = status.map_err(|error| format!("cannot run cargo mutants: {error}"))?;
    // 2 means that mutations were missed, and 3 that tests timed out.
    match status.code() {
        Some(0 | 2 | 3) => Ok(()),
        _ => Err(format!("cargo mutants failed ({status}); see {}/mutants.out/log", arguments.output)),
    }
}

/// Minimum share of the mutations that tests must detect. With 60 mutations, a share of 90 % varies by 4 points.
const MIN_PERCENT: f64 = 82.0;

/// The outcomes of the chosen mutations.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcomes {
    caught: usize,
    missed: Vec<String>,
    unviable: usize,
}

impl Outcomes {
    /// Reads the output of cargo-mutants, and counts only the chosen mutations.
    fn read(written: &Value, chosen: &[&String]) -> Self {
        let mut outcomes = Self::default();
        for outcome in written["outcomes"].as_array().into_iter().flatten() {
            let name = outcome["scenario"]["Mutant"]["name"].as_str().unwrap_or_default();
            if !chosen.iter().any(|mutation| *mutation == name) {
                continue;
            }
            match outcome["summary"].as_str() {
                Some("CaughtMutant" | "Timeout") => outcomes.caught += 1,
                Some("Unviable") => outcomes.unviable += 1,
                _ => outcomes.missed.push(name.to_owned()),
            }
        }
        outcomes
    }
}

fn print_outcomes(output: &str, chosen: &[&String]) -> Result<(), String> {
    let path = format!("{output}/mutants.out/outcomes.json");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let written: Value =
        serde_json::from_str(&text).map_err(|error| format!("{path}: invalid JSON: {error}"))?;
    let Outcomes { caught, missed, unviable } = Outcomes::read(&written, chosen);
    for name in &missed {
        println!("missed: {name}");
    }
    let viable = caught + missed.len();
    println!("caught {caught}, missed {}, unviable {unviable}", missed.len());
    if viable + unviable != chosen.len() {
        return Err(format!(
            "only {} of {} mutations have an outcome; see {path}",
            viable + unviable,
            chosen.len()
        ));
    }
    let percent = 100.0 * caught as f64 / viable.max(1) as f64;
    println!("share caught: {percent:.1} % of {viable}");
    if percent < MIN_PERCENT {
        return Err(format!(
            "less than {MIN_PERCENT} % of the mutations were caught; write tests for the missed ones"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_chosen_mutations_count() {
        let outcome =
            |name: &str, summary: &str| json!({"scenario": {"Mutant": {"name": name}}, "summary": summary});
        let written = json!({"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            outcome("a", "CaughtMutant"),
            outcome("b", "MissedMutant"),
            outcome("c", "Unviable"),
            outcome("d", "Timeout"),
            outcome("not chosen", "MissedMutant"),
        ]});
        let chosen = ["a", "b", "c", "d"].map(String::from);
        let outcomes = Outcomes::read(&written, &chosen.each_ref());
        assert_eq!(outcomes, Outcomes { caught: 2, missed: vec!["b".into()], unviable: 1 });
    }
}
