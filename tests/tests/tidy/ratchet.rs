//! Counts of known faults in text files: a test fails when one grows, and when the file lists more than there is.
//! `UPDATE_TIDY=1` writes the files anew where counts only become smaller.

use std::collections::BTreeMap;
use std::fs;

use feedline_tests::root;

/// How `UPDATE_TIDY=1` may change a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Update {
    /// No count may grow.
    EachKey,
    /// Counts may move between keys, as files and crates are renamed; their sum may not grow.
    Sum,
}

/// Compares counts with those in `tests/tests/tidy/NAME`, one `count key` a line.
#[expect(clippy::disallowed_methods, reason = "a switch for the author of a change, not a setting")]
pub(super) fn hold(name: &str, found: &BTreeMap<String, usize>, update: Update, advice: &str) {
    let path = root().join("tests/tests/tidy").join(name);
    let text = fs::read_to_string(&path);
    let is_new = text.is_err();
    let listed: BTreeMap<String, usize> = text.unwrap_or_default().lines().map(read).collect();
    let may_update = is_new || may_update(&listed, found, update);
    if may_update && std::env::var_os("UPDATE_TIDY").is_some() {
        let lines: Vec<String> = found.iter().map(|(key, count)| format!("{count} {key}\n")).collect();
        fs::write(&path, lines.concat()).expect("the checkout is writable");
        return;
    }
    let complaints = complaints(&listed, found);
    let hint = if may_update { "UPDATE_TIDY=1 records the new counts" } else { advice };
    assert!(complaints.is_empty(), "{name}: {hint}\n  {}\n", complaints.join("\n  "));
}

fn may_update(listed: &BTreeMap<String, usize>, found: &BTreeMap<String, usize>, update: Update) -> bool {
    match update {
        Update::EachKey => found.iter().all(|(key, now)| listed.get(key).is_some_and(|before| now <= before)),
        Update::Sum => found.values().sum::<usize>() <= listed.values().sum::<usize>(),
    }
}

/// What differs: more than is listed, or less.
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

fn read(line: &str) -> (String, usize) {
    let (count, key) = line.split_once(' ').expect("a line is `count key`");
    (key.to_owned(), count.parse().expect("a line begins with a number"))
}

#[test]
fn a_ratchet_reports_growth_and_what_is_gone() {
    let counts =
        |pairs: &[(&str, usize)]| pairs.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect();
    let listed = counts(&[("a", 2), ("b", 1)]);
    assert!(complaints(&listed, &listed).is_empty());
    assert_eq!(complaints(&listed, &counts(&[("a", 3), ("b", 1)])), ["a: 3, at most 2"]);
    assert_eq!(complaints(&listed, &counts(&[("a", 2), ("b", 1), ("c", 1)])), ["c: 1, at most 0"]);
    let gone = complaints(&listed, &counts(&[("a", 2)]));
    assert_eq!(gone, ["b: 0 instead of 1"]);

    let moved = counts(&[("a", 1), ("c", 1)]);
    assert!(may_update(&listed, &moved, Update::Sum) && !may_update(&listed, &moved, Update::EachKey));
    assert!(may_update(&listed, &counts(&[("a", 2)]), Update::EachKey));
    assert!(!may_update(&listed, &counts(&[("a", 4)]), Update::Sum));
}
