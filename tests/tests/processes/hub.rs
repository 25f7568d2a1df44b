//! Datasets of the Hugging Face Hub are read with the token of named credentials or of the environment, from a server in the test
//! process.

use std::convert::Infallible;
use std::process::Command;

use feedline_tests::{CACHE_HOME, Call, Scratch, assert_clean, feedline};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_RANGE, RANGE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_SECRETOFTHETESTS";
const ROWS: u64 = 40;

/// A Hub with the private repository `org/name`, which stops when this value is dropped.
struct Hub {
    url: String,
    _runtime: Runtime,
}

impl Hub {
    fn serve() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a loopback port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        runtime.spawn(accept(listener));
        Self { url, _runtime: runtime }
    }
}

async fn accept(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let service =
            service_fn(|request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(&request)) });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

fn answer(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let authorization = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let path = request.uri().path();
    let content: String = (0..ROWS).map(|row| format!("{{\"v\": {row}}}\n")).collect();
    let response = Response::builder();
    let (response, body) = if authorization != Some(format!("Bearer {TOKEN}").as_str()) {
        (response.status(StatusCode::UNAUTHORIZED).header("x-error-code", "RepoNotFound"), String::new())
    } else if path == "/api/datasets/org/name/revision/main" {
        (response, format!(r#"{{"sha": "{COMMIT}"}}"#))
    } else if path == format!("/api/datasets/org/name/tree/{COMMIT}/data") {
        let size = content.len();
        let entry = format!(r#"{{"type": "file", "oid": "1", "size": {size}, "path": "data/train.jsonl"}}"#);
        (response, format!("[{entry}]"))
    } else if path == format!("/datasets/org/name/resolve/{COMMIT}/data/train.jsonl") {
        let range = request.headers().get(RANGE).and_then(|value| value.to_str().ok());
        let (start, last) = byte_range(range.expect("Feedline reads ranges"), content.len());
        let range = format!("bytes {start}-{last}/{}", content.len());
        let response = response.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, range);
        (response, content[start..=last].to_owned())
    } else {
        (response.status(StatusCode::NOT_FOUND).header("x-error-code", "EntryNotFound"), String::new())
    };
    response.body(Full::new(Bytes::from(body))).expect("the headers are valid")
}

/// Returns the first and the last byte of a range.
fn byte_range(range: &str, size: usize) -> (usize, usize) {
    let (start, last) =
        range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).expect("a range of bytes");
    let last: usize = last.parse().expect("the range has an end");
    (start.parse().expect("the range has a start"), last.min(size - 1))
}

/// Runs a pipeline over the repository with these environment variables.
fn run(scratch: &Scratch, source: &str, flags: &[&str], environment: &[(&str, &str)]) -> Call {
    let text = format!(
        "name: hub\nsource: {{ url: \"hf://datasets/org/name/data/*.jsonl\", format: jsonl{source} }}\n\
         operators: [ batch: {{ size: 4 }} ]\n"
    );
    let file = scratch.write("hub.yaml", &text);
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "120"]).arg(feedline());
    command.args(["run", &file, "--report", "json", "--audit"]).args(flags);
    command.env_remove("HF_ENDPOINT").env_remove("HF_TOKEN").env(CACHE_HOME, scratch.cache());
    let call = Call::from(command.envs(environment.iter().copied()).output().expect("the binary starts"));
    assert!(!call.stdout.contains(TOKEN) && !call.stderr.contains(TOKEN), "the token was shown");
    call
}

/// Checks that the only sentence of a call is about a repository that the token cannot read.
fn assert_private(call: &Call) {
    assert_eq!(call.status, 1, "{}", call.stderr);
    let sentences: Vec<&str> = call.stderr.lines().filter(|line| line.starts_with("feedline: ")).collect();
    let [sentence] = sentences.as_slice() else { panic!("{}", call.stderr) };
    for part in [
        "`hf://datasets/org/name/data/*.jsonl`",
        "the repository `org/name` does not exist or is private",
        "set a token of an account that can read it, with `HF_TOKEN` or `source.credentials`",
    ] {
        assert!(sentence.contains(part), "{sentence}");
    }
}

fn assert_rows(call: &Call) {
    let report = call.report();
    assert_clean(&report);
    assert_eq!(report["rows"], ROWS);
}

#[test]
fn the_token_of_named_credentials_reads_a_private_repository() {
    let (scratch, hub) = (Scratch::new(), Hub::serve());
    let entry = |name: &str, token: &str| {
        let url = &hub.url;
        format!("{name}:\n  urls: [hf://datasets/org/name]\n  hf_endpoint: \"{url}\"\n  hf_token: {token}\n")
    };
    let credentials = scratch.write("credentials.yaml", &(entry("hub", TOKEN) + &entry("stale", "hf_OLD")));
    let flags = ["--credentials", &credentials];
    assert_rows(&run(&scratch, ", credentials: hub", &flags, &[]));
    assert_private(&run(&scratch, ", credentials: stale", &flags, &[]));
}

#[test]
fn a_missing_token_for_a_private_repository_is_one_sentence() {
    let (scratch, hub) = (Scratch::new(), Hub::serve());
    assert_private(&run(&scratch, "", &[], &[("HF_ENDPOINT", &hub.url)]));
    assert_rows(&run(&scratch, "", &[], &[("HF_ENDPOINT", &hub.url), ("HF_TOKEN", TOKEN)]));
}
