//! Tests of pinned, retried and coalesced reads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::ids::JobId;
use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::Format;
use futures::FutureExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::{Object, coalesce};
use crate::content::Decoders;
use crate::merged_reads::{MergedReads, ReadTurn};
use crate::retry::MAX_BACKOFF;
use crate::testing::fixture;
use crate::{BlockRead, ObjectAccess, SourceError, Stores};

/// A store whose first reads fail in the middle of the response.
#[derive(Debug)]
struct Flaky {
    inner: InMemory,
    failures_left: AtomicU32,
    /// No read gets a response.
    is_silent: bool,
}

impl fmt::Display for Flaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flaky")
    }
}

#[async_trait]
impl ObjectStore for Flaky {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if self.is_silent {
            return futures::future::pending().await;
        }
        let is_head = options.head;
        let mut result = self.inner.get_opts(path, options).await?;
        let take = |left: u32| left.checked_sub(1);
        if !is_head && self.failures_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            let broken = object_store::Error::Generic { store: "Flaky", source: "connection reset".into() };
            let body = futures::stream::iter([Ok(Bytes::from_static(b"half")), Err(broken)]);
            result.payload = GetResultPayload::Stream(Box::pin(body));
        }
        Ok(result)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

async fn flaky(failures: u32) -> Arc<Stores> {
    let inner = InMemory::new();
    inner.put(&Path::from("a/x"), PutPayload::from_static(b"whole body")).await.unwrap();
    let stores = Stores::new(Vec::new());
    stores.insert(
        "mem://host",
        Arc::new(Flaky { inner, failures_left: AtomicU32::new(failures), is_silent: false }),
    );
    stores
}

/// The error of a read of `url`, and its duration.
async fn read_for(url: &str, retry_budget: Duration) -> (SourceError, Duration) {
    let stores = Stores::with_access(ObjectAccess::default().with_retry_budget(retry_budget));
    let begun = std::time::Instant::now();
    let error = stores.get(url).await.unwrap_err();
    (error, begun.elapsed())
}

/// A web server that describes an object of 5 bytes and responds to each read of it with status 503. Counts the reads.
async fn unavailable() -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port is free");
    let url = format!("http://{}/x", listener.local_addr().expect("it is bound"));
    let reads = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&reads);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(answer(BufReader::new(connection), Arc::clone(&counted)));
        }
    });
    (url, reads)
}

async fn answer(mut connection: BufReader<TcpStream>, reads: Arc<AtomicU32>) -> std::io::Result<()> {
    let mut request = String::new();
    while connection.read_line(&mut request).await? > 0 {
        if !request.ends_with("\r\n\r\n") {
            continue;
        }
        let answer = if request.starts_with("HEAD") {
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nLast-Modified: Tue, 01 Jan 2019 00:00:00 GMT\r\n\r\n"
        } else {
            reads.fetch_add(1, Ordering::SeqCst);
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
        };
        connection.get_mut().write_all(answer.as_bytes()).await?;
        request.clear();
    }
    Ok(())
}

#[tokio::test]
async fn an_unavailable_store_fails_a_read_when_the_retry_budget_is_used_up() {
    let budget = Duration::from_millis(300);
    let (url, reads) = unavailable().await;
    let (error, took) = read_for(&url, budget).await;
    assert!(error.is_retryable() && error.to_string().contains("503"), "{error}");
    // Responses take no time, so the read takes the budget and at most one pause.
    assert!(took >= budget && took < budget + MAX_BACKOFF, "{took:?}");
    let reads = reads.load(Ordering::SeqCst);
    assert!((2..40).contains(&reads), "the client's retries are not repeated: {reads} reads");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}/x", listener.local_addr().unwrap());
    drop(listener);
    let (error, took) = read_for(&closed, budget).await;
    assert!(error.is_retryable(), "{error}");
    assert!(took >= budget && took < budget + MAX_BACKOFF, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_respond_fails_a_read_within_the_limit() {
    let silent = Flaky { inner: InMemory::new(), failures_left: AtomicU32::new(0), is_silent: true };
    let shard = ShardRef {
        url: "mem://x".to_owned(),
        size_bytes: 5,
        version: "\"1\"".to_owned(),
        ..ShardRef::default()
    };
    let object = Object::new(Arc::new(silent), Path::from("x"), shard);
    let begun = tokio::time::Instant::now();
    let error = object.read(0..5).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 95, "60 s of retries, a pause of 5 s and a request of 30 s");
    assert!(error.is_retryable() && error.to_string().contains("did not respond for 95 s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn interrupted_reads_are_retried_until_the_budget_is_used_up() {
    assert_eq!(flaky(2).await.get("mem://host/a/x").await.unwrap(), "whole body");
    let error = flaky(u32::MAX).await.get("mem://host/a/x").await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("connection reset"), "{error}");
    let missing = flaky(0).await.get("mem://host/a/gone").await.unwrap_err();
    assert!(matches!(missing, SourceError::NotFound { .. }));
}

#[tokio::test]
async fn a_changed_or_removed_shard_is_detected() {
    let fixture = fixture(b"one\ntwo\n", Format::Text, &[]);
    let shard = fixture.index().await.unwrap();
    let file = fixture.directory.path().join("shard");
    std::fs::write(&file, b"other text").unwrap();
    let error = fixture.read(&shard, 0, None).await.unwrap_err();
    assert!(
        matches!(error, SourceError::ShardChanged { .. })
            && error.to_string().contains("start the job again"),
        "{error}"
    );
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(fixture.read(&shard, 0, None).await.unwrap_err(), SourceError::ShardChanged { .. }));
}

#[tokio::test]
async fn a_part_shares_the_requests_and_the_decoders_of_its_job() {
    let shard = ShardRef {
        url: "s3://b/x".to_owned(),
        size_bytes: 10,
        version: "1".to_owned(),
        ..ShardRef::default()
    };
    let (reads, decoders) = (Arc::new(MergedReads::default()), Arc::new(Decoders::default()));
    // A request of its own would fail.
    let object = Object::new(Arc::new(InMemory::new()), Path::from("x"), shard)
        .with_job(JobId(7), Some(Arc::clone(&reads)))
        .with_decoders(Arc::clone(&decoders));
    let part = object.part(4..8);
    assert!(part.job() == JobId(7) && Arc::ptr_eq(part.decoders(), &decoders));
    let object = object.object_version();
    let ReadTurn::Owner(owned) = reads.join(&object, &(0..10), 0, 10) else { panic!("no other read exists") };
    let mut read = Box::pin(part.read(1..3));
    assert!((&mut read).now_or_never().is_none(), "it waits for the read of the whole object");
    owned.finish(&(0..10), Ok(Bytes::from_static(b"0123456789"))).unwrap();
    assert_eq!(read.await.unwrap(), "56");
}

#[tokio::test]
async fn reads_with_different_credentials_do_not_share_requests() {
    let inner = InMemory::new();
    let path = Path::from("x");
    inner.put(&path, PutPayload::from_static(b"whole")).await.unwrap();
    let shard = ShardRef {
        url: "s3://b/x".to_owned(),
        size_bytes: 5,
        version: crate::version::version_of(&inner.head(&path).await.unwrap()),
        ..ShardRef::default()
    };
    let reads = Arc::new(MergedReads::default());
    let object = |store: Arc<dyn ObjectStore>| {
        Object::new(store, path.clone(), shard.clone()).with_job(JobId(0), Some(Arc::clone(&reads)))
    };
    let silent: Arc<dyn ObjectStore> =
        Arc::new(Flaky { inner: InMemory::new(), failures_left: AtomicU32::new(0), is_silent: true });
    let (first, same, other) = (object(Arc::clone(&silent)), object(silent), object(Arc::new(inner)));
    let mut in_flight = Box::pin(first.read(0..5));
    assert!((&mut in_flight).now_or_never().is_none());
    assert!(same.read(0..5).now_or_never().is_none());
    assert_eq!(same.traffic().1, 0, "it waits for the request of the first read");
    assert_eq!(other.read(0..5).now_or_never(), Some(Ok(Bytes::from_static(b"whole"))));
}

#[tokio::test]
async fn near_ranges_share_a_request() {
    assert_eq!(coalesce(&[0..10, 20..30, 100_000..100_001]), [0..30, 100_000..100_001]);
    let inner = InMemory::new();
    let path = Path::from("x");
    let body: Vec<u8> = (0..40_000_000u32).map(|at| (at % 251) as u8).collect();
    inner.put(&path, body.clone().into()).await.unwrap();
    let meta = inner.head(&path).await.unwrap();
    let shard = feedline_data::manifest::ShardRef {
        url: "mem://x".to_owned(),
        size_bytes: meta.size,
        version: crate::version::version_of(&meta),
        ..ShardRef::default()
    };
    let object = Object::new(Arc::new(inner), path, shard);
    let (buffers, spans) = object.read_ranges(&[5..10, 50..60, 1_000_000..1_000_003]).await.unwrap();
    let (bytes, requests, wait) = object.traffic();
    assert_eq!((buffers.len(), bytes, requests), (2, 58, 2));
    assert!(wait > Duration::ZERO);
    let part = |at: usize| &buffers[spans[at].buffer][spans[at].start..spans[at].start + spans[at].len];
    assert_eq!((part(0), part(1), part(2)), (&body[5..10], &body[50..60], &body[1_000_000..1_000_003]));
    // A large range is returned in parts, in order.
    assert!(object.read(1..40_000_000).await.unwrap() == body[1..]);
    assert!(object.read(0..40_000_001).await.unwrap_err().to_string().contains("--rebuild"));
}

#[tokio::test]
async fn a_small_shard_is_read_once_while_it_is_indexed() {
    let rows = (0..2000).map(|row| format!("{{\"a\": {row}}}\n")).collect::<String>();
    let inner = InMemory::new();
    let path = Path::from("x");
    inner.put(&path, rows.clone().into()).await.unwrap();
    let meta = inner.head(&path).await.unwrap();
    let shard = ShardRef {
        url: "mem://x".to_owned(),
        size_bytes: meta.size,
        version: crate::version::version_of(&meta),
        ..ShardRef::default()
    };
    let object = Object::new(Arc::new(inner), path, shard).with_digest();
    for range in [0..meta.size, 0..meta.size, 5..30] {
        let bytes = object.read(range.clone()).await.unwrap();
        assert_eq!(bytes, rows.as_bytes()[range.start as usize..range.end as usize]);
    }
    assert_eq!(object.traffic().1, 1);
    assert!(object.read(5..meta.size + 1).await.is_err());
    let digest = object.finish_digest(false).await.unwrap().unwrap();
    assert_eq!(digest, feedline_data::manifest::ShardDigest::of_bytes(rows.as_bytes()));
}

#[tokio::test]
async fn files_are_rows_and_their_paths_are_returned_without_reads() {
    let fixture = fixture(b"whole file", Format::Files, &[]);
    let shard = fixture.index().await.unwrap();
    let rows = fixture.read(&shard, 0, Some(&[0])).await.unwrap();
    assert_eq!(crate::testing::lines(&rows.batch), [format!("whole file|{}", shard.object.url)]);
    let mut schema = shard.index.schema.clone().unwrap();
    schema.fields.remove(0);
    let read = BlockRead {
        shard: &shard.object,
        block: &shard.index.blocks[0],
        index: Some(&shard.index),
        schema: &schema,
        rows: None,
    };
    assert_eq!(fixture.dataset.read_block(&read).await.unwrap().store_requests, 0);
}
