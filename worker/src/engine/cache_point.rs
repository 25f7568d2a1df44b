//! Where a pipeline's `cache` cuts it: rows that are kept skip what comes before, rows that are made are kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use feedline_data::manifest::Manifest;
use feedline_data::messages::OperatorStats;
use feedline_data::order::RowRef;
use feedline_data::pipeline::{CacheEncoding, CacheTier, Pipeline};
use feedline_data::schema::Schema;
use feedline_operators::{BuiltOperator, Chunk, RowCodec};
use sha2::{Digest, Sha256};

use super::chunk::WorkChunk;
use super::encodings::{CacheEncoder, EncodingPermission};
use super::trace::{OperatorCounters, Tracing};
use crate::cache::{Caches, Prefix};
use crate::process::ReadMeter;

/// Changes whenever kept rows of an earlier release mean something else.
const FORM: u32 = 1;
/// First byte of what is kept of a row: whether it goes on, or was left out before the cut.
const STAYS: u8 = 1;
const LEFT: u8 = 0;

/// What is counted at a cut, and bytes that it reads from disk or the store.
pub(super) type CachePointCounters = (Arc<OperatorCounters>, Arc<ReadMeter>);

/// The place of a `cache` among the operators that run.
#[derive(Debug)]
pub(crate) struct CachePoint {
    /// Operators before it.
    pub(crate) place: usize,
    pub(crate) tier: CacheTier,
    pub(crate) prefix: Prefix,
    /// Rows that were looked for, and found.
    pub(crate) counters: Arc<OperatorCounters>,
    /// Bytes that it reads from disk.
    pub(super) reads: Arc<ReadMeter>,
    codec: RowCodec,
    /// What the images are kept as, where not as they are.
    making: Option<CacheEncoder>,
    /// Largest seen: bytes of a kept row.
    row_bytes: AtomicU64,
    /// Rows seen as they are kept, and their bytes.
    seen: AtomicU64,
    seen_bytes: AtomicU64,
}

impl CachePoint {
    /// The cut of a pipeline, if it has one; `files` are those that its operators read. `counters` are those of a cut that the
    /// job had before.
    pub(crate) fn new(
        (pipeline, form): (&Pipeline, CacheEncoding),
        manifest: &Manifest,
        (read_schema, operators): (&Schema, &[BuiltOperator]),
        files: &BTreeMap<String, Bytes>,
        tracing: &Tracing,
        counters: Option<CachePointCounters>,
    ) -> Result<Option<Self>, String> {
        let Some((before, tier)) = pipeline.cached() else { return Ok(None) };
        let place = before.iter().filter(|operator| !operator.kind.is_engines()).count();
        let schema = place.checked_sub(1).map_or(read_schema, |last| &operators[last].schema);
        let making = making(operators.get(place), form)?;
        let fresh = || (OperatorCounters::new("cache", None, tracing.on), tracing.clock.meter());
        let (counters, reads) = counters.unwrap_or_else(fresh);
        Ok(Some(Self {
            place,
            tier,
            prefix: prefix((pipeline, making.as_ref()), manifest, schema, files),
            counters,
            reads,
            codec: RowCodec::new(schema).map_err(|error| error.to_string())?,
            making,
            row_bytes: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            seen_bytes: AtomicU64::new(0),
        }))
    }

    /// What is kept of these rows.
    pub(super) async fn find(&self, caches: &Caches, rows: &[RowRef]) -> Vec<Option<Bytes>> {
        let ids = rows.iter().map(|row| row.row_id).collect();
        let found = caches.get(self.prefix, self.tier, ids).await;
        let hits = found.iter().flatten();
        let bytes = hits.clone().map(Bytes::len).sum::<usize>() as u64;
        self.note_rows(hits.clone());
        self.counters.add_rows(rows.len(), hits.count());
        self.counters.add_bytes(0, bytes);
        if self.tier != CacheTier::Memory {
            self.reads.add(bytes);
        }
        found
    }

    pub(crate) fn stats(&self) -> OperatorStats {
        let mut stats = self.counters.snapshot();
        stats.cpu_ns += self.reads.cpu_ns();
        stats
    }

    /// Bytes that rows of a group may take beside what is counted for its source; rows in memory are counted there.
    pub(crate) fn row_bytes(&self) -> u64 {
        match self.tier {
            CacheTier::Memory => 0,
            CacheTier::Disk | CacheTier::Store => self.row_bytes.load(Ordering::Relaxed),
        }
    }

    /// Keeps the rows of `work`, which are at the cut, and puts those in between that were found. `found` has an entry for
    /// each row of the chunk's range, and `rows` is that range.
    pub(super) fn join(
        &self,
        work: &mut WorkChunk,
        caches: &Caches,
        found: &[Option<Bytes>],
        rows: &[RowRef],
        leave: &EncodingPermission<'_>,
    ) -> Result<(), String> {
        let any_found = found.iter().any(Option::is_some);
        let keeps = work.made > 0 && leave.is_allowed() && caches.has_room(self.prefix, self.tier);
        if !any_found && !keeps {
            return Ok(());
        }
        let chunk = &mut work.chunk;
        let encode = |chunk: &Chunk| self.codec.encode(chunk, STAYS).map_err(|error| error.to_string());
        let is_needed = work.made > 0 && (any_found || self.making.is_none());
        let made = if is_needed { encode(chunk)? } else { Vec::new() };
        if keeps {
            let kept = match &self.making {
                None => self.to_keep(chunk, &made, found, rows),
                Some(making) => {
                    let (other, count) = making.make(chunk, leave)?;
                    self.to_keep(chunk, &encode(&other)?[..count], found, rows)
                }
            };
            self.note_rows(kept.iter().map(|(_, row)| row));
            caches.put(self.prefix, self.tier, kept);
        }
        if !any_found {
            return Ok(());
        }
        let mut all: BTreeMap<u32, Bytes> = chunk.origins.iter().copied().zip(made).collect();
        let stay = (0u32..).zip(found).filter_map(|(origin, row)| Some((origin, row.clone()?)));
        all.extend(stay.filter(|(_, row)| row.first() == Some(&STAYS)));
        let kept: Vec<Bytes> = all.values().map(|row| row.slice(1..)).collect();
        chunk.columns = self.codec.decode(&kept).map_err(|error| error.to_string())?;
        chunk.origins = all.into_keys().collect();
        chunk.row_ids = chunk.origins.iter().map(|&origin| rows[origin as usize].row_id).collect();
        chunk.passes = chunk.origins.iter().map(|&origin| rows[origin as usize].pass).collect();
        Ok(())
    }

    fn note_rows<'a>(&self, rows: impl Iterator<Item = &'a Bytes>) {
        let (mut count, mut largest, mut bytes) = (0, 0, 0);
        for row in rows {
            (count, largest, bytes) = (count + 1, largest.max(row.len()), bytes + row.len());
        }
        self.row_bytes.fetch_max(largest as u64, Ordering::Relaxed);
        self.seen.fetch_add(count, Ordering::Relaxed);
        self.seen_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Mean size of a row as it is kept; 0 before the first.
    pub(super) fn mean_row_bytes(&self) -> f64 {
        let seen = self.seen.load(Ordering::Relaxed);
        if seen == 0 { 0.0 } else { self.seen_bytes.load(Ordering::Relaxed) as f64 / seen as f64 }
    }

    /// The rows of a chunk that can be kept, of which the first ones were made: not those that failed, which shall fail again;
    /// and those that were left out.
    fn to_keep(
        &self,
        chunk: &Chunk,
        made: &[Bytes],
        found: &[Option<Bytes>],
        rows: &[RowRef],
    ) -> Vec<(u64, Bytes)> {
        let failed = |origin: u32| chunk.failures.iter().any(|(failed, _)| *failed == origin);
        let id = |origin: u32| rows[origin as usize].row_id;
        let stay = chunk.origins.iter().zip(made).filter(|(origin, _)| !failed(**origin));
        let mut keep: Vec<(u64, Bytes)> = stay.map(|(origin, row)| (id(*origin), row.clone())).collect();
        let left = (0u32..).zip(found).filter(|(origin, row)| {
            row.is_none() && !failed(*origin) && chunk.origins.binary_search(origin).is_err()
        });
        keep.extend(left.map(|(origin, _)| (id(origin), Bytes::from_static(&[LEFT]))));
        keep
    }
}

/// What images are kept as, for the operator behind the cut.
fn making(behind: Option<&BuiltOperator>, form: CacheEncoding) -> Result<Option<CacheEncoder>, String> {
    if form == CacheEncoding::AsIs {
        return Ok(None);
    }
    let decoding = behind.and_then(|operator| operator.decodes.clone());
    let decoding = decoding.ok_or("the operator behind the cut decodes no images")?;
    Ok(Some(CacheEncoder::new(form, decoding)))
}

/// What rows at the cut depend on: the data and the keys it is read with, the operators before it, the columns, and what the
/// operators read. Tenants share rows that both may read, so nobody may find a pipeline with the name of another's rows: the
/// hash is a cryptographic one.
fn prefix(
    (pipeline, making): (&Pipeline, Option<&CacheEncoder>),
    manifest: &Manifest,
    schema: &Schema,
    files: &BTreeMap<String, Bytes>,
) -> Prefix {
    let mut hash = Sha256::new();
    hash.update(FORM.to_le_bytes());
    for shard in &manifest.shards {
        let object = &shard.object;
        hash.update(format!("{:?} {} {:?}\n", object.url, object.size_bytes, object.version));
    }
    // Under other keys the same URL may be another object: keys may have an endpoint of their own.
    for source in pipeline.source.datasets() {
        let features = (&source.format, &source.features, &source.credentials, pipeline.on_error, schema);
        hash.update(format!("{features:?}\n"));
    }
    // Which images are kept as pixels depends on what becomes of them.
    if let Some(making) = making {
        hash.update(making.describe());
    }
    let before = pipeline.cached().map_or(&[][..], |(before, _)| before);
    for operator in before.iter().filter(|operator| !operator.kind.is_engines()) {
        hash.update(format!("{:?}\n", operator.kind));
        if let Some((_, url)) = operator.kind.definition().file()
            && let Some(file) = files.get(url)
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
    use feedline_data::manifest::{Block, Shard, ShardIndex, ShardRef};
    use feedline_data::pipeline::Source;

    use super::*;

    fn of(source: Source, url: &str, version: &str) -> Prefix {
        let pipeline = Pipeline::builder("p").source(source).batch(1).build().unwrap();
        let object = ShardRef { url: url.to_owned(), size_bytes: 10, version: version.to_owned(), part: 0 };
        let blocks = vec![Block { rows: 1, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() }];
        let index = ShardIndex { blocks, schema: Some(Schema::default()), defects: Vec::new() };
        let manifest = Manifest { schema: Schema::default(), shards: vec![Shard { object, index }] };
        prefix((&pipeline, None), &manifest, &Schema::default(), &BTreeMap::new())
    }

    #[test]
    fn rows_have_the_name_of_all_that_they_depend_on() {
        let source = || Source::text("s3://bucket/x");
        let usual = of(source(), "s3://bucket/x", "1");
        assert_eq!(of(source(), "s3://bucket/x", "1"), usual);
        assert_ne!(of(source(), "s3://bucket/x", "2"), usual);
        assert_ne!(of(source(), "s3://bucket/y", "1"), usual);
        assert_ne!(of(source().credentials("other"), "s3://bucket/x", "1"), usual, "another endpoint");
        // What divides the parts cannot be written as a part of them.
        assert_ne!(of(source(), "s3://bucket/x 10", "1"), of(source(), "s3://bucket/x", "10 1"));
    }
}
