//! Entry point of the fuzzer of the API of the Hugging Face Hub: a header and the body of an answer.

use std::time::Duration;

use feedline_data::urls::HubPath;
use object_store::path::Path;
use serde_json::Value;
use url::Url;

use super::api::{self, HubEntry};

const ENDPOINT: &str = "https://hub.example/base";
/// The key of the repository that is listed.
const ROOT: &str = "org/name@0123456789abcdef0123456789abcdef01234567";
const MAX_WAIT: Duration = Duration::from_secs(86_400);

/// Reads an answer of the Hub. The first line of the input is the value of a header, and the rest is the body.
pub fn read_hub_answer(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    read_headers(parts.next().and_then(|header| std::str::from_utf8(header).ok()));
    if let Ok(body) = serde_json::from_slice::<Value>(parts.next().unwrap_or_default()) {
        read_body(&body);
    }
}

fn read_headers(header: Option<&str>) {
    assert!(api::wait_time(header, header, header).is_none_or(|wait| wait <= MAX_WAIT));
    assert!(api::wait_time(None, None, header).is_none_or(|wait| wait <= MAX_WAIT));
    let endpoint = Url::parse(ENDPOINT).expect("the endpoint is a URL");
    if let Ok(Some(next)) = api::next_page(header, &endpoint) {
        // The request for the next page parses the URL again, and contains the token.
        let again = Url::parse(next.as_str());
        assert!(again.is_ok_and(|again| again.origin() == endpoint.origin()), "{next}");
    }
}

fn read_body(body: &Value) {
    if let Ok(commit) = api::commit(body) {
        assert_eq!(commit.len(), 40);
    }
    let root = Path::parse(ROOT).expect("the root is a key");
    let metadata = api::entry(body, ROOT).into_iter();
    let listed = api::entries(body, ROOT).unwrap_or_default();
    for entry in metadata.chain(listed) {
        let location = match entry {
            HubEntry::File(meta) => meta.location,
            HubEntry::Directory(path) => path,
        };
        assert!(location.prefix_matches(&root), "{location} is not in the repository");
        // A read parses the key.
        let hub = HubPath::parse(location.as_ref()).expect("an entry of a repository has a valid key");
        assert!(hub.is_pinned() && hub.repository == "org/name");
    }
}
