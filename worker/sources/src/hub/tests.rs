//! Tests of the Hub against a server in the test process, which implements its API for one repository.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use feedline_data::pipeline::Source;
use feedline_data::urls::UrlPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::testing::lines;
use crate::{BlockRead, Credential, Dataset, ObjectAccess, SourceError, Stores};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CARD: &str = "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train, path: data/train*.jsonl}\n  - \
                    {split: test, path: data/test.jsonl}\n---\n";

/// A request: the first line, the authorization, and the range.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    line: String,
    authorization: Option<String>,
    range: Option<String>,
}

/// A server that answers each request by a function, and remembers the requests.
async fn serve(
    answer: impl Fn(&Seen, &str) -> String + Send + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<Seen>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let all = Arc::new(Mutex::new(Vec::new()));
    let seen_here = Arc::clone(&all);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = String::new();
            let mut buffer = [0; 4096];
            // A request is complete after its head and the body that the head announces.
            while !is_complete(&text) {
                match stream.read(&mut buffer).await {
                    Ok(length) if length > 0 => text.push_str(&String::from_utf8_lossy(&buffer[..length])),
                    _ => break,
                }
            }
            let header = |name: &str| {
                text.lines().find_map(|line| {
                    let (key, value) = line.split_once(':')?;
                    key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
                })
            };
            let seen = Seen {
                line: text.lines().next().unwrap_or_default().to_owned(),
                authorization: header("authorization"),
                range: header("range"),
            };
            let answer = answer(&seen, &text);
            seen_here.lock().unwrap().push(seen);
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (address, all)
}

fn is_complete(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    body.len() >= length.unwrap_or(0)
}

fn respond(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn files() -> BTreeMap<&'static str, String> {
    let line = |text: &str| format!("{{\"text\": \"{text}\"}}\n");
    BTreeMap::from([
        ("README.md", CARD.to_owned()),
        ("data/train 1.jsonl", line("one") + &line("two")),
        ("data/train-2.jsonl", line("three")),
        ("data/test.jsonl", line("t")),
    ])
}

/// The part of a file that a request asks for.
fn content(text: &str, range: Option<&str>) -> String {
    let Some((start, end)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return respond("200 OK", "", text);
    };
    let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
    let end = end.min(text.len() - 1);
    let header = format!("content-range: bytes {start}-{end}/{}\r\n", text.len());
    respond("206 Partial Content", &header, &text[start..=end])
}

fn entry(path: &str) -> String {
    let size = files()[path].len();
    format!(r#"{{"type": "file", "oid": "{size:040x}", "size": {size}, "path": "{path}"}}"#)
}

/// A Hub with the repository `org/name`, whose large files are on another server.
async fn hub() -> (SocketAddr, Arc<Mutex<Vec<Seen>>>, Arc<Mutex<Vec<Seen>>>) {
    let (files_at, of_files) = serve(|seen, _| {
        let name = seen.line.split(' ').nth(1).unwrap().trim_start_matches('/').replace("%20", " ");
        content(&files()[name.as_str()], seen.range.as_deref())
    })
    .await;
    let (address, of_hub) = serve(move |seen, text| {
        let mut words = seen.line.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let api = "/api/datasets/org/name";
        let tree = format!("{api}/tree/{COMMIT}?recursive=true");
        let resolve = format!("/datasets/org/name/resolve/{COMMIT}/");
        if path.contains("/gated/") {
            return respond("401 Unauthorized", "x-error-code: GatedRepo\r\n", "{}");
        }
        if path.contains("/busy/") {
            return respond("503 Service Unavailable", "x-error-message: later\r\n", "");
        }
        if !path.contains("/org/name") {
            return respond("401 Unauthorized", "x-error-code: RepoNotFound\r\n", "{}");
        }
        if [format!("{api}/revision/main"), format!("{api}/revision/refs%2Fpr%2F3")]
            .contains(&path.to_owned())
        {
            return respond("200 OK", "", &format!(r#"{{"sha": "{COMMIT}"}}"#));
        }
        if path.starts_with(&format!("{api}/revision/")) {
            return respond("404 Not Found", "x-error-code: RevisionNotFound\r\n", "{}");
        }
        if path == tree {
            let link = format!("link: <{api}/tree/{COMMIT}?cursor=2>; rel=\"next\"\r\n");
            let directory = r#"{"type": "directory", "oid": "0", "size": 0, "path": "data"}"#;
            let page = format!("[{directory}, {}, {}]", entry("README.md"), entry("data/train 1.jsonl"));
            return respond("200 OK", &link, &page);
        }
        if path == format!("{api}/tree/{COMMIT}?cursor=2") {
            return respond(
                "200 OK",
                "",
                &format!("[{}, {}]", entry("data/train-2.jsonl"), entry("data/test.jsonl")),
            );
        }
        if path == format!("{api}/tree/{COMMIT}/data?recursive=false") {
            let names = files().into_keys().filter(|name| name.starts_with("data/")).map(entry);
            return respond("200 OK", "", &format!("[{}]", names.collect::<Vec<_>>().join(", ")));
        }
        if method == "POST" && path == format!("{api}/paths-info/{COMMIT}") {
            let found = files().into_keys().find(|name| text.contains(&format!("\"{name}\"")));
            return respond("200 OK", "", &format!("[{}]", found.map(entry).unwrap_or_default()));
        }
        match path.strip_prefix(&resolve) {
            Some("README.md") => content(CARD, None),
            Some(name) => respond("302 Found", &format!("location: http://{files_at}/{name}\r\n"), ""),
            None => respond("404 Not Found", "x-error-code: EntryNotFound\r\n", "{}"),
        }
    })
    .await;
    (address, of_hub, of_files)
}

fn access(address: SocketAddr) -> ObjectAccess {
    ObjectAccess::new(vec![
        ("HF_ENDPOINT".to_owned(), format!("http://{address}")),
        ("HF_TOKEN".to_owned(), "hf_SECRET".to_owned()),
    ])
    .with_retry_budget(std::time::Duration::ZERO)
}

async fn rows(source: Source, access: ObjectAccess) -> Result<(Vec<String>, Vec<String>), SourceError> {
    let dataset = Dataset::new(source, Stores::with_access(access))?;
    let (mut urls, mut rows) = (Vec::new(), Vec::new());
    for shard in dataset.list().await? {
        let index = dataset.index_shard(&shard).await?.index;
        urls.push(shard.url.clone());
        let schema = index.schema.as_ref().unwrap();
        for block in &index.blocks {
            let read = BlockRead { shard: &shard, block, schema, rows: None, index: None };
            rows.extend(lines(&dataset.read_block(&read).await?.batch));
        }
    }
    Ok((urls, rows))
}

#[tokio::test]
async fn a_repository_is_listed_at_a_commit_and_read_through_redirects() {
    let (address, of_hub, of_files) = hub().await;
    let source = Source::huggingface("hf://datasets/org/name").split("train");
    let (urls, found) = rows(source, access(address)).await.unwrap();
    assert_eq!(found, ["one", "two", "three"]);
    let at = format!("hf://datasets/org/name@{COMMIT}/data");
    assert_eq!(urls, [format!("{at}/train 1.jsonl"), format!("{at}/train-2.jsonl")]);
    let token = Some("Bearer hf_SECRET".to_owned());
    assert!(of_hub.lock().unwrap().iter().all(|seen| seen.authorization == token));
    let of_files = of_files.lock().unwrap();
    assert!(
        !of_files.is_empty()
            && of_files.iter().all(|seen| seen.range.is_some() && seen.authorization.is_none())
    );
}

#[tokio::test]
async fn other_formats_read_patterns_files_and_directories_of_the_hub() {
    let (address, _, _) = hub().await;
    for (url, expected) in [
        ("hf://datasets/org/name/data/train*.jsonl", vec!["one", "two", "three"]),
        ("hf://datasets/org/name@refs/pr/3/data/test.jsonl", vec!["t"]),
        ("hf://datasets/org/name@refs%2Fpr%2F3/data/{test,train-2}.jsonl", vec!["t", "three"]),
    ] {
        let (_, found) = rows(Source::jsonl(url), access(address)).await.unwrap();
        assert_eq!(found, expected, "{url}");
    }
    let error = rows(Source::jsonl("hf://datasets/org/name/gone.jsonl"), access(address)).await.unwrap_err();
    assert!(error.to_string().contains("matches no objects"), "{error}");
}

#[tokio::test]
async fn a_listing_requests_the_commit_of_a_revision_once() {
    let (address, of_hub, _) = hub().await;
    let list = async |source: Source| {
        let listed = Dataset::new(source, Stores::with_access(access(address))).unwrap().list().await;
        let requests = std::mem::take(&mut *of_hub.lock().unwrap());
        (listed, requests.iter().filter(|seen| seen.line.contains("/revision/")).count())
    };
    let (shards, commits) = list(Source::parquet("hf://datasets/org/name/data/*.jsonl")).await;
    assert_eq!((shards.unwrap().len(), commits), (3, 1));
    let (shards, commits) = list(Source::imagefolder("hf://datasets/org/name")).await;
    assert!(shards.unwrap_err().to_string().contains("the class directories `data` contain no images"));
    assert_eq!(commits, 1);
}

#[tokio::test]
async fn errors_name_the_repository_and_the_fix() {
    let (address, _, _) = hub().await;
    for (url, reason) in [
        ("hf://datasets/org/gated/x", "the repository `org/gated` is gated: accept its conditions"),
        ("hf://datasets/org/none", "the repository `org/none` does not exist or is private"),
        ("hf://datasets/org/name@v9", "the repository has no revision `v9`: check the text after `@`"),
        ("hf://datasets/org/busy", "status 503 Service Unavailable (later); check the store"),
        ("hf://datasets/squad", "write `hf://datasets/ORG/NAME`"),
        ("hf://spaces/org/name", "only datasets can be read"),
    ] {
        let error = match rows(Source::huggingface(url), access(address)).await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{url}"),
        };
        assert!(error.contains(reason) && !error.contains("SECRET"), "{error}");
    }
}

#[tokio::test]
async fn named_credentials_replace_the_token_and_the_endpoint() {
    let (address, of_hub, _) = hub().await;
    let options = [("hf_endpoint", format!("http://{address}/")), ("hf_token", "hf_OTHER".to_owned())];
    let urls = UrlPolicy::new(["hf://datasets/org/name"]).unwrap();
    let credential = Credential::new(options.map(|(key, value)| (key.to_owned(), value)), urls).unwrap();
    let access =
        ObjectAccess::new(Vec::new()).with_credentials(BTreeMap::from([("hub".to_owned(), credential)]));
    let source = |url: &str| Source::huggingface(url).split("test").credentials("hub");
    assert_eq!(rows(source("hf://datasets/org/name"), access.clone()).await.unwrap().1, ["t"]);
    let token = Some("Bearer hf_OTHER".to_owned());
    assert!(of_hub.lock().unwrap().iter().all(|seen| seen.authorization == token));
    let error = rows(source("hf://datasets/org/other"), access.clone()).await.unwrap_err().to_string();
    assert!(error.contains("the credentials `hub` are not valid for"), "{error}");
    let limited = access.with_allowed_urls(UrlPolicy::new(["hf://datasets/lab"]).unwrap());
    assert!(
        rows(source("hf://datasets/org/name"), limited)
            .await
            .unwrap_err()
            .to_string()
            .contains("outside the allowed")
    );
}

#[tokio::test]
async fn redirects_to_metadata_services_are_rejected() {
    let (address, _) = serve(|seen, _| {
        if seen.line.contains("/resolve/") {
            return respond("302 Found", "location: http://169.254.169.254/latest\r\n", "");
        }
        if seen.line.contains("/paths-info/") {
            return respond("200 OK", "", r#"[{"type": "file", "oid": "1", "size": 5, "path": "x.jsonl"}]"#);
        }
        respond("200 OK", "", "[]")
    })
    .await;
    let url = format!("hf://datasets/org/name@{COMMIT}/x.jsonl");
    let error = rows(Source::jsonl(url), access(address)).await.unwrap_err().to_string();
    assert!(error.contains("cloud metadata service"), "{error}");
}

#[tokio::test]
async fn a_response_with_more_than_the_requested_range_is_rejected() {
    let long = "x".repeat(1 << 20);
    let head = |range: &str| format!("HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {range}\r\n");
    let closing = format!("{}connection: close\r\n\r\n{long}", head("0-4/5"));
    for (answer, reason) in [
        (closing, "sent more bytes in response to a request for 5 bytes"),
        (respond("206 Partial Content", "content-range: bytes 0-4/5\r\n", &long), "sent more bytes in"),
        (respond("206 Partial Content", "content-range: bytes 0-3/5\r\n", "abcd"), "sent bytes 0 to 3 in"),
        (respond("206 Partial Content", "content-range: bytes 0-9/10\r\n", "abcdefghij"), "0 to 9 in"),
        (respond("206 Partial Content", "", "abcde"), "no valid `Content-Range`"),
    ] {
        let (address, seen) = serve(move |seen, _| {
            if seen.line.contains("/resolve/") {
                return answer.clone();
            }
            respond("200 OK", "", r#"[{"type": "file", "oid": "1", "size": 5, "path": "x.jsonl"}]"#)
        })
        .await;
        let url = format!("hf://datasets/org/name@{COMMIT}/x.jsonl");
        let access = access(address).with_retry_budget(std::time::Duration::from_secs(20));
        let error = rows(Source::jsonl(url), access).await.unwrap_err();
        assert!(error.to_string().contains(reason) && !error.is_retryable(), "{error}");
        let reads = seen.lock().unwrap().iter().filter(|seen| seen.line.contains("/resolve/")).count();
        assert_eq!(reads, 1, "no read is repeated");
    }
}

#[tokio::test]
async fn a_range_is_taken_from_a_response_that_contains_the_whole_object() {
    let text = "0123456789".repeat(100_000);
    let declared = respond("200 OK", "", &text);
    let closing = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{text}");
    for answer in [declared, closing] {
        let (address, _) = serve(move |_, _| answer.clone()).await;
        let stores = Stores::with_access(access(address));
        let url = format!("hf://datasets/org/name@{COMMIT}/x");
        let ranges = [0..3, 500_001..500_005, 999_998..1_000_000];
        assert_eq!(stores.get_ranges(&url, &ranges).await.unwrap(), ["012", "1234", "89"]);
        let beyond = stores.get_ranges(&url, std::slice::from_ref(&(999_998..1_000_001))).await;
        assert!(beyond.unwrap_err().to_string().contains("returned 2 bytes instead of 3"));
    }
}

#[tokio::test]
async fn a_listing_that_leads_to_another_server_is_rejected() {
    let (address, _) =
        serve(|_, _| respond("200 OK", "link: <http://other.example.org/x>; rel=\"next\"\r\n", "[]")).await;
    let url = format!("hf://datasets/org/name@{COMMIT}/*.jsonl");
    let error = rows(Source::jsonl(url), access(address)).await.unwrap_err().to_string();
    assert!(error.contains("continues on another server"), "{error}");
}

#[tokio::test]
async fn a_throttled_hub_is_asked_again_when_its_limit_begins_again() {
    let rejected = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let counts = Arc::clone(&rejected);
    let (address, _) = serve(move |seen, _| {
        let path = seen.line.split(' ').nth(1).unwrap().to_owned();
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(path.clone()).or_default();
        *count += 1;
        if *count == 1 {
            return respond("429 Too Many Requests", "ratelimit: \"api\";r=0;t=1\r\n", "");
        }
        if path.contains("/tree/") {
            return respond("200 OK", "", &format!("[{}]", entry("data/train-2.jsonl")));
        }
        content(&files()["data/train-2.jsonl"], seen.range.as_deref())
    })
    .await;
    let source = Source::jsonl(format!("hf://datasets/org/name@{COMMIT}/data/*.jsonl"));
    let (_, found) =
        rows(source, access(address).with_retry_budget(std::time::Duration::from_secs(20))).await.unwrap();
    assert_eq!(found, ["three"]);
    assert!(rejected.lock().unwrap().values().all(|count| *count >= 2));
}
