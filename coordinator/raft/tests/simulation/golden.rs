//! Golden outcomes of simulated runs: the rows and batches of each stream, and the position of a stopped run. Schedules, traces
//! and times may change.
//!
//! `UPDATE_EXPECT=1 cargo test -p feedline-raft --test simulation golden` updates the file.

use std::fmt::Write;

use expect_test::expect_file;
use feedline_data::consumer::RunKind;
use feedline_data::pipeline::OrderMode;
use feedline_data::random::mix64;

use super::application::Entry;
use super::scenario::{JobData, Scenario};
use super::{Fault, run_whole};

/// Few enough that the test takes about a second.
const SEEDS: u64 = 60;

fn digest(numbers: impl IntoIterator<Item = u64>) -> String {
    format!(
        "{:016x}",
        numbers.into_iter().fold(0, |digest: u64, number| mix64(digest.rotate_left(1) ^ number))
    )
}

/// Returns what a job delivered: the batches of each stream in order, or the rows of a relaxed job.
fn outcome(data: &JobData, entries: &[Entry]) -> String {
    let mut rows: Vec<u64> = entries.iter().flat_map(Entry::rows).collect();
    let count = rows.len();
    if data.spec.pipeline.order == OrderMode::Relaxed {
        rows.sort_unstable();
        return format!("relaxed, {count} rows: {}", digest(rows));
    }
    let stream = |stream| {
        let batches = entries.iter().filter(|entry| entry.stream == stream && entry.kind == RunKind::Batch);
        // A restarted consumer may receive an empty last step again.
        let batches: Vec<Vec<u64>> = batches.map(Entry::rows).filter(|rows| !rows.is_empty()).collect();
        let numbers = batches.iter().flat_map(|rows| [&[rows.len() as u64], rows.as_slice()].concat());
        format!("{} {}", batches.len(), digest(numbers))
    };
    let streams: Vec<String> = (0..data.layout.streams).map(stream).collect();
    format!("{count} rows: {}", streams.join(", "))
}

/// The position of each stream after its last row.
fn positions(data: &JobData, entries: &[Entry]) -> String {
    let last =
        |stream| entries.iter().filter(|entry| entry.stream == stream).map(|entry| entry.position).max();
    let streams = (0..data.layout.streams).map(|stream| {
        let place = data.layout.normalise(stream, last(stream).unwrap_or_default());
        format!("{}/{}", place.epoch, place.row)
    });
    streams.collect::<Vec<_>>().join(" ")
}

#[test]
fn golden_seeds_deliver_the_golden_rows() {
    let mut out = String::new();
    for seed in 0..SEEDS {
        let scenario = Scenario::new(seed);
        let whole = run_whole(seed, Fault::None).expect("nothing is wrong with this seed");
        for (data, entries) in scenario.jobs.iter().zip(&whole.entries) {
            let name = &data.spec.name;
            let fingerprint = data.spec.pipeline.fingerprint();
            writeln!(out, "{seed} {name} {fingerprint} {}", outcome(data, entries)).expect("text grows");
            if data.spec.pipeline.order == OrderMode::Deterministic {
                writeln!(out, "  ends at {}", positions(data, entries)).expect("text grows");
            }
        }
    }
    expect_file!["golden.txt"].assert_eq(&out);
}
