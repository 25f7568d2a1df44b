//! Tests of the name that the certificate of a worker must contain.

use std::fs;

use feedline_access::{CertificateAuthority, Tls, TlsFiles};
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// A worker with TLS on a loopback address.
struct NamedWorker {
    url: String,
    /// Credentials of a client.
    credentials: Credentials,
    _seen: mpsc::Receiver<WorkerEvent>,
    _task: AbortOnDropHandle<std::io::Result<()>>,
}

/// Starts a worker whose certificate contains only `name`.
async fn start_named(name: &str) -> NamedWorker {
    let folder = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::new(1).unwrap();
    let issued = authority.issue("role", &[name.to_owned()], 1).unwrap();
    let write = |file: &str, text: &str| {
        let path = folder.path().join(file);
        fs::write(&path, text).unwrap();
        Some(path)
    };
    let files = TlsFiles {
        cert: write("role.pem", &issued.cert),
        key: write("role-key.pem", &issued.key),
        ca: write("ca.pem", &authority.certified_key().cert),
        allows_unverified_clients: false,
    };
    let tls = Arc::new(Tls::load(files).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (seen, _seen) = mpsc::channel(16);
    let routes = worker_routes(Arc::new(FakeWorker { batch: Bytes::from_static(b"batch"), seen }));
    let never = std::future::pending::<tokio::time::Instant>();
    let task = tokio::spawn(serve_tls(listener, Arc::clone(&tls), routes, never));
    let credentials = Credentials { tls: Some(tls), token: None };
    NamedWorker { url, credentials, _seen, _task: AbortOnDropHandle::new(task) }
}

/// Starts a fetch from a worker whose certificate must contain `tls_name`.
async fn fetch_by(worker: &NamedWorker, tls_name: Option<&str>) -> Result<(), ServiceError> {
    let address = WorkerAddress { url: worker.url.clone(), tls_name: tls_name.map(str::to_owned) };
    let client = connect_worker_over(&address, &worker.credentials, Transport::Tcp, |_, _| {})?;
    let (_credit, requests) = requests(open(1));
    within(client.fetch(requests)).await.map(|_| ())
}

#[tokio::test]
async fn the_certificate_of_a_worker_must_contain_its_name_or_else_its_host() {
    let worker = start_named("workers.feedline").await;
    assert_eq!(fetch_by(&worker, Some("workers.feedline")).await, Ok(()));
    for (name, expected) in [(None, "127.0.0.1"), (Some("other.feedline"), "other.feedline")] {
        let error = fetch_by(&worker, name).await.unwrap_err();
        assert_eq!(error.kind, ServiceErrorKind::Unavailable, "{error}");
        for part in [&*format!("not valid for name \"{expected}\""), "start the worker with --tls-name"] {
            assert!(error.message.contains(part), "{error}");
        }
    }
    let host = start_named("127.0.0.1").await;
    assert_eq!(fetch_by(&host, None).await, Ok(()));
    assert!(fetch_by(&host, Some("workers.feedline")).await.is_err());
}

#[tokio::test]
async fn a_malformed_name_is_rejected() {
    let worker = start_named("workers.feedline").await;
    let error = fetch_by(&worker, Some("*.feedline")).await.unwrap_err();
    assert_eq!(error.kind, ServiceErrorKind::Invalid);
    let expected = format!("invalid worker address `{}`: invalid certificate name `*.feedline`", worker.url);
    assert!(error.message.starts_with(&expected), "{error}");
}
