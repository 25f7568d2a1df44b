//! The checksum that a store keeps with an object, which a HEAD request returns in a header.
//!
//! S3 computes a checksum of each upload, and returns it only to requests with the header [`CHECKSUM_MODE`]. Google Cloud Storage
//! and Azure return the checksums of an object in each response.

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use feedline_data::manifest::{ChecksumAlgorithm, StoreChecksum};
use object_store::{Extensions, GetOptions};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};

use super::Object;
use crate::error::SourceError;
use crate::requests::RequestTag;
use crate::throttling::StoreKind;
use crate::version::{if_match_tag, is_version};

/// The header with which S3 returns checksums, and its value.
const CHECKSUM_MODE: (&str, &str) = ("x-amz-checksum-mode", "ENABLED");
/// The header of S3 that says whether the checksum covers the bytes or the checksums of the parts.
const S3_TYPE: &str = "x-amz-checksum-type";
/// The headers of S3, by algorithm.
const S3_HEADERS: [(ChecksumAlgorithm, &str); 5] = [
    (ChecksumAlgorithm::Sha256, "x-amz-checksum-sha256"),
    (ChecksumAlgorithm::Sha1, "x-amz-checksum-sha1"),
    (ChecksumAlgorithm::Crc64Nvme, "x-amz-checksum-crc64nvme"),
    (ChecksumAlgorithm::Crc32c, "x-amz-checksum-crc32c"),
    (ChecksumAlgorithm::Crc32, "x-amz-checksum-crc32"),
];
/// The header of Google Cloud Storage, whose value is a list such as `crc32c=AAAAAA==,md5=...`.
const GOOGLE_HEADER: &str = "x-goog-hash";
/// Every object has a CRC-32C. Composed objects, such as those of parallel uploads, have no MD5.
const GOOGLE_NAMES: [(ChecksumAlgorithm, &str); 2] =
    [(ChecksumAlgorithm::Crc32c, "crc32c"), (ChecksumAlgorithm::Md5, "md5")];
/// The header of Azure, which computes it for blobs that were uploaded in one request. For others, it is what the client has
/// computed.
const AZURE_HEADER: &str = "content-md5";
/// Minimum size of an object of which indexing reads nothing. A HEAD request for each small object, such as an image, would take
/// longer than the rest of the indexing.
const MIN_UNREAD_BYTES: u64 = 8 << 20;

/// The headers of a client of S3 whose responses have checksums.
pub(crate) fn s3_headers() -> HeaderMap {
    let (name, value) = CHECKSUM_MODE;
    HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
}

/// What the HTTP client observed of a request for a checksum. An extension of the options of a HEAD request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChecksumRequest(Arc<Mutex<Option<Answer>>>);

#[derive(Debug, Clone, Copy)]
struct Answer {
    status: StatusCode,
    checksum: Option<StoreChecksum>,
}

impl ChecksumRequest {
    /// Records a response. One without the size of the object means that the store does not support the request: the client of the
    /// store rejects such a response, and would repeat the request until the retry budget is used.
    pub(crate) fn record(&self, store: StoreKind, status: StatusCode, headers: &HeaderMap) {
        if status.is_success() && !headers.contains_key(CONTENT_LENGTH) {
            return self.record_unsupported();
        }
        let checksum = status.is_success().then(|| find(store, headers)).flatten();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Answer { status, checksum });
    }

    /// Whether the store does not support requests for checksums.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.answer().is_some_and(Answer::is_unsupported)
    }

    /// Records that the store does not support the request, because of its response to an earlier request.
    pub(crate) fn record_unsupported(&self) {
        let answer = Answer { status: StatusCode::NOT_IMPLEMENTED, checksum: None };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }

    fn answer(&self) -> Option<Answer> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer {
    /// Whether the store does not support the request. It then keeps no checksums that Feedline can use.
    fn is_unsupported(self) -> bool {
        matches!(self.status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
    }

    /// Whether the store rejects the request. The reason is unknown, because the response to a HEAD request has no body.
    fn is_rejected(self) -> bool {
        matches!(self.status, StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
    }
}

/// Whether the objects of a store may have checksums.
fn has_checksums(store: StoreKind) -> bool {
    matches!(store, StoreKind::S3 | StoreKind::Google | StoreKind::Azure)
}

/// Returns the preferred checksum of a response.
fn find(store: StoreKind, headers: &HeaderMap) -> Option<StoreChecksum> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    match store {
        StoreKind::S3 => {
            let is_composite = header(S3_TYPE).is_some_and(|found| found.eq_ignore_ascii_case("composite"));
            let found =
                S3_HEADERS.iter().find_map(|(algorithm, name)| parse_s3(*algorithm, header(name)?.trim()))?;
            // Without the number of parts, it is unknown when the same bytes have the same checksum.
            (!is_composite || !found.is_of_bytes()).then_some(found)
        }
        StoreKind::Google => {
            let values = headers.get_all(GOOGLE_HEADER).iter().filter_map(|value| value.to_str().ok());
            let all: Vec<(&str, &str)> = values
                .flat_map(|value| value.split(','))
                .filter_map(|one| one.trim().split_once('='))
                .collect();
            GOOGLE_NAMES.iter().find_map(|(algorithm, name)| {
                let (_, value) = all.iter().find(|(found, _)| found == name)?;
                parse(*algorithm, 0, value)
            })
        }
        StoreKind::Azure => parse(ChecksumAlgorithm::Md5, 0, header(AZURE_HEADER)?.trim()),
        StoreKind::Hub | StoreKind::Web => None,
    }
}

/// Parses a checksum of S3. That of a multipart upload may end with the number of its parts, such as `-3`.
fn parse_s3(algorithm: ChecksumAlgorithm, value: &str) -> Option<StoreChecksum> {
    match value.split_once('-') {
        Some((value, parts)) => parse(algorithm, parts.parse().ok().filter(|parts| *parts > 0)?, value),
        None => parse(algorithm, 0, value),
    }
}

fn parse(algorithm: ChecksumAlgorithm, parts: u32, value: &str) -> Option<StoreChecksum> {
    StoreChecksum::new(algorithm, parts, &STANDARD.decode(value).ok()?)
}

impl Object {
    /// Whether to request a checksum of the store, after the object was indexed without reading all its bytes.
    pub(super) fn may_have_checksum(&self) -> bool {
        let scheme = self.shard.url.split("://").next().unwrap_or_default();
        let is_worth_it = || {
            self.digest.as_ref().is_some_and(|digest| !digest.is_empty())
                || self.shard.size_bytes >= MIN_UNREAD_BYTES
        };
        self.file.is_none() && StoreKind::of_scheme(scheme).is_some_and(has_checksums) && is_worth_it()
    }

    /// Requests the checksum that the store keeps with the listed version of the object. `None` if it keeps none.
    ///
    /// # Errors
    /// Returns an error if the object changed, access is denied, or the store does not respond.
    pub(super) async fn store_checksum(&self) -> Result<Option<StoreChecksum>, SourceError> {
        let (answer, result) = self.request_checksum().await;
        if !answer.is_some_and(Answer::is_rejected) {
            return result;
        }
        // Reading a byte renews expired credentials, or fails with the reason.
        self.read_unhashed(0..1).await?;
        match self.request_checksum().await {
            (Some(answer), Err(error)) if answer.is_rejected() => {
                tracing::warn!(
                    url = %self.shard.url, %error,
                    "the store rejects the request for a checksum, so an upload of the same bytes will look like a change"
                );
                Ok(None)
            }
            (_, result) => result,
        }
    }

    async fn request_checksum(&self) -> (Option<Answer>, Result<Option<StoreChecksum>, SourceError>) {
        let request = ChecksumRequest::default();
        let mut extensions = Extensions::new();
        extensions.insert(RequestTag { job: self.job, ..RequestTag::default() });
        extensions.insert(request.clone());
        let options = GetOptions {
            extensions,
            head: true,
            if_match: if_match_tag(&self.shard.version),
            ..GetOptions::default()
        };
        self.count_request();
        let result = self.store.get_opts(&self.key, options).await;
        let answer = request.answer();
        let changed = || SourceError::ShardChanged { url: self.shard.url.clone() };
        let result = match result {
            Ok(result)
                if is_version(&result.meta, &self.shard.version)
                    && result.meta.size == self.listed().size_bytes =>
            {
                Ok(answer.and_then(|answer| answer.checksum))
            }
            Ok(_) => Err(changed()),
            Err(error) => match SourceError::from_store(&self.shard.url, error) {
                SourceError::NotFound { .. } | SourceError::ShardChanged { .. } => Err(changed()),
                _ if request.is_unsupported() => Ok(None),
                error => Err(error),
            },
        };
        (answer, result)
    }
}

#[cfg(test)]
mod tests;
