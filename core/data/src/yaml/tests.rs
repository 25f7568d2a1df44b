//! Tests of the types of values, of limits, and of errors that are not specific to pipelines.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde::Deserialize;

use super::{format as to_yaml, parse};

/// A field of each type that files have.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields {
    count: Option<u32>,
    large: Option<u64>,
    share: Option<f64>,
    flag: Option<bool>,
    name: String,
    optional: Option<String>,
    names: BTreeMap<String, String>,
    nested: BTreeMap<String, Vec<u32>>,
    untyped: Option<NumberOrText>,
    flattened: Option<Flattened>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Float(f64),
    Flag(bool),
    Text(String),
}

#[derive(Debug, PartialEq, Deserialize)]
struct Flattened {
    name: String,
    #[serde(flatten)]
    rest: BTreeMap<String, NumberOrText>,
}

fn fields(text: &str) -> Fields {
    parse(text).unwrap_or_else(|error| panic!("{}", error.message(text)))
}

fn check(text: &str, expect: Expect) {
    expect.assert_eq(&parse::<Fields>(text).unwrap_err().message("f.yaml"));
}

#[test]
fn numbers_follow_yaml_1_2() {
    for (text, count) in [("7", 7), ("+7", 7), ("0x1F", 31), ("0o17", 15), ("4294967295", u32::MAX)] {
        assert_eq!(fields(&format!("count: {text}")).count, Some(count), "{text}");
    }
    assert_eq!(fields("large: 18446744073709551615").large, Some(u64::MAX));
    for text in ["017", "1e3", "1.0", "-1", "4294967296", "yes", "340282366920938463463374607431768211455"] {
        let error = parse::<Fields>(&format!("count: {text}")).unwrap_err().message("f.yaml");
        assert!(
            error.starts_with("f.yaml:1: count must be a whole number from 0 to 4294967295, got"),
            "{error}"
        );
    }
    for (text, share) in
        [("1e3", 1e3), ("5", 5.0), (".5", 0.5), (".inf", f64::INFINITY), ("-.Inf", -f64::INFINITY)]
    {
        assert_eq!(fields(&format!("share: {text}")).share, Some(share), "{text}");
    }
    assert!(fields("share: .nan").share.unwrap().is_nan());
    for text in ["inf", "nan", "infinity", "1e999", "0x10", "1:30"] {
        let error = parse::<Fields>(&format!("share: {text}")).unwrap_err().message("f.yaml");
        assert!(error.starts_with("f.yaml:1: share must be a number"), "{error}");
    }
}

#[test]
fn only_true_and_false_are_booleans() {
    assert_eq!((fields("flag: true").flag, fields("flag: FALSE").flag), (Some(true), Some(false)));
    check("flag: yes", expect!["f.yaml:1: flag must be true or false, got text `yes`"]);
    check("flag: on", expect!["f.yaml:1: flag must be true or false, got text `on`"]);
    check("flag: 1", expect!["f.yaml:1: flag must be true or false, got 1"]);
}

#[test]
fn text_keeps_its_spelling() {
    for text in [
        "yes",
        "no",
        "on",
        "017",
        "0o17",
        "0x1F",
        "1e3",
        "1.10",
        "1_000",
        "true",
        ".inf",
        "2024-01-01",
        "~",
        "null",
        "<<",
    ] {
        assert_eq!(fields(&format!("name: {text}")).name, text);
        assert_eq!(fields(&format!("names: {{a: {text}}}")).names["a"], text);
    }
    assert_eq!(
        fields("names: {017: a, true: b, 1.0: c}").names.keys().collect::<Vec<_>>(),
        ["017", "1.0", "true"]
    );
    assert_eq!(fields("name:").name, "");
    assert_eq!(fields("name: \"a\\tb\\u00e9\"").name, "a\tb\u{e9}");
    assert_eq!(fields("name: |\n  a\n   b\n").name, "a\n b\n");
    for text in ["~", "null", ""] {
        assert_eq!(fields(&format!("optional: {text}")).optional, None);
    }
    assert_eq!(fields("optional: 'null'").optional.as_deref(), Some("null"));
}

#[test]
fn untyped_values_follow_yaml_1_2() {
    let text = |text: &str| NumberOrText::Text(text.to_owned());
    for (source, value) in [
        ("7", NumberOrText::Number(7)),
        ("0o17", NumberOrText::Number(15)),
        ("1e3", NumberOrText::Float(1e3)),
        (".inf", NumberOrText::Float(f64::INFINITY)),
        ("true", NumberOrText::Flag(true)),
        ("yes", text("yes")),
        ("017", text("017")),
        ("1_000", text("1_000")),
        ("'7'", text("7")),
        ("!!str 7", text("7")),
        ("1:30", text("1:30")),
    ] {
        assert_eq!(fields(&format!("untyped: {source}")).untyped, Some(value), "{source}");
    }
    let flattened = fields("flattened: {name: 5, a: no, b: 2}").flattened;
    let flattened = flattened.expect("the field is set");
    assert_eq!(
        (flattened.rest["a"] == text("no"), flattened.rest["b"] == NumberOrText::Number(2)),
        (true, true)
    );
}

#[test]
fn keys_appear_once_and_are_not_merged() {
    check(
        "names:\n  a: b\n  c: d\n  a: e\n",
        expect!["f.yaml:4: key `a` appears twice in names; remove one of them"],
    );
    check(
        "name: a\nflag: true\nname: b\n",
        expect!["f.yaml:3: key `name` appears twice; remove one of them"],
    );
    check(
        "names: &n {a: b}\nnested:\n  <<: {}\n",
        expect!["f.yaml:3: merge keys (`<<`) are not supported; write the keys in each mapping"],
    );
    assert_eq!(fields("names: {'<<': a}").names["<<"], "a");
}

#[test]
fn aliases_are_expanded() {
    assert_eq!(fields("nested: {a: &list [1, 2], b: *list}").nested["b"], [1, 2]);
    check(
        "nested: {a: &list [1, x], b: *list}",
        expect!["f.yaml:1: nested.a[1] must be a whole number from 0 to 4294967295, got text `x`"],
    );
}

#[test]
fn errors_name_the_line_and_the_fix() {
    check(
        "nmae: a",
        expect![
            "f.yaml:1: unknown key `nmae`; did you mean `name`? (known: count, large, share, flag, name, optional, names, nested, untyped, flattened)"
        ],
    );
    check(
        "name: !secret a",
        expect!["f.yaml:1: the tag `!secret` is not supported; remove it, or put the text in quotes"],
    );
    check(
        "name: a\n---\nname: b\n",
        expect![
            "f.yaml:3: the file contains several YAML documents; keep one document and remove the second `---`"
        ],
    );
    check(
        "nested:\n\ta: [1]\n",
        expect!["f.yaml:2: the line is indented with a tab, which YAML does not allow; use spaces"],
    );
    check(
        "nested:\n  # a: [1]\n",
        expect!["f.yaml:1: nested must be a mapping, got nothing; remove the key, or add its content"],
    );
    check("nested:\n  a: 1\n", expect!["f.yaml:2: nested.a must be a list, got 1"]);
    check("- a", expect!["f.yaml:1: the file must be a mapping, got a list"]);
    check("---\n", expect!["f.yaml: the file is empty; write a mapping with the required keys"]);
    check(
        "name: 'a",
        expect![
            "f.yaml:1: invalid YAML: unclosed quote; check the brackets, quotes and indentation of this line and the previous lines"
        ],
    );
    check(
        "name: \"\\q\"",
        expect![
            "f.yaml:1: invalid YAML: while parsing a quoted scalar, found unknown escape character; check the brackets, quotes and indentation of this line and the previous lines"
        ],
    );
    check(
        "name: a\0b",
        expect![[
            r#"f.yaml:1: invalid YAML: unexpected character: `\u{0}'; check the brackets, quotes and indentation of this line and the previous lines"#
        ]],
    );
    assert_eq!(fields(""), Fields::default());
    assert_eq!(fields("%YAML 1.2\n---\nname: a\n...\n").name, "a");
    assert_eq!(fields("\u{feff}name: a\r\ncount: 1\r\n").name, "a");
}

#[test]
fn nested_aliases_are_limited() {
    let mut bomb = format!("a0: &a0 [{}x]\n", "x, ".repeat(99));
    for level in 1..9 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{}]\n", before.trim_end_matches(", "));
    }
    let error = parse::<serde_json::Value>(&bomb).unwrap_err().message("f.yaml");
    assert!(error.contains("more than 200000 values after alias expansion"), "{error}");
}

#[test]
fn many_values_and_deep_nesting_are_limited() {
    let many = format!("[{}]", "1,".repeat(200_001));
    let deep = [format!("a: {}", "[".repeat(500_000)), "- ".repeat(100_000), "? ".repeat(1_000)];
    for text in deep.iter().chain([&many]) {
        let error = parse::<serde_json::Value>(text).unwrap_err().message("f.yaml");
        assert!(error.starts_with("f.yaml") && error.contains("more than"), "{error}");
    }
    let deep: Result<serde_json::Value, _> = parse(&format!("{}{}", "[".repeat(60), "]".repeat(60)));
    assert!(deep.is_ok(), "{deep:?}");
}

/// Text that a parser could read as another type or as syntax.
const AMBIGUOUS: [&str; 44] = [
    "",
    " ",
    "yes",
    "no",
    "on",
    "y",
    "true",
    "False",
    "~",
    "null",
    "Null",
    "017",
    "0o17",
    "0x1F",
    "1e3",
    "1_000",
    ".5",
    ".inf",
    "-.INF",
    ".nan",
    "+7",
    "1:30",
    "2024-01-01",
    "<<",
    "=",
    "-",
    "- a",
    "--- a",
    "...",
    "? a",
    "a: b",
    "a:",
    "#a",
    "a #b",
    "*a",
    "&a",
    "!a",
    "%a",
    "@a",
    "`a",
    " a ",
    "a\nb\n\n",
    "\u{85}\u{2028}\u{feff}",
    "\"'\\\t\r\0",
];

#[test]
fn ambiguous_text_round_trips() {
    for text in AMBIGUOUS {
        let map = BTreeMap::from([(text.to_owned(), vec![text.to_owned(), format!("{text}{text}")])]);
        let formatted = to_yaml(&map).unwrap();
        assert_eq!(parse(&formatted), Ok(map), "{formatted}");
    }
    let long = BTreeMap::from([("a", "word ".repeat(100) + "end")]);
    assert_eq!(to_yaml(&long).unwrap().lines().count(), 1);
    expect![[r#"
        a: |
          def f(x):
            return x
    "#]]
    .assert_eq(&to_yaml(&BTreeMap::from([("a", "def f(x):\n  return x\n")])).unwrap());
}

proptest! {
    #[test]
    fn text_round_trips(key in "\\PC{0,8}|[ -~\n\t]{0,8}", value in any::<String>(), lines in "[ a\n\t#:-]{0,12}") {
        let map = BTreeMap::from([(key, vec![value, lines])]);
        let text = to_yaml(&map).unwrap();
        prop_assert_eq!(parse(&text), Ok(map), "{}", text);
    }
}
