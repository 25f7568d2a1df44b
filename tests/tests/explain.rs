//! `feedline explain` names what bounds a pipeline: one of each kind that `make bottlenecks` makes from its seeds.

use std::process::Command;

use feedline_tests::{Scratch, data, feedline, root};

/// The kinds follow each other by seed.
const SEEDS: &str = "0..7";

#[test]
fn explain_names_the_bottleneck_of_each_kind_of_pipeline() {
    let Some(python) = data::python("checking what `feedline explain` names") else { return };
    let scratch = Scratch::new();
    let checked = Command::new(python)
        .arg(root().join("benches/bottlenecks.py"))
        .args(["--names-only", "--seeds", SEEDS])
        .env("FEEDLINE_BIN", feedline())
        .env("BENCH_DATA", scratch.path().join("data"))
        .env("EXPLAIN_S", "3")
        .output()
        .expect("Python starts");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
}
