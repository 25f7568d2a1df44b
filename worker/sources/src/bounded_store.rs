//! Sends the requests to an object store through its governor, and fails those to a store that does not respond. Each request,
//! such as one page of a listing, has the limit [`retry::max_duration`], which includes retries and the time to get the store's
//! keys, but not the time in the governor's queue.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, try_unfold, unfold};
use futures::{StreamExt, TryStreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::{DELIMITER, Path};
use object_store::{
    CopyOptions, Error, Extensions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result, coalesce_ranges,
};
use tokio::time::timeout;

use crate::governor::{Permit, StoreGovernor};
use crate::requests::{GovernedRequests, RequestTag};
use crate::responses::read_body;
use crate::retry;

/// Maximum number of listed objects per source, because each object needs memory until it is indexed.
pub(crate) const MAX_OBJECTS: usize = 10_000_000;
/// Maximum time to list one local directory, which the client lists as a whole or in large parts.
pub(crate) const LOCAL_DIRECTORY_TIMEOUT: Duration = Duration::from_secs(1800);

/// A store that fails a request without a response. Feedline deletes no objects, so deletions are not supported. The parts of an
/// upload are not limited, because Feedline does not use them.
#[derive(Clone)]
pub(crate) struct BoundedStore {
    inner: Arc<dyn ObjectStore>,
    /// Requests single pages of a listing. `None` for local files and web servers.
    pages: Option<Arc<dyn PaginatedListStore>>,
    /// Maximum duration of a request and its retries.
    limit: Duration,
    /// Sends governed requests. `None` for local files.
    requests: Option<GovernedRequests>,
}

/// The next request of a listing.
enum NextPage {
    First,
    After(String),
    /// The listing is complete.
    End,
}

impl BoundedStore {
    /// Limits the requests of a client that retries for `retry_budget`.
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, retry_budget: Duration) -> Self {
        Self { inner, pages: None, limit: retry::max_duration(retry_budget), requests: None }
    }

    /// Lists by page, so that a long listing continues as long as each page arrives within the limit.
    pub(crate) fn with_pages(self, pages: Arc<dyn PaginatedListStore>) -> Self {
        Self { pages: Some(pages), ..self }
    }

    /// Sends the requests through a governor, and retries those that fail.
    pub(crate) fn with_governor(self, governor: Option<Arc<StoreGovernor>>, retry_budget: Duration) -> Self {
        let limit = self.limit;
        let requests = governor.map(|governor| GovernedRequests { governor, retry_budget, limit });
        Self { requests, ..self }
    }

    fn without_pages(&self) -> Self {
        Self { pages: None, ..self.clone() }
    }

    /// Sends a request. The permit is that of a governed request, which is in flight until its body is read.
    async fn send<T, F: Future<Output = Result<T>>>(
        &self,
        tag: &RequestTag,
        bytes: u64,
        request: impl Fn() -> F,
    ) -> Result<(T, Option<Permit>)> {
        match &self.requests {
            Some(requests) => {
                requests.send(tag, bytes, request).await.map(|(value, permit)| (value, Some(permit)))
            }
            None => within(self.limit, request()).await.map(|value| (value, None)),
        }
    }

    /// Sends a request without a job, whose response has no body to read.
    async fn send_small<T, F: Future<Output = Result<T>>>(&self, request: impl Fn() -> F) -> Result<T> {
        let (value, permit) = self.send(&RequestTag::default(), 0, request).await?;
        if let Some(permit) = permit {
            permit.succeed(0);
        }
        Ok(value)
    }

    /// Lists the pages below a directory. Returns `None` if the client does not support pages.
    fn list_pages(
        &self,
        prefix: Option<&Path>,
        delimiter: Option<&'static str>,
    ) -> Option<BoxStream<'static, Result<ListResult>>> {
        let pages = Arc::clone(self.pages.as_ref()?);
        let store = self.without_pages();
        let prefix =
            prefix.filter(|prefix| !prefix.is_root()).map(|prefix| format!("{}{DELIMITER}", prefix.as_ref()));
        let next_page = move |page: NextPage| {
            let (pages, prefix, store) = (Arc::clone(&pages), prefix.clone(), store.clone());
            async move {
                let page_token = match page {
                    NextPage::First => None,
                    NextPage::After(token) => Some(token),
                    NextPage::End => return Ok(None),
                };
                let requested = page_token.clone();
                let options = PaginatedListOptions {
                    delimiter: delimiter.map(Cow::Borrowed),
                    page_token,
                    ..PaginatedListOptions::default()
                };
                let list = || pages.list_paginated(prefix.as_deref(), options.clone());
                let page = store.send_small(list).await?;
                match page.page_token.filter(|token| !token.is_empty()) {
                    Some(token) if Some(&token) == requested.as_ref() => Err(repeated_page(&token)),
                    Some(token) => Ok(Some((page.result, NextPage::After(token)))),
                    None => Ok(Some((page.result, NextPage::End))),
                }
            }
        };
        Some(try_unfold(NextPage::First, next_page).boxed())
    }
}

/// Returns the error for a page that continues with itself, because such a listing never ends.
fn repeated_page(token: &str) -> Error {
    let reason = format!("the store listed the page `{token}` twice: check the store's support for listings");
    Error::NotSupported { source: reason.into() }
}

/// Returns the error for a directory with too many objects.
fn too_many_objects() -> Error {
    let reason = format!("the directory has more than {MAX_OBJECTS} objects: use fewer, larger objects");
    Error::NotSupported { source: reason.into() }
}

/// Returns the error for a deletion, which would not be sent through the governor.
fn not_deleted() -> Error {
    Error::NotSupported { source: "Feedline does not delete objects".into() }
}

/// Returns a response whose request is in flight until its body is read completely or dropped.
pub(crate) fn in_flight_until_read(result: GetResult, permit: Permit) -> GetResult {
    let payload = match result.payload {
        GetResultPayload::Stream(body) => {
            let read = |(mut body, mut permit, bytes): (BodyStream, Option<Permit>, u64)| async move {
                let chunk = body.next().await;
                let done = if matches!(chunk, Some(Ok(_))) { None } else { permit.take() };
                match (&chunk, done) {
                    (None, Some(permit)) => permit.succeed(bytes),
                    (Some(Err(_)), Some(permit)) => permit.fail(),
                    _ => {}
                }
                let chunk = chunk?;
                let bytes = bytes + chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
                Some((chunk, (body, permit, bytes)))
            };
            GetResultPayload::Stream(unfold((body, Some(permit), 0), read).boxed())
        }
        local @ GetResultPayload::File(..) => local,
    };
    GetResult { payload, ..result }
}

type BodyStream = BoxStream<'static, Result<Bytes>>;

/// Waits for a request for at most `limit`.
///
/// # Errors
/// Returns the error of the request, or an error with the limit.
pub(crate) async fn within<T>(limit: Duration, request: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, request).await.unwrap_or_else(|_| {
        Err(Error::Generic { store: "bounded store", source: retry::no_response_reason(limit).into() })
    })
}

impl fmt::Debug for BoundedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Display for BoundedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for BoundedStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.send_small(|| self.inner.put_opts(path, payload.clone(), options.clone())).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.send_small(|| self.inner.put_multipart_opts(path, options.clone())).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let tag = options.extensions.get::<RequestTag>().cloned().unwrap_or_default();
        let bytes = match &options.range {
            Some(GetRange::Bounded(range)) => range.end.saturating_sub(range.start),
            _ => 0,
        };
        let get = || {
            let mut options = options.clone();
            if let Some(read) = &tag.merged {
                options.range = Some(GetRange::Bounded(read.send()));
            }
            self.inner.get_opts(path, options)
        };
        if let Some(requests) = self.requests.as_ref().filter(|_| bytes > 0 && !options.head) {
            return requests.read(&tag, bytes, get).await;
        }
        let (result, permit) = self.send(&tag, bytes, get).await?;
        Ok(match permit {
            Some(permit) if options.head => {
                permit.succeed(0);
                result
            }
            Some(permit) => in_flight_until_read(result, permit),
            None => result,
        })
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if self.requests.is_none() {
            return within(self.limit, self.inner.get_ranges(path, ranges)).await;
        }
        let get = |range: Range<u64>| async move {
            let wanted = range.end.saturating_sub(range.start);
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            read_body(self.get_opts(path, options).await?, wanted).await
        };
        coalesce_ranges(ranges, get, OBJECT_STORE_COALESCE_DEFAULT).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        paths.and_then(|_| async { Err(not_deleted()) }).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Some(pages) = self.list_pages(prefix, None) {
            return pages
                .map_ok(|page| futures::stream::iter(page.objects.into_iter().map(Ok)))
                .try_flatten()
                .boxed();
        }
        let limit = LOCAL_DIRECTORY_TIMEOUT;
        let next_object = move |mut objects: BoxStream<'static, Result<ObjectMeta>>| async move {
            let next = within(limit, objects.try_next()).await;
            next.map(|meta| meta.map(|meta| (meta, objects)))
        };
        try_unfold(self.inner.list(prefix), next_object).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let Some(mut pages) = self.list_pages(prefix, Some(DELIMITER)) else {
            return within(LOCAL_DIRECTORY_TIMEOUT, self.inner.list_with_delimiter(prefix)).await;
        };
        let (mut common_prefixes, mut objects) = (BTreeSet::new(), Vec::new());
        while let Some(page) = pages.try_next().await? {
            common_prefixes.extend(page.common_prefixes);
            objects.extend(page.objects);
            if objects.len() + common_prefixes.len() > MAX_OBJECTS {
                return Err(too_many_objects());
            }
        }
        let common_prefixes = common_prefixes.into_iter().collect();
        Ok(ListResult { common_prefixes, objects, extensions: Extensions::default() })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.send_small(|| self.inner.copy_opts(from, to, options.clone())).await
    }
}

#[cfg(test)]
mod tests;
