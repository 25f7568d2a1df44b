//! The object store of the Hugging Face Hub, which only reads.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::BytesMut;
use feedline_data::urls::HubPath;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::json;
use url::Url;

use super::api::{self, HubEntry, HubPage, request_error};
use super::hub_error::{HubError, STORE};
use crate::guard::{GuardError, RequestGuard};
use crate::requests::record_response;
use crate::throttling::{StoreKind, count_request};

/// Maximum size of an object that a server sends whole although a range was requested.
const MAX_WHOLE_BYTES: u64 = 64 << 20;

/// A client of the Hub. Clones share its connections.
#[derive(Clone)]
pub(super) struct HubStore {
    client: Client,
    guard: RequestGuard,
    endpoint: Url,
    token: Option<String>,
}

impl fmt::Debug for HubStore {
    /// Omits the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubStore").field("endpoint", &self.endpoint.as_str()).finish_non_exhaustive()
    }
}

impl fmt::Display for HubStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE} at {}", self.endpoint)
    }
}

/// Parses a key.
fn hub_path(key: &Path) -> Result<HubPath> {
    HubPath::parse(key.as_ref()).map_err(HubError::permanent)
}

impl HubStore {
    pub(super) fn new(client: Client, guard: RequestGuard, endpoint: Url, token: Option<String>) -> Self {
        Self { client, guard, endpoint, token }
    }

    fn url<'a>(&'a self, segments: impl IntoIterator<Item = &'a str>) -> Url {
        api::url_below(&self.endpoint, segments)
    }

    /// The URL of an operation of the API on a repository.
    fn api_url(&self, hub: &HubPath, operation: &str, path: &str) -> Url {
        let segments = ["api", "datasets"].into_iter().chain(hub.repository.split('/'));
        let below = path.split('/').filter(|segment| !segment.is_empty());
        self.url(segments.chain([operation, api::revision(hub)]).chain(below))
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.client.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request once.
    async fn send_once(&self, request: RequestBuilder, url: &Url, hub: &HubPath) -> Result<Response> {
        let rejected = |error: GuardError| Error::Generic { store: STORE, source: Box::new(error) };
        self.guard.check(url.as_str()).map_err(rejected)?;
        let response = request.send().await;
        let status = response.as_ref().ok().map(|response| response.status().as_u16());
        count_request(StoreKind::Hub, status);
        record_response(status, response.as_ref().ok().and_then(api::retry_after));
        api::check(response.map_err(request_error)?, hub)
    }

    /// Sends a request of the API.
    async fn send(&self, method: Method, url: Url, body: Option<String>, hub: &HubPath) -> Result<Response> {
        let mut request = self.request(method, url.clone());
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        self.send_once(request, &url, hub).await
    }

    /// Returns the metadata of a file, or the commit of a repository as its version.
    async fn metadata(&self, key: &Path) -> Result<ObjectMeta> {
        let hub = hub_path(key)?;
        if hub.path.is_empty() {
            let url = self.api_url(&hub, "revision", "");
            let value = api::json(self.send(Method::GET, url, None, &hub).await?).await?;
            let version = Some(api::commit(&value)?);
            let last_modified = Default::default();
            return Ok(ObjectMeta { location: key.clone(), last_modified, size: 0, e_tag: None, version });
        }
        let body = json!({ "paths": [hub.path], "expand": false }).to_string();
        let response =
            self.send(Method::POST, self.api_url(&hub, "paths-info", ""), Some(body), &hub).await?;
        let value = api::json(response).await?;
        let root = HubPath { path: String::new(), ..hub.clone() }.rest();
        let found = value.as_array().and_then(|entries| entries.first());
        match found.map(|value| api::entry(value, &root)).transpose()? {
            Some(HubEntry::File(meta)) if meta.location == *key => Ok(meta),
            _ => Err(Error::NotFound { path: hub.rest(), source: "the file does not exist".into() }),
        }
    }

    /// Returns a page of a listing. `next` is the URL of the page; `None` for the first page.
    async fn page(&self, hub: &HubPath, is_recursive: bool, next: Option<String>) -> Result<HubPage> {
        let root = HubPath { path: String::new(), ..hub.clone() }.rest();
        let url = match next {
            Some(next) => {
                Url::parse(&next).map_err(|_| HubError::permanent("the Hub returned an invalid URL"))?
            }
            None => {
                let mut first = self.api_url(hub, "tree", &hub.path);
                first.query_pairs_mut().append_pair("recursive", if is_recursive { "true" } else { "false" });
                first
            }
        };
        match self.send(Method::GET, url, None, hub).await {
            Ok(response) => api::page(response, &root, &self.endpoint).await,
            // A directory that does not exist is empty.
            Err(Error::NotFound { .. }) => Ok(HubPage { entries: Vec::new(), next: None }),
            Err(error) => Err(error),
        }
    }

    async fn read(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        let hub = hub_path(key)?;
        let segments = ["datasets"].into_iter().chain(hub.repository.split('/'));
        let url = self.url(segments.chain(["resolve", api::revision(&hub)]).chain(hub.path.split('/')));
        let mut request = self.request(Method::GET, url.clone());
        if let Some(range) = &options.range {
            request = request.header(reqwest::header::RANGE, range.to_string());
        }
        let response = self.send_once(request, &url, &hub).await?;
        let status = response.status();
        let (range, size) = match content_range(&response) {
            Some(found) if status == StatusCode::PARTIAL_CONTENT => found,
            _ if status == StatusCode::PARTIAL_CONTENT => {
                return Err(HubError::permanent("a response of the Hub has no valid `Content-Range`"));
            }
            _ => return whole_response(key, response, options).await,
        };
        if let Some(wanted) = options.range.as_ref().and_then(|wanted| wanted.as_range(size).ok())
            && range != wanted
        {
            return Err(HubError::permanent(format!(
                "the Hub sent bytes {} to {} in response to a request for bytes {} to {}: check its proxies",
                range.start,
                range.end.saturating_sub(1),
                wanted.start,
                wanted.end.saturating_sub(1)
            )));
        }
        // The key contains the commit, so the content is the requested version.
        let meta = meta_of(key, size, options.if_match);
        let stream = response.bytes_stream().map_err(request_error).boxed();
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream),
            meta,
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }
}

fn meta_of(key: &Path, size: u64, e_tag: Option<String>) -> ObjectMeta {
    ObjectMeta { location: key.clone(), last_modified: Default::default(), size, e_tag, version: None }
}

/// Takes the requested range from a response that contains the whole object. Only the range is kept in memory, and the rest after
/// the range is not read if the response declares the size of the object.
async fn whole_response(key: &Path, response: Response, options: GetOptions) -> Result<GetResult> {
    let too_long = || HubError::permanent(format!("the response of the Hub exceeds {MAX_WHOLE_BYTES} bytes"));
    let declared = response.content_length();
    if declared.is_some_and(|size| size > MAX_WHOLE_BYTES) {
        return Err(too_long());
    }
    let wanted = match &options.range {
        Some(GetRange::Bounded(range)) => range.start..range.end.max(range.start),
        Some(GetRange::Offset(start)) => *start..u64::MAX,
        None | Some(GetRange::Suffix(_)) => 0..u64::MAX,
    };
    let mut chunks = response.bytes_stream().map_err(request_error).boxed();
    let (mut at, mut kept) = (0, BytesMut::new());
    while let Some(chunk) = chunks.try_next().await? {
        let end = at + chunk.len() as u64;
        if end > MAX_WHOLE_BYTES {
            return Err(too_long());
        }
        let [from, to] = [wanted.start, wanted.end].map(|bound| (bound.clamp(at, end) - at) as usize);
        kept.extend_from_slice(&chunk[from..to]);
        at = end;
        if declared.is_some() && at >= wanted.end {
            break;
        }
    }
    let size = declared.unwrap_or(at);
    let mut range = wanted.start.min(size)..wanted.end.min(size);
    let mut part = kept.freeze();
    if let Some(GetRange::Suffix(length)) = options.range {
        range.start = size.saturating_sub(length);
        part = part.slice((range.start as usize).min(part.len())..);
    }
    let payload = GetResultPayload::Stream(futures::stream::once(async { Ok(part) }).boxed());
    Ok(GetResult {
        payload,
        meta: meta_of(key, size, options.if_match),
        range,
        attributes: Default::default(),
        extensions: Default::default(),
    })
}

/// Parses `Content-Range: bytes START-END/SIZE`.
fn content_range(response: &Response) -> Option<(Range<u64>, u64)> {
    let text = response.headers().get(reqwest::header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end, size) = (start.parse::<u64>().ok()?, end.parse::<u64>().ok()?, size.parse().ok()?);
    (start <= end && end < size).then(|| (start..end + 1, size))
}

fn only_pages() -> Error {
    Error::NotSupported { source: "the Hugging Face Hub is listed by page".into() }
}

fn read_only() -> Error {
    Error::NotSupported { source: "Feedline only reads from the Hugging Face Hub".into() }
}

#[async_trait]
impl ObjectStore for HubStore {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only())
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only())
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        if !options.head {
            return self.read(key, options).await;
        }
        let meta = self.metadata(key).await?;
        let payload = GetResultPayload::Stream(futures::stream::empty().boxed());
        let (attributes, extensions) = (Default::default(), Default::default());
        Ok(GetResult { payload, range: 0..meta.size, meta, attributes, extensions })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        paths.and_then(|_| async { Err(read_only()) }).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        futures::stream::once(async { Err(only_pages()) }).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(only_pages())
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only())
    }
}

#[async_trait]
impl PaginatedListStore for HubStore {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        options: PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        let Some(prefix) = prefix else {
            return Err(HubError::permanent(
                "all repositories cannot be listed: write `hf://datasets/ORG/NAME`",
            ));
        };
        let hub = hub_path(&Path::parse(prefix)?)?;
        let page = self.page(&hub, options.delimiter.is_none(), options.page_token).await?;
        let mut result =
            ListResult { common_prefixes: Vec::new(), objects: Vec::new(), extensions: Default::default() };
        for entry in page.entries {
            match entry {
                HubEntry::File(meta) => result.objects.push(meta),
                HubEntry::Directory(path) if options.delimiter.is_some() => result.common_prefixes.push(path),
                HubEntry::Directory(_) => {}
            }
        }
        Ok(PaginatedListResult { result, page_token: page.next.map(String::from) })
    }
}
