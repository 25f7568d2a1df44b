//! A cluster with certificates, tokens and tickets: who has them works as ever, and who has not learns nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedline_access::{Bearer, Credentials, Tls, TlsFiles};
use feedline_core::cluster::messages::{Refusal, RefusalKind};
use feedline_core::ids::JobId;
use feedline_core::layout::SplitRef;
use feedline_proto::local::Transport;
use feedline_proto::{FetchOpen, FetchRequest, WorkerService, grpc};
use feedline_tests::http::free_port;
use feedline_tests::process::Role;
use feedline_tests::{Call, Scratch, assert_clean, call, wait_for};
use futures::StreamExt;
use futures::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Far beyond what an answer takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// A coordinator and a worker that listen by TLS, and what `feedline keys new` made for them.
struct Cluster {
    scratch: Scratch,
    coordinator: Role,
    worker: Role,
    http: String,
}

impl Cluster {
    fn start() -> Self {
        let scratch = Scratch::new();
        scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "3000", "--shards", "3"]);
        let text = format!(
            "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\nshuffle: {{ window: 300 }}\noperators: [ batch: {{ size: 16 }} ]",
            scratch.file("table")
        );
        scratch.write("table.yaml", &text);
        let made = scratch.call(&["keys", "new", "keys"]);
        assert_eq!(made.status, 0, "{}", made.stderr);
        let keys = Keys(scratch.file("keys"));
        let role = keys.tls("role");
        let data = scratch.file("data");
        let http = free_port();
        let secret = keys.file("secret");
        let mut arguments = vec!["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data];
        arguments.extend(["--http", &http, "--secret-file", &secret]);
        arguments.extend(role.iter().map(String::as_str));
        let coordinator = Role::start(&arguments, &[]);
        let (url, token) = (coordinator.secure_url(), keys.file("worker.token"));
        let mut arguments =
            vec!["worker", "--listen", "127.0.0.1:0", "--coordinator", &url, "--token-file", &token];
        arguments.extend(role.iter().map(String::as_str));
        let worker = Role::start(&arguments, &[]);
        Self { scratch, coordinator, worker, http }
    }

    fn keys(&self) -> Keys {
        Keys(self.scratch.file("keys"))
    }

    /// Calls a command of a client with these flags.
    fn call(&self, command: &[&str], flags: &[String]) -> Call {
        let url = self.coordinator.secure_url();
        let mut arguments = command.to_vec();
        arguments.extend(["--coordinator", &url]);
        arguments.extend(flags.iter().map(String::as_str));
        self.scratch.call(&arguments)
    }
}

/// The folder of what `feedline keys new` made.
struct Keys(String);

impl Keys {
    fn file(&self, name: &str) -> String {
        Path::new(&self.0).join(name).display().to_string()
    }

    fn tls(&self, name: &str) -> Vec<String> {
        let file = |name: String| self.file(&name);
        [
            ("--tls-ca", self.file("ca.pem")),
            ("--tls-cert", file(format!("{name}.pem"))),
            ("--tls-key", file(format!("{name}-key.pem"))),
        ]
        .into_iter()
        .flat_map(|(flag, file)| [flag.to_owned(), file])
        .collect()
    }

    /// All that a client needs.
    fn client(&self) -> Vec<String> {
        [self.tls("client"), vec!["--token-file".to_owned(), self.file("client.token")]].concat()
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            ca: Some(self.file("ca.pem").into()),
            cert: Some(self.file("client.pem").into()),
            key: Some(self.file("client-key.pem").into()),
            admits_anybody: false,
        }
    }
}

#[test]
fn a_job_runs_on_a_cluster_that_knows_whom_it_serves() {
    let cluster = Cluster::start();
    let keys = cluster.keys();
    let run = ["run", "table.yaml", "--report", "json", "--audit"];
    assert_clean(&cluster.call(&run, &keys.client()).report());
    for command in [&["jobs"][..], &["top", "--once"], &["members"]] {
        let called = cluster.call(command, &keys.client());
        assert_eq!(called.status, 0, "{command:?}: {}", called.stderr);
    }
    let said = |flags: &[String]| {
        let called = cluster.call(&["jobs"], flags);
        assert_ne!(called.status, 0, "{flags:?}");
        assert_eq!(called.stderr.lines().count(), 1, "{}", called.stderr);
        called.stderr
    };
    let no_token = said(&keys.tls("client"));
    assert!(no_token.contains("this cluster asks for a token: give one with --token-file"), "{no_token}");
    let no_cert = said(&["--tls-ca".to_owned(), keys.file("ca.pem")]);
    assert!(no_cert.contains("certificate"), "{no_cert}");
    let stranger = said(&[]);
    assert!(stranger.contains("certificate"), "{stranger}");
    // Another scope, and another cluster's token.
    let worker = [keys.tls("client"), vec!["--token-file".to_owned(), keys.file("worker.token")]].concat();
    let run = cluster.call(&run, &worker).stderr;
    assert!(run.contains("the token of `worker` does not allow to open or join jobs"), "{run}");
    let made = cluster.scratch.call(&["keys", "new", "other"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let other = cluster.scratch.file("other/client.token");
    let other = said(&[keys.tls("client"), vec!["--token-file".to_owned(), other]].concat());
    assert!(other.contains("the token is none of this cluster's"), "{other}");
    // Nobody reads a token on its way.
    let plain =
        call(&["jobs", "--coordinator", "http://10.0.0.1:7070", "--token-file", &keys.file("client.token")]);
    assert!(plain.stderr.contains("use https://"), "{}", plain.stderr);
    let secret = std::fs::read_to_string(keys.file("secret")).unwrap();
    assert!(!format!("{no_token}{no_cert}{stranger}{run}{other}").contains(secret.trim()));
}

#[test]
fn a_port_scan_without_a_certificate_finds_nothing() {
    let cluster = Cluster::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for address in [&cluster.coordinator.address, &cluster.worker.address, &cluster.http] {
        for probe in [
            &b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            b"\r\n\r\n",
        ] {
            let heard = plain(address, probe);
            // At most a TLS alert: "this is no TLS".
            assert!(heard.is_empty() || (heard[0] == 21 && heard.len() == 7), "{address}: {heard:?}");
        }
        let heard = runtime.block_on(nameless(&cluster.keys(), address));
        assert_eq!(heard, b"", "{address}");
    }
}

/// What is answered to these bytes.
fn plain(address: &str, probe: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time can be set");
    // It may be closed at once.
    let _ = stream.write_all(probe);
    // It may be closed already.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut heard = Vec::new();
    // A reset is no answer either.
    let _ = stream.read_to_end(&mut heard);
    heard
}

/// What a client hears that knows the authority and has no certificate of it.
async fn nameless(keys: &Keys, address: &str) -> Vec<u8> {
    let files = TlsFiles { ca: Some(keys.file("ca.pem").into()), ..TlsFiles::default() };
    let tls = Tls::load(files).expect("the authority is readable");
    let stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let Ok(mut stream) = tls.connect("127.0.0.1", stream).await else { return Vec::new() };
    let mut heard = Vec::new();
    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard)).await.expect("it is closed");
    heard
}

#[test]
fn rows_are_given_with_a_ticket_only() {
    let cluster = Cluster::start();
    let keys = cluster.keys();
    let run = cluster.call(&["run", "table.yaml", "--report", "json"], &keys.client());
    assert_eq!(run.status, 0, "{}", run.stderr);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let tls = Some(Arc::new(Tls::load(keys.files()).unwrap()));
        let token = Arc::new(Bearer::load(keys.file("client.token").into()).unwrap());
        let credentials = Credentials { tls, token: Some(token) };
        for way in [Transport::Tcp, Transport::Auto] {
            let url = cluster.worker.secure_url();
            let worker = grpc::connect_worker_by(&url, &credentials, way, |_, _| {}).unwrap();
            for ticket in ["", "feedline-ticket-1.e30.AAAA"] {
                let refusal = fetch(worker.as_ref(), ticket).await.unwrap_err();
                assert_eq!(refusal.kind, RefusalKind::Denied, "{refusal}");
            }
        }
    });
}

async fn fetch(worker: &dyn WorkerService, ticket: &str) -> Result<(), Refusal> {
    let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
    let open = FetchOpen { job: JobId(1), split, from: 0, credit_bytes: 1 << 20, ticket: ticket.to_owned() };
    let requests = stream::once(async { FetchRequest::Open(open) }).boxed();
    worker.fetch(requests).await.map(|_| ())
}

#[test]
fn certificates_are_exchanged_while_a_cluster_runs() {
    let cluster = Cluster::start();
    let keys = cluster.keys();
    let before = cluster.call(&["jobs"], &keys.client());
    assert_eq!(before.status, 0, "{}", before.stderr);
    let made = cluster.scratch.call(&["keys", "new", "next"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let next = Keys(cluster.scratch.file("next"));
    let old = cluster.scratch.file("old-ca.pem");
    std::fs::copy(keys.file("ca.pem"), &old).unwrap();
    for name in ["ca.pem", "role.pem", "role-key.pem", "client.pem", "client-key.pem"] {
        std::fs::copy(next.file(name), keys.file(name)).unwrap();
    }
    wait_for("the new certificate", || (cluster.call(&["jobs"], &keys.client()).status == 0).then_some(()));
    let stale = cluster.call(&["jobs"], &["--tls-ca".to_owned(), old]);
    assert!(stale.stderr.contains("certificate"), "{}", stale.stderr);
    // The worker has found its coordinator again.
    let run = ["run", "table.yaml", "--report", "json", "--audit"];
    assert_clean(&cluster.call(&run, &keys.client()).report());
}

#[test]
fn a_network_is_not_served_without_protection_unless_the_user_says_so() {
    let scratch = Scratch::new();
    let data = scratch.file("data");
    let refused = scratch.call(&["coordinator", "--listen", "0.0.0.0:0", "--data-dir", &data]);
    assert_eq!(refused.status, 2);
    for part in ["is no loopback address", "without TLS", "--tls-cert", "--secret-file", "or say --insecure"]
    {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    let worker = scratch.call(&["worker", "--listen", "0.0.0.0:0", "--advertise", "http://10.0.0.7:7071"]);
    assert!(worker.status == 2 && worker.stderr.contains("or say --insecure"), "{}", worker.stderr);
    let http = scratch.call(&["up", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"]);
    assert!(http.status == 2 && http.stderr.contains("or say --insecure"), "{}", http.stderr);
    let aloud = ["coordinator", "--listen", "0.0.0.0:0", "--data-dir", &data, "--insecure"];
    assert_eq!(Role::start(&aloud, &[]).terminate(), 0);
}

#[test]
fn workers_that_are_scaled_have_what_they_need() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000", "--shards", "2"]);
    let text = format!(
        "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 16 }} ]",
        scratch.file("table")
    );
    scratch.write("table.yaml", &text);
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let keys = Keys(scratch.file("keys"));
    let secret = keys.file("secret");
    for scaled in [&["--autoscale", "1..2"][..], &["--workers", "2"]] {
        let mut arguments = vec!["up", "--listen", "127.0.0.1:0", "--secret-file", &secret];
        arguments.extend(scaled);
        let role = keys.tls("role");
        arguments.extend(role.iter().map(String::as_str));
        let up = Role::start(&arguments, &[]);
        let url = up.secure_url();
        let mut run = vec!["run", "table.yaml", "--report", "json", "--audit", "--coordinator", &url];
        let client = keys.client();
        run.extend(client.iter().map(String::as_str));
        assert_clean(&scratch.call(&run).report());
    }
}
