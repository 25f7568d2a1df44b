//! Tests of listing shards.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use feedline_data::pipeline::Format;
use feedline_data::tenants::TenantReads;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use tokio::sync::Barrier;
use tokio::time::timeout;

use super::*;
use crate::bounded_store::BoundedStore;
use crate::testing::{dataset, path};
use crate::{DEFAULT_RETRY_BUDGET, Stores};

async fn names(urls: &[String]) -> Result<Vec<String>, SourceError> {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let shards = dataset(&urls, Format::Files, &[]).list().await?;
    Ok(shards.into_iter().map(|shard| shard.url.rsplit('/').next().unwrap().to_owned()).collect())
}

fn tree() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("sub")).unwrap();
    for name in
        ["b-01.tar", "b-00.tar", "b-02.tar", "x y#z?.txt", "[q].txt", "_SUCCESS", ".hidden", "sub/c.tar"]
    {
        std::fs::write(directory.path().join(name), name).unwrap();
    }
    directory
}

#[tokio::test]
async fn globs_prefixes_lists_and_braces_are_expanded() {
    let tree = tree();
    let at = |name: &str| path(tree.path(), name);
    assert_eq!(names(&[at("*.tar")]).await.unwrap(), ["b-00.tar", "b-01.tar", "b-02.tar"]);
    assert_eq!(names(&[at("**/*.tar")]).await.unwrap(), ["b-00.tar", "b-01.tar", "b-02.tar", "c.tar"]);
    assert_eq!(names(&[at("b-{01..02}.tar")]).await.unwrap(), ["b-01.tar", "b-02.tar"]);
    assert_eq!(names(&[at("b-02.tar"), at("b-0[02].tar")]).await.unwrap(), ["b-02.tar", "b-00.tar"]);
    assert_eq!(names(&[format!("file://{}", at("b-0?.tar"))]).await.unwrap().len(), 3);
    assert_eq!(names(&[at("[q].txt")]).await.unwrap().len(), 1);
    assert_eq!(names(&[at("sub/")]).await.unwrap(), ["c.tar"]);
    assert_eq!(names(&[at("sub")]).await.unwrap(), ["c.tar"]);
    assert_eq!(names(&[format!("{}/", tree.path().display())]).await.unwrap().len(), 6);
}

#[tokio::test]
async fn names_with_special_characters_are_listed_and_read() {
    let tree = tree();
    let fixture = dataset(&[path(tree.path(), "x*").as_str()], Format::Files, &[("b", "bytes")]);
    let shard = fixture.list().await.unwrap().remove(0);
    let index = fixture.index_shard(&shard).await.unwrap().index;
    let schema = index.schema.unwrap();
    let read = crate::BlockRead {
        shard: &shard,
        block: &index.blocks[0],
        compression: index.compression.as_ref(),
        schema: &schema,
        rows: None,
    };
    let rows = fixture.read_block(&read).await.unwrap();
    assert_eq!(crate::testing::lines(&rows.batch), ["x y#z?.txt"]);
    assert_eq!(crate::Stores::new(Vec::new()).get(&shard.url).await.unwrap(), "x y#z?.txt");
}

#[tokio::test]
async fn errors_of_missing_objects_contain_the_fix() {
    let tree = tree();
    let at = |name: &str| path(tree.path(), name);
    for (url, fix) in [
        (at("gone.tar"), "check the path"),
        (at("gone/"), "check the path"),
        (at("*.gone"), "check the pattern"),
        (at("gone/*.tar"), "check the pattern"),
        (at("b-{00..09}.tar"), "check the path"),
        ("https://host/*.tar".to_owned(), "{000..099}"),
        ("ftp://host/x".to_owned(), "use file, s3"),
    ] {
        let error = names(std::slice::from_ref(&url)).await.unwrap_err();
        assert!(error.to_string().contains(fix), "{url}: {error}");
        assert!(!error.is_retryable());
    }
}

/// A store that responds after it has the maximum number of concurrent requests, and returns empty listings.
#[derive(Debug)]
struct Slow {
    inner: InMemory,
    together: Barrier,
    asked: AtomicUsize,
    most_asked: AtomicUsize,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slow")
    }
}

#[async_trait]
impl ObjectStore for Slow {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.inner.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_asked.fetch_max(asked, Ordering::SeqCst);
        self.together.wait().await;
        self.asked.fetch_sub(1, Ordering::SeqCst);
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        futures::stream::pending().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A store with this number of objects, and its reader.
async fn slow(objects: usize) -> (Arc<Slow>, ScopedStores) {
    let inner = InMemory::new();
    for object in 0..objects {
        inner.put(&Path::from(format!("x-{object:03}")), PutPayload::from_static(b"x")).await.unwrap();
    }
    let store = Arc::new(Slow {
        inner,
        together: Barrier::new(CONCURRENT_HEADS),
        asked: AtomicUsize::new(0),
        most_asked: AtomicUsize::new(0),
    });
    let stores = Stores::new(Vec::new());
    let bounded = BoundedStore::new(Arc::clone(&store) as Arc<dyn ObjectStore>, DEFAULT_RETRY_BUDGET);
    stores.insert("mem://host", Arc::new(bounded));
    (store, ScopedStores::new(stores, None, &TenantReads::default()))
}

#[tokio::test(start_paused = true)]
async fn requests_for_many_objects_are_concurrent_up_to_a_limit() {
    let (store, reads) = slow(4 * CONCURRENT_HEADS).await;
    let braces = "mem://host/x-{000..096}".to_owned();
    let plain = (97..128).map(|object| format!("mem://host/x-{object:03}"));
    let urls: Vec<String> = [braces].into_iter().chain(plain).collect();
    // Sequential requests would not reach the number for which the store waits.
    let shards = timeout(Duration::from_secs(60), list(&reads, &urls)).await.expect("at once").unwrap();
    let names: Vec<&str> = shards.iter().map(|shard| &shard.url["mem://host/x-".len()..]).collect();
    assert_eq!(names, (0..128).map(|object| format!("{object:03}")).collect::<Vec<_>>());
    assert_eq!(store.most_asked.load(Ordering::SeqCst), CONCURRENT_HEADS);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_listing_times_out() {
    let (_, reads) = slow(1).await;
    let error = list(&reads, &["mem://host/".to_owned()]).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("did not respond for 1800 s"), "{error}");
}

#[tokio::test]
async fn a_listing_of_too_many_objects_is_an_error() {
    let tree = tree();
    let reads = ScopedStores::new(Stores::new(Vec::new()), None, &TenantReads::default());
    let at = |name: &str| path(tree.path(), name);
    for urls in [vec![at("")], vec![at("*.tar"), at("sub/c.tar")], vec![at("b-{00..02}.tar"), at("sub/")]] {
        // The directory of the pattern has objects that do not match it.
        let error = Listing::new(&reads, 3).shards(&urls).await.unwrap_err();
        assert!(error.to_string().contains("more than 3 objects"), "{urls:?}: {error}");
        assert!(Listing::new(&reads, 30).shards(&urls).await.is_ok());
    }
}
