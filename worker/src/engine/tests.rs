//! The engine as a whole: leases, groups and fetches on a small dataset in a temporary directory.

use feedline_data::layout::Layout;
use feedline_data::manifest::{Manifest, Shard};
use feedline_data::messages::{
    GraphJobLoad, GraphLoadState, JobAllocation, JobDetails, Lease, OperatorStats, TenantCacheQuota,
    WorkerPlan,
};
use feedline_data::pipeline::Pipeline;
use feedline_data::tenants::TenantReads;
use feedline_proto::batch::decode_batch;
use feedline_proto::services::PieceHeader;
use feedline_sources::Dataset;
use std::fmt::Write;
use std::sync::atomic::Ordering;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use tempfile::TempDir;

use super::settings::EngineSettings;
use super::*;
use crate::process::ProcessClock;

mod chunks;
mod columns;
mod graphs;
mod locking;
mod memory;
mod null_tensors;
mod operator_matrix;
mod plans;
mod source_columns;

const JOB: JobId = JobId(1);
const MIB: u64 = 1 << 20;

/// A worker's engine, and one job that is not loaded.
struct TestEngine {
    engine: Arc<Engine>,
    source: JobSource,
    settings: EngineSettings,
    layout: Layout,
    directory: TempDir,
}

/// What a fetch has delivered.
#[derive(Default)]
struct Delivered {
    pieces: Vec<PieceHeader>,
    batches: Vec<RecordBatch>,
    failure: Option<String>,
}

impl Delivered {
    fn row_ids(&self) -> Vec<u64> {
        self.pieces.iter().flat_map(|piece| piece.row_ids.clone().unwrap_or_default()).collect()
    }
}

impl TestEngine {
    /// An engine with a job over `lines`. `rest` is the pipeline after its source.
    async fn new(lines: &str, rest: &str, streams: u32, cores: u32, memory_bytes: u64) -> Self {
        Self::over((lines.as_bytes(), "jsonl"), rest, streams, cores, memory_bytes).await
    }

    /// An engine with a job over a file of this format. `rest` is the pipeline after its source.
    async fn over(
        (data, format): (&[u8], &str),
        rest: &str,
        streams: u32,
        cores: u32,
        memory_bytes: u64,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("data");
        std::fs::write(&path, data).expect("the directory is writable");
        let url = path.to_str().expect("UTF-8");
        let yaml = format!("name: test\nsource: {{ url: '{url}', format: {format} }}\nseed: 3\n{rest}");
        let pipeline = Pipeline::from_yaml(&yaml, "test.yaml").expect("a valid pipeline");
        let stores = Stores::new(Vec::new());
        let dataset = Dataset::new(pipeline.source.clone(), Arc::clone(&stores)).expect("a valid source");
        let mut shards = Vec::new();
        for object in dataset.list().await.expect("the file exists") {
            let indexed = dataset.index_shard(&object).await.expect("the file is readable");
            shards.push(Shard { object, index: indexed.index, digest: indexed.digest });
        }
        let manifest = Manifest::build(shards).expect("one shard");
        let layout = Layout::new(&pipeline, &manifest.summary(), 2, streams);
        let details = JobDetails {
            job: JOB,
            pipeline,
            layout: layout.clone(),
            source_key: String::new(),
            dataset: manifest.summary(),
            audit: true,
            cache: None,
            reads: TenantReads::default(),
        };
        let tracing = Tracing { is_on: true, clock: ProcessClock::new() };
        let engine = Engine::new(cores, MemoryBudget::new(memory_bytes), CacheLocations::default(), tracing)
            .expect("threads");
        let settings =
            EngineSettings { threads: cores, functions: None, function_bytes: Arc::default(), graphs: None };
        let source = JobSource { details, manifest: Arc::new(manifest), cache: None, stores };
        Self { engine, source, settings, layout, directory }
    }

    async fn load(&self) {
        let JobSource { details, manifest, cache, stores } = &self.source;
        let source = JobSource {
            details: details.clone(),
            manifest: Arc::clone(manifest),
            cache: *cache,
            stores: Arc::clone(stores),
        };
        let context = CompileContext {
            caches: self.engine.caches(),
            settings: &self.settings,
            tracing: self.engine.tracing(),
        };
        let previous = self.engine.job(details.job);
        let job = JobContext::load(source, context, previous.as_deref()).await.expect("the job compiles");
        self.engine.add_job(job);
    }

    /// A plan with the leases of the first epoch.
    fn plan(&self) -> WorkerPlan {
        let lease = |split| Lease { job: JOB, split, start_offset: 0, lost_workers: 0 };
        WorkerPlan { leases: self.splits(0).into_iter().map(lease).collect(), ..WorkerPlan::default() }
    }

    async fn computed(&self) -> Vec<(JobId, SplitRef)> {
        self.engine.report().await.computed
    }

    fn lease(&self, splits: impl IntoIterator<Item = SplitRef>) {
        let lease = |split| Lease { job: JOB, split, start_offset: 0, lost_workers: 0 };
        self.engine.set_leases(&splits.into_iter().map(lease).collect::<Vec<_>>());
    }

    /// The splits of an epoch.
    fn splits(&self, epoch: u32) -> Vec<SplitRef> {
        let streams = 0..self.layout.streams;
        streams
            .flat_map(|stream| {
                (0..self.layout.splits(stream)).map(move |ordinal| SplitRef { epoch, ordinal, stream })
            })
            .collect()
    }

    async fn open(&self, split: SplitRef, from: u32) -> Option<OpenFetch> {
        let deadline = Instant::now() + Duration::from_secs(20);
        self.engine.open_fetch((JOB, split), from, deadline).await
    }

    /// The next piece of a fetch, or the end.
    async fn next(&self, fetch: &OpenFetch, from: u32) -> PieceLookup {
        loop {
            let changed = fetch.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.engine.next_piece(fetch, from) {
                PieceLookup::Wait => changed.await,
                other => return other,
            }
        }
    }

    /// Fetches a split from an offset to its end.
    async fn fetch(&self, split: SplitRef, from: u32) -> Delivered {
        let fetch = self.open(split, from).await.expect("the lease arrives");
        let mut delivered = Delivered::default();
        let mut from = from;
        loop {
            match self.next(&fetch, from).await {
                PieceLookup::Piece(job, piece) => {
                    assert!(piece.header.start <= from && piece.header.end > from);
                    assert_eq!(piece.header.batch.total_bytes, piece.data.len() as u64);
                    from = piece.header.end;
                    let batch = decode_batch(&job.compiled.output_arrow, &piece.header.batch, &piece.data);
                    delivered.batches.push(batch.expect("the piece is well-formed"));
                    delivered.pieces.push(piece.header.clone());
                }
                PieceLookup::Failed(message) => delivered.failure = Some(message),
                PieceLookup::End(_) => assert_eq!(from, self.layout.split_len(split)),
                PieceLookup::Unknown => panic!("the lease was revoked"),
                PieceLookup::Wait => unreachable!("the loop waits"),
            }
            if delivered.failure.is_some() || from >= self.layout.split_len(split) {
                self.engine.close_fetch(fetch);
                return delivered;
            }
        }
    }

    async fn stats(&self, operator: &str) -> OperatorStats {
        let stats = self.engine.report().await.stats;
        let operators = stats.into_iter().flat_map(|job| job.operators);
        operators.into_iter().find(|stats| stats.name == operator).expect("the operator is measured")
    }
}

/// Lines `{"id": 0, "tokens": [0]}` and so on. A row has one to seven tokens.
fn lines(rows: usize) -> String {
    let mut lines = String::new();
    for id in 0..rows {
        let tokens = vec![id; id % 7 + 1];
        writeln!(lines, "{{\"id\": {id}, \"tokens\": {tokens:?}}}").expect("a string");
    }
    lines
}

const PLAIN: &str = "shuffle: { window: 64 }\noperators: [ batch: { size: 8 } ]\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_delivers_the_rows_of_each_split_in_order() {
    let test = TestEngine::new(&lines(1000), PLAIN, 2, 2, 64 * MIB).await;
    test.lease(test.splits(1));
    assert_eq!(test.engine.unloaded(), BTreeSet::from([JOB]));
    test.load().await;
    assert!(test.engine.unloaded().is_empty());
    let job = test.engine.job(JOB).expect("the job is loaded");
    let mut all = BTreeSet::new();
    for split in test.splits(1) {
        let delivered = test.fetch(split, 0).await.row_ids();
        let (rows, _) = job.rows(split, 0..test.layout.split_len(split)).expect("a dataset has no segments");
        assert_eq!(delivered, rows.iter().map(|row| row.row_id).collect::<Vec<_>>());
        all.extend(delivered);
    }
    assert_eq!(all.len(), 1000);
    let (source, batch) = (test.stats("source").await, test.stats("batch").await);
    assert_eq!((source.rows_out, batch.rows_in, batch.rows_out), (1000, 1000, 1000));
    assert!(batch.bytes_out > 0 && source.bytes_in > 0);
    assert_eq!(test.computed().await.len(), test.splits(1).len());
    assert!(!test.engine.is_idle());
    test.engine.shutdown().await;
    assert!(test.engine.is_idle() && test.computed().await.is_empty());
}

#[tokio::test]
async fn a_fetch_waits_for_its_lease_and_ends_with_it() {
    let test = TestEngine::new(&lines(100), PLAIN, 1, 1, 64 * MIB).await;
    let split = test.splits(0)[0];
    let none = test.engine.open_fetch((JOB, split), 0, Instant::now()).await;
    assert!(none.is_none(), "the deadline has passed");
    test.lease([]);
    assert!(test.engine.lock().pending_fetches.is_empty());
    let opened = test.open(split, 0);
    tokio::pin!(opened);
    assert!(futures::poll!(opened.as_mut()).is_pending());
    test.lease([split]);
    let fetch = opened.await.expect("the lease has arrived");
    assert!(matches!(test.engine.next_piece(&fetch, 0), PieceLookup::Wait));
    let newer = test.open(split, 0).await.expect("the lease is here");
    test.load().await;
    assert!(matches!(test.next(&newer, 0).await, PieceLookup::Piece(..)));
    let replaced = test.engine.next_piece(&fetch, 0);
    assert!(matches!(replaced, PieceLookup::Unknown), "a newer fetch replaces it");
    test.lease([]);
    assert!(matches!(test.next(&newer, 8).await, PieceLookup::Unknown), "the lease is revoked");
}

#[tokio::test]
async fn rows_that_a_consumer_has_lost_are_computed_again() {
    let test = TestEngine::new(&lines(64), PLAIN, 1, 1, 64 * MIB).await;
    let split = test.splits(0)[0];
    test.lease([split]);
    test.load().await;
    let first = test.fetch(split, 0).await.row_ids();
    assert_eq!(test.fetch(split, 0).await.row_ids(), first);
    let progress = async || {
        let fetch = test.open(split, 64).await.expect("the lease is here");
        test.engine.progress(&fetch)
    };
    let before = progress().await;
    let rest = test.fetch(split, 3).await;
    assert_eq!(rest.pieces[0].start, 3, "rows before the offset are not computed");
    assert_eq!(rest.row_ids(), first[3..]);
    assert!(progress().await > before);
}

#[tokio::test]
async fn on_error_decides_what_a_bad_row_does() {
    let data = lines(40).replace("{\"id\": 17,", "{\"id\": x,");
    for (on_error, failure) in [("fail", true), ("skip", false), ("replace", false)] {
        let rest = format!("on_error: {on_error}\noperators: [ batch: {{ size: 4 }} ]\n");
        let test = TestEngine::new(&data, &rest, 1, 1, 64 * MIB).await;
        test.lease(test.splits(0));
        test.load().await;
        let (mut kept, mut skipped, mut message) = (0, Vec::new(), None);
        for split in test.splits(0) {
            let delivered = test.fetch(split, 0).await;
            kept += delivered.pieces.iter().map(|piece| piece.rows).sum::<u32>();
            skipped.extend(delivered.pieces.into_iter().flat_map(|piece| piece.skipped));
            message = message.or(delivered.failure);
        }
        assert_eq!(message.is_some(), failure, "{on_error}: {message:?}");
        if let Some(message) = message {
            assert!(message.contains("row 17 at byte") && message.contains("on_error: skip"), "{message}");
            continue;
        }
        assert_eq!(kept, if on_error == "skip" { 39 } else { 40 });
        assert_eq!(skipped.len(), 1);
        assert_eq!((skipped[0].row_id, skipped[0].offset), (17, data.find("{\"id\": x").unwrap() as u64));
    }
}

#[tokio::test]
async fn a_filter_removes_rows_and_reports_the_offsets_of_the_others() {
    let rest = "operators: [ filter: { where: \"id % 3 = 0\" }, batch: { size: 8 } ]\n";
    let test = TestEngine::new(&lines(48), rest, 1, 2, 64 * MIB).await;
    test.lease(test.splits(0));
    test.load().await;
    for split in test.splits(0) {
        let first = test.layout.split_range(split).start;
        for piece in test.fetch(split, 0).await.pieces {
            let expected: Vec<u32> =
                (piece.start..piece.end).filter(|offset| (first + u64::from(*offset)) % 3 == 0).collect();
            assert_eq!(piece.rows as usize, expected.len());
            assert_eq!(piece.kept_offsets, Some(expected));
        }
    }
    let filter = test.stats("filter").await;
    assert_eq!((filter.rows_in, filter.rows_out), (48, 16));
}

#[tokio::test]
async fn cached_rows_are_read_once() {
    let rest =
        "operators: [ filter: { where: \"id % 3 = 0\" }, cache: { tier: memory }, batch: { size: 8 } ]\n";
    let test = TestEngine::new(&lines(48), rest, 1, 1, 64 * MIB).await;
    for epoch in [0, 1] {
        test.lease(test.splits(epoch));
        test.load().await;
        let mut rows = 0;
        for split in test.splits(epoch) {
            rows += test.fetch(split, 0).await.pieces.iter().map(|piece| piece.rows).sum::<u32>();
        }
        assert_eq!(rows, 16, "epoch {epoch}");
    }
    let (source, cache) = (test.stats("source").await, test.stats("cache").await);
    assert_eq!((source.rows_out, cache.rows_in, cache.rows_out), (48, 96, 48));
    assert!(test.engine.lock().cache_values().values().next().is_some());
}

#[tokio::test]
async fn a_round_is_computed_once_for_all_streams() {
    let operators = "operators:\n  - cast: { column: tokens, dtype: int32 }\n  - bucket_by_length: { columns: [tokens], boundaries: [3], batch_sizes: [6, 4], window: 60 }\n";
    let test = TestEngine::new(&lines(120), operators, 2, 2, 64 * MIB).await;
    let round: Vec<SplitRef> = test.splits(0).into_iter().filter(|split| split.ordinal == 0).collect();
    test.lease([round[0]]);
    test.load().await;
    let first = test.fetch(round[0], 0).await;
    let computed = test.stats("batch").await;
    assert_eq!(computed.rows_in, 60);
    test.lease(round.clone());
    let second = test.fetch(round[1], 0).await;
    assert_eq!(test.stats("batch").await.rows_in, 60, "the pieces of the round were stored");
    assert_eq!(first.pieces.len(), second.pieces.len(), "streams have the same steps");
    let mut ids = [first.row_ids(), second.row_ids()].concat();
    ids.sort_unstable();
    let job = test.engine.job(JOB).expect("the job is loaded");
    let mut expected: Vec<u64> = job
        .rows(round[0], 0..60)
        .expect("a dataset has no segments")
        .0
        .iter()
        .map(|row| row.row_id)
        .collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);
}

/// The time that the first batch of 512 rows takes, if each row waits 4 ms.
async fn first_batch(parallelism: u32, cores: u32) -> Duration {
    let wait = format!("wait: {{ ms: 4, parallelism: {parallelism} }}");
    let rest = format!("operators: [ {wait}, batch: {{ size: 512 }} ]\n");
    let test = TestEngine::new(&lines(512), &rest, 1, cores, 64 * MIB).await;
    let split = test.splits(0)[0];
    test.lease([split]);
    let started = tokio::time::Instant::now();
    test.load().await;
    let fetch = test.open(split, 0).await.expect("the lease is here");
    assert!(matches!(test.next(&fetch, 0).await, PieceLookup::Piece(..)));
    started.elapsed()
}

/// The clock is virtual: it advances to the next timer when no task can run.
#[tokio::test(start_paused = true)]
async fn one_batch_of_slow_rows_uses_all_cores() {
    let all = first_batch(64, 64).await;
    // The minimum is 32 ms. The clock also advances while threads of the pool start chunks, which takes longer on a busy machine.
    assert!(all >= Duration::from_millis(32) && all < Duration::from_millis(700), "{all:?}");
    let one = first_batch(1, 64).await;
    assert!(one >= Duration::from_millis(2048), "{one:?}");
}

#[tokio::test]
async fn a_computed_split_is_reported_immediately() {
    let test = TestEngine::new(&lines(16), PLAIN, 1, 1, 64 * MIB).await;
    test.lease([test.splits(0)[0]]);
    test.load().await;
    // The end of the load is reported too.
    let computed = loop {
        let news = test.engine.report_due.notified();
        tokio::pin!(news);
        news.as_mut().enable();
        let computed = test.computed().await;
        if !computed.is_empty() {
            break computed;
        }
        news.await;
    };
    assert_eq!(computed, [(JOB, test.splits(0)[0])]);
}
