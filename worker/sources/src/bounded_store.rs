//! Fails requests to an object store that does not respond. Each request, such as one page of a listing, has the limit
//! [`retry::max_duration`], which includes the client's retries and the time to get the store's keys.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::{DELIMITER, Path};
use object_store::{
    CopyOptions, Error, Extensions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::timeout;

use crate::retry;

/// Maximum number of listed objects per source, because each object needs memory until it is indexed.
pub(crate) const MAX_OBJECTS: usize = 10_000_000;
/// Maximum time to list one local directory, which the client lists as a whole or in large parts.
const LOCAL_DIRECTORY_TIMEOUT: Duration = Duration::from_secs(1800);

/// A store that fails a request without a response. Deletions and the parts of an upload are not limited, because
/// Feedline does not use them.
pub(crate) struct BoundedStore {
    inner: Arc<dyn ObjectStore>,
    /// Requests single pages of a listing. `None` for local files and web servers.
    pages: Option<Arc<dyn PaginatedListStore>>,
    /// Maximum duration of a request and its retries.
    limit: Duration,
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
        Self { inner, pages: None, limit: retry::max_duration(retry_budget) }
    }

    /// Lists by page, so that a long listing continues as long as each page arrives within the limit.
    pub(crate) fn with_pages(self, pages: Arc<dyn PaginatedListStore>) -> Self {
        Self { pages: Some(pages), ..self }
    }

    /// Lists the pages below a directory. Returns `None` if the client does not support pages.
    fn list_pages(
        &self,
        prefix: Option<&Path>,
        delimiter: Option<&'static str>,
    ) -> Option<BoxStream<'static, Result<ListResult>>> {
        let (pages, limit) = (Arc::clone(self.pages.as_ref()?), self.limit);
        let prefix =
            prefix.filter(|prefix| !prefix.is_root()).map(|prefix| format!("{}{DELIMITER}", prefix.as_ref()));
        let next_page = move |page: NextPage| {
            let (pages, prefix) = (Arc::clone(&pages), prefix.clone());
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
                let listed = within(limit, pages.list_paginated(prefix.as_deref(), options)).await;
                let page = listed?;
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
        within(self.limit, self.inner.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        within(self.limit, self.inner.put_multipart_opts(path, options)).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        within(self.limit, self.inner.get_opts(path, options)).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        within(self.limit, self.inner.get_ranges(path, ranges)).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
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
        within(self.limit, self.inner.copy_opts(from, to, options)).await
    }
}

#[cfg(test)]
mod tests;
