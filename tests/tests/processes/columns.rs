//! Columns that appear late, values of other types, and the report of skipped rows and of ignored and widened columns.

use feedline_tests::{Call, Scratch};
use serde_json::{Value, json};

/// Writes a pipeline over JSON lines files, and the files.
fn pipeline(scratch: &Scratch, files: &[(&str, &str)], source: &str, on_error: &str) -> String {
    for (name, text) in files {
        scratch.write(name, text);
    }
    let urls: Vec<String> = files.iter().map(|(name, _)| scratch.file(name)).collect();
    let text = format!(
        "name: columns\nsource: {{ url: {urls:?}, format: jsonl{source} }}\non_error: {on_error}\noperators: [ batch: {{ size: 64 }} ]\n"
    );
    scratch.write("columns.yaml", &text)
}

fn run(scratch: &Scratch, file: &str) -> Value {
    scratch.call(&["run", file, "--audit", "--report", "json"]).report()
}

fn error_of(call: &Call) -> &str {
    assert_eq!(call.status, 1, "{call:?}");
    call.stderr.lines().find(|line| line.starts_with("feedline: ")).expect("one sentence")
}

#[test]
fn the_report_lists_skipped_rows_and_ignored_and_widened_columns() {
    let scratch = Scratch::new();
    let rows = "{\"x\":1,\"other\":0}\n".repeat(998);
    let first = format!("{rows}{{\"x\":\"12\"}}\n{{\"x\":true,\"late\":1}}\n");
    let files = [("a.jsonl", first.as_str()), ("b.jsonl", "{\"x\":0.5}\n")];
    let file = pipeline(&scratch, &files, ", features: { x: x }", "skip");
    let report = run(&scratch, &file);
    assert_eq!((&report["rows"], &report["skipped"]["count"]), (&json!(999), &json!(2)), "{report}");
    let audit =
        json!({ "expected": 1001, "once": 999, "skipped": 2, "missing": 0, "repeated": 0, "unexpected": 0 });
    assert_eq!(report["audit"], audit);
    let columns = json!({
        "ignored": ["late", "other"],
        "rounded": [],
        "widened": [{ "column": "x", "from": "int64", "to": "float64" }],
    });
    assert_eq!(report["columns"], columns);
    let reason = report["skipped"]["first"][0]["reason"].as_str().expect("a reason");
    assert!(
        reason.starts_with("column `x`: expected float64") && reason.ends_with("found \"12\""),
        "{reason}"
    );
    let text = scratch.call(&["run", &file, "--audit"]).stdout;
    for line in [
        "audit    1001 rows expected, 999 once, 2 skipped, 0 missing, 0 repeated",
        "ignored  2 columns: late, other",
        "widened  x from int64 to float64",
    ] {
        assert!(text.contains(line), "`{line}` is missing in: {text}");
    }
}

#[test]
fn a_row_of_another_type_fails_the_job_with_its_place() {
    let scratch = Scratch::new();
    let text = format!("{}{{\"x\":\"12\"}}\n", "{\"x\":1}\n".repeat(1_200));
    let file = pipeline(&scratch, &[("a.jsonl", &text)], "", "fail");
    let call = scratch.call(&["run", &file]);
    let said = error_of(&call);
    assert!(said.contains("a.jsonl") && said.contains("row 1200") && said.contains("column `x`"), "{said}");
}

#[test]
fn a_named_column_must_be_in_one_file() {
    let scratch = Scratch::new();
    let files = [("a.jsonl", "{\"id\":1}\n"), ("b.jsonl", "{\"id\":2,\"late\":7}\n")];
    let found = pipeline(&scratch, &files, ", features: { late: late }", "fail");
    assert_eq!(run(&scratch, &found)["rows"], 2);
    let file = pipeline(&scratch, &files, ", features: { late: lated }", "fail");
    let call = scratch.call(&["run", &file]);
    assert!(
        error_of(&call).contains("has a column `lated`") && error_of(&call).contains("did you mean `late`?"),
        "{call:?}"
    );
}
