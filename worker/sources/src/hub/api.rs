//! The API of the Hugging Face Hub: the commit of a revision, and the files of a directory.

use std::time::Duration;

use feedline_data::urls::HubPath;
use object_store::path::Path;
use object_store::{Error, ObjectMeta};
use reqwest::{Response, StatusCode};
use serde_json::Value;
use url::Url;

use super::hub_error::{HubError, STORE};
use crate::causes;
use crate::error::STORE_FIX;
use crate::guard::find_guard_error;
use crate::requests::parse_retry_after;
use crate::response_body::read_body;

/// Maximum size of a page of a listing. A page contains 1,000 files.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// Maximum length of a message of the Hub in an error.
const MAX_MESSAGE_CHARS: usize = 200;

/// An entry of a listing.
pub(super) enum HubEntry {
    File(ObjectMeta),
    Directory(Path),
}

/// One page of a listing, and the URL of the next page.
pub(super) struct HubPage {
    pub(super) entries: Vec<HubEntry>,
    pub(super) next: Option<Url>,
}

/// Returns the URL of a path below the endpoint. All characters of a segment are escaped, also slashes.
pub(super) fn url_below<'a>(endpoint: &Url, segments: impl IntoIterator<Item = &'a str>) -> Url {
    let mut url = endpoint.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// The revision of a key in URLs of the Hub.
pub(super) fn revision(hub: &HubPath) -> &str {
    hub.revision.as_deref().unwrap_or("main")
}

/// How long the Hub asks to wait: the header `Retry-After`, or the time until its limit of requests begins again.
pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    wait_time(header("retry-after"), header("date"), header("ratelimit"))
}

/// The wait time that the headers `Retry-After`, `Date` and `RateLimit` state.
pub(super) fn wait_time(
    retry_after: Option<&str>,
    date: Option<&str>,
    limit: Option<&str>,
) -> Option<Duration> {
    let stated = retry_after.and_then(|value| parse_retry_after(value, date));
    stated.or_else(|| parse_retry_after(limit.and_then(until_reset)?, None))
}

/// The parameter `t`, in seconds, of the header `RateLimit`, such as `"resolvers";r=0;t=56`.
fn until_reset(header: &str) -> Option<&str> {
    header.split(';').find_map(|parameter| parameter.trim().strip_prefix("t="))
}

/// Checks the status of a response.
pub(super) fn check(response: Response, hub: &HubPath) -> Result<Response, object_store::Error> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let (repository, revision) = (&hub.repository, revision(hub));
    let with_token = "set a token of an account that can read it, with `HF_TOKEN` or `source.credentials`";
    let message = match (status, header("x-error-code")) {
        (_, Some("GatedRepo")) => format!(
            "the repository `{repository}` is gated: accept its conditions on its page on the Hub, and {with_token}"
        ),
        (_, Some("RepoNotFound")) | (StatusCode::UNAUTHORIZED, _) => format!(
            "the repository `{repository}` does not exist or is private: check its name, or {with_token}"
        ),
        (StatusCode::FORBIDDEN, _) => {
            format!("the token has no access to the repository `{repository}`: {with_token}")
        }
        (_, Some("RevisionNotFound")) => {
            format!("the repository has no revision `{revision}`: check the text after `@`")
        }
        (StatusCode::NOT_FOUND, _) => {
            let (path, source) = (hub.rest(), "the file does not exist".into());
            return Err(object_store::Error::NotFound { path, source });
        }
        _ => {
            let detail: String =
                header("x-error-message").unwrap_or_default().chars().take(MAX_MESSAGE_CHARS).collect();
            let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
            format!("the Hub responded with status {status}{detail}{STORE_FIX}")
        }
    };
    let retryable = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    Err(HubError { message, retryable }.into())
}

/// Reads a JSON response.
pub(super) async fn json(response: Response) -> Result<Value, object_store::Error> {
    let bytes = body(response, MAX_PAGE_BYTES).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        HubError::permanent(format!("the response of the Hub is not JSON ({error}): check `HF_ENDPOINT`"))
    })
}

/// Reads a response of at most `max_bytes`.
pub(super) async fn body(response: Response, max_bytes: usize) -> Result<Vec<u8>, object_store::Error> {
    let body = read_body(response.bytes_stream(), max_bytes).await.map_err(request_error)?;
    body.ok_or_else(|| HubError::permanent(format!("the response of the Hub exceeds {max_bytes} bytes")))
}

/// Converts an error of a request. An error of the guard is permanent.
pub(super) fn request_error(error: reqwest::Error) -> Error {
    let error = error.without_url();
    match find_guard_error(&error) {
        Some(_) => Error::Generic { store: STORE, source: Box::new(error) },
        None => {
            let message = format!("the request to the Hub failed ({}){STORE_FIX}", causes::describe(&error));
            HubError { message, retryable: true }.into()
        }
    }
}

/// Parses the commit of a revision.
pub(super) fn commit(value: &Value) -> Result<String, object_store::Error> {
    let sha = value.get("sha").and_then(Value::as_str).unwrap_or_default();
    let commit = HubPath { repository: String::new(), revision: Some(sha.to_owned()), path: String::new() };
    if commit.is_pinned() {
        return Ok(sha.to_owned());
    }
    Err(HubError::permanent("the Hub returned no commit for the revision: check `HF_ENDPOINT`"))
}

/// Parses a listed file or directory. `root` is the key of the repository.
pub(super) fn entry(value: &Value, root: &str) -> Result<HubEntry, object_store::Error> {
    let invalid = || HubError::permanent("a listing of the Hub is invalid: check `HF_ENDPOINT`");
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let path = text(value, "path").ok_or_else(invalid)?;
    let location = Path::parse(format!("{root}/{path}"))?;
    if text(value, "type").as_deref() == Some("directory") {
        return Ok(HubEntry::Directory(location));
    }
    let large = value.get("lfs").filter(|large| large.is_object());
    let hash = large.and_then(|large| text(large, "oid")).or_else(|| text(value, "oid"));
    let size = value.get("size").and_then(Value::as_u64).ok_or_else(invalid)?;
    Ok(HubEntry::File(ObjectMeta {
        location,
        last_modified: Default::default(),
        size,
        e_tag: Some(hash.ok_or_else(invalid)?),
        version: None,
    }))
}

/// Parses a page of a listing.
pub(super) async fn page(
    response: Response,
    root: &str,
    endpoint: &Url,
) -> Result<HubPage, object_store::Error> {
    let link = response.headers().get(reqwest::header::LINK).and_then(|link| link.to_str().ok());
    let next = next_page(link, endpoint)?;
    Ok(HubPage { entries: entries(&json(response).await?, root)?, next })
}

/// The URL of the next page in a `Link` header. The page must be on the same server, which receives the token.
pub(super) fn next_page(link: Option<&str>, endpoint: &Url) -> Result<Option<Url>, object_store::Error> {
    match link.and_then(next_link).map(|target| endpoint.join(target)) {
        None => Ok(None),
        Some(Ok(url)) if url.origin() == endpoint.origin() => Ok(Some(url)),
        Some(_) => {
            Err(HubError::permanent("a listing of the Hub continues on another server: check `HF_ENDPOINT`"))
        }
    }
}

/// Parses the entries of a page. `root` is the key of the repository.
pub(super) fn entries(value: &Value, root: &str) -> Result<Vec<HubEntry>, object_store::Error> {
    let entries = value.as_array().ok_or_else(|| HubError::permanent("a listing of the Hub is invalid"))?;
    entries.iter().map(|value| entry(value, root)).collect()
}

/// The target of `rel="next"` in a `Link` header.
fn next_link(header: &str) -> Option<&str> {
    header.split(',').find_map(|link| {
        let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        let is_next =
            parameters.split(';').any(|parameter| matches!(parameter.trim(), "rel=\"next\"" | "rel=next"));
        is_next.then_some(target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_the_next_page_are_found() {
        assert_eq!(next_link("<https://h/a?cursor=x>; rel=\"next\""), Some("https://h/a?cursor=x"));
        assert_eq!(next_link("</p>; rel=\"prev\", </n>; rel=\"next\""), Some("/n"));
        assert_eq!(next_link("nothing"), None);
    }

    #[test]
    fn the_time_until_the_limit_begins_again_is_found() {
        assert_eq!(until_reset("\"resolvers\";r=0;t=56"), Some("56"));
        assert_eq!(until_reset("\"api\"; r=12"), None);
    }

    #[test]
    fn the_next_page_is_on_the_same_server() {
        let endpoint = Url::parse("https://h/base").unwrap();
        let next = |link: &str| next_page(Some(link), &endpoint);
        assert_eq!(next("</n?cursor=x>; rel=next").unwrap().unwrap().as_str(), "https://h/n?cursor=x");
        assert_eq!(next("</n>; rel=prev").unwrap(), None);
        for other in
            ["//other/n", "http://h/n", "https://h:444/n", "https://h@other/n", "\\\\other\\n", "data:x"]
        {
            assert!(next(&format!("<{other}>; rel=next")).is_err(), "{other}");
        }
    }

    #[test]
    fn segments_are_escaped() {
        let endpoint = Url::parse("https://h/base").unwrap();
        let url = url_below(&endpoint, ["api", "refs/pr/1", "a b", "c#d?"]);
        assert_eq!(url.as_str(), "https://h/base/api/refs%2Fpr%2F1/a%20b/c%23d%3F");
    }
}
