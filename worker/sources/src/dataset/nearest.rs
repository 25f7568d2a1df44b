//! Suggests an existing object or directory for a source URL that matches no objects.

use object_store::path::Path;

use super::{Dataset, DatasetPart};
use crate::location::Location;

const GLOB_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];
/// Maximum number of parent directories that are searched.
const MAX_PARENTS: usize = 8;
/// Maximum number of names of a directory that are compared.
const MAX_NAMES: usize = 10_000;
/// Minimum similarity, from 0 to 1, of a suggested name.
const MIN_SIMILARITY: f64 = 0.7;

impl Dataset {
    /// Returns the URL of the object or directory whose name is most similar to the first part of `url` that does not
    /// exist. Returns `None` if no name is similar, or the store fails.
    pub async fn nearest_url(&self, part: u32, url: &str) -> Option<String> {
        let location = Location::parse(url).ok().filter(|location| !location.is_http())?;
        self.parts.get(part as usize)?.nearest(&location).await
    }
}

impl DatasetPart {
    async fn nearest(&self, location: &Location) -> Option<String> {
        let mut names: Vec<&str> = location.rest.split('/').filter(|name| !name.is_empty()).collect();
        let first_glob = names.iter().position(|name| name.contains(GLOB_CHARACTERS));
        if let Some(first_glob) = first_glob {
            names.truncate(first_glob + 1);
        }
        for _ in 0..MAX_PARENTS {
            let wanted = names.pop()?;
            let rest = names.join("/");
            let rest = if location.is_local() { format!("/{rest}") } else { rest };
            let folder = Location { rest, ..location.clone() };
            let present = self.names_in(&folder).await.unwrap_or_default();
            if present.is_empty() {
                continue;
            }
            let nearest = most_similar(wanted, &present)?;
            let slash = if folder.rest.is_empty() || folder.rest.ends_with('/') { "" } else { "/" };
            return Some(format!("{}{slash}{nearest}", folder.url()));
        }
        None
    }

    /// Lists the names in a directory. Names of directories end in `/`.
    async fn names_in(&self, folder: &Location) -> Option<Vec<String>> {
        self.reads.check_object(folder).ok()?;
        let store = self.reads.open(folder).ok()?;
        let prefix = folder.key().ok()?;
        let listed = store.list_with_delimiter((!prefix.is_root()).then_some(&prefix)).await.ok()?;
        let name = |path: &Path| path.filename().unwrap_or_default().to_owned();
        let folders = listed.common_prefixes.iter().map(|path| name(path) + "/");
        let objects = listed.objects.iter().map(|meta| name(&meta.location));
        Some(folders.chain(objects).filter(|name| !name.starts_with('.')).take(MAX_NAMES).collect())
    }
}

/// Returns the name that is most similar to `wanted`. A glob is also compared with the extension of each name.
fn most_similar<'a>(wanted: &str, names: &'a [String]) -> Option<&'a str> {
    let is_glob = wanted.contains(GLOB_CHARACTERS);
    let similarity = |name: &str| {
        let whole = strsim::jaro_winkler(wanted, name.trim_end_matches('/'));
        let extension = name.split_once('.').map(|(_, extension)| format!("*.{extension}"));
        match extension {
            Some(pattern) if is_glob => whole.max(strsim::jaro_winkler(wanted, &pattern)),
            _ => whole,
        }
    };
    let scored = names.iter().map(|name| (similarity(name), name.as_str()));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= MIN_SIMILARITY).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_name_is_suggested() {
        let names = ["train/", "val/", "a-000.parquet", "a-001.parquet", "README.md"].map(str::to_owned);
        assert_eq!(most_similar("trian", &names), Some("train/"));
        assert_eq!(most_similar("a-000.parqet", &names), Some("a-000.parquet"));
        assert_eq!(most_similar("*.parqet", &names), Some("a-001.parquet"));
        assert_eq!(most_similar("zzz", &names), None);
        assert_eq!(most_similar("x", &[]), None);
    }
}
