//! The documented list of metrics equals the metrics in the code and contains all metrics of a running service.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use feedline_tests::http::{free_ports, get, try_metric};
use feedline_tests::process::Role;
use feedline_tests::{Scratch, call, root, wait_for};

/// Returns the names of metrics in quotes in a text.
fn names_in(text: &str, quote: char) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for name in text.split(quote) {
        let plain = name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
        let known = ["coordinator", "worker", "client", "process", "build", "tls", "disk"];
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
    for crate_folder in
        ["coordinator/src", "worker/src", "worker/sources/src", "client/src", "kubernetes/src", "node/src"]
    {
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
    check_with_promtool(page.split_once("\r\n\r\n").expect("a response has headers and a body").1);
}

/// Checks a page with `promtool check metrics`. Without promtool, it fails in continuous integration only.
#[expect(clippy::disallowed_methods, reason = "`make` and continuous integration set CI")]
fn check_with_promtool(page: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = command.spawn() else {
        let message = "promtool is missing, so the names of metrics are not checked: run `make setup NEEDED=prometheus`";
        assert!(std::env::var_os("CI").is_none_or(|value| value.is_empty()), "{message}");
        eprintln!("{message}");
        return;
    };
    let mut input = promtool.stdin.take().expect("piped above");
    input.write_all(page.as_bytes()).expect("promtool reads its input");
    drop(input);
    let output = promtool.wait_with_output().expect("promtool ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// Gauges that describe the whole cluster.
const LEADER_GAUGES: [&str; 5] = [
    "feedline_coordinator_wanted_workers",
    "feedline_coordinator_fed_fraction",
    "feedline_coordinator_workers",
    "feedline_coordinator_voters",
    "feedline_coordinator_reachable_voters",
];

#[test]
fn only_the_leader_exports_the_gauges_of_the_cluster() {
    let scratch = Scratch::new();
    let addresses = free_ports(3);
    let urls: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let peers = urls.join(",");
    let start = |(place, address): (usize, &String)| {
        let data = scratch.file(&format!("coordinator-{place}"));
        let flags = [
            "coordinator",
            "--listen",
            address,
            "--data-dir",
            &data,
            "--peers",
            &peers,
            "--http",
            "127.0.0.1:0",
        ];
        Role::start(&flags, &[])
    };
    let coordinators: Vec<Role> = addresses.iter().enumerate().map(start).collect();
    let exported = |role: &Role| LEADER_GAUGES.map(|name| try_metric(role.http(), name).is_some());
    // Returns the leader if it exports all gauges, and the other coordinators export none.
    let leader = || {
        let pages: Vec<_> = coordinators.iter().map(exported).collect();
        let absent = pages.iter().filter(|page| **page == [false; LEADER_GAUGES.len()]).count();
        (absent == 2).then(|| pages.iter().position(|page| *page == [true; LEADER_GAUGES.len()])).flatten()
    };
    let first = wait_for("the gauges of the leader", leader);
    let members = call(&["members", "list", "--json", "--coordinator", &peers]);
    let members: serde_json::Value = serde_json::from_str(&members.stdout).expect("a list of members");
    let mut others =
        members.as_array().expect("a list of members").iter().filter(|member| member["leads"] == false);
    let id = others.next().expect("there are two followers")["id"].as_str().expect("text").to_owned();
    assert_eq!(call(&["members", "transfer-leader", &id, "--coordinator", &peers]).status, 0);
    wait_for("the gauges of the new leader", || leader().filter(|leader| *leader != first));
}
