//! Reads ranges of one shard. A read fails if the object differs from the listed version. Failed requests are retried.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use feedline_common::backoff::Backoff;
use feedline_data::manifest::ShardRef;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{STORE_FIX, SourceError};
use crate::local::{self, LocalFile};
use crate::location::Location;
use crate::retry::{self, DEFAULT_RETRY_BUDGET, FIRST_BACKOFF, MAX_BACKOFF};

/// Maximum gap between two ranges that are read in one request.
const COALESCE_GAP_BYTES: u64 = 64 << 10;
/// Maximum size of a request, so that a request completes within its timeout.
const MAX_REQUEST_BYTES: u64 = 16 << 20;
/// Maximum number of concurrent requests per read.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// A range of one of several buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferSpan {
    pub(crate) buffer: usize,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// One shard, open for reading.
pub(crate) struct Object {
    store: Arc<dyn ObjectStore>,
    key: Key,
    /// The local file of the shard. `None` for objects in a store.
    file: Option<LocalFile>,
    shard: ShardRef,
    /// How long a failing read is retried.
    retry_budget: Duration,
    read_bytes: AtomicU64,
    /// The part of `read_bytes` that blocking calls read.
    blocking_bytes: AtomicU64,
    requests: AtomicU32,
    wait_ns: AtomicU64,
}

impl Object {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, key: Key, shard: ShardRef) -> Self {
        Self {
            store,
            key,
            file: None,
            shard,
            retry_budget: DEFAULT_RETRY_BUDGET,
            read_bytes: AtomicU64::new(0),
            blocking_bytes: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            wait_ns: AtomicU64::new(0),
        }
    }

    /// Reads the shard from a local file.
    pub(crate) fn with_file(self, file: Option<LocalFile>) -> Self {
        Self { file, ..self }
    }

    /// Sets how long a failing read is retried.
    pub(crate) fn with_retry_budget(self, retry_budget: Duration) -> Self {
        Self { retry_budget, ..self }
    }

    pub(crate) fn shard(&self) -> &ShardRef {
        &self.shard
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.shard.size_bytes
    }

    /// Returns the number of bytes, the number of requests, and the total duration of the requests, including failed requests.
    pub(crate) fn traffic(&self) -> (u64, u32, Duration) {
        let wait = Duration::from_nanos(self.wait_ns.load(Ordering::Relaxed));
        (self.read_bytes.load(Ordering::Relaxed), self.requests.load(Ordering::Relaxed), wait)
    }

    /// Returns the number of bytes that blocking calls have read. Other threads execute these calls and use the CPU time.
    pub(crate) fn blocking_bytes(&self) -> u64 {
        self.blocking_bytes.load(Ordering::Relaxed)
    }

    /// Reads a range completely.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if range.end > self.shard.size_bytes {
            return Err(SourceError::corrupt(
                &self.shard,
                range.end,
                "the index contains a range beyond the end of the shard: run `feedline index --rebuild`",
            ));
        }
        if range.end - range.start <= MAX_REQUEST_BYTES {
            return self.read_with_retries(range).await;
        }
        let starts = range.clone().step_by(MAX_REQUEST_BYTES as usize);
        let parts =
            starts.map(|start| self.read_with_retries(start..range.end.min(start + MAX_REQUEST_BYTES)));
        let mut parts = futures::stream::iter(parts).buffered(MAX_CONCURRENT_REQUESTS);
        let mut whole = BytesMut::with_capacity((range.end - range.start) as usize);
        while let Some(part) = parts.try_next().await? {
            whole.extend_from_slice(&part);
        }
        Ok(whole.freeze())
    }

    /// Reads several ranges, which must be ascending and disjoint. Returns the buffers, and the position of each range in a buffer.
    /// Ranges that are close to each other share a request and a buffer.
    pub(crate) async fn read_ranges(
        &self,
        ranges: &[Range<u64>],
    ) -> Result<(Vec<Bytes>, Vec<BufferSpan>), SourceError> {
        let merged = coalesce(ranges);
        let reads: Vec<_> = merged.iter().map(|range| self.read(range.clone())).collect();
        let buffers = futures::stream::iter(reads).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await?;
        let mut buffer = 0;
        let mut spans = Vec::with_capacity(ranges.len());
        for range in ranges {
            while merged[buffer].end < range.end {
                buffer += 1;
            }
            let start = (range.start - merged[buffer].start) as usize;
            spans.push(BufferSpan { buffer, start, len: (range.end - range.start) as usize });
        }
        Ok((buffers, spans))
    }

    /// Reads a range until an attempt succeeds or the retry budget is exhausted.
    async fn read_with_retries(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        let (start, max_duration) = (Instant::now(), retry::max_duration(self.retry_budget));
        let mut backoff = Backoff::new(FIRST_BACKOFF, MAX_BACKOFF);
        loop {
            let attempt_start = Instant::now();
            let result = timeout_at(start + max_duration, self.read_once(range.clone())).await;
            self.wait_ns.fetch_add(attempt_start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            let error = match result {
                Ok(Ok(bytes)) => return Ok(bytes),
                Ok(Err(error)) => error,
                Err(_) => self.failed(retry::no_response_reason(max_duration) + STORE_FIX, true),
            };
            if !error.is_retryable() || start.elapsed() >= self.retry_budget {
                return Err(error);
            }
            tracing::debug!(url = %self.shard.url, %error, "retrying a failed read");
            sleep(backoff.next_pause()).await;
        }
    }

    async fn read_once(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let wanted = range.end - range.start;
        let bytes = match &self.file {
            Some(file) => self.read_file(file, range).await?,
            None => self.get(range).await?,
        };
        self.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if bytes.len() as u64 != wanted {
            let reason = format!("the store returned {} bytes instead of {wanted}", bytes.len());
            return Err(self.failed(reason, true));
        }
        Ok(bytes)
    }

    async fn read_file(&self, file: &LocalFile, range: Range<u64>) -> Result<Bytes, SourceError> {
        if let Some(bytes) = local::read_cached(file, &self.shard, &range) {
            // Let other tasks run between consecutive cached reads.
            tokio::task::yield_now().await;
            return Ok(bytes);
        }
        let (file, shard) = (file.clone(), self.shard.clone());
        let read = tokio::task::spawn_blocking(move || local::read(&file, &shard, range));
        let bytes = read.await.map_err(|error| self.failed(error.to_string(), false))??;
        self.blocking_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn failed(&self, reason: String, retryable: bool) -> SourceError {
        SourceError::Store { url: self.shard.url.clone(), reason, retryable }
    }

    async fn get(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        let store_error = |error| match SourceError::from_store(&self.shard.url, error) {
            // The object was removed after the listing.
            SourceError::NotFound { url } => SourceError::ShardChanged { url },
            other => other,
        };
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: if_match_tag(&self.shard.version),
            ..GetOptions::default()
        };
        let result = self.store.get_opts(&self.key, options).await.map_err(store_error)?;
        if !is_version(&result.meta, &self.shard.version) {
            return Err(SourceError::ShardChanged { url: self.shard.url.clone() });
        }
        let (size, indexed) = (result.meta.size, self.shard.size_bytes);
        if size != indexed {
            // The store is inconsistent, or the object changed in the same second as the listing.
            let reason = format!(
                "the object is {size} bytes long, but the index recorded {indexed} bytes for the same version: if the object changed, run \
                 `feedline index --rebuild`"
            );
            return Err(self.failed(reason, true));
        }
        result.bytes().await.map_err(store_error)
    }
}

/// Requests the metadata of one object.
pub(crate) async fn head(
    store: &dyn ObjectStore,
    location: &Location,
    given: &str,
) -> Result<ShardRef, SourceError> {
    let meta = store.head(&location.key()?).await.map_err(|error| SourceError::from_store(given, error))?;
    Ok(ShardRef { url: location.url(), ..shard_of(location, &meta) })
}

/// Describes a listed object as a shard.
pub(crate) fn shard_of(location: &Location, meta: &ObjectMeta) -> ShardRef {
    let mut version = version_of(meta);
    if location.is_local() {
        // The store quotes the version of `local::file_version`, which indexes contain without quotes.
        version = version.trim_matches('"').to_owned();
    }
    ShardRef { url: location.url_of(&meta.location), size_bytes: meta.size, version, part: 0 }
}

/// The version of an object: its entity tag, or its modification time if it has no entity tag.
pub(crate) fn version_of(meta: &ObjectMeta) -> String {
    match &meta.e_tag {
        Some(tag) if !tag.is_empty() => tag.clone(),
        _ => meta.last_modified.to_rfc3339(),
    }
}

/// Whether a response has this version. Modification times are compared in seconds, because listings may have a finer resolution.
fn is_version(meta: &ObjectMeta, version: &str) -> bool {
    if is_time(version) {
        return meta.last_modified.to_rfc3339().get(..TIME_CHARS_TO_SECOND)
            == version.get(..TIME_CHARS_TO_SECOND);
    }
    meta.e_tag.as_deref() == Some(version)
}

/// Length of an RFC 3339 time up to the seconds.
const TIME_CHARS_TO_SECOND: usize = "2000-01-01T00:00:00".len();

fn is_time(version: &str) -> bool {
    version.as_bytes().get(10) == Some(&b'T') && version.ends_with("+00:00")
}

/// The value of the `If-Match` header. `None` if the version is a modification time or a weak tag, which never matches.
fn if_match_tag(version: &str) -> Option<String> {
    (!is_time(version) && !version.starts_with("W/")).then(|| version.to_owned())
}

fn coalesce(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last)
                if range.start <= last.end + COALESCE_GAP_BYTES
                    && range.end - last.start <= MAX_REQUEST_BYTES =>
            {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range.clone()),
        }
    }
    merged
}

#[cfg(test)]
mod tests;
