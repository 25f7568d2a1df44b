//! The cache point of a pipeline: rows found in the cache skip the operators before the cache point, and all other rows
//! are added to the cache there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::OperatorStats;
use feedline_data::order::RowRef;
use feedline_data::pipeline::{CacheEncoding, CacheTier, Pipeline};
use feedline_data::schema::Schema;
use feedline_data::urls::without_commit;
use feedline_operators::{BuiltOperator, Chunk, RowCodec};
use sha2::{Digest, Sha256};

use super::encodings::{CacheEncoder, EncodingPermission};
use super::trace::{OperatorCounters, Tracing};
use crate::cache::{Caches, Prefix};
use crate::process::ReadMeter;

/// Version of the cached-row format. It is part of the cache key, so a new version ignores rows cached by earlier
/// releases. Rows of earlier versions may contain numbers of JSON lines that were rounded.
const FORMAT_VERSION: u32 = 3;
/// First byte of a cached row that contains data for the operators after the cache point.
const PRESENT: u8 = 1;
/// First byte of a cache entry for a row that an operator before the cache point removed.
const REMOVED: u8 = 0;

/// The counters of a cache point.
#[derive(Debug, Clone)]
pub(crate) struct CachePointCounters {
    /// Counts cache lookups as input rows, and cache hits as output rows.
    pub(crate) rows: Arc<OperatorCounters>,
    /// Measures reads from disk or from the store.
    pub(crate) reads: Arc<ReadMeter>,
}

/// The inputs that determine which rows a cache point stores, and under which key.
pub(super) struct CachePointInput<'a> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) encoding: CacheEncoding,
    pub(super) manifest: &'a Manifest,
    pub(super) read_schema: &'a Schema,
    pub(super) operators: &'a [BuiltOperator],
    /// Contents of the files that operators read, by URL.
    pub(super) files: &'a BTreeMap<String, Bytes>,
}

/// The rows of a chunk at the cache point, with the cached rows that were found.
pub(super) struct ChunkAtCache<'a> {
    pub(super) caches: &'a Caches,
    /// The cached form of each row of the chunk. `None` for a row that was not in the cache.
    pub(super) cached: &'a [Option<Bytes>],
    /// All rows of the chunk.
    pub(super) rows: &'a [RowRef],
    pub(super) permission: EncodingPermission<'a>,
}

/// A point between the operators of a job where rows are cached.
#[derive(Debug)]
pub(crate) struct CachePoint {
    /// The number of operators before the cache point.
    pub(crate) operator: usize,
    pub(crate) tier: CacheTier,
    pub(crate) prefix: Prefix,
    pub(crate) counters: CachePointCounters,
    codec: RowCodec,
    /// Encodes images before they are cached. `None` if images are cached unchanged.
    encoder: Option<CacheEncoder>,
    /// Size of the largest cached row so far.
    row_bytes_max: AtomicU64,
    /// Number of cached rows so far.
    cached_rows: AtomicU64,
    /// Total bytes of the cached rows so far.
    cached_bytes: AtomicU64,
}

impl CachePoint {
    /// Creates the cache point of a pipeline, if the pipeline has one. `counters` continue from an earlier cache point
    /// of the job.
    pub(super) fn new(
        input: &CachePointInput<'_>,
        tracing: &Tracing,
        counters: Option<CachePointCounters>,
    ) -> Result<Option<Self>, String> {
        let Some((before, tier)) = input.pipeline.cached_prefix() else { return Ok(None) };
        let operator = before.iter().filter(|operator| !operator.kind.is_engine_operator()).count();
        let schema = operator.checked_sub(1).map_or(input.read_schema, |last| &input.operators[last].schema);
        let encoder = cache_encoder(input.operators.get(operator), input.encoding)?;
        let new_counters = || CachePointCounters {
            rows: OperatorCounters::new("cache", None, tracing.is_on),
            reads: tracing.clock.meter(),
        };
        Ok(Some(Self {
            operator,
            tier,
            prefix: prefix(input, encoder.as_ref(), schema),
            counters: counters.unwrap_or_else(new_counters),
            codec: RowCodec::new(schema).map_err(|error| error.to_string())?,
            encoder,
            row_bytes_max: AtomicU64::new(0),
            cached_rows: AtomicU64::new(0),
            cached_bytes: AtomicU64::new(0),
        }))
    }

    /// Looks up rows in the cache.
    pub(super) async fn look_up(&self, caches: &Caches, rows: &[RowRef]) -> Vec<Option<Bytes>> {
        let ids = rows.iter().map(|row| row.row_id).collect();
        let cached = caches.get(self.prefix, self.tier, ids).await;
        let hits = cached.iter().flatten();
        let bytes = hits.clone().map(Bytes::len).sum::<usize>() as u64;
        self.record_rows(hits.clone());
        self.counters.rows.add_rows(rows.len(), hits.count());
        self.counters.rows.add_bytes(0, bytes);
        if self.tier != CacheTier::Memory {
            self.counters.reads.add(bytes);
        }
        cached
    }

    pub(crate) fn stats(&self) -> OperatorStats {
        let mut stats = self.counters.rows.snapshot();
        stats.cpu_ns += self.counters.reads.cpu_ns();
        stats
    }

    /// Maximum number of bytes that a cached row adds to a running group. Rows in the memory cache already count
    /// against the cache.
    pub(crate) fn row_bytes(&self) -> u64 {
        match self.tier {
            CacheTier::Memory => 0,
            CacheTier::Disk | CacheTier::Store => self.row_bytes_max.load(Ordering::Relaxed),
        }
    }

    /// Adds the computed rows of a chunk to the cache, and inserts the cached rows into the chunk. `computed` is the
    /// number of rows that were computed for the chunk.
    pub(super) fn join(
        &self,
        chunk: &mut Chunk,
        computed: usize,
        input: &ChunkAtCache<'_>,
    ) -> Result<(), String> {
        let has_cached = input.cached.iter().any(Option::is_some);
        let has_room = || input.caches.has_room(self.prefix, self.tier);
        let caches_rows = computed > 0 && input.permission.is_allowed() && has_room();
        if !has_cached && !caches_rows {
            return Ok(());
        }
        let encode = |chunk: &Chunk| self.codec.encode(chunk, PRESENT).map_err(|error| error.to_string());
        let is_needed = computed > 0 && (has_cached || self.encoder.is_none());
        let encoded = if is_needed { encode(chunk)? } else { Vec::new() };
        if caches_rows {
            let rows = match &self.encoder {
                None => cacheable_rows(chunk, &encoded, input),
                Some(encoder) => {
                    let (other, count) = encoder.encode(chunk, &input.permission)?;
                    cacheable_rows(chunk, &encode(&other)?[..count], input)
                }
            };
            self.record_rows(rows.iter().map(|(_, row)| row));
            input.caches.put(self.prefix, self.tier, rows);
        }
        if has_cached { self.insert_cached(chunk, encoded, input) } else { Ok(()) }
    }

    /// Rebuilds a chunk from its computed rows and its cached rows.
    fn insert_cached(
        &self,
        chunk: &mut Chunk,
        computed: Vec<Bytes>,
        input: &ChunkAtCache<'_>,
    ) -> Result<(), String> {
        let mut all: BTreeMap<u32, Bytes> = chunk.origins.iter().copied().zip(computed).collect();
        let cached = (0u32..).zip(input.cached).filter_map(|(origin, row)| Some((origin, row.clone()?)));
        all.extend(cached.filter(|(_, row)| row.first() == Some(&PRESENT)));
        let encoded: Vec<Bytes> = all.values().map(|row| row.slice(1..)).collect();
        chunk.columns = self.codec.decode(&encoded).map_err(|error| error.to_string())?;
        chunk.origins = all.into_keys().collect();
        chunk.row_ids = chunk.origins.iter().map(|&origin| input.rows[origin as usize].row_id).collect();
        chunk.passes = chunk.origins.iter().map(|&origin| input.rows[origin as usize].pass).collect();
        Ok(())
    }

    fn record_rows<'a>(&self, rows: impl Iterator<Item = &'a Bytes>) {
        let (mut count, mut largest, mut bytes) = (0, 0, 0);
        for row in rows {
            (count, largest, bytes) = (count + 1, largest.max(row.len()), bytes + row.len());
        }
        self.row_bytes_max.fetch_max(largest as u64, Ordering::Relaxed);
        self.cached_rows.fetch_add(count, Ordering::Relaxed);
        self.cached_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Mean size of a cached row; 0 before the first row.
    pub(super) fn mean_row_bytes(&self) -> f64 {
        let rows = self.cached_rows.load(Ordering::Relaxed);
        if rows == 0 { 0.0 } else { self.cached_bytes.load(Ordering::Relaxed) as f64 / rows as f64 }
    }
}

/// Returns the rows to cache with their IDs: the encoded rows, and a marker for each removed row. Failed rows are not
/// cached, so that they fail again in each epoch.
fn cacheable_rows(chunk: &Chunk, encoded: &[Bytes], input: &ChunkAtCache<'_>) -> Vec<(u64, Bytes)> {
    let has_failed = |origin: u32| chunk.failures.iter().any(|(failed, _)| *failed == origin);
    let id = |origin: u32| input.rows[origin as usize].row_id;
    let present = chunk.origins.iter().zip(encoded).filter(|(origin, _)| !has_failed(**origin));
    let mut rows: Vec<(u64, Bytes)> = present.map(|(origin, row)| (id(*origin), row.clone())).collect();
    let removed = (0u32..).zip(input.cached).filter(|(origin, row)| {
        row.is_none() && !has_failed(*origin) && chunk.origins.binary_search(origin).is_err()
    });
    rows.extend(removed.map(|(origin, _)| (id(origin), Bytes::from_static(&[REMOVED]))));
    rows
}

/// Creates the image encoder for the operator after the cache point.
fn cache_encoder(
    next: Option<&BuiltOperator>,
    encoding: CacheEncoding,
) -> Result<Option<CacheEncoder>, String> {
    if encoding == CacheEncoding::AsIs {
        return Ok(None);
    }
    let decoding = next.and_then(|operator| operator.decoding.clone());
    let decoding = decoding.ok_or("the operator after the cache point does not decode images")?;
    Ok(Some(CacheEncoder::new(encoding, decoding)))
}

/// Describes the rows of a dataset. Rows may contain URLs, so a copy of a dataset has other cached rows. If the index has no
/// digests, the validators identify the content of the shards.
fn content_of(manifest: &Manifest) -> String {
    let content = manifest.content_id().without_checksums();
    let mut text = format!("{}\n", content.as_str());
    for shard in &manifest.shards {
        let object = &shard.object;
        text.push_str(&format!("{:?}", without_commit(&object.url)));
        if content.is_unknown() || !object.has_validator() {
            text.push_str(&format!(" {} {:?}", object.size_bytes, object.version));
        }
        text.push('\n');
    }
    text
}

/// Hashes everything that cached rows depend on: the data, the credentials used to read it, the operators before the
/// cache point with their files, and the columns. Tenants share cached rows, so the hash is cryptographic: no user can
/// construct a pipeline whose hash collides with another user's rows.
fn prefix(input: &CachePointInput<'_>, encoder: Option<&CacheEncoder>, schema: &Schema) -> Prefix {
    let pipeline = input.pipeline;
    let mut hash = Sha256::new();
    hash.update(FORMAT_VERSION.to_le_bytes());
    hash.update(content_of(input.manifest));
    // Credentials can select an endpoint, so the same URL can refer to different objects under different credentials.
    for source in pipeline.source.datasets() {
        let features = (&source.format, &source.features, &source.credentials, pipeline.on_error, schema);
        hash.update(format!("{features:?}\n"));
        if let Some(kafka) = &source.kafka {
            hash.update(format!("{:?}\n", kafka.without_commit_group()));
        }
    }
    // The encoding of an image depends on the operator that later decodes the image.
    if let Some(encoder) = encoder {
        hash.update(encoder.describe());
    }
    let before = pipeline.cached_prefix().map_or(&[][..], |(before, _)| before);
    for operator in before.iter().filter(|operator| !operator.kind.is_engine_operator()) {
        hash.update(format!("{:?}\n", operator.kind));
        if let Some((_, url)) = operator.kind.definition().file()
            && let Some(file) = input.files.get(url)
        {
            hash.update(Sha256::digest(file));
        }
    }
    let mut half = [0; size_of::<Prefix>()];
    half.copy_from_slice(&hash.finalize()[..size_of::<Prefix>()]);
    Prefix::from_be_bytes(half)
}

#[cfg(test)]
mod tests {
    use feedline_data::manifest::{
        Block, ChecksumAlgorithm, Shard, ShardDigest, ShardIndex, ShardRef, StoreChecksum,
    };
    use feedline_data::pipeline::Source;

    use super::*;

    fn prefix_with(source: Source, url: &str, version: &str, digest: Option<ShardDigest>) -> Prefix {
        let pipeline = Pipeline::builder("p").source(source).batch(1).build().unwrap();
        let object = ShardRef {
            url: url.to_owned(),
            size_bytes: 10,
            version: version.to_owned(),
            ..ShardRef::default()
        };
        let blocks = vec![Block { rows: 1, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() }];
        let index = ShardIndex {
            blocks,
            schema: Some(Schema::default()),
            defects: Vec::new(),
            ..ShardIndex::default()
        };
        let manifest = Manifest { schema: Schema::default(), shards: vec![Shard { object, index, digest }] };
        let schema = Schema::default();
        let input = CachePointInput {
            pipeline: &pipeline,
            encoding: CacheEncoding::AsIs,
            manifest: &manifest,
            read_schema: &schema,
            operators: &[],
            files: &BTreeMap::new(),
        };
        prefix(&input, None, &schema)
    }

    fn prefix_of(source: Source, url: &str, version: &str) -> Prefix {
        prefix_with(source, url, version, None)
    }

    #[test]
    fn a_prefix_depends_on_everything_that_determines_the_rows() {
        let source = || Source::text("s3://bucket/x");
        let prefix = prefix_of(source(), "s3://bucket/x", "1");
        assert_eq!(prefix_of(source(), "s3://bucket/x", "1"), prefix);
        assert_ne!(prefix_of(source(), "s3://bucket/x", "2"), prefix);
        assert_ne!(prefix_of(source(), "s3://bucket/y", "1"), prefix);
        assert_ne!(
            prefix_of(source().credentials("other"), "s3://bucket/x", "1"),
            prefix,
            "another endpoint"
        );
        // A separator inside a URL does not imitate another field.
        assert_ne!(
            prefix_of(source(), "s3://bucket/x 10", "1"),
            prefix_of(source(), "s3://bucket/x", "10 1")
        );
    }

    /// The shard may be overwritten with the same size and the same number of rows.
    #[test]
    fn a_prefix_depends_on_the_content_of_the_shards() {
        let prefix_of = |version, digest| {
            prefix_with(Source::text("s3://bucket/x"), "s3://bucket/x", version, Some(digest))
        };
        let (one, two) = (ShardDigest::of_bytes(b"one"), ShardDigest::of_bytes(b"two"));
        assert_ne!(prefix_of("1", one), prefix_of("1", two));
        assert_eq!(prefix_of("1", one), prefix_of("2", one), "the same bytes were written again");
        let footer = ShardDigest::Parts([1; 32]);
        assert_ne!(prefix_of("1", footer), prefix_of("2", footer), "only a part was read");
        let checksum = StoreChecksum::new(ChecksumAlgorithm::Crc32c, 0, &[1; 4]);
        let checked = footer.with_checksum(checksum);
        assert_eq!(prefix_of("1", checked), prefix_of("1", footer), "the store added a checksum");
    }
}
