//! A real S3 server process serves the same job with the same digest, also when it fails and stalls.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feedline_core::random::mix64;
use feedline_tests::{Call, Scratch, assert_clean, data, feedline};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpResponse};
use serde_json::Value;
use tokio::net::TcpListener;

/// Requests seen, failed and delayed.
#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    failed: AtomicU64,
    delayed: AtomicU64,
}

/// One request in this many fails, and one in as many is delayed.
const FAULTS: Option<u64> = Some(20);

/// An S3 server on a loopback port; lives as long as its runtime.
struct Server {
    url: String,
    counts: Arc<Counts>,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    fn start(root: &Path, faults: Option<u64>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let files = s3s_fs::FileSystem::new(root).expect("the root exists");
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single("key", "secret"));
        let service = builder.build();
        let counts = Arc::new(Counts::default());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a loopback port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        runtime.spawn(accept(listener, service, Arc::clone(&counts), faults));
        Self { url, counts, _runtime: runtime }
    }
}

async fn accept(listener: TcpListener, service: S3Service, counts: Arc<Counts>, faults: Option<u64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (service, counts) = (service.clone(), Arc::clone(&counts));
        let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (service, counts) = (service.clone(), Arc::clone(&counts));
            async move {
                let number = counts.requests.fetch_add(1, Ordering::Relaxed);
                let dice = faults.map(|faults| mix64(number) % faults);
                if dice == Some(0) {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                    let mut response = HttpResponse::new(Body::empty());
                    *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
                    return Ok(response);
                }
                if dice == Some(1) {
                    counts.delayed.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                service.call(request.map(Body::from)).await
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

fn run(scratch: &Scratch, server: &Server, file: &str, index: &str) -> Value {
    let output = std::process::Command::new("timeout")
        .args(["--signal=KILL", "120"])
        .arg(feedline())
        .args(["run", file, "--audit", "--report", "json", "--workers", "2", "--epochs", "2"])
        .args(["--index-dir", &scratch.file(index)])
        .env("AWS_ENDPOINT", &server.url)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_REGION", "us-east-1")
        .output()
        .expect("the binary starts");
    let report = Call::from(output).report();
    assert_clean(&report);
    report
}

#[test]
fn s3_gives_the_same_batches_also_when_requests_fail_and_stall() {
    let scratch = Scratch::new();
    let photos = data::photographs("the S3 job runs on generated images instead, since it");
    let photos = photos.map(|path| path.to_str().expect("the path is text").to_owned());
    let mut arguments = vec!["--format", "tfrecord", "--shards", "4"];
    match &photos {
        Some(photos) => arguments.extend(["--from", photos]),
        None => arguments.extend(["--rows", "200"]),
    }
    std::fs::create_dir_all(scratch.path().join("store/bucket")).expect("the scratch directory is writable");
    scratch.make_data("images", "store/bucket/photos", &arguments);
    let pipeline = |url: &str| {
        format!(
            "name: photos
source: {{ url: \"{url}/*.tfrecord\", format: tfrecord, features: {{ image: image/encoded }} }}
seed: 4
shuffle: {{ window: 100 }}
operators:
  - random_resized_crop: {{ column: image, size: [64, 64] }}
  - batch: {{ size: 16 }}
"
        )
    };
    let local = scratch.write("local.yaml", &pipeline(&scratch.file("store/bucket/photos")));
    let local = scratch.run(&local, &["--epochs", "2"]);
    let store = scratch.path().join("store");
    let remote = scratch.write("s3.yaml", &pipeline("s3://bucket/photos"));
    let sound = Server::start(&store, None);
    let clean = run(&scratch, &sound, &remote, "index-sound");
    assert_eq!(clean["digest"], local["digest"]);
    let faulty = Server::start(&store, FAULTS);
    let shaken = run(&scratch, &faulty, &remote, "index-faulty");
    assert_eq!(shaken["digest"], local["digest"]);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (requests, failed, delayed) =
        (count(&faulty.counts.requests), count(&faulty.counts.failed), count(&faulty.counts.delayed));
    eprintln!("{requests} requests, {failed} failed, {delayed} delayed");
    assert!(failed > 0 && delayed > 0, "{requests} requests met no fault");
}
