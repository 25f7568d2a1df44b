//! Tests of listing shards.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use feedline_data::pipeline::Format;
use feedline_data::tenants::TenantReads;
use futures::stream::BoxStream;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, Extensions, GetOptions, GetResult, ListResult, MultipartUpload, PutMultipartOptions,
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
    let read = crate::BlockRead {
        shard: &shard,
        block: &index.blocks[0],
        index: Some(&index),
        schema: index.schema.as_ref().unwrap(),
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

#[tokio::test]
async fn a_url_that_occurs_twice_lists_its_shards_twice() {
    let tree = tree();
    let at = |name: &str| path(tree.path(), name);
    let (twice, dotted) = (at("b-00.tar"), at("./b-00.tar"));
    assert_eq!(names(&[twice.clone(), twice.clone()]).await.unwrap(), ["b-00.tar", "b-00.tar"]);
    assert_eq!(names(&[twice.clone(), dotted, format!("file://{twice}")]).await.unwrap().len(), 3);
    assert_eq!(names(&[at("{b-01,b-00,b-01}.tar")]).await.unwrap(), ["b-00.tar", "b-01.tar", "b-01.tar"]);
    assert_eq!(names(&[at("b-0*.tar"), at("sub/"), at("b-0*.tar")]).await.unwrap().len(), 7);
    assert_eq!(names(&[at("sub"), at("sub/")]).await.unwrap(), ["c.tar", "c.tar"]);
}

#[tokio::test]
async fn a_shard_that_different_urls_select_is_an_error() {
    let tree = tree();
    let at = |name: &str| path(tree.path(), name);
    for urls in [
        [at("*.tar"), at("b-00.tar")],
        [at("b-00.tar"), at("b-0?.tar")],
        [at("sub/"), at("sub/*.tar")],
        [at(""), at("sub/")],
        [at("{b-0*,b-00}.tar"), at("b-01.tar")],
    ] {
        let error = names(&urls).await.unwrap_err().to_string();
        assert!(error.contains("select it: remove one of them from `source.url`"), "{urls:?}: {error}");
    }
}

#[tokio::test]
async fn names_of_existing_folders_are_not_patterns() {
    let tree = tempfile::tempdir().unwrap();
    for name in
        ["[D]/a.txt", "[D]/[x]/b.txt", "{a,b}/{c}.txt", "wh?t/*/s.txt", "D/d.txt", "a/x.txt", "b/x.txt"]
    {
        let file = tree.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, name).unwrap();
    }
    let at = |name: &str| path(tree.path(), name);
    for (url, expected) in [
        ("[D]", &["b.txt", "a.txt"][..]),
        ("[D]/", &["b.txt", "a.txt"]),
        ("[D]/*", &["a.txt"]),
        ("[D]/a.txt", &["a.txt"]),
        ("[D]/{a,a}.txt", &["a.txt", "a.txt"]),
        ("[D]/[x]/*.txt", &["b.txt"]),
        ("[D]/[xy]/*.txt", &[]),
        ("[[]D]/a.t*", &["a.txt"]),
        ("[E-F]/*.txt", &[]),
        ("[B-D]/*.txt", &["d.txt"]),
        ("{a,b}/{c}.txt", &["%7Bc%7D.txt"]),
        ("{a,b}/*.txt", &["%7Bc%7D.txt"]),
        ("{b,a}/x.txt", &["x.txt", "x.txt"]),
        ("wh?t/*/*.txt", &["s.txt"]),
        ("wh?t/*/", &["s.txt"]),
        ("{wh?t,D}/**/*.txt", &["d.txt", "s.txt"]),
    ] {
        match names(&[at(url)]).await {
            Ok(names) => assert_eq!(names, expected, "{url}"),
            Err(error) => {
                assert!(expected.is_empty() && matches!(error, SourceError::Empty { .. }), "{url}: {error}")
            }
        }
    }
}

/// A store with directory markers, whose keys end with a slash that the client removes.
#[derive(Debug)]
struct MarkedPages(Vec<(&'static str, u64)>);

#[async_trait]
impl PaginatedListStore for MarkedPages {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        _: PaginatedListOptions,
    ) -> StoreResult<PaginatedListResult> {
        let keys = self.0.iter().filter(|(key, _)| key.starts_with(prefix.unwrap_or_default()));
        let meta = |(key, size): &(&str, u64)| {
            Ok(ObjectMeta {
                location: Path::parse(key)?,
                last_modified: Default::default(),
                size: *size,
                e_tag: Some("1".to_owned()),
                version: None,
            })
        };
        let objects = keys.map(meta).collect::<StoreResult<_>>()?;
        let result = ListResult { common_prefixes: Vec::new(), objects, extensions: Extensions::default() };
        Ok(PaginatedListResult { result, page_token: None })
    }
}

/// A store that lists these keys with these sizes. It contains the keys that do not end with a slash.
async fn marked(keys: &[(&'static str, u64)]) -> ScopedStores {
    let inner = InMemory::new();
    for (key, size) in keys.iter().filter(|(key, _)| !key.ends_with('/') && !key.contains("//")) {
        inner.put(&Path::parse(key).unwrap(), vec![b'x'; *size as usize].into()).await.unwrap();
    }
    let stores = Stores::new(Vec::new());
    let bounded = BoundedStore::new(Arc::new(inner), DEFAULT_RETRY_BUDGET);
    stores.insert("mem://host", Arc::new(bounded.with_pages(Arc::new(MarkedPages(keys.to_vec())))));
    ScopedStores::new(stores, None, &TenantReads::default())
}

#[tokio::test]
async fn directory_markers_are_not_shards() {
    let keys =
        [("d/", 0), ("d/a", 1), ("d/empty", 0), ("d/sub/", 0), ("d/sub/b", 1), ("d/b", 0), ("d/b/", 0)];
    let reads = marked(&keys).await;
    for (url, expected) in
        [("d/", &["d/a", "d/b", "d/empty", "d/sub/b"][..]), ("d/*", &["d/a", "d/b", "d/empty"])]
    {
        let shards = list(&reads, &[format!("mem://host/{url}")]).await.unwrap();
        let names: Vec<&str> = shards.iter().map(|shard| &shard.url["mem://host/".len()..]).collect();
        assert_eq!(names, expected, "{url}");
    }
}

#[tokio::test]
async fn keys_with_special_characters_are_listed_or_named() {
    let reads = marked(&[("d/x[1].tar", 1), ("d/a%20b", 1), ("d/c d#e", 1), ("d", 1), ("o/a//b", 1)]).await;
    let names =
        async |url: &str| list(&reads, &[format!("mem://host/{url}")]).await.map(|shards| shards.len());
    assert_eq!(names("d/").await.unwrap(), 3);
    assert_eq!(names("d/x[1].tar").await.unwrap(), 1);
    assert_eq!(names("d/x[[]1].t*").await.unwrap(), 1);
    assert_eq!(names("d/a%20*").await.unwrap(), 1);
    assert_eq!(names("d/c d#e").await.unwrap(), 1);
    assert_eq!(names("d").await.unwrap(), 1);
    let error = names("o/").await.unwrap_err().to_string();
    assert!(
        error.contains("o/a//b") && error.ends_with("rename that object, or list other objects"),
        "{error}"
    );
}
