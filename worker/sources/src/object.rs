//! Reads ranges of one shard. A read fails if the object differs from the listed version. Failed requests are retried.

mod attempt_timer;
mod ranges;
pub(crate) mod store_checksum;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use feedline_common::backoff::Backoff;
use feedline_data::ids::JobId;
use feedline_data::manifest::{ShardDigest, ShardRef};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{Extensions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::time::{Instant, sleep};

use self::attempt_timer::AttemptTimer;
use self::ranges::{COALESCE_GAP_BYTES, MAX_REQUEST_BYTES, coalesce};
use crate::content::{Decoders, FileCompression};
use crate::digest::{DigestRecorder, MAX_REST_BYTES};
use crate::error::{STORE_FIX, SourceError};
use crate::local::{self, LocalFile};
use crate::location::Location;
use crate::merged_reads::{MergedRead, MergedReads, ObjectVersion, ReadTurn};
use crate::requests::{RequestTag, within_active};
use crate::responses::read_body;
use crate::retry::{self, DEFAULT_RETRY_BUDGET, FIRST_BACKOFF, MAX_BACKOFF};
use crate::version::{if_match_tag, is_version, version_of};

pub(crate) use self::ranges::BufferSpan;

/// Maximum size of a shard that stays in memory while it is indexed.
const SMALL_SHARD_BYTES: usize = 1 << 20;
/// Maximum number of concurrent requests per read.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// One shard, open for reading.
pub(crate) struct Object {
    store: Arc<dyn ObjectStore>,
    key: Key,
    /// The local file of the shard. `None` for objects in a store.
    file: Option<LocalFile>,
    shard: ShardRef,
    /// The range of a file in the shard. `None` reads the whole shard.
    part: Option<Range<u64>>,
    /// The decoders of compressed shards of the worker.
    decoders: Arc<Decoders>,
    /// The listed shard, if `shard` is only its beginning.
    listed: Option<ShardRef>,
    compression: FileCompression,
    /// Counts the bytes that are read while the shard is indexed.
    progress: Option<Arc<AtomicU64>>,
    /// How long a failing read is retried.
    retry_budget: Duration,
    /// The job that reads the shard; 0 without a job.
    job: JobId,
    /// The reads that wait for the governor of the store. `None` without a governor.
    merged_reads: Option<Arc<MergedReads>>,
    read_bytes: AtomicU64,
    /// The part of `read_bytes` that blocking calls read.
    blocking_bytes: AtomicU64,
    requests: AtomicU32,
    wait_ns: AtomicU64,
    /// Hashes the bytes that are read; `None` unless the shard is being indexed.
    digest: Option<DigestRecorder>,
    /// Bytes that are needed again, and their offset: a small shard that is being indexed, because rows determine its columns, or a
    /// block that was read before its memory was known.
    kept: OnceLock<(u64, Bytes)>,
}

impl Object {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, key: Key, shard: ShardRef) -> Self {
        Self {
            store,
            key,
            file: None,
            shard,
            part: None,
            decoders: Arc::default(),
            listed: None,
            compression: FileCompression::default(),
            progress: None,
            retry_budget: DEFAULT_RETRY_BUDGET,
            job: JobId(0),
            merged_reads: None,
            read_bytes: AtomicU64::new(0),
            blocking_bytes: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            wait_ns: AtomicU64::new(0),
            digest: None,
            kept: OnceLock::new(),
        }
    }

    /// Hashes the bytes that are read.
    pub(crate) fn with_digest(self) -> Self {
        Self { digest: Some(DigestRecorder::default()), ..self }
    }

    /// Counts the bytes that are read.
    pub(crate) fn with_progress(self, progress: Arc<AtomicU64>) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Sets what determines the codec of the shard.
    pub(crate) fn with_compression(self, compression: FileCompression) -> Self {
        Self { compression, ..self }
    }

    pub(crate) fn compression(&self) -> FileCompression {
        self.compression
    }

    /// Whether the object is a file on a local disk.
    pub(crate) fn is_local(&self) -> bool {
        self.file.is_some()
    }

    /// How long to wait before a local file that has just been written is indexed.
    pub(crate) fn settling_time(&self) -> Option<Duration> {
        self.file.as_ref().and_then(|_| local::settling_time(&self.shard.version, SystemTime::now()))
    }

    /// Whether the bytes that are read are hashed.
    pub(crate) fn is_hashed(&self) -> bool {
        self.digest.is_some()
    }

    /// Whether the bytes are hashed, and all reads so far were sequential.
    pub(crate) fn is_hashed_sequentially(&self) -> bool {
        self.digest.as_ref().is_some_and(DigestRecorder::is_sequential)
    }

    /// Returns the digest of the bytes that were read. Reads the rest of a shard that was read almost completely, and of a compressed
    /// shard: how far it was read before a defect depends on the cores. Requests the checksum of the store for other shards.
    pub(crate) async fn finish_digest(
        &self,
        is_compressed: bool,
    ) -> Result<Option<ShardDigest>, SourceError> {
        let Some(recorder) = &self.digest else { return Ok(None) };
        let max_rest_bytes = if is_compressed { u64::MAX } else { MAX_REST_BYTES };
        while let Some(rest) = recorder.rest(self.shard.size_bytes, max_rest_bytes) {
            self.read(rest.start..rest.end.min(rest.start + MAX_REST_BYTES)).await?;
        }
        let digest = recorder.finish(self.shard.size_bytes);
        if digest.is_whole() || !self.may_have_checksum() {
            return Ok(Some(digest));
        }
        Ok(Some(digest.with_checksum(self.store_checksum().await?)))
    }

    /// Reads the shard from a local file.
    pub(crate) fn with_file(self, file: Option<LocalFile>) -> Self {
        Self { file, ..self }
    }

    /// Shares decoders with other reads of the worker.
    pub(crate) fn with_decoders(self, decoders: Arc<Decoders>) -> Self {
        Self { decoders, ..self }
    }

    pub(crate) fn decoders(&self) -> &Arc<Decoders> {
        &self.decoders
    }

    /// The job that reads the shard; 0 without a job.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// A file in a range of the shard, whose offsets begin at the start of the range.
    pub(crate) fn part(&self, range: Range<u64>) -> Self {
        Self {
            file: self.file.clone(),
            listed: self.listed.clone(),
            decoders: Arc::clone(&self.decoders),
            retry_budget: self.retry_budget,
            job: self.job,
            merged_reads: self.merged_reads.clone(),
            kept: self.kept_part(&range).map_or_else(OnceLock::new, OnceLock::from),
            part: Some(range),
            ..Self::new(Arc::clone(&self.store), self.key.clone(), self.shard.clone())
        }
    }

    /// Keeps the bytes that a part keeps, for later parts.
    pub(crate) fn keep_bytes_of(&self, part: &Self) {
        if let (Some(range), Some((offset, bytes))) = (&part.part, part.kept.get()) {
            self.keep(range.start + offset, bytes.clone());
        }
    }

    /// The kept bytes, with the offset that they have in a part.
    fn kept_part(&self, part: &Range<u64>) -> Option<(u64, Bytes)> {
        let (offset, bytes) = self.kept.get()?;
        Some((offset.checked_sub(part.start)?, bytes.clone()))
    }

    /// Adds the traffic of a part, or of another object that a read of this shard needed.
    pub(crate) fn add_traffic_of(&self, other: &Self) {
        let (bytes, requests, wait) = other.traffic();
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.wait_ns.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
        self.blocking_bytes.fetch_add(other.blocking_bytes(), Ordering::Relaxed);
    }

    /// Hides the bytes from `size_bytes` on. Formats then see a shorter shard.
    pub(crate) fn with_beginning(self, size_bytes: u64) -> Self {
        if size_bytes >= self.shard.size_bytes {
            return self;
        }
        let shard = ShardRef { size_bytes, ..self.shard.clone() };
        Self { listed: Some(self.listed.unwrap_or(self.shard)), shard, ..self }
    }

    /// The shard as it was listed, with its whole size.
    fn listed(&self) -> &ShardRef {
        self.listed.as_ref().unwrap_or(&self.shard)
    }

    /// Sets how long a failing read is retried.
    pub(crate) fn with_retry_budget(self, retry_budget: Duration) -> Self {
        Self { retry_budget, ..self }
    }

    /// Sets the job that reads the shard, and merges its reads with others of the job.
    pub(crate) fn with_job(self, job: JobId, merged_reads: Option<Arc<MergedReads>>) -> Self {
        Self { job, merged_reads, ..self }
    }

    pub(crate) fn shard(&self) -> &ShardRef {
        &self.shard
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.part.as_ref().map_or(self.shard.size_bytes, |part| part.end - part.start)
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
        if let Some(bytes) = self.kept_range(&range) {
            self.hash(range.start, &bytes);
            return Ok(bytes);
        }
        let bytes = self.read_unhashed(range.clone()).await?;
        self.hash(range.start, &bytes);
        if self.digest.is_some() && range == (0..self.size_bytes()) && bytes.len() <= SMALL_SHARD_BYTES {
            self.keep(range.start, bytes.clone());
        }
        Ok(bytes)
    }

    /// Keeps bytes at an offset for the next reads of this object. Another read may have kept bytes before: then does nothing.
    pub(crate) fn keep(&self, offset: u64, bytes: Bytes) {
        let _ = self.kept.set((offset, bytes));
    }

    fn kept_range(&self, range: &Range<u64>) -> Option<Bytes> {
        let (offset, kept) = self.kept.get()?;
        let start = range.start.checked_sub(*offset)?;
        let end = range.end.checked_sub(*offset)?;
        (start <= end && end <= kept.len() as u64).then(|| kept.slice(start as usize..end as usize))
    }

    /// Hashes bytes at an offset, which `read_unhashed` has read before they were needed.
    pub(crate) fn hash(&self, offset: u64, bytes: &[u8]) {
        if let Some(digest) = self.digest.as_ref().filter(|_| !bytes.is_empty()) {
            digest.record(offset, bytes);
        }
    }

    /// Reads a range completely, which the digest does not contain.
    pub(crate) async fn read_unhashed(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if range.end > self.size_bytes() {
            return Err(SourceError::corrupt(
                &self.shard,
                range.end,
                "the index contains a range beyond the end of the shard: run `feedline index --rebuild`",
            ));
        }
        let start = self.part.as_ref().map_or(0, |part| part.start);
        let range = start + range.start..start + range.end;
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
        let reads: Vec<_> = merged.iter().map(|range| self.read_unhashed(range.clone())).collect();
        let buffers: Vec<Bytes> =
            futures::stream::iter(reads).buffered(MAX_CONCURRENT_REQUESTS).try_collect().await?;
        // Concurrent reads are hashed in the order of the ranges.
        merged.iter().zip(&buffers).for_each(|(range, bytes)| self.hash(range.start, bytes));
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

    /// Reads a range with its own request, or with that of another read which waits for the store.
    async fn read_with_retries(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        let Some(merged_reads) = self.merged_reads.as_ref().filter(|_| self.file.is_none()) else {
            return self.read_alone(range, None).await;
        };
        let object = self.object_version();
        loop {
            match merged_reads.join(&object, &range, COALESCE_GAP_BYTES, MAX_REQUEST_BYTES) {
                ReadTurn::Owner(owned) => {
                    let result = self.read_alone(range.clone(), Some(owned.read())).await;
                    return owned.finish(&range, result);
                }
                ReadTurn::Follower(result) => {
                    // The owner may have stopped.
                    if let Ok(result) = result.await {
                        return result;
                    }
                }
            }
        }
    }

    fn object_version(&self) -> ObjectVersion {
        let ShardRef { url, version, part, .. } = self.shard.clone();
        let client = Arc::as_ptr(&self.store).cast::<()>().addr();
        ObjectVersion { job: self.job, client, part, url, version }
    }

    /// Reads a range, or that of `merged`, until an attempt succeeds or the retry budget is exhausted.
    async fn read_alone(
        &self,
        range: Range<u64>,
        merged: Option<Arc<MergedRead>>,
    ) -> Result<Bytes, SourceError> {
        let tag = RequestTag { job: self.job, clock: Arc::default(), merged };
        let limit = retry::max_duration(self.retry_budget);
        let read = within_active(limit, &tag.clock, self.read_attempts(range, &tag)).await;
        read.unwrap_or_else(|| Err(self.failed(retry::no_response_reason(limit) + STORE_FIX, true)))
    }

    async fn read_attempts(&self, range: Range<u64>, tag: &RequestTag) -> Result<Bytes, SourceError> {
        let start = Instant::now();
        let mut backoff = Backoff::new(FIRST_BACKOFF, MAX_BACKOFF);
        loop {
            let attempt = AttemptTimer {
                wait_ns: &self.wait_ns,
                clock: &tag.clock,
                queued: tag.clock.total(),
                start: Instant::now(),
            };
            let result = self.read_once(range.clone(), tag).await;
            drop(attempt);
            let error = match result {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            let spent = start.elapsed().saturating_sub(tag.clock.total());
            if !error.is_retryable() || tag.clock.has_given_up() || spent >= self.retry_budget {
                return Err(error);
            }
            tracing::debug!(url = %self.shard.url, %error, "retrying a failed read");
            sleep(backoff.next_pause()).await;
        }
    }

    async fn read_once(&self, range: Range<u64>, tag: &RequestTag) -> Result<Bytes, SourceError> {
        self.count_request();
        let bytes = match &self.file {
            Some(file) => self.read_file(file, range.clone()).await?,
            None => self.get(range.clone(), tag).await?,
        };
        let range = tag.merged.as_ref().map_or(range, |merged| merged.send());
        let wanted = range.end - range.start;
        self.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if let Some(progress) = &self.progress {
            progress.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        if bytes.len() as u64 != wanted {
            let reason = format!("the store returned {} bytes instead of {wanted}", bytes.len());
            return Err(self.failed(reason, true));
        }
        Ok(bytes)
    }

    async fn read_file(&self, file: &LocalFile, range: Range<u64>) -> Result<Bytes, SourceError> {
        if let Some(bytes) = local::read_cached(file, self.listed(), &range) {
            // Let other tasks run between consecutive cached reads.
            tokio::task::yield_now().await;
            return Ok(bytes);
        }
        let (file, shard) = (file.clone(), self.listed().clone());
        let read = tokio::task::spawn_blocking(move || local::read(&file, &shard, range));
        let bytes = read.await.map_err(|error| self.failed(error.to_string(), false))??;
        self.blocking_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, reason: String, retryable: bool) -> SourceError {
        SourceError::Store { url: self.shard.url.clone(), reason, retryable }
    }

    async fn get(&self, range: Range<u64>, tag: &RequestTag) -> Result<Bytes, SourceError> {
        let store_error = |error| match SourceError::from_store(&self.shard.url, error) {
            // The object was removed after the listing.
            SourceError::NotFound { url } => SourceError::ShardChanged { url },
            other => other,
        };
        // A governor determines the range again when it sends the request.
        let range = tag.merged.as_ref().map_or(range, |merged| merged.range());
        let mut extensions = Extensions::new();
        extensions.insert(tag.clone());
        let options = GetOptions {
            extensions,
            range: Some(GetRange::Bounded(range.clone())),
            if_match: if_match_tag(&self.shard.version),
            ..GetOptions::default()
        };
        let result = self.store.get_opts(&self.key, options).await.map_err(store_error)?;
        if !is_version(&result.meta, &self.shard.version) {
            return Err(SourceError::ShardChanged { url: self.shard.url.clone() });
        }
        let (size, indexed) = (result.meta.size, self.listed().size_bytes);
        if size != indexed {
            // The store is inconsistent, or the object changed in the same second as the listing.
            let reason = format!(
                "the object is {size} bytes long, but the index recorded {indexed} bytes for the same version: if the object changed, \
                 start the job again"
            );
            return Err(self.failed(reason, true));
        }
        let sent = tag.merged.as_ref().map_or(range, |merged| merged.send());
        read_body(result, sent.end - sent.start).await.map_err(store_error)
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
    ShardRef { url: location.url_of(&meta.location), size_bytes: meta.size, version, ..ShardRef::default() }
}

#[cfg(test)]
mod tests;
