//! `feedline explain` names what bounds a pipeline, and the rate that this allows: one of each kind that `make bottlenecks` makes from
//! its seeds.

use std::process::Command;

use feedline_tests::{CACHE_HOME, Call, Scratch, data, feedline, root};
use serde_json::Value;

/// The kinds follow each other by seed.
const SEEDS: &str = "0..7";
const KINDS: usize = 8;
/// Named right when first asked for. One in twenty may be named wrong, as two of 40 in `make bottlenecks`; that three of eight are, is
/// a defect.
const AT_ONCE: usize = 6;
/// Named right at once or when asked for again, the steady ones among them. On a busy machine a throttled store gives its bytes in bursts, and then
/// each trace may be too short for it.
const NAMED: usize = 7;
/// Seeds whose bound does not depend on the cores at hand: a limit, a wait with a limit, a consumer, a wait without a limit.
const STEADY: [u64; 4] = [1, 2, 3, 7];
/// Their bound may be off by this part.
const OFF: f64 = 0.25;

#[test]
fn explain_names_the_bottleneck_of_each_kind_of_pipeline() {
    let Some(python) = data::python("checking what `feedline explain` names") else { return };
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
    let at_once = pipelines.iter().filter(|pipeline| pipeline["asked"] == 1).count();
    assert!(at_once >= AT_ONCE, "{at_once} of {KINDS} were named right at once\n{}", checked.stdout);
    let named: Vec<&Value> = pipelines.iter().filter(|pipeline| pipeline["is_named"] == true).collect();
    assert!(named.len() >= NAMED, "{} of {KINDS} were named right\n{}", named.len(), checked.stdout);
    let is_named = |seed: &u64| named.iter().any(|pipeline| pipeline["seed"] == *seed);
    assert!(STEADY.iter().all(is_named), "{}", checked.stdout);
    let steady: Vec<(u64, f64)> = pipelines.iter().filter_map(off_by).collect();
    let seeds: Vec<u64> = steady.iter().map(|(seed, _)| *seed).collect();
    assert_eq!(seeds, STEADY, "{}", checked.stdout);
    for (seed, off) in steady {
        assert!(off.abs() <= OFF, "seed {seed}: the bound is off by {off:.2} of it\n{}", checked.stdout);
    }
}

/// A pipeline's seed, and by what part its bound is off: of the one it was made with, and of a wait without a limit, of which the
/// engine decides how many are under way, of the rate in the same trace. `None` where the cores at hand or the store decide.
fn off_by(pipeline: &Value) -> Option<(u64, f64)> {
    let measured = || pipeline["measured"].as_f64().filter(|_| pipeline["true"][1] == "wait");
    let expected = pipeline["known"].as_f64().or_else(measured)?;
    let bound = pipeline["bound"].as_f64().expect("what is named has a bound");
    Some((pipeline["seed"].as_u64().expect("a seed is a whole number"), bound / expected - 1.0))
}
