//! A client of an object store with an identity, which the errors of access name, and with the same entity tags in listings and
//! responses.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::identity::{StoreAction, StoreIdentity};
use crate::object::store_checksum::ChecksumRequest;
use crate::version::quoted_tag;

/// A client with its identity.
pub(crate) struct IdentifiedStore<S> {
    inner: Arc<S>,
    /// The client of requests for checksums, if they need other headers.
    for_checksums: Option<S>,
    /// Whether the store has answered that it does not support requests for checksums.
    has_no_checksums: AtomicBool,
    identity: Arc<StoreIdentity>,
}

impl<S> IdentifiedStore<S> {
    pub(crate) fn new(inner: S, identity: StoreIdentity) -> Self {
        let has_no_checksums = AtomicBool::new(false);
        Self { inner: Arc::new(inner), for_checksums: None, has_no_checksums, identity: Arc::new(identity) }
    }

    /// Sends requests for checksums with another client of the same store.
    pub(crate) fn with_checksum_client(self, for_checksums: Option<S>) -> Self {
        Self { for_checksums, ..self }
    }

    fn explain<T>(&self, action: StoreAction, path: Option<&Path>, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.identity.explain(action, path, error))
    }
}

impl<S: ObjectStore> IdentifiedStore<S> {
    /// Sends a request for a checksum, unless the store has answered that it does not support them.
    async fn get_checksum(
        &self,
        request: &ChecksumRequest,
        path: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        let unsupported =
            || Err(Error::NotSupported { source: "the store does not return checksums".into() });
        if self.has_no_checksums.load(Ordering::Relaxed) {
            request.record_unsupported();
            return unsupported();
        }
        let read = self.for_checksums.as_ref().unwrap_or(&self.inner).get_opts(path, options).await;
        if read.is_ok() || !request.is_unsupported() {
            return read;
        }
        if !self.has_no_checksums.swap(true, Ordering::Relaxed) {
            tracing::info!(store = %self.inner, "the store does not return checksums of objects");
        }
        unsupported()
    }
}

impl<S: fmt::Debug> fmt::Debug for IdentifiedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifiedStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: fmt::Display> fmt::Display for IdentifiedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner)
    }
}

#[async_trait]
impl<S: ObjectStore> ObjectStore for IdentifiedStore<S> {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.explain(StoreAction::Write, Some(path), self.inner.put_opts(path, payload, options).await)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.explain(StoreAction::Write, Some(path), self.inner.put_multipart_opts(path, options).await)
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let read = match options.extensions.get::<ChecksumRequest>().cloned() {
            Some(request) => self.get_checksum(&request, path, options).await,
            None => self.inner.get_opts(path, options).await,
        };
        self.explain(StoreAction::Read, Some(path), read)
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.explain(StoreAction::Read, Some(path), self.inner.get_ranges(path, ranges).await)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let identity = Arc::clone(&self.identity);
        let deleted = self.inner.delete_stream(paths);
        deleted
            .map(move |one| one.map_err(|error| identity.explain(StoreAction::Delete, None, error)))
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let identity = Arc::clone(&self.identity);
        let listed = self.inner.list(prefix);
        listed.map(move |one| one.map_err(|error| identity.explain(StoreAction::List, None, error))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.explain(StoreAction::List, None, self.inner.list_with_delimiter(prefix).await)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.explain(StoreAction::Write, Some(to), self.inner.copy_opts(from, to, options).await)
    }
}

#[async_trait]
impl<S: PaginatedListStore> PaginatedListStore for IdentifiedStore<S> {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        options: PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        let listed = self.explain(StoreAction::List, None, self.inner.list_paginated(prefix, options).await);
        listed.map(|mut page| {
            for object in &mut page.result.objects {
                object.e_tag = object.e_tag.take().map(quoted_tag);
            }
            page
        })
    }
}
