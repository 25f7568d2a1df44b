//! What listeners answer to clients with and without a certificate: no data to a port scan, and metrics to a client.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use feedline_access::now_s;
use feedline_tests::Scratch;
use feedline_tests::http::free_ports;
use feedline_tests::process::Role;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Cluster, Keys};

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(120);

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
