//! From URLs to shards: single objects, prefixes, globs and brace lists.

use std::collections::HashSet;

use feedline_core::manifest::ShardRef;
use futures::TryStreamExt;
use glob::{MatchOptions, Pattern};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::SourceError;
use crate::location::Location;
use crate::object::version_of;
use crate::stores::Reads;

const GLOB_CHARACTERS: [char; 3] = ['*', '?', '['];

/// The shards of these URLs: sorted within each, none twice.
pub(crate) async fn list(reads: &Reads, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
    let mut seen = HashSet::new();
    let mut shards = Vec::new();
    for url in urls {
        let mut found = list_one(reads, url).await?;
        // A listing, and links among local files, may lead elsewhere.
        found.iter().try_for_each(|shard| reads.check_object(&Location::parse(&shard.url)?))?;
        found.sort_by(|a, b| a.url.cmp(&b.url));
        shards.extend(found.into_iter().filter(|shard| seen.insert(shard.url.clone())));
    }
    Ok(shards)
}

/// One object as the store describes it.
pub(crate) async fn head(
    store: &dyn ObjectStore,
    location: &Location,
    given: &str,
) -> Result<ShardRef, SourceError> {
    let meta = store.head(&location.key()?).await.map_err(|error| SourceError::from_store(given, error))?;
    Ok(ShardRef { url: location.url(), size_bytes: meta.size, version: version_of(&meta) })
}

async fn list_one(reads: &Reads, url: &str) -> Result<Vec<ShardRef>, SourceError> {
    let location = Location::parse(url)?;
    let store = reads.open(&location)?;
    let has_glob = location.rest.contains(GLOB_CHARACTERS);
    if location.rest.is_empty() || location.rest.ends_with('/') && !has_glob {
        reads.check_object(&location)?;
        return list_prefix(store.as_ref(), &location, url).await;
    }
    if has_glob || location.rest.contains('{') {
        // A local file may really be called `x[1].tar`.
        if location.is_local()
            && reads.check_object(&location).is_ok()
            && let Ok(shard) = head(store.as_ref(), &location, url).await
        {
            return Ok(vec![shard]);
        }
        return list_patterns(reads, store.as_ref(), &location, url).await;
    }
    reads.check_object(&location)?;
    match head(store.as_ref(), &location, url).await {
        Ok(shard) => Ok(vec![shard]),
        Err(SourceError::NotFound { .. })
            if location.is_local() && std::path::Path::new(&location.rest).is_dir() =>
        {
            list_prefix(store.as_ref(), &location, url).await
        }
        Err(error) => Err(error),
    }
}

async fn list_prefix(
    store: &dyn ObjectStore,
    location: &Location,
    given: &str,
) -> Result<Vec<ShardRef>, SourceError> {
    refuse_http_listing(location, given)?;
    if location.is_local() && !std::path::Path::new(&location.rest).is_dir() {
        return Err(SourceError::NotFound { url: given.to_owned() });
    }
    let prefix = location.key()?;
    let metas: Vec<ObjectMeta> = store
        .list(Some(&prefix))
        .try_collect()
        .await
        .map_err(|error| SourceError::from_store(given, error))?;
    let shards: Vec<ShardRef> =
        metas.iter().filter(|meta| is_data(meta, &prefix)).map(|meta| shard_of(location, meta)).collect();
    if shards.is_empty() { Err(SourceError::Empty { url: given.to_owned() }) } else { Ok(shards) }
}

async fn list_patterns(
    reads: &Reads,
    store: &dyn ObjectStore,
    location: &Location,
    given: &str,
) -> Result<Vec<ShardRef>, SourceError> {
    let mut shards = Vec::new();
    let patterns =
        Reads::expand(&location.rest).map_err(|reason| SourceError::Url { url: given.to_owned(), reason })?;
    for rest in patterns {
        let one = Location { rest, ..location.clone() };
        if one.rest.contains(GLOB_CHARACTERS) {
            shards.extend(list_glob(reads, store, &one, given).await?);
        } else {
            reads.check_object(&one)?;
            let store = reads.open(&one)?;
            shards.push(head(store.as_ref(), &one, &one.url()).await?);
        }
    }
    Ok(shards)
}

async fn list_glob(
    reads: &Reads,
    store: &dyn ObjectStore,
    location: &Location,
    given: &str,
) -> Result<Vec<ShardRef>, SourceError> {
    refuse_http_listing(location, given)?;
    let text = location.rest.trim_start_matches('/');
    let pattern = Pattern::new(text).map_err(|error| SourceError::Url {
        url: given.to_owned(),
        reason: format!("the glob is not valid: {}", error.msg),
    })?;
    let first_glob = text.find(GLOB_CHARACTERS).unwrap_or(text.len());
    let fixed = text[..first_glob].rfind('/').map_or("", |slash| &text[..slash]);
    let is_flat = !text[fixed.len()..].trim_start_matches('/').contains('/') && !text.contains("**");
    let fixed_location = Location {
        rest: if location.is_local() { format!("/{fixed}") } else { fixed.to_owned() },
        ..location.clone()
    };
    reads.check_object(&fixed_location)?;
    if location.is_local() && !std::path::Path::new(&fixed_location.rest).is_dir() {
        return Err(SourceError::Empty { url: given.to_owned() });
    }
    let prefix = fixed_location.key()?;
    let prefix = (!prefix.is_root()).then_some(&prefix);
    let metas = if is_flat {
        store.list_with_delimiter(prefix).await.map(|result| result.objects)
    } else {
        store.list(prefix).try_collect().await
    };
    let metas: Vec<ObjectMeta> = metas.map_err(|error| SourceError::from_store(given, error))?;
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let shards: Vec<ShardRef> = metas
        .iter()
        .filter(|meta| pattern.matches_with(meta.location.as_ref(), options))
        .map(|meta| shard_of(location, meta))
        .collect();
    if shards.is_empty() { Err(SourceError::Empty { url: given.to_owned() }) } else { Ok(shards) }
}

fn refuse_http_listing(location: &Location, given: &str) -> Result<(), SourceError> {
    if !location.is_http() {
        return Ok(());
    }
    Err(SourceError::Url {
        url: given.to_owned(),
        reason: "an http server cannot be listed: give each object's URL, or a range such as `{000..099}`"
            .to_owned(),
    })
}

/// Whether an object under a prefix is data: not hidden, not a marker that a writer left.
fn is_data(meta: &ObjectMeta, prefix: &Path) -> bool {
    let Some(parts) = meta.location.prefix_match(prefix) else { return false };
    let hidden = parts.into_iter().any(|part| part.as_ref().starts_with('.'));
    let name = meta.location.filename().unwrap_or_default();
    !hidden && !matches!(name, "" | "_SUCCESS" | "_metadata" | "_common_metadata")
}

fn shard_of(location: &Location, meta: &ObjectMeta) -> ShardRef {
    ShardRef { url: location.url_of(&meta.location), size_bytes: meta.size, version: version_of(meta) }
}

#[cfg(test)]
mod tests;
