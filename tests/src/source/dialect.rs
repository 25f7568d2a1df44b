//! Phrases that read like a translation, in comments, messages and documents.

use std::collections::BTreeMap;

use regex::{Regex, RegexBuilder};

use super::checkout::Checkout;
use super::prose::prose;

/// Rejected phrases and their replacements. A match that includes a group is an exception.
pub const PHRASES: [(&str, &str); 21] = [
    (
        r"\b(there )?(?:is|are|was|were) no (longer|more\b)?",
        "say what is wrong: \"X is not a Y\", \"invalid X\"",
    ),
    (r"\btold\b", "receives, is set to, is notified"),
    (r"\b(?:stands?|stood)\b", "is, is stored, is at position"),
    (r"\bso many\b", "the number of, this many"),
    (r"\bso long\b", "this duration, for N seconds"),
    (r"\bwhat became of\b", "the outcome of"),
    (r"\bwhat (?:waits|comes|came|goes|went)\b", "name the thing: requests, input, output"),
    (r"\bwhat comes? of\b", "the outcome of"),
    (r"\bha[sd] had\b|\bhave had\b", "has received"),
    (r"\bof (?:its|their|one's) own accord\b", "without a request"),
    (r"\baskers?\b", "client, caller"),
    (r"\bg(?:ives?|ave|iven|iving) back\b", "returns, releases"),
    (r"\blets? go\b", "releases"),
    (r"\bknows? (?:nothing )?of\b", "stores, depends on"),
    (r"\btells? (?:of|it|them|what|that|how)\b", "reports, sends, returns"),
    (r"\b(?:says? of|said of)\b", "reports about"),
    (r"\b(?:lies?|lay|lain) (?:in|there|here|on|at)\b", "is in, is stored in"),
    (r"\bin vain\b", "without success"),
    (r"\bat hand\b", "available"),
    (r"\bshall\b", "must, is to"),
    (
        r"\b(?:upon|thrice|thence|whence|wherein|therein|thereof|whereof|thereby)\b",
        "on, three times, from there",
    ),
];

/// A rejected phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialectHit {
    /// `path:line`.
    pub place: String,
    /// The phrase as written in the text.
    pub phrase: String,
    /// The suggested replacement.
    pub advice: &'static str,
}

/// Returns the hits by package. Text outside all packages is assigned to `documents`.
pub fn dialect(checkout: &Checkout) -> Result<BTreeMap<String, Vec<DialectHit>>, String> {
    let phrases: Vec<(Regex, &'static str)> =
        PHRASES.into_iter().map(|(regex, advice)| (build(regex), advice)).collect();
    let mut hits: BTreeMap<String, Vec<DialectHit>> = BTreeMap::new();
    for (path, text) in checkout.files.iter().filter(|(path, _)| is_read(path)) {
        let package = checkout.package_of(path).unwrap_or("documents");
        for (line, part) in parts(path, text)? {
            hits.entry(package.to_owned()).or_default().extend(hits_in(&phrases, path, line, &part));
        }
    }
    Ok(hits)
}

/// Whether a file is checked. Files that define the phrases are excluded.
fn is_read(path: &str) -> bool {
    let endings = [".rs", ".md", ".py", ".pyi", ".proto", ".yaml", ".toml", "Makefile"];
    endings.iter().any(|ending| path.ends_with(ending)) && !path.ends_with("/source/dialect.rs")
}

/// Returns the text to check with its line numbers: comments and strings of Rust files, and the whole text of other
/// files. The names of serde in persistent formats are excluded, because they cannot change.
fn parts(path: &str, text: &str) -> Result<Vec<(usize, String)>, String> {
    if !path.ends_with(".rs") {
        return Ok(text.lines().enumerate().map(|(index, line)| (index + 1, line.to_owned())).collect());
    }
    let prose = prose(text).map_err(|error| format!("{path}:{error}"))?;
    let comments = prose.comments.into_iter().map(|comment| (comment.first_line, comment.text));
    let lines: Vec<&str> = text.lines().collect();
    let is_serde_name = |line: usize| lines.get(line - 1).is_some_and(|line| line.contains("serde(rename"));
    let strings = prose.strings.into_iter().filter(|string| !is_serde_name(string.line));
    Ok(comments.chain(strings.map(|string| (string.line, string.text))).collect())
}

fn hits_in(phrases: &[(Regex, &'static str)], path: &str, first_line: usize, part: &str) -> Vec<DialectHit> {
    // A phrase may span two lines. The replacement does not change positions in the text.
    let flat = part.replace('\n', " ");
    let mut hits = Vec::new();
    for (regex, advice) in phrases {
        for found in regex.captures_iter(&flat) {
            let is_exception = found.iter().skip(1).any(|group| group.is_some());
            if let (Some(whole), false) = (found.get(0), is_exception) {
                let line = first_line + part[..whole.start()].matches('\n').count();
                let phrase = whole.as_str().trim().to_owned();
                hits.push(DialectHit { place: format!("{path}:{line}"), phrase, advice });
            }
        }
    }
    hits
}

fn build(regex: &str) -> Regex {
    RegexBuilder::new(regex).case_insensitive(true).build().expect("the phrases are valid expressions")
}

#[cfg(test)]
mod tests {
    use super::super::checkout::Target;
    use super::*;

    #[test]
    fn phrases_are_found_in_comments_strings_and_pages() {
        let files = [
            (
                "one/src/lib.rs",
                "//! It is\n//! told so many\n//! rows.\nfn told() { f(\"`x` is no size; there is no file, it is no longer\"); }\n#[serde(rename = \"stands\")]\nstruct A;\n",
            ),
            ("docs/page.md", "Fine.\nNow it stands there.\n"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let checkout = Checkout { files, targets: vec![Target::library("one", "one/src/lib.rs")] };
        let hits = dialect(&checkout).unwrap();
        let shown = |package: &str| -> Vec<String> {
            let mut hits: Vec<_> =
                hits[package].iter().map(|hit| format!("{} {}", hit.place, hit.phrase)).collect();
            hits.sort();
            hits
        };
        assert_eq!(
            shown("one"),
            ["one/src/lib.rs:2 so many", "one/src/lib.rs:2 told", "one/src/lib.rs:4 is no"]
        );
        assert_eq!(shown("documents"), ["docs/page.md:2 stands"]);
    }
}
