//! Tests of the checksums of stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use feedline_data::manifest::{ShardDigest, ShardRef};
use feedline_data::tenants::TenantReads;

use super::*;
use crate::location::Location;
use crate::stores::ScopedStores;
use crate::testing::{listing_server, stores_at};

/// The metadata of an object in a response.
const META: &str =
    "200 OK\r\netag: \"1\"\r\nlast-modified: Tue, 01 Jan 2019 00:00:00 GMT\r\ncontent-length: 10000000";
const WITH_CHECKSUM: &str = "200 OK\r\netag: \"1\"\r\nlast-modified: Tue, 01 Jan 2019 00:00:00 GMT\r\ncontent-length: 10000000\r\n\
                             x-amz-checksum-crc64nvme: AAAAAAAAAAE=\r\nx-amz-checksum-type: FULL_OBJECT";
const OVERWRITTEN: &str = "200 OK\r\netag: \"2\"\r\nlast-modified: Tue, 01 Jan 2019 00:00:00 GMT\r\ncontent-length: 10000000\r\n\
                           x-amz-checksum-crc64nvme: AAAAAAAAAAE=";
const LONGER: &str = "200 OK\r\netag: \"1\"\r\nlast-modified: Tue, 01 Jan 2019 00:00:00 GMT\r\ncontent-length: 10000001\r\n\
                      x-amz-checksum-crc64nvme: AAAAAAAAAAE=";
const WITHOUT_SIZE: &str = "200 OK\r\netag: \"1\"\r\nlast-modified: Tue, 01 Jan 2019 00:00:00 GMT\r\ntransfer-encoding: chunked\r\n\
                            x-amz-checksum-crc64nvme: AAAAAAAAAAE=";
const RANGE: &str = "206 Partial Content\r\netag: \"1\"\r\nlast-modified: Tue, 01 Jan 2019 00:00:00 GMT\r\n\
                     content-range: bytes 0-3/10000000";
const FIRST_BYTE: &str = "206 Partial Content\r\netag: \"1\"\r\nlast-modified: Tue, 01 Jan 2019 00:00:00 GMT\r\n\
                          content-range: bytes 0-0/10000000";

/// The size of the object in these responses. Indexing would read the rest of a smaller one.
const SIZE: u64 = 10_000_000;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn crc64(byte: u8) -> StoreChecksum {
    StoreChecksum::new(ChecksumAlgorithm::Crc64Nvme, 0, &[0, 0, 0, 0, 0, 0, 0, byte]).unwrap()
}

#[test]
fn the_preferred_checksum_of_a_response_is_used() {
    let md5 = "1B2M2Y8AsgTpgAmY7PhCfg==";
    let found = |store, pairs: &[(&'static str, &str)]| {
        find(store, &headers(pairs))
            .map(|found| (found.algorithm(), found.parts(), STANDARD.encode(found.value())))
    };
    let expected = |algorithm, parts, value: &str| Some((algorithm, parts, value.to_owned()));
    assert_eq!(
        found(
            StoreKind::S3,
            &[("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-checksum-crc64nvme", "AAAAAAAAAAE=")]
        ),
        expected(ChecksumAlgorithm::Crc64Nvme, 0, "AAAAAAAAAAE=")
    );
    assert_eq!(
        found(
            StoreKind::S3,
            &[("x-amz-checksum-crc32c", "AAAAAA==-3"), ("x-amz-checksum-type", "COMPOSITE")]
        ),
        expected(ChecksumAlgorithm::Crc32c, 3, "AAAAAA==")
    );
    let google = [("x-goog-hash", "crc32c=AAAAAA=="), ("x-goog-hash", "md5=1B2M2Y8AsgTpgAmY7PhCfg==")];
    assert_eq!(found(StoreKind::Google, &google), expected(ChecksumAlgorithm::Crc32c, 0, "AAAAAA=="));
    let google = [("x-goog-hash", "crc32c=AAAAAA==,md5=1B2M2Y8AsgTpgAmY7PhCfg==")];
    assert_eq!(found(StoreKind::Google, &google), expected(ChecksumAlgorithm::Crc32c, 0, "AAAAAA=="));
    let google = [("x-goog-hash", "md5=1B2M2Y8AsgTpgAmY7PhCfg==")];
    assert_eq!(found(StoreKind::Google, &google), expected(ChecksumAlgorithm::Md5, 0, md5));
    let composed = [("x-goog-hash", "crc32c=AAAAAA==")];
    assert_eq!(found(StoreKind::Google, &composed), expected(ChecksumAlgorithm::Crc32c, 0, "AAAAAA=="));
    assert_eq!(found(StoreKind::Azure, &[("content-md5", md5)]), expected(ChecksumAlgorithm::Md5, 0, md5));
}

#[test]
fn other_headers_and_invalid_values_are_ignored() {
    for value in ["", "AAAA", "not base64", "AAAAAA==-0", "AAAAAA==-x", "AAAAAAAAAAE="] {
        assert_eq!(find(StoreKind::S3, &headers(&[("x-amz-checksum-crc32", value)])), None, "{value}");
        let google = format!("crc32c={value}");
        assert_eq!(find(StoreKind::Google, &headers(&[("x-goog-hash", &google)])), None, "{value}");
        assert_eq!(find(StoreKind::Azure, &headers(&[("content-md5", value)])), None, "{value}");
    }
    let unknown_parts =
        headers(&[("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-checksum-type", "COMPOSITE")]);
    assert_eq!(find(StoreKind::S3, &unknown_parts), None);
    let azure = headers(&[("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")]);
    for store in [StoreKind::S3, StoreKind::Google, StoreKind::Hub, StoreKind::Web] {
        assert_eq!(find(store, &azure), None, "{store:?}");
    }
}

/// Indexes an object after a read of 4 bytes, from a store with these answers to HEAD requests. Returns the number of HEAD
/// requests too.
async fn index(heads: &'static [&'static str]) -> (Result<ShardDigest, SourceError>, usize) {
    let (stores, sent) = store(heads).await;
    let digest = object(stores, "s3://bucket/x", SIZE, Some(4)).await;
    (digest, sent.load(Ordering::SeqCst))
}

/// A store that repeats its last answer to HEAD requests, and the number of these requests.
async fn store(heads: &'static [&'static str]) -> (Arc<crate::Stores>, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let server = listing_server(move |request| {
        let request = request.to_ascii_lowercase();
        let asks = request.contains("\r\nx-amz-checksum-mode: enabled\r\n");
        assert_eq!(
            asks,
            request.starts_with("head"),
            "only requests for checksums have the header: {request}"
        );
        if request.contains("\r\nrange: bytes=0-0\r\n") {
            return (FIRST_BYTE, "r".to_owned());
        }
        if !asks {
            return (RANGE, "rows".to_owned());
        }
        let signed = request.split("signedheaders=").nth(1).and_then(|rest| rest.split(',').next());
        let is_signed = signed.is_some_and(|signed| signed.contains("x-amz-checksum-mode"));
        assert!(is_signed, "S3 rejects requests with headers that are not signed: {request}");
        assert!(request.contains("\r\nif-match: \"1\"\r\n"), "{request}");
        let number = counted.fetch_add(1, Ordering::SeqCst);
        (heads[number.min(heads.len() - 1)], String::new())
    });
    (stores_at(&server.await, Duration::ZERO), sent)
}

/// Reads the beginning of an object, and returns its digest.
async fn object(
    stores: Arc<crate::Stores>,
    url: &str,
    size_bytes: u64,
    read_bytes: Option<u64>,
) -> Result<ShardDigest, SourceError> {
    let stores = ScopedStores::new(stores, None, &TenantReads::default());
    let location = Location::parse(url)?;
    let shard =
        ShardRef { url: url.to_owned(), size_bytes, version: "\"1\"".to_owned(), ..ShardRef::default() };
    let object = stores.object(stores.open(&location)?, location.key()?, shard).with_digest();
    if let Some(bytes) = read_bytes {
        object.read(0..bytes).await?;
    }
    object.finish_digest(false).await.map(|digest| digest.expect("the object is indexed"))
}

fn parts() -> ShardDigest {
    let recorder = crate::digest::DigestRecorder::default();
    recorder.record(0, b"rows");
    recorder.finish(SIZE)
}

#[tokio::test]
async fn the_digest_of_an_object_that_is_read_in_part_has_the_checksum_of_the_store() {
    let (digest, requests) = index(&[WITH_CHECKSUM]).await;
    assert_eq!((digest.unwrap(), requests), (parts().with_checksum(Some(crc64(1))), 1));
    assert_eq!(index(&[META]).await.0.unwrap(), parts(), "the store keeps no checksums");
}

#[tokio::test]
async fn a_store_without_checksums_is_asked_once() {
    for status in [&["501 Not Implemented"], &["405 Method Not Allowed"], &[WITHOUT_SIZE]] {
        let (stores, sent) = store(status).await;
        for _ in 0..3 {
            let digest = object(Arc::clone(&stores), "s3://bucket/x", SIZE, Some(4)).await.unwrap();
            assert_eq!(digest, parts(), "{status:?}");
        }
        assert_eq!(sent.load(Ordering::SeqCst), 1, "{status:?}");
    }
}

#[tokio::test]
async fn a_rejected_request_is_repeated_after_a_read_that_renews_credentials() {
    for rejected in [
        &["400 Bad Request", WITH_CHECKSUM],
        &["401 Unauthorized", WITH_CHECKSUM],
        &["403 Forbidden", WITH_CHECKSUM],
    ] {
        let (digest, requests) = index(rejected).await;
        assert_eq!((digest.unwrap().checksum(), requests), (Some(&crc64(1)), 2), "{rejected:?}");
    }
    let (digest, requests) = index(&["403 Forbidden"]).await;
    assert_eq!((digest.unwrap(), requests), (parts(), 2), "the store rejects only these requests");
}

#[tokio::test]
async fn the_checksum_does_not_depend_on_the_load_of_the_store() {
    let error = index(&["500 Internal Server Error"]).await.0.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn an_object_that_changes_before_its_checksum_is_requested_has_no_digest() {
    for head in [&[OVERWRITTEN], &[LONGER], &["404 Not Found"], &["412 Precondition Failed"]] {
        let error = index(head).await.0.unwrap_err();
        assert!(matches!(&error, SourceError::ShardChanged { url } if url == "s3://bucket/x"), "{error}");
    }
}

#[tokio::test]
async fn small_objects_of_which_nothing_is_read_need_no_request() {
    let (stores, sent) = store(&[WITH_CHECKSUM]).await;
    let small = object(Arc::clone(&stores), "s3://bucket/x", MIN_UNREAD_BYTES - 1, None).await.unwrap();
    assert_eq!((small.checksum(), sent.load(Ordering::SeqCst)), (None, 0));
    let large = object(stores, "s3://bucket/x", SIZE, None).await.unwrap();
    assert_eq!((large.checksum(), sent.load(Ordering::SeqCst)), (Some(&crc64(1)), 1));
}
