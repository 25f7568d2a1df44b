//! Counts of known faults in list files. A test fails if a count grows, and if the file lists more than the code contains.
//! `UPDATE_TIDY=1` writes the new counts if they only fall.

use std::collections::BTreeMap;
use std::fs;

use feedline_tests::root;

/// Compares counts with those in `tests/tests/tidy/NAME`, whose lines are `COUNT KEY`. Counts may move between keys, because
/// files and crates are renamed, but their sum may not grow.
#[expect(clippy::disallowed_methods, reason = "a switch for the author of a change, not a setting")]
pub(super) fn check_counts(name: &str, found: &BTreeMap<String, usize>, advice: &str) {
    let path = root().join("tests/tests/tidy").join(name);
    let listed: BTreeMap<String, usize> =
        fs::read_to_string(&path).unwrap_or_default().lines().map(parse_line).collect();
    let may_update = found.values().sum::<usize>() <= listed.values().sum::<usize>();
    if may_update && std::env::var_os("UPDATE_TIDY").is_some() {
        let lines: Vec<String> = found.iter().map(|(key, count)| format!("{count} {key}\n")).collect();
        fs::write(&path, lines.concat()).expect("the checkout is writable");
        return;
    }
    let complaints = complaints(&listed, found);
    let hint = if may_update { "UPDATE_TIDY=1 records the new counts" } else { advice };
    assert!(complaints.is_empty(), "{name}: {hint}\n  {}\n", complaints.join("\n  "));
}

/// Lists the counts that differ.
fn complaints(listed: &BTreeMap<String, usize>, found: &BTreeMap<String, usize>) -> Vec<String> {
    let count = |counts: &BTreeMap<String, usize>, key: &str| counts.get(key).copied().unwrap_or(0);
    let mut complaints = Vec::new();
    for (key, now) in found {
        if *now > count(listed, key) {
            complaints.push(format!("{key}: {now}, at most {}", count(listed, key)));
        }
    }
    for (key, before) in listed {
        if *before > count(found, key) {
            let now = count(found, key);
            complaints.push(format!("{key}: {now} instead of {before}"));
        }
    }
    complaints
}

fn parse_line(line: &str) -> (String, usize) {
    let (count, key) = line.split_once(' ').expect("a line is `COUNT KEY`");
    (key.to_owned(), count.parse().expect("a line begins with a number"))
}

#[test]
fn a_ratchet_reports_counts_that_grow_or_fall() {
    let counts =
        |pairs: &[(&str, usize)]| pairs.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect();
    let listed = counts(&[("a", 2), ("b", 1)]);
    assert!(complaints(&listed, &listed).is_empty());
    assert_eq!(complaints(&listed, &counts(&[("a", 3), ("b", 1)])), ["a: 3, at most 2"]);
    assert_eq!(complaints(&listed, &counts(&[("a", 2), ("b", 1), ("c", 1)])), ["c: 1, at most 0"]);
    let gone = complaints(&listed, &counts(&[("a", 2)]));
    assert_eq!(gone, ["b: 0 instead of 1"]);
}
