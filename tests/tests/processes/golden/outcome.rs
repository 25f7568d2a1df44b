//! Formats the data that a run delivered as golden lines.

use feedline_tests::{Scratch, assert_clean_with_skipped};
use serde_json::{Value, json};

use super::cases::Case;

/// Runs a case and returns its lines: one for a whole run; two for a run that stops at a limit and is resumed.
pub(crate) fn run_case(scratch: &Scratch, case: &Case) -> Vec<String> {
    scratch.write(&file_of(case, "yaml"), &format!("name: golden\n{}\n", case.pipeline));
    let Some(resumed) = case.resumed else { return vec![run(scratch, case, &case.name, case.arguments)] };
    let first = run(scratch, case, &format!("{} 1", case.name), case.arguments);
    vec![first, run(scratch, case, &format!("{} 2", case.name), resumed)]
}

fn file_of(case: &Case, ending: &str) -> String {
    format!("{}.{ending}", case.name.replace(' ', "-"))
}

fn run(scratch: &Scratch, case: &Case, title: &str, arguments: &[&str]) -> String {
    let (file, position) = (scratch.file(&file_of(case, "yaml")), file_of(case, "position.json"));
    let (indexes, rows) = (file_of(case, "indexes"), file_of(case, "rows"));
    // Cases run at the same time, so nothing is shared between them.
    let own = ["--position", &position, "--index-dir", &indexes, "--cache-dir", &rows];
    let mut all: Vec<&str> = [arguments, &own].concat();
    all.extend(case.python.iter().flat_map(|python| ["--python", python]));
    let report = scratch.run(&file, &all);
    // Replaced rows are delivered.
    let failed = report["skipped"]["count"].as_u64().expect("a count");
    assert_clean_with_skipped(&report, if case.pipeline.contains("on_error: replace") { 0 } else { failed });
    let saved = std::fs::read_to_string(scratch.file(&position)).expect("the run wrote its position");
    let saved: Value = serde_json::from_str(&saved).expect("a position file is JSON");
    format!("{title}: {}", outcome(&report, &saved))
}

/// Returns the part of a report and a position file that depends only on the job.
fn outcome(report: &Value, saved: &Value) -> Value {
    let mut position = saved["position"].clone();
    let fields = position.as_object_mut().expect("a position has fields");
    // Placeholders for paths and times of the scratch directory.
    fields.remove("pipeline");
    fields.remove("dataset");
    fields.remove("content");
    let first = report["skipped"]["first"].as_array().expect("skipped rows are listed");
    let skipped: Vec<Value> = first.iter().map(|row| json!([row["row"], row["offset"]])).collect();
    let mut outcome = json!({
        "rows": report["rows"],
        "content": report["content_digest"],
        "skipped": report["skipped"]["count"],
        "first_skipped": skipped,
        "position": position,
    });
    // A relaxed job delivers the same rows, but its batches depend on timing.
    if position_order(saved) == "deterministic" {
        outcome["batches"] = report["batches"].clone();
        outcome["digest"] = report["digest"].clone();
        outcome["streams"] = saved["digests"].clone();
    }
    outcome
}

fn position_order(saved: &Value) -> &str {
    saved["position"]["order"].as_str().expect("a position names its order")
}
