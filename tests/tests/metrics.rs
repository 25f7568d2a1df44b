//! The documented list of metrics equals the metrics in the code and contains all metrics of a running service.

use std::collections::BTreeSet;
use std::path::Path;

use feedline_tests::http::get;
use feedline_tests::process::Role;
use feedline_tests::{Scratch, root};

/// Returns the names of metrics in quotes in a text.
fn names_in(text: &str, quote: char) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for name in text.split(quote) {
        let plain = name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
        let known = ["coordinator", "worker", "client", "process", "build", "tls"];
        let role = name.strip_prefix("feedline_").and_then(|rest| rest.split('_').next());
        if plain
            && !name.ends_with('_')
            && role.is_some_and(|role| known.contains(&role))
            && name.matches('_').count() >= 2
        {
            names.insert(name.to_owned());
        }
    }
    names
}

fn sources(folder: &Path, found: &mut String) {
    for entry in std::fs::read_dir(folder).expect("the repository is readable") {
        let path = entry.expect("the repository is readable").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push_str(&std::fs::read_to_string(&path).expect("sources are text"));
        }
    }
}

fn documented() -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).expect("docs/metrics.md exists");
    names_in(&page, '`')
}

#[test]
fn the_page_lists_exactly_the_metrics_of_the_code() {
    let mut text = String::new();
    for crate_folder in ["coordinator/src", "worker/src", "client/src", "node/src"] {
        sources(&root().join(crate_folder), &mut text);
    }
    let code = names_in(&text, '"');
    assert!(code.len() > 10, "{code:?}");
    let missing: Vec<_> = code.difference(&documented()).cloned().collect();
    assert!(missing.is_empty(), "add to docs/metrics.md: {missing:?}");
    let gone: Vec<_> = documented().difference(&code).cloned().collect();
    assert!(gone.is_empty(), "remove from docs/metrics.md: {gone:?}");
}

#[test]
fn a_running_service_exports_documented_metrics() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "500"]);
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 10 }} ]",
        scratch.file("table")
    );
    let file = scratch.write("job.yaml", &text);
    let up = Role::start(&["up", "--listen", "127.0.0.1:0", "--workers", "1", "--http", "127.0.0.1:0"], &[]);
    let report = scratch.run(&file, &["--coordinator", &up.url()]);
    assert_eq!(report["rows"], 500);
    for path in ["/healthz", "/readyz"] {
        assert!(get(up.http(), path).starts_with("HTTP/1.1 200"), "{path}");
    }
    let page = get(up.http(), "/metrics");
    let shown: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with("# TYPE "))
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .collect();
    assert!(shown.contains("feedline_worker_sent_rows_total"), "{page}");
    assert!(shown.contains("feedline_coordinator_jobs"), "{page}");
    let listed = documented();
    let unknown: Vec<_> = shown.difference(&listed).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
