//! Tests of the limit of requests to servers that do not respond.

use std::sync::Mutex;

use feedline_data::tenants::TenantReads;
use futures::future::pending;
use object_store::ObjectStoreExt;
use object_store::list::PaginatedListResult;
use object_store::memory::InMemory;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::*;
use crate::list::list;
use crate::stores::ScopedStores;
use crate::testing::{listing_server, stores_at};
use crate::{DEFAULT_RETRY_BUDGET, ObjectAccess, Stores};

/// 60 s of retries, a pause of 5 s and a request of 30 s.
const LIMIT: Duration = Duration::from_secs(95);

/// Starts a server that accepts connections and never responds. Returns its URL.
async fn silent_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.push(connection);
        }
    });
    url
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_fails_head_requests_and_listings_within_the_limit() {
    let server = silent_server().await;
    let web = format!("{server}/x");
    for (budget_s, limit) in [(60, LIMIT), (20, Duration::from_secs(55))] {
        let stores = stores_at(&server, Duration::from_secs(budget_s));
        let reads = ScopedStores::new(Arc::clone(&stores), None, &TenantReads::default());
        for url in
            [web.as_str(), "s3://bucket/a/x", "s3://bucket/a/", "s3://bucket/a/*", "s3://bucket/a/**/x"]
        {
            let begun = Instant::now();
            let error = list(&reads, &[url.to_owned()]).await.unwrap_err();
            assert_eq!(begun.elapsed().as_secs(), limit.as_secs(), "{url}: {error}");
            let seconds = limit.as_secs();
            let expected = format!(
                "cannot read `{url}`: the store did not respond for {seconds} s; check the store and the network, and try again"
            );
            assert_eq!(error.to_string(), expected);
            assert!(error.is_retryable());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_fails_the_requests_of_a_cache_within_the_limit() {
    let stores = stores_at(&silent_server().await, DEFAULT_RETRY_BUDGET);
    let begun = Instant::now();
    stores.list_folder("s3://bucket/a/", |_, _| {}).await.expect_err("it is silent");
    assert_eq!(begun.elapsed().as_secs(), LIMIT.as_secs());
    let begun = Instant::now();
    let read = stores.get_ranges("s3://bucket/a/x", std::slice::from_ref(&(0..5))).await;
    read.expect_err("it is silent");
    assert_eq!(begun.elapsed().as_secs(), LIMIT.as_secs());
    let begun = Instant::now();
    stores.put("s3://bucket/a/x", Bytes::from_static(b"row")).await.expect_err("it is silent");
    assert!(begun.elapsed() < LIMIT + Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn deletions_are_not_supported() {
    let store = BoundedStore::new(Arc::new(InMemory::new()), DEFAULT_RETRY_BUDGET);
    let path = Path::from("a/x");
    store.put(&path, PutPayload::from_static(b"row")).await.unwrap();
    let error = store.delete(&path).await.unwrap_err();
    assert!(matches!(error, Error::NotSupported { .. }), "{error}");
    assert!(store.head(&path).await.is_ok(), "the object still exists");
}

/// A listing with one object per page.
struct SlowPages {
    page_time: Duration,
    page_count: usize,
    /// The first page that does not arrive.
    missing_page: Option<usize>,
    delimiters: Mutex<BTreeSet<Option<String>>>,
}

impl SlowPages {
    fn new(missing_page: Option<usize>) -> Arc<Self> {
        let page_time = Duration::from_secs(90);
        Arc::new(Self { page_time, page_count: 10, missing_page, delimiters: Mutex::default() })
    }

    fn store(self: &Arc<Self>) -> BoundedStore {
        let pages = Arc::clone(self) as Arc<dyn PaginatedListStore>;
        BoundedStore::new(Arc::new(InMemory::new()), DEFAULT_RETRY_BUDGET).with_pages(pages)
    }
}

#[async_trait]
impl PaginatedListStore for SlowPages {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        options: PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        assert_eq!(prefix, Some("folder/"));
        self.delimiters.lock().unwrap().insert(options.delimiter.map(Cow::into_owned));
        let page: usize = options.page_token.map_or(0, |token| token.parse().unwrap());
        if Some(page) == self.missing_page {
            return pending().await;
        }
        sleep(self.page_time).await;
        let object = ObjectMeta {
            location: Path::from(format!("folder/{page}")),
            last_modified: Default::default(),
            size: 1,
            e_tag: None,
            version: None,
        };
        let result = ListResult {
            common_prefixes: vec![Path::from("folder/sub")],
            objects: vec![object],
            extensions: Extensions::default(),
        };
        let page_token = (page + 1 < self.page_count).then(|| (page + 1).to_string());
        Ok(PaginatedListResult { result, page_token })
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_listing_continues_as_long_as_pages_arrive() {
    let (pages, folder) = (SlowPages::new(None), Path::from("folder"));
    let begun = Instant::now();
    let objects: Vec<ObjectMeta> = pages.store().list(Some(&folder)).try_collect().await.unwrap();
    assert_eq!((objects.len(), begun.elapsed().as_secs()), (10, 900));
    assert_eq!(objects[9].location, Path::from("folder/9"));
    assert_eq!(pages.delimiters.lock().unwrap().clone(), BTreeSet::from([None]));
    let listed = pages.store().list_with_delimiter(Some(&folder)).await.unwrap();
    assert_eq!(listed.objects, objects);
    assert_eq!(listed.common_prefixes, [Path::from("folder/sub")]);
    assert!(pages.delimiters.lock().unwrap().contains(&Some("/".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_listing_fails_when_a_page_does_not_arrive_within_the_limit() {
    let (pages, folder) = (SlowPages::new(Some(3)), Path::from("folder"));
    let begun = Instant::now();
    let error = pages.store().list(Some(&folder)).try_collect::<Vec<_>>().await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 3 * 90 + LIMIT.as_secs());
    assert!(error.to_string().contains("did not respond for 95 s"), "{error}");
    let begun = Instant::now();
    pages.store().list_with_delimiter(Some(&folder)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 3 * 90 + LIMIT.as_secs());
}

/// A listing whose every page continues with the same page.
struct EndlessPages;

#[async_trait]
impl PaginatedListStore for EndlessPages {
    async fn list_paginated(&self, _: Option<&str>, _: PaginatedListOptions) -> Result<PaginatedListResult> {
        let result = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: Extensions::default(),
        };
        Ok(PaginatedListResult { result, page_token: Some("again".to_owned()) })
    }
}

#[tokio::test]
async fn a_listing_that_repeats_a_page_fails() {
    let store =
        BoundedStore::new(Arc::new(InMemory::new()), DEFAULT_RETRY_BUDGET).with_pages(Arc::new(EndlessPages));
    for error in [
        store.list(None).try_collect::<Vec<_>>().await.unwrap_err(),
        store.list_with_delimiter(None).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("listed the page `again` twice"), "{error}");
    }
}

/// Starts a server that lists a bucket with the objects `a/0` to `a/4` in pages of two. Returns its URL.
async fn paging_server() -> String {
    listing_server(|request| {
        assert!(request.contains("prefix=a%2F"), "{request}");
        let first =
            request.split_once("continuation-token=").map_or(0, |(_, rest)| rest.as_bytes()[0] - b'0');
        let object = |number: u8| {
            format!(
                "<Contents><Key>a/{number}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>\"{number}\"</ETag><Size>1</Size></Contents>"
            )
        };
        let objects: String = (first..5_u8.min(first + 2)).map(object).collect();
        let next = if first + 2 < 5 {
            format!("<NextContinuationToken>{}</NextContinuationToken>", first + 2)
        } else {
            String::new()
        };
        ("200 OK", format!("<ListBucketResult>{objects}{next}</ListBucketResult>"))
    })
    .await
}

#[tokio::test]
async fn all_pages_of_a_bucket_are_listed() {
    let stores = stores_at(&paging_server().await, DEFAULT_RETRY_BUDGET);
    let reads = ScopedStores::new(stores, None, &TenantReads::default());
    for url in ["s3://bucket/a/*", "s3://bucket/a/"] {
        let shards = list(&reads, &[url.to_owned()]).await.unwrap();
        let urls: Vec<&str> = shards.iter().map(|shard| shard.url.as_str()).collect();
        let expected =
            ["s3://bucket/a/0", "s3://bucket/a/1", "s3://bucket/a/2", "s3://bucket/a/3", "s3://bucket/a/4"];
        assert_eq!(urls, expected, "{url}");
    }
}

/// The client ends its retries by the real clock, before the limit.
#[tokio::test]
async fn the_error_of_the_client_names_the_fix_too() {
    let server = silent_server().await;
    let options = [
        ("aws_endpoint", server.as_str()),
        ("aws_allow_http", "true"),
        ("aws_access_key_id", "KEY"),
        ("aws_secret_access_key", "SECRET"),
        ("aws_region", "us-east-1"),
        ("timeout", "200ms"),
    ];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let stores =
        Stores::with_access(ObjectAccess::new(options).with_retry_budget(Duration::from_millis(300)));
    let reads = ScopedStores::new(stores, None, &TenantReads::default());
    let error = list(&reads, &["s3://bucket/a/x".to_owned()]).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let message = error.to_string();
    assert!(message.starts_with("cannot read `s3://bucket/a/x`: "), "{message}");
    assert!(message.ends_with("; check the store and the network, and try again"), "{message}");
}
