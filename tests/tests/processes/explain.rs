//! `feedline explain` names the bottleneck and the bound of one pipeline of each kind that `make bottlenecks` generates from its seeds.

use std::process::Command;

use feedline_tests::{CACHE_HOME, Call, Scratch, data, feedline, root};
use serde_json::Value;

/// Consecutive seeds generate pipelines of different kinds.
const SEEDS: &str = "0..7";
const KINDS: usize = 8;
/// Minimum number of correct bottlenecks in the first trace. `make bottlenecks` allows two wrong results of 40. Three
/// wrong results of eight indicate a defect.
const MIN_CORRECT_AT_FIRST: usize = 6;
/// Minimum number of correct bottlenecks in the first or a repeated trace, including the steady seeds. On a busy machine, a throttled
/// store delivers bytes in bursts, and each trace may be too short.
const MIN_CORRECT: usize = 7;
/// Seeds whose bound does not depend on the available cores: a limit, a wait with a limit, a consumer, a wait without a limit.
const STEADY_SEEDS: [u64; 4] = [1, 2, 3, 7];
/// Maximum relative error of the bounds of the steady seeds.
const MAX_BOUND_ERROR: f64 = 0.25;

#[test]
fn explain_names_the_bottleneck_of_each_kind_of_pipeline() {
    let Some(python) = data::python("checking the bottlenecks of `feedline explain`") else { return };
    let scratch = Scratch::new();
    let checked: Call = Command::new(python)
        .arg(root().join("benches/bottlenecks.py"))
        .args(["--names-only", "--json", "--seeds", SEEDS])
        .env("FEEDLINE_BIN", feedline())
        .env(CACHE_HOME, scratch.cache())
        .env("BENCH_DATA", scratch.path().join("data"))
        .env("EXPLAIN_S", "3")
        .output()
        .expect("Python starts")
        .into();
    let report = checked.last_json();
    let pipelines = report["pipelines"].as_array().expect("the report lists pipelines");
    assert_eq!(pipelines.len(), KINDS, "{}", checked.stdout);
    let first = pipelines.iter().filter(|pipeline| pipeline["asked"] == 1).count();
    assert!(
        first >= MIN_CORRECT_AT_FIRST,
        "{first} of {KINDS} first traces were correct\n{}",
        checked.stdout
    );
    let named: Vec<&Value> = pipelines.iter().filter(|pipeline| pipeline["is_named"] == true).collect();
    assert!(named.len() >= MIN_CORRECT, "{} of {KINDS} were correct\n{}", named.len(), checked.stdout);
    let is_named = |seed: &u64| named.iter().any(|pipeline| pipeline["seed"] == *seed);
    assert!(STEADY_SEEDS.iter().all(is_named), "{}", checked.stdout);
    let steady: Vec<(u64, f64)> = pipelines.iter().filter_map(bound_error).collect();
    let seeds: Vec<u64> = steady.iter().map(|(seed, _)| *seed).collect();
    assert_eq!(seeds, STEADY_SEEDS, "{}", checked.stdout);
    for (seed, error) in steady {
        assert!(error.abs() <= MAX_BOUND_ERROR, "seed {seed}: bound error {error:.2}\n{}", checked.stdout);
    }
}

/// Returns a pipeline's seed and the relative error of its bound. The reference is the generated bound or, for a wait without a limit,
/// the measured rate. Returns `None` if the available cores or the store determine the bound.
fn bound_error(pipeline: &Value) -> Option<(u64, f64)> {
    let measured = || pipeline["measured"].as_f64().filter(|_| pipeline["true"][1] == "wait");
    let expected = pipeline["known"].as_f64().or_else(measured)?;
    let bound = pipeline["bound"].as_f64().expect("a bottleneck has a bound");
    Some((pipeline["seed"].as_u64().expect("a seed is a whole number"), bound / expected - 1.0))
}
