//! A cluster with certificates, tokens and tickets serves clients that have them, and discloses nothing to others.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use feedline_access::token::{Scope, Tokens};
use feedline_access::{BearerToken, Credentials, Secret, Tls, TlsFiles, now_s};
use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_proto::authenticator::{Authenticator, Authenticators};
use feedline_proto::local::Transport;
use feedline_proto::{FetchOpen, FetchRequest, WorkerService, grpc};
use feedline_tests::http::{free_ports, get};
use feedline_tests::process::Role;
use feedline_tests::{Call, Scratch, assert_clean, call, wait_for};
use futures::StreamExt;
use futures::stream;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// The messages of a port scan: both versions of HTTP, and other bytes.
const PROBES: [&[u8]; 3] = [
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    b"\r\n\r\n",
];

#[test]
fn a_port_scan_without_a_certificate_receives_no_answer() {
    let cluster = Cluster::start();
    let keys = cluster.keys();
    let (secret, role) = (keys.file("secret"), keys.tls("role"));
    let mut arguments = vec!["up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--workers", "2"];
    arguments.extend(["--cores", "2", "--memory", "256MiB", "--secret-file", &secret]);
    arguments.extend(role.iter().map(String::as_str));
    let up = Role::start(&arguments, &[]);
    // The gRPC and HTTP listeners of each role, and the gRPC listeners of both workers of `up`. The scan finds all listeners.
    for (role, wanted) in [(&cluster.coordinator, 2), (&cluster.worker, 2), (&up, 4)] {
        let listeners = listeners(role);
        assert_eq!(listeners.len(), wanted, "{listeners:?}");
        for address in listeners {
            scan(&keys, &address);
        }
    }
}

/// Returns the addresses on which a process listens, as the system reports them.
fn listeners(role: &Role) -> BTreeSet<String> {
    let process = format!("/proc/{}", role.id());
    let files = fs::read_dir(format!("{process}/fd")).expect("it runs");
    let sockets: BTreeSet<String> = files
        .filter_map(|file| {
            let target = fs::read_link(file.ok()?.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let mut found = BTreeSet::new();
    for (table, host) in [("tcp", "127.0.0.1"), ("tcp6", "[::1]")] {
        let table = fs::read_to_string(format!("{process}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            // 0A is the state LISTEN.
            if let [_, address, _, "0A", _, _, _, _, _, inode, ..] = columns[..]
                && sockets.contains(inode)
            {
                let port = address.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
                found.insert(format!("{host}:{}", port.expect("the system writes ports in hexadecimal")));
            }
        }
    }
    found
}

/// Checks that a listener answers only clients with a certificate.
fn scan(keys: &Keys, address: &str) {
    for probe in PROBES {
        let heard = plain(address, probe);
        // At most a TLS alert.
        assert!(heard.is_empty() || (heard[0] == 21 && heard.len() == 7), "{address}: {heard:?}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("threads start");
    let mut answers = 0;
    for protocol in [&b"h2"[..], b"http/1.1", b""] {
        for probe in PROBES {
            let heard = runtime.block_on(over_tls(keys, address, None, protocol, probe));
            assert_eq!(heard, b"", "{address}, {protocol:?}");
        }
        // With a certificate, the listener answers the probe of its protocol.
        let probe = if protocol == b"h2" { PROBES[1] } else { PROBES[0] };
        let heard = runtime.block_on(over_tls(keys, address, Some("client"), protocol, probe));
        answers += usize::from(!heard.is_empty());
    }
    assert!(answers > 0, "{address} answers no request, so the scan is meaningless");
}

/// Connects as a client with this certificate and this protocol. Returns `None` if the handshake fails.
async fn connect_over_tls(
    keys: &Keys,
    address: &str,
    certificate: Option<&str>,
    protocol: &[u8],
) -> Option<TlsStream<tokio::net::TcpStream>> {
    let pem = |name: &str| fs::read(keys.file(name)).expect("it was made");
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&pem("ca.pem")).expect("it is one"))
        .expect("it is an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("it is known")
        .with_root_certificates(roots);
    let mut config = match certificate {
        None => config.with_no_client_auth(),
        Some(name) => {
            let own = CertificateDer::from_pem_slice(&pem(&format!("{name}.pem"))).expect("it is one");
            let key = PrivateKeyDer::from_pem_slice(&pem(&format!("{name}-key.pem"))).expect("it is one");
            config.with_client_auth_cert(vec![own], key).expect("they go together")
        }
    };
    config.alpn_protocols = if protocol.is_empty() { Vec::new() } else { vec![protocol.to_vec()] };
    let stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let name = ServerName::try_from("127.0.0.1").expect("it is an address");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()
}

/// Returns the first bytes that a client with this certificate and this protocol receives.
async fn over_tls(
    keys: &Keys,
    address: &str,
    certificate: Option<&str>,
    protocol: &[u8],
    probe: &[u8],
) -> Vec<u8> {
    let Some(mut stream) = connect_over_tls(keys, address, certificate, protocol).await else {
        return Vec::new();
    };
    // The connection may be closed already.
    let _ = stream.write_all(probe).await;
    let mut heard = vec![0; 1 << 10];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut heard)).await.expect("it answers or closes");
    heard.truncate(read.unwrap_or(0));
    heard
}

/// Returns the answer to these bytes.
fn plain(address: &str, probe: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time can be set");
    // The server may close the connection at once.
    let _ = stream.write_all(probe);
    // The connection may be closed already.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut heard = Vec::new();
    // A reset counts as no answer.
    let _ = stream.read_to_end(&mut heard);
    heard
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
    let open =
        FetchOpen { job: JobId(1), split, start_offset: 0, credit_bytes: 1 << 20, ticket: ticket.to_owned() };
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
fn the_server_for_keda_requires_a_certificate_although_tokens_suffice_for_others() {
    let scratch = Scratch::new();
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let keys = Keys(scratch.file("keys"));
    let (data, secret, scaler) = (scratch.file("data"), keys.file("secret"), free_ports(1).remove(0));
    let mut arguments = vec!["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data];
    arguments.extend(["--secret-file", &secret, "--tls-clients", "any", "--scaler", "keda"]);
    arguments.extend(["--scale-pool", "default=deployment/w:1..2", "--scaler-listen", &scaler]);
    let role = keys.tls("role");
    arguments.extend(role.iter().map(String::as_str));
    let coordinator = Role::start(&arguments, &[]);
    scan(&keys, &scaler);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("threads start");
    let heard = runtime.block_on(over_tls(&keys, &coordinator.address, None, b"h2", PROBES[1]));
    assert!(!heard.is_empty(), "clients of the coordinator need no certificate");
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

/// Creates a token with these flags, and returns the call.
fn make_token(scratch: &Scratch, secret: &str, flags: &[&str]) -> Call {
    let mut arguments = vec!["keys", "token", "--secret-file", secret];
    arguments.extend(flags);
    scratch.call(&arguments)
}

#[test]
fn tokens_expire_and_a_tenants_token_cannot_administer_the_cluster() {
    let scratch = Scratch::new();
    let made = scratch.call(&["keys", "new", "keys"]);
    assert!(made.stdout.contains("the tokens are valid for 365 days"), "{}", made.stdout);
    let aloud = scratch.call(&["keys", "new", "endless", "--expires", "never"]);
    assert!(aloud.stdout.contains("the tokens are valid FOREVER"), "{}", aloud.stdout);
    let file = scratch.file("keys/secret");
    let secret = Secret::parse(&fs::read_to_string(&file).unwrap()).unwrap();
    let read = |name: &str| fs::read_to_string(scratch.file(&format!("keys/{name}.token"))).unwrap();
    let made = make_token(&scratch, &file, &["--scope", "observe", "--holder", "ci"]);
    assert_eq!(made.stderr, "feedline: the token of `ci` is valid for 365 days\n");
    let year_s = 365 * 86_400;
    for token in [made.stdout, read("worker"), read("client"), read("admin")] {
        let tokens = Tokens::new(&secret);
        assert!(tokens.check(&token, now_s() + year_s - 3_600).is_ok());
        assert!(tokens.check(&token, now_s() + year_s).unwrap_err().contains("expired"));
    }
    let endless = make_token(&scratch, &file, &["--scope", "observe", "--expires", "never"]);
    assert!(endless.stderr.contains("valid FOREVER"), "{}", endless.stderr);
    assert!(Tokens::new(&secret).check(&endless.stdout, u64::MAX).is_ok());
    for scope in ["work", "admin", "submit,admin"] {
        let refused = make_token(&scratch, &file, &["--scope", scope, "--tenant", "vision"]);
        assert_eq!((refused.status, refused.stdout.as_str()), (2, ""), "{scope}");
        assert!(refused.stderr.contains("which applies to the whole cluster"), "{}", refused.stderr);
    }
    for scope in ["submit", "consume", "observe"] {
        assert_eq!(
            make_token(&scratch, &file, &["--scope", scope, "--tenant", "vision"]).status,
            0,
            "{scope}"
        );
    }
}

#[test]
fn readable_secret_files_cause_a_warning() {
    let scratch = Scratch::new();
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let keys = Keys(scratch.file("keys"));
    let secret = keys.file("secret");
    let quiet = make_token(&scratch, &secret, &["--scope", "observe"]);
    assert!(!quiet.stderr.contains("other users can access"), "{}", quiet.stderr);
    for name in ["secret", "client.token", "client-key.pem"] {
        fs::set_permissions(keys.file(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let loud = make_token(&scratch, &secret, &["--scope", "observe"]);
    assert!(loud.status == 0 && loud.stderr.contains("other users can access"), "{}", loud.stderr);
    // No process listens there; the command reads the files first.
    let mut arguments = vec!["job", "list", "--coordinator", "https://127.0.0.1:1"];
    let client = keys.client();
    arguments.extend(client.iter().map(String::as_str));
    let stderr = scratch.call(&arguments).stderr;
    for what in ["client.token, which contains a token", "client-key.pem, which contains a private key"] {
        assert!(stderr.contains(what), "{stderr}");
    }
}

/// Whether a coordinator with this secret file accepts a token that another secret file signed.
fn serves(scratch: &Scratch, url: &str, secret: &str) -> bool {
    let token = scratch.write("some.token", &make_token(scratch, secret, &["--scope", "observe"]).stdout);
    scratch.call(&["job", "list", "--coordinator", url, "--token-file", &token]).status == 0
}

#[test]
fn a_secret_is_replaced_while_tokens_of_both_are_valid() {
    let scratch = Scratch::new();
    let make = |name: &str| scratch.write(name, &scratch.call(&["keys", "secret"]).stdout);
    let [old, new, other] = ["old", "new", "other"].map(make);
    let text = |file: &str| fs::read_to_string(file).unwrap();
    // The steps of docs/security.md, and the tokens that each accepts.
    for (step, secrets, lets_in) in [
        ("before", text(&old), [true, false]),
        ("the new one is good", text(&old) + &text(&new), [true, true]),
        ("the new one signs", text(&new) + &text(&old), [true, true]),
        ("after", text(&new), [false, true]),
    ] {
        let (file, data) = (scratch.write("secret", &secrets), scratch.file(step));
        let arguments =
            ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--secret-file", &file];
        let coordinator = Role::start(&arguments, &[]);
        let url = coordinator.url();
        assert_eq!([&old, &new].map(|secret| serves(&scratch, &url, secret)), lets_in, "{step}");
        assert!(!serves(&scratch, &url, &other), "{step}");
        // The first secret of the file signs.
        let signs = if step == "before" || step == "the new one is good" { &old } else { &new };
        let made = make_token(&scratch, &file, &["--scope", "observe"]).stdout;
        assert!(Tokens::new(&Secret::parse(&text(signs)).unwrap()).check(&made, now_s()).is_ok(), "{step}");
    }
}

#[test]
fn a_running_coordinator_accepts_a_new_secret_and_tokens_of_the_previous_secret() {
    let scratch = Scratch::new();
    let make = |name: &str| scratch.write(name, &scratch.call(&["keys", "secret"]).stdout);
    let [old, new, other] = ["old", "new", "other"].map(make);
    let (file, data) = (scratch.write("secret", &fs::read_to_string(&old).unwrap()), scratch.file("data"));
    let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--secret-file", &file];
    let coordinator = Role::start(&arguments, &[]);
    let url = coordinator.url();
    assert!(serves(&scratch, &url, &old) && !serves(&scratch, &url, &new));
    let replace = |text: &str| fs::rename(scratch.write("next", text), &file).unwrap();
    replace(&fs::read_to_string(&new).unwrap());
    wait_for("the new secret", || serves(&scratch, &url, &new).then_some(()));
    assert!(serves(&scratch, &url, &old) && !serves(&scratch, &url, &other));
    // After an invalid file, the next valid file is loaded.
    replace("not a secret");
    replace(&fs::read_to_string(&other).unwrap());
    wait_for("the other secret", || serves(&scratch, &url, &other).then_some(()));
    assert!([&old, &new].iter().all(|secret| serves(&scratch, &url, secret)));
}

#[test]
fn the_expiry_of_the_certificate_is_a_metric() {
    let cluster = Cluster::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("threads start");
    for role in [&cluster.coordinator, &cluster.worker] {
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let page = runtime.block_on(async {
            let stream = connect_over_tls(&cluster.keys(), role.http(), Some("client"), b"http/1.1").await;
            let mut stream = stream.expect("the client has a certificate");
            stream.write_all(request).await.expect("the server reads the request");
            let mut page = Vec::new();
            // The server may close the connection without a TLS alert.
            let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut page)).await.expect("it answers");
            String::from_utf8(page).expect("metrics are text")
        });
        let name = "feedline_tls_certificate_expiry_timestamp_seconds ";
        let value = page.lines().find_map(|line| line.strip_prefix(name)).expect("the metric exists");
        let expiry_s: f64 = value.parse().expect("it is a number");
        assert!(expiry_s > now_s() as f64 + 3_600.0, "{expiry_s}");
    }
}

/// Rejects all clients and records their tokens.
#[derive(Default)]
struct Spy(Mutex<Vec<String>>);

impl<S: ?Sized> Authenticator<S> for Spy {
    fn authenticate(&self, token: Option<&str>) -> Result<Arc<S>, ServiceError> {
        self.0.lock().expect("nobody panics with it").push(token.unwrap_or_default().to_owned());
        Err(ServiceError::new(ServiceErrorKind::Denied, "all callers are denied"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_member_receives_only_a_short_lived_token() {
    let scratch = Scratch::new();
    assert_eq!(scratch.call(&["keys", "new", "keys"]).status, 0);
    let keys = Keys(scratch.file("keys"));
    let (secret, data, admin) = (keys.file("secret"), scratch.file("data"), keys.file("admin.token"));
    let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--secret-file", &secret];
    let coordinator = Role::start(&arguments, &[]);
    let spy = Arc::new(Spy::default());
    let doors = Authenticators { coordinator: spy.clone(), peer: spy.clone() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(grpc::serve(listener, grpc::member_routes(doors), std::future::pending()));
    let url = coordinator.url();
    let refused = scratch.call(&["members", "add", &place, "--coordinator", &url, "--token-file", &admin]);
    assert!(refused.stderr.contains("all callers are denied"), "{}", refused.stderr);
    server.abort();
    let shown = spy.0.lock().unwrap().first().cloned().expect("it was asked who it is");
    let tokens = Tokens::new(&Secret::parse(&fs::read_to_string(&secret).unwrap()).unwrap());
    let claims = tokens.check(&shown, now_s()).unwrap();
    assert_eq!(claims.scopes, BTreeSet::from([Scope::Coordinate]));
    assert!(tokens.check(&shown, now_s() + 600).unwrap_err().contains("expired"));
}
