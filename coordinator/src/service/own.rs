//! Checks that pipelines do not read the coordinator's files. A worker on the same host could read them.

use std::path::Path;

use feedline_access::{ProtectedFiles, ProtectedFilesSnapshot};
use feedline_data::pipeline::Pipeline;
use feedline_data::urls::{expand_braces, local_path, local_pattern};

/// Maximum number of URLs after the expansion of the braces in a pattern.
const MAX_EXPANDED_URLS: usize = 16;
/// The special characters in patterns. Braces remain if they expand to too many paths.
const PATTERN_CHARS: [char; 6] = ['*', '?', '[', ']', '{', '}'];

/// Rejects paths of the coordinator's own files, and directories and globs that include these files. Workers check links.
pub(super) fn check_own(own: &ProtectedFiles, pipeline: &Pipeline) -> Result<(), String> {
    let look = own.snapshot();
    for (place, url) in pipeline.read_locations() {
        let urls = expand_braces(url, MAX_EXPANDED_URLS).unwrap_or_else(|_| vec![url.to_owned()]);
        for url in &urls {
            check_url(&look, url).map_err(|sentence| format!("{place}: {sentence}"))?;
        }
    }
    Ok(())
}

fn check_url(own: &ProtectedFilesSnapshot, url: &str) -> Result<(), String> {
    let (Some(path), Some(pattern)) = (local_path(url), local_pattern(url)) else { return Ok(()) };
    // A pattern without a directory matches files in the current directory.
    let is_here = path.is_empty() || path == "/" && !url.starts_with('/') && !url.contains("://");
    let path = Path::new(if is_here { "." } else { path.as_str() });
    let names = Names::of(&pattern);
    own.check(path)?;
    if names.is_pattern || path.is_dir() {
        own.check_listing(path, |found| names.may_match(found))
    } else {
        Ok(())
    }
}

/// The names that a path or pattern can match in its directory: a superset of the matches of the glob.
struct Names<'a> {
    is_pattern: bool,
    /// The fixed start and end of a file name.
    prefix: &'a str,
    suffix: &'a str,
    /// Whether files in subdirectories match.
    includes_subfolders: bool,
    /// Whether hidden files, and files in hidden directories, match.
    includes_hidden: bool,
}

impl<'a> Names<'a> {
    fn of(pattern: &'a str) -> Self {
        let any = Self {
            is_pattern: true,
            prefix: "",
            suffix: "",
            includes_subfolders: true,
            includes_hidden: true,
        };
        let Some(first) = pattern.find(PATTERN_CHARS) else {
            return Self { is_pattern: false, includes_hidden: false, ..any };
        };
        // With alternative directories, a file may have any name.
        if pattern.find('{').is_some_and(|brace| pattern[brace..].contains('/')) {
            return any;
        }
        let includes_hidden =
            ["/.", "{.", ",."].iter().any(|dot| pattern.contains(dot)) || may_begin_with_dot(pattern);
        let includes_subfolders = pattern[first..].contains('/') || pattern.contains("**");
        let name = pattern.rsplit('/').next().unwrap_or(pattern);
        let (prefix, suffix) = match (name.find(PATTERN_CHARS), name.rfind(PATTERN_CHARS)) {
            (Some(first), Some(last)) => (&name[..first], &name[last + 1..]),
            _ => (name, name),
        };
        Self { is_pattern: true, prefix, suffix, includes_subfolders, includes_hidden }
    }

    /// Returns whether the pattern may match a path, in which `*` matches any text in a component.
    fn may_match(&self, path: &Path) -> bool {
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        let Some(name) = parts.last() else { return true };
        let is_within = self.includes_subfolders || parts.len() == 1;
        let is_shown = self.includes_hidden || !parts.iter().any(|part| part.starts_with('.'));
        is_within && is_shown && self.may_match_name(name)
    }

    fn may_match_name(&self, name: &str) -> bool {
        match (name.find('*'), name.rfind('*')) {
            (Some(first), Some(last)) => {
                let (head, tail) = (&name[..first], &name[last + 1..]);
                let begins = head.starts_with(self.prefix) || self.prefix.starts_with(head);
                begins && (tail.ends_with(self.suffix) || self.suffix.ends_with(tail))
            }
            _ => name.starts_with(self.prefix) && name.ends_with(self.suffix),
        }
    }
}

/// Returns whether a name starts with braces that may expand to nothing, followed by a dot.
fn may_begin_with_dot(pattern: &str) -> bool {
    pattern.contains("}.") && (pattern.contains("/{") || pattern.starts_with('{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_the_names_of_own_files() {
        let finds =
            |url: &str, path: &str| Names::of(&local_pattern(url).unwrap()).may_match(Path::new(path));
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
            ("file:///data/%7B000..999%7D", "records.log"),
            ("file:///data%2Frec*", "records.log"),
            ("/data/{a,b}/{0..99}/x", "a/records.log"),
            ("/data/rec{o,ords,x}.log", "records.log"),
            ("/data/{000..999}.index", "*.index"),
            ("/data/*/x{000..999}.log", "a/x1.log"),
            ("/data/{.keys,x}{000..999}", ".keys1"),
            ("/data/{x,.keys}{000..999}", ".keys1"),
            ("/data/{,x}{,y}.keys", ".keys"),
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
            ("/users/u/train-{00000..00146}.tar", ".cache/feedline/index/*.index"),
            ("/users/u/train-{00000..00146}.tar", "records.log"),
            ("/data/{000..999}.tar", "feedline/records.log"),
            ("/data/{000..999}.tar", "records.log"),
            ("/data/*/x-{000..999}", ".cache/x-1"),
            ("file:///users/u/my%20data/*.jsonl", "index/*.index"),
            ("file:///users/u/my%20data/*.jsonl", "records.log"),
            ("/data/100%/x-*", "records.log"),
            ("/data/100%/x-*", "index/x-*"),
        ] {
            assert!(!finds(url, path), "{url} {path}");
        }
    }

    #[test]
    fn many_alternatives_next_to_own_files_are_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in [".cache/feedline/index", "my data"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        for name in [".cache/feedline/index/1.index", "records.log", "my data/1.index"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let own = [".cache/feedline/index/*.index", "records.log", "my data/*.index"].map(at);
        let own = ProtectedFiles::new(own);
        let shown = folder.path().display();
        let check = |url: &str| {
            let text = format!(
                "name: a\nsource: {{ url: \"{url}\", format: text }}\noperators: [ batch: {{ size: 4 }} ]"
            );
            check_own(&own, &Pipeline::from_yaml(&text, "a.yaml").unwrap())
        };
        for url in [
            format!("{shown}/train-{{00000..00146}}.tar"),
            format!("{shown}/{{000..999}}.tar"),
            format!("file://{shown}/my%20data/*.jsonl"),
            format!("{shown}/100%*.jsonl"),
        ] {
            assert_eq!(check(&url), Ok(()), "{url}");
        }
        for url in [
            format!("{shown}/{{records,a}}{{.log,}}{{,0,1,2,3}}"),
            format!("{shown}/rec{{0,1,2,3,4,5,6,7,8,9,a,b,c,d,e,f,ords}}.log"),
            format!("{shown}/{{.cache,0,1,2,3,4,5,6,7,8,9,a,b,c,d,e,f}}/feedline/index/*"),
            format!("file://{shown}/my%20data/%2A.index"),
        ] {
            assert!(check(&url).unwrap_err().contains("the protected file"), "{url}");
        }
    }
}
