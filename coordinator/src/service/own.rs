//! Whether pipelines name files that the coordinator keeps for itself, which a worker on the same host would read.

use std::path::Path;

use feedline_access::{OwnFiles, OwnLook};
use feedline_core::pipeline::Pipeline;
use feedline_core::urls::{expand_braces, local_path};

/// URLs of one pattern that are compared with the coordinator's own files one by one.
const MOST_COMPARED: usize = 16;
/// What makes a URL a pattern, braces aside.
const GLOB: [char; 4] = ['*', '?', '[', ']'];

/// Refuses paths of the coordinator's own files, and folders and globs that come upon one. What links in a folder lead to,
/// workers look at.
pub(super) fn check_own(own: &OwnFiles, pipeline: &Pipeline) -> Result<(), String> {
    let look = own.look();
    for (place, url) in pipeline.reads() {
        let urls = expand_braces(url, MOST_COMPARED).unwrap_or_else(|_| vec![url.to_owned()]);
        for url in &urls {
            check_url(&look, url).map_err(|sentence| format!("{place}: {sentence}"))?;
        }
    }
    Ok(())
}

fn check_url(own: &OwnLook, url: &str) -> Result<(), String> {
    let Some(path) = local_path(url) else { return Ok(()) };
    // A pattern of this directory has no folder before it.
    let is_here = path.is_empty() || path == "/" && !url.starts_with('/') && !url.contains("://");
    let path = Path::new(if is_here { "." } else { path.as_str() });
    let names = Names::of(url);
    own.check(path)?;
    if names.is_pattern || path.is_dir() {
        own.check_listing(path, |found| names.may_find(found))
    } else {
        Ok(())
    }
}

/// What a URL finds in its folder, at least: more is taken for found than a glob finds, and never less.
struct Names<'a> {
    is_pattern: bool,
    /// How the name of a file begins and ends.
    starts: &'a str,
    ends: &'a str,
    /// Files in folders below are found.
    is_deep: bool,
    /// Those whose names, or whose folders' names, begin with a dot.
    are_hidden: bool,
}

impl<'a> Names<'a> {
    fn of(url: &'a str) -> Self {
        let any = Self { is_pattern: true, starts: "", ends: "", is_deep: true, are_hidden: true };
        // Too many braces, or characters that may stand for any other.
        if url.contains(['{', '}', '%']) {
            return any;
        }
        let are_hidden = url.contains("/.");
        let Some(first) = url.find(GLOB) else { return Self { is_pattern: false, are_hidden: false, ..any } };
        let is_deep = url[first..].contains('/') || url.contains("**");
        let name = url.rsplit('/').next().unwrap_or(url);
        let (starts, ends) = match (name.find(GLOB), name.rfind(GLOB)) {
            (Some(first), Some(last)) => (&name[..first], &name[last + 1..]),
            _ => (name, name),
        };
        Self { is_pattern: true, starts, ends, is_deep, are_hidden }
    }

    /// Whether it may find a path, in which `*` stands for any text in a part.
    fn may_find(&self, path: &Path) -> bool {
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        let Some(name) = parts.last() else { return true };
        let is_within = self.is_deep || parts.len() == 1;
        let is_shown = self.are_hidden || !parts.iter().any(|part| part.starts_with('.'));
        is_within && is_shown && self.may_be(name)
    }

    fn may_be(&self, name: &str) -> bool {
        match (name.find('*'), name.rfind('*')) {
            (Some(first), Some(last)) => {
                let (head, tail) = (&name[..first], &name[last + 1..]);
                let begins = head.starts_with(self.starts) || self.starts.starts_with(head);
                begins && (tail.ends_with(self.ends) || self.ends.ends_with(tail))
            }
            _ => name.starts_with(self.starts) && name.ends_with(self.ends),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_find_what_is_named_alike() {
        let finds = |url: &str, path: &str| Names::of(url).may_find(Path::new(path));
        for (url, path) in [
            ("/data/", "records.log"),
            ("/data", "a/records.log"),
            ("/data/*", "records.log"),
            ("/data/rec*.l?g", "records.log"),
            ("/data/*.i*x", "*.index"),
            ("/data/[a-z]*.index", "*.index"),
            ("/data/**/*.rows", "rows/*"),
            ("/data/*/x.rows", "*/*.rows"),
            ("/data/.keys/*", "token"),
            ("/data/*/.keys/token", "a/.keys/token"),
            ("file:///data/%2A", "records.log"),
        ] {
            assert!(finds(url, path), "{url} {path}");
        }
        for (url, path) in [
            ("/data/", ".keys/token"),
            ("/data/*.jsonl", "records.log"),
            ("/data/*.jsonl", "*.index"),
            ("/data/*", "index/a.index"),
            ("/data/train-*", "records.log"),
            ("/data/*/*.tar", "index/*.index"),
        ] {
            assert!(!finds(url, path), "{url} {path}");
        }
    }
}
