//! The globs and braces of a URL, and globs that are relative to a directory.

use glob::{MatchOptions, Pattern, PatternError};

use crate::location::Location;
use crate::stores::ScopedStores;

pub(super) const GLOB_CHARACTERS: [char; 3] = ['*', '?', '['];
const PATTERN_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];

/// `*` matches neither `/` nor a dot at the start of a name.
const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Whether a URL is a glob or a brace pattern. The path of an existing local file or directory is not a pattern.
pub(crate) fn is_pattern(reads: &ScopedStores, location: &Location) -> bool {
    location.rest.contains(PATTERN_CHARACTERS) && !is_local_path(reads, location)
}

/// Expands the braces in the path of a URL, except those in the names of existing local files and directories. Returns an error
/// message for a pattern with too many paths.
pub(crate) fn expand(reads: &ScopedStores, location: &Location) -> Result<Vec<String>, String> {
    if !is_pattern(reads, location) {
        return Ok(vec![location.rest.clone()]);
    }
    let (folder, pattern) = split_at_pattern(reads, location, &PATTERN_CHARACTERS);
    let expanded = ScopedStores::expand(pattern)?;
    Ok(expanded.into_iter().map(|pattern| format!("{folder}{pattern}")).collect())
}

/// Splits a path without braces at the end of the directory before the first glob, or before the last name.
pub(crate) fn split_at_glob<'a>(reads: &ScopedStores, location: &'a Location) -> (&'a str, &'a str) {
    split_at_pattern(reads, location, &GLOB_CHARACTERS)
}

/// Splits a path into its directory and the part from the first name that is a pattern.
fn split_at_pattern<'a>(
    reads: &ScopedStores,
    location: &'a Location,
    characters: &[char],
) -> (&'a str, &'a str) {
    let path = location.rest.as_str();
    let mut start = 0;
    while let Some(slash) = path[start..].find('/').map(|at| start + at) {
        let part = Location { rest: path[..slash].to_owned(), ..location.clone() };
        if path[start..slash].contains(characters) && !is_local_path(reads, &part) {
            break;
        }
        start = slash + 1;
    }
    path.split_at(start)
}

/// Whether a local file or directory has this path, even if the path contains characters of patterns.
pub(super) fn is_local_path(reads: &ScopedStores, location: &Location) -> bool {
    location.is_local()
        && reads.check_object(location).is_ok()
        && std::fs::symlink_metadata(&location.rest).is_ok()
}

/// A glob.
#[derive(Debug)]
pub(super) struct PathPattern {
    whole: Pattern,
    /// The parts between slashes. Empty if a part is not a valid glob.
    parts: Vec<Pattern>,
}

impl PathPattern {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let whole = Pattern::new(text).map_err(|error| format!("invalid glob: {}", error.msg))?;
        let parts: Result<Vec<Pattern>, PatternError> = text.split('/').map(Pattern::new).collect();
        Ok(Self { whole, parts: parts.unwrap_or_default() })
    }

    pub(super) fn as_str(&self) -> &str {
        self.whole.as_str()
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        self.whole.matches_with(path, OPTIONS)
    }

    /// The number of directories and the name of the longest matching path. `None` if there is no maximum.
    pub(super) fn max_depth(&self) -> Option<usize> {
        let is_bounded = !self.parts.is_empty() && !self.parts.iter().any(is_recursive);
        is_bounded.then_some(self.parts.len())
    }

    /// Whether a directory may contain matching paths.
    pub(super) fn may_match_below(&self, folder: &str) -> bool {
        if self.parts.is_empty() {
            return true;
        }
        let mut parts = self.parts.as_slice();
        let mut names = folder.split('/');
        while let [part, rest @ ..] = parts {
            if is_recursive(part) {
                // `**` does not match hidden directories, but a later part may.
                let has_hidden_part = rest.iter().any(|part| part.as_str().starts_with('.'));
                return has_hidden_part || !names.any(|name| name.starts_with('.'));
            }
            match names.next() {
                None => return true,
                Some(name) if !part.matches_with(name, OPTIONS) => return false,
                Some(_) => parts = rest,
            }
        }
        false
    }
}

fn is_recursive(part: &Pattern) -> bool {
    part.as_str() == "**"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_cannot_contain_matches_are_known() {
        let below = |pattern: &str, folder: &str| PathPattern::new(pattern).unwrap().may_match_below(folder);
        for (pattern, folder, may_match) in [
            ("*.tar", "a", false),
            ("*/x.tar", "a", true),
            ("*/x.tar", ".a", false),
            ("*/x.tar", "a/b", false),
            ("a/*/x.tar", "b", false),
            ("a/*/x.tar", "a/b", true),
            ("**/x.tar", "a/b/c", true),
            ("**/x.tar", "a/.b", false),
            ("**/.b/*", "a/.b", true),
            ("a/**", "a", true),
            ("a/**", "b/c", false),
            ("[a/b]*", "c", true),
        ] {
            assert_eq!(below(pattern, folder), may_match, "{pattern} {folder}");
        }
        let depth = |pattern: &str| PathPattern::new(pattern).unwrap().max_depth();
        assert_eq!([depth("*"), depth("a/*"), depth("**/*"), depth("[a/b]")], [Some(1), Some(2), None, None]);
    }
}
