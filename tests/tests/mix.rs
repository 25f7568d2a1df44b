//! Several datasets in one job: in proportion to weights, exactly once, and the same on any workers and after a stop.

use feedline_tests::{Scratch, assert_clean, embedded};
use serde_json::Value;

/// Two datasets of other formats with the same column: 300 and 100 rows.
fn pipeline(scratch: &Scratch, stop: &str) -> String {
    let lines = |name: &str, rows: u32| (0..rows).map(|row| format!("{name} {row}")).collect::<Vec<_>>();
    let text = scratch.write("a.txt", &lines("a", 300).join("\n"));
    let json: Vec<String> = lines("b", 100).iter().map(|line| format!("{{\"body\": \"{line}\"}}")).collect();
    let json = scratch.write("b.jsonl", &json.join("\n"));
    let yaml = format!(
        "name: mixed\nsource:\n  mix:\n    - {{ weight: 1, url: {text}, format: text }}\n    - {{ weight: 1, url: {json}, format: jsonl, features: {{ text: body }} }}\n  stop: {stop}\nseed: 3\nshuffle: {{ window: 32 }}\noperators: [ batch: {{ size: 20 }} ]\n"
    );
    scratch.write("mixed.yaml", &yaml)
}

fn texts(scratch: &Scratch, stop: &str) -> Vec<String> {
    let yaml = std::fs::read_to_string(pipeline(scratch, stop)).expect("it was written");
    let mut found = Vec::new();
    embedded::for_each_batch(scratch.path(), &yaml, |records| found.extend(embedded::texts(records, "text")));
    found
}

#[test]
fn rows_come_in_proportion_until_the_mix_stops() {
    let scratch = Scratch::new();
    let all = texts(&scratch, "all");
    let of_b = |rows: &[String]| rows.iter().filter(|row| row.starts_with('b')).count();
    assert_eq!((all.len(), of_b(&all)), (400, 100));
    // As many of each, as long as there are of both.
    assert!(all[..200].chunks(20).all(|batch| of_b(batch) == 10), "{:?}", &all[..20]);
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 400);
    let first = texts(&scratch, "first");
    assert_eq!((first.len(), of_b(&first)), (200, 100));
    let restarted = texts(&scratch, "restart");
    assert_eq!(
        (restarted.len(), of_b(&restarted)),
        (599, 299),
        "the last row of the longer one ends the pass"
    );
    let of_first_round: Vec<&String> =
        restarted.iter().filter(|row| row.starts_with('b')).take(100).collect();
    assert_eq!(of_first_round.iter().collect::<std::collections::BTreeSet<_>>().len(), 100);
    let second: Vec<&String> =
        restarted.iter().filter(|row| row.starts_with('b')).skip(100).take(100).collect();
    assert_ne!(of_first_round, second, "a dataset that is begun again has another order");
}

#[test]
fn a_mix_is_audited_and_the_same_on_other_workers_and_after_a_stop() {
    let scratch = Scratch::new();
    for stop in ["all", "first", "restart"] {
        let file = pipeline(&scratch, stop);
        let run = |flags: &[&str]| -> Value {
            let report = scratch.run(&file, &[&["--epochs", "2", "--consumers", "2"], flags].concat());
            assert_clean(&report);
            report
        };
        let one = run(&[]);
        let three = run(&["--workers", "3"]);
        assert_eq!(one["digest"], three["digest"], "{stop}");
        let position = scratch.file(&format!("{stop}.json"));
        run(&["--limit", "150", "--position", &position]);
        let rest = run(&["--position", &position]);
        assert_eq!(one["digest"], rest["digest"], "{stop}");
    }
}
