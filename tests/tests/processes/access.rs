//! A cluster with certificates, tokens and tickets serves clients that have them, and discloses nothing to others.

mod listeners;
mod tokens;

use std::path::Path;
use std::sync::Arc;

use feedline_access::{BearerToken, Credentials, Tls, TlsFiles};
use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_proto::local::Transport;
use feedline_proto::{FetchOpen, FetchRequest, WorkerService, grpc};
use feedline_tests::http::get;
use feedline_tests::process::Role;
use feedline_tests::{Call, Scratch, assert_clean, call, wait_for};
use futures::StreamExt;
use futures::stream;

/// A coordinator and a worker with TLS, and the directory that `feedline keys new` created.
struct Cluster {
    scratch: Scratch,
    coordinator: Role,
    worker: Role,
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
        let secret = keys.file("secret");
        let mut arguments = vec!["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data];
        let table = scratch.file("table");
        arguments.extend(["--http", "127.0.0.1:0", "--secret-file", &secret, "--allow-url", &table]);
        arguments.extend(role.iter().map(String::as_str));
        let coordinator = Role::start(&arguments, &[]);
        let (url, token) = (coordinator.secure_url(), keys.file("worker.token"));
        let mut arguments =
            vec!["worker", "--listen", "127.0.0.1:0", "--coordinator", &url, "--token-file", &token];
        arguments.extend(["--allow-url", &table]);
        arguments.extend(["--http", "127.0.0.1:0"]);
        arguments.extend(role.iter().map(String::as_str));
        let worker = Role::start(&arguments, &[]);
        Self { scratch, coordinator, worker }
    }

    fn keys(&self) -> Keys {
        Keys(self.scratch.file("keys"))
    }

    /// Runs a command as a client with these flags.
    fn call(&self, command: &[&str], flags: &[String]) -> Call {
        let url = self.coordinator.secure_url();
        let mut arguments = command.to_vec();
        arguments.extend(["--coordinator", &url]);
        arguments.extend(flags.iter().map(String::as_str));
        self.scratch.call(&arguments)
    }
}

/// The directory that `feedline keys new` created.
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

    /// Returns all flags of a client.
    fn client(&self) -> Vec<String> {
        [self.tls("client"), vec!["--token-file".to_owned(), self.file("client.token")]].concat()
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            ca: Some(self.file("ca.pem").into()),
            cert: Some(self.file("client.pem").into()),
            key: Some(self.file("client-key.pem").into()),
            allows_unverified_clients: false,
        }
    }
}

#[test]
fn a_job_runs_on_a_cluster_with_certificates_and_tokens() {
    let cluster = Cluster::start();
    let keys = cluster.keys();
    let run = ["run", "table.yaml", "--report", "json", "--audit"];
    assert_clean(&cluster.call(&run, &keys.client()).report());
    for command in [&["job", "list"][..], &["top", "--once"], &["members", "list"]] {
        let called = cluster.call(command, &keys.client());
        assert_eq!(called.status, 0, "{command:?}: {}", called.stderr);
    }
    let said = |flags: &[String]| {
        let called = cluster.call(&["job", "list"], flags);
        assert_ne!(called.status, 0, "{flags:?}");
        assert_eq!(called.stderr.lines().count(), 1, "{}", called.stderr);
        called.stderr
    };
    let no_token = said(&keys.tls("client"));
    assert!(no_token.contains("this cluster requires a token: pass one with --token-file"), "{no_token}");
    let no_cert = said(&["--tls-ca".to_owned(), keys.file("ca.pem")]);
    assert!(no_cert.contains("certificate"), "{no_cert}");
    let stranger = said(&[]);
    assert!(stranger.contains("certificate"), "{stranger}");
    // A token with another scope, and a token of another cluster.
    let worker = [keys.tls("client"), vec!["--token-file".to_owned(), keys.file("worker.token")]].concat();
    let run = cluster.call(&run, &worker).stderr;
    assert!(run.contains("the token of `worker` is not allowed to open or join jobs"), "{run}");
    let made = cluster.scratch.call(&["keys", "new", "other"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let other = cluster.scratch.file("other/client.token");
    let other = said(&[keys.tls("client"), vec!["--token-file".to_owned(), other]].concat());
    assert!(other.contains("the token is not valid for this cluster"), "{other}");
    // Without TLS, a client does not send its token.
    let plain = call(&[
        "job",
        "list",
        "--coordinator",
        "http://10.0.0.1:7070",
        "--token-file",
        &keys.file("client.token"),
    ]);
    assert!(plain.stderr.contains("use https://"), "{}", plain.stderr);
    let secret = std::fs::read_to_string(keys.file("secret")).unwrap();
    assert!(!format!("{no_token}{no_cert}{stranger}{run}{other}").contains(secret.trim()));
}

#[test]
fn a_worker_sends_rows_only_for_a_ticket() {
    let cluster = Cluster::start();
    let keys = cluster.keys();
    let run = cluster.call(&["run", "table.yaml", "--report", "json"], &keys.client());
    assert_eq!(run.status, 0, "{}", run.stderr);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let tls = Some(Arc::new(Tls::load(keys.files()).unwrap()));
        let token = Arc::new(BearerToken::load(keys.file("client.token").into()).unwrap());
        let credentials = Credentials { tls, token: Some(token) };
        for way in [Transport::Tcp, Transport::Auto] {
            let address = WorkerAddress::new(cluster.worker.secure_url());
            let worker = grpc::connect_worker_over(&address, &credentials, way, |_, _| {}).unwrap();
            for ticket in ["", "feedline-ticket-1.e30.AAAA"] {
                let refusal = fetch(worker.as_ref(), ticket).await.unwrap_err();
                assert_eq!(refusal.kind, ServiceErrorKind::Denied, "{refusal}");
            }
        }
    });
}

async fn fetch(worker: &dyn WorkerService, ticket: &str) -> Result<(), ServiceError> {
    let split = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
    let open = FetchOpen {
        job: JobId(1),
        split,
        start_offset: 0,
        credit_bytes: 1 << 20,
        ticket: ticket.to_owned(),
        cached_features: Vec::new(),
    };
    let requests = stream::once(async { FetchRequest::Open(open) }).boxed();
    worker.fetch(requests).await.map(|_| ())
}

#[test]
fn a_running_cluster_reloads_certificates() {
    let cluster = Cluster::start();
    let keys = cluster.keys();
    let before = cluster.call(&["job", "list"], &keys.client());
    assert_eq!(before.status, 0, "{}", before.stderr);
    let made = cluster.scratch.call(&["keys", "new", "next"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let next = Keys(cluster.scratch.file("next"));
    let old = cluster.scratch.file("old-ca.pem");
    std::fs::copy(keys.file("ca.pem"), &old).unwrap();
    for name in ["ca.pem", "role.pem", "role-key.pem", "client.pem", "client-key.pem"] {
        std::fs::copy(next.file(name), keys.file(name)).unwrap();
    }
    wait_for("the new certificate", || {
        (cluster.call(&["job", "list"], &keys.client()).status == 0).then_some(())
    });
    let stale = cluster.call(&["job", "list"], &["--tls-ca".to_owned(), old]);
    assert!(stale.stderr.contains("certificate"), "{}", stale.stderr);
    // The worker has reconnected to its coordinator.
    let run = ["run", "table.yaml", "--report", "json", "--audit"];
    assert_clean(&cluster.call(&run, &keys.client()).report());
}

#[test]
fn a_network_address_without_protection_requires_insecure() {
    let scratch = Scratch::new();
    let data = scratch.file("data");
    let refused = scratch.call(&["coordinator", "--listen", "0.0.0.0:0", "--data-dir", &data]);
    assert_eq!(refused.status, 2);
    for part in
        ["is not a loopback address", "without TLS", "--tls-cert", "--secret-file", "or pass --insecure"]
    {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    let worker = scratch.call(&["worker", "--listen", "0.0.0.0:0", "--advertise", "http://10.0.0.7:7071"]);
    assert!(worker.status == 2 && worker.stderr.contains("or pass --insecure"), "{}", worker.stderr);
    let http = scratch.call(&["up", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"]);
    assert!(http.status == 2 && http.stderr.contains("or pass --insecure"), "{}", http.stderr);
    let aloud = ["coordinator", "--listen", "0.0.0.0:0", "--data-dir", &data, "--insecure"];
    assert_eq!(Role::start(&aloud, &[]).terminate(), 0);
}

#[test]
fn a_coordinator_names_the_host_that_its_certificate_lacks() {
    let scratch = Scratch::new();
    let made = scratch.call(&["keys", "new", "keys", "--host", "localhost,a.feedline"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let keys = Keys(scratch.file("keys"));
    let (data, secret, role) = (scratch.file("data"), keys.file("secret"), keys.tls("role"));
    let url = "https://b.feedline:7070";
    let mut arguments = vec!["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data];
    arguments.extend(["--advertise", url, "--peers", url, "--secret-file", &secret]);
    arguments.extend(role.iter().map(String::as_str));
    let rejected = scratch.call(&arguments);
    assert_eq!(rejected.status, 2, "{}", rejected.stderr);
    let certificate = keys.file("role.pem");
    let expected = format!(
        "feedline: cannot use --advertise {url}: {certificate} does not contain the name `b.feedline`, only localhost, a.feedline; issue a certificate that contains `b.feedline`"
    );
    assert!(rejected.stderr.contains(&expected), "{}", rejected.stderr);
}

#[test]
fn metrics_require_a_token_without_client_certificates() {
    let scratch = Scratch::new();
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let secret = Keys(scratch.file("keys")).file("secret");
    let arguments = ["up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--secret-file", &secret];
    let up = Role::start(&arguments, &[]);
    let page = get(up.http(), "/metrics");
    assert!(page.starts_with("HTTP/1.1 401") && !page.contains("feedline_"), "{page}");
    assert!(get(up.http(), "/healthz").starts_with("HTTP/1.1 200"));
    // A worker cannot check tokens: without certificates, everyone could read its metrics.
    let keys = Keys(scratch.file("keys"));
    let (cert, key) = (keys.file("role.pem"), keys.file("role-key.pem"));
    let (listen, http) = (["worker", "--listen", "127.0.0.1:0"], ["--http", "0.0.0.0:0"]);
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--token-file", &keys.file("worker.token")]
        .map(str::to_owned);
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    let open = scratch.call(&[&listen[..], &http[..], &tls[..]].concat());
    assert!(open.status == 2 && open.stderr.contains("or pass --insecure"), "{}", open.stderr);
}

#[test]
fn autoscaled_workers_receive_credentials() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "2000", "--shards", "2"]);
    let text = format!(
        "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ batch: {{ size: 16 }} ]",
        scratch.file("table")
    );
    scratch.write("table.yaml", &text);
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let keys = Keys(scratch.file("keys"));
    let (secret, table) = (keys.file("secret"), scratch.file("table"));
    for scaled in [&["--autoscale", "1..2"][..], &["--workers", "2"]] {
        let mut arguments = vec!["up", "--listen", "127.0.0.1:0", "--secret-file", &secret];
        arguments.extend(["--allow-url", &table]);
        arguments.extend(scaled);
        let role = keys.tls("role");
        arguments.extend(role.iter().map(String::as_str));
        // Workers do not inherit the client credentials of the user's shell.
        let client_token = keys.file("client.token");
        let up = Role::start(&arguments, &[("FEEDLINE_TOKEN_FILE", &client_token)]);
        let url = up.secure_url();
        let mut run = vec!["run", "table.yaml", "--report", "json", "--audit", "--coordinator", &url];
        let client = keys.client();
        run.extend(client.iter().map(String::as_str));
        assert_clean(&scratch.call(&run).report());
    }
}

#[test]
fn a_worker_with_a_token_and_a_coordinator_without_a_secret_fail_runs_with_a_fix() {
    let scratch = Scratch::new();
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "200", "--shards", "1"]);
    let table = scratch.file("table");
    let text = format!(
        "name: table\nsource: {{ url: \"{table}/*\", format: jsonl }}\noperators: [ batch: {{ size: 16 }} ]"
    );
    scratch.write("table.yaml", &text);
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let (data, token) = (scratch.file("data"), Keys(scratch.file("keys")).file("worker.token"));
    let coordinator = Role::start(&["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data], &[]);
    let url = coordinator.url();
    let mut arguments = vec!["worker", "--listen", "127.0.0.1:0", "--coordinator", &url];
    arguments.extend(["--token-file", &token, "--allow-url", &table]);
    let _worker = Role::start(&arguments, &[]);
    let run = scratch.call(&["run", "table.yaml", "--coordinator", &url]);
    assert_ne!(run.status, 0, "{}", run.stderr);
    let fix = "start the coordinator with --secret-file, or start this worker without a token";
    assert!(run.stderr.contains(fix), "{}", run.stderr);
}
