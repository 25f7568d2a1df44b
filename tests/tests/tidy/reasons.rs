//! Exceptions with reasons: a list file contains each exception and the reason that a reviewer accepted.
//!
//! A line is `EXCEPTION # REASON`. A test fails for an exception that is not listed, that has no reason, or that is gone.
//! `UPDATE_TIDY=1` removes exceptions that are gone. A smaller import cycle keeps the reason of the cycle that it was part of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use feedline_tests::root;

/// The fewest words of a reason.
const MIN_WORDS: usize = 6;

/// Compares the exceptions in the code with those in `tests/tests/tidy/NAME`.
#[expect(clippy::disallowed_methods, reason = "a switch for the author of a change, not a setting")]
pub(super) fn check_reasons(name: &str, found: &BTreeSet<String>, advice: &str) {
    let path = root().join("tests/tests/tidy").join(name);
    let mut listed = parse(&fs::read_to_string(&path).unwrap_or_default());
    if std::env::var_os("UPDATE_TIDY").is_some() {
        listed = updated(&listed, found);
        let lines: Vec<String> =
            listed.iter().map(|(exception, reason)| format!("{exception} # {reason}\n")).collect();
        fs::write(&path, lines.concat()).expect("the checkout is writable");
    }
    let complaints = complaints(&listed, found);
    assert!(complaints.is_empty(), "{name}: {advice}\n  {}\n", complaints.join("\n  "));
}

fn parse(text: &str) -> BTreeMap<String, String> {
    let split = |line: &str| {
        let (exception, reason) = line.split_once('#').unwrap_or((line, ""));
        (exception.trim().to_owned(), reason.trim().to_owned())
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(split).collect()
}

/// Keeps the listed exceptions that still exist, and smaller groups of files with the reason of the larger group.
fn updated(listed: &BTreeMap<String, String>, found: &BTreeSet<String>) -> BTreeMap<String, String> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<BTreeSet<_>>();
    let mut kept = BTreeMap::new();
    for exception in found {
        let larger = || listed.iter().find(|(group, _)| words(exception).is_subset(&words(group)));
        if let Some((_, reason)) = listed.get_key_value(exception).or_else(larger) {
            kept.insert(exception.clone(), reason.clone());
        }
    }
    kept
}

fn complaints(listed: &BTreeMap<String, String>, found: &BTreeSet<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for exception in found {
        match listed.get(exception) {
            None => complaints.push(format!("{exception}: not listed")),
            Some(reason) if reason.split_whitespace().count() < MIN_WORDS => {
                complaints.push(format!("{exception}: the reason is missing or too short"));
            }
            Some(_) => {}
        }
    }
    let gone = listed.keys().filter(|exception| !found.contains(*exception));
    complaints.extend(gone.map(|exception| format!("{exception}: gone; UPDATE_TIDY=1 removes the line")));
    complaints
}

#[test]
fn an_exception_needs_a_line_with_a_reason() {
    let found: BTreeSet<String> = ["a.rs b.rs".to_owned()].into();
    let complaints_of = |text: &str| complaints(&parse(text), &found);
    assert!(complaints_of("a.rs b.rs # both parse the same recursive grammar together\n").is_empty());
    assert_eq!(complaints_of(""), ["a.rs b.rs: not listed"]);
    assert_eq!(complaints_of("a.rs b.rs"), ["a.rs b.rs: the reason is missing or too short"]);
    let gone = complaints_of("a.rs b.rs # both parse the same recursive grammar together\nc.rs d.rs # x\n");
    assert_eq!(gone, ["c.rs d.rs: gone; UPDATE_TIDY=1 removes the line"]);
}

#[test]
fn a_smaller_cycle_keeps_the_reason_and_a_new_one_has_none() {
    let listed = parse("a.rs b.rs c.rs # one\nd.rs e.rs # two\n");
    let found: BTreeSet<String> = ["a.rs c.rs".to_owned(), "e.rs f.rs".to_owned()].into();
    assert_eq!(updated(&listed, &found), parse("a.rs c.rs # one\n"));
}
