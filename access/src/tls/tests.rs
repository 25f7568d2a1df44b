//! Tests of TLS connections with and without valid certificates.

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::*;
use crate::CertificateAuthority;
use crate::incoming::{HandshakeLimits, incoming_connections_within};

/// Timeout that is longer than every test, so that a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(20);

struct Folder {
    folder: TempDir,
    authority: CertificateAuthority,
}

impl Folder {
    fn new() -> Self {
        let folder =
            Self { folder: tempfile::tempdir().unwrap(), authority: CertificateAuthority::new(1).unwrap() };
        folder.write("ca.pem", &folder.authority.certified_key().cert);
        folder.issue("own");
        folder
    }

    fn issue(&self, name: &str) {
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certified = self.authority.issue(name, &hosts, 1).unwrap();
        self.write(&format!("{name}.pem"), &certified.cert);
        self.write(&format!("{name}-key.pem"), &certified.key);
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            cert: Some(self.path("own.pem")),
            key: Some(self.path("own-key.pem")),
            ca: Some(self.path("ca.pem")),
            allows_unverified_clients: false,
        }
    }

    fn without_cert(&self) -> TlsFiles {
        TlsFiles { cert: None, key: None, ..self.files() }
    }
}

/// Starts a server that sends "hello" to every authenticated client.
async fn serve(tls: Arc<Tls>) -> SocketAddr {
    serve_with(tls, HandshakeLimits::default()).await
}

async fn serve_with(tls: Arc<Tls>, limits: HandshakeLimits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut connections = incoming_connections_within(listener, tls, Protocol::Http2, limits);
        while let Some(mut connection) = connections.next().await {
            // A client may disconnect immediately.
            let _ = connection.write_all(b"hello").await;
            let _ = connection.shutdown().await;
        }
    });
    address
}

async fn receive(tls: &Tls, host: &str, address: SocketAddr) -> io::Result<String> {
    let mut stream = tls.connect(host, TcpStream::connect(address).await?).await?;
    let mut received = String::new();
    stream.read_to_string(&mut received).await?;
    Ok(received)
}

#[tokio::test]
async fn both_ends_are_authenticated() {
    let folder = Folder::new();
    let tls = Arc::new(Tls::load(folder.files()).unwrap());
    assert!(tls.can_listen() && tls.is_mutual());
    let address = serve(Arc::clone(&tls)).await;
    assert_eq!(receive(&tls, "localhost", address).await.unwrap(), "hello");
    assert_eq!(receive(&tls, "127.0.0.1", address).await.unwrap(), "hello");
    let wrong = receive(&tls, "elsewhere", address).await.unwrap_err();
    assert!(wrong.to_string().contains("not valid for name"), "{wrong}");
}

#[test]
fn a_name_that_the_own_certificate_lacks_is_an_error() {
    let folder = Folder::new();
    let tls = Tls::load(folder.files()).unwrap();
    assert_eq!(tls.check_own_name("localhost"), Ok(()));
    assert_eq!(tls.check_own_name("127.0.0.1"), Ok(()));
    let other = tls.check_own_name("workers.feedline").unwrap_err();
    let expected = "own.pem does not contain the name `workers.feedline`, only localhost, 127.0.0.1; issue a certificate that contains `workers.feedline`";
    assert!(other.ends_with(expected), "{other}");
    let nameless = folder.authority.issue("own", &[], 1).unwrap();
    folder.write("own.pem", &nameless.cert);
    folder.write("own-key.pem", &nameless.key);
    let other = Tls::load(folder.files()).unwrap().check_own_name("localhost").unwrap_err();
    assert!(other.contains("does not contain the name `localhost`, and it contains none; issue"), "{other}");
    for name in ["", "*.feedline", "a b", "http://a", "a:7071"] {
        let error = tls.check_own_name(name).unwrap_err();
        assert!(error.starts_with(&format!("invalid certificate name `{name}`")), "{error}");
        assert_eq!(check_server_name(name), Err(error));
    }
    let anonymous = Tls::load(folder.without_cert()).unwrap();
    assert!(anonymous.check_own_name("localhost").unwrap_err().contains("has no certificate"));
}

#[tokio::test]
async fn a_client_without_a_valid_certificate_receives_nothing() {
    let folder = Folder::new();
    let address = serve(Arc::new(Tls::load(folder.files()).unwrap())).await;
    let anonymous = Tls::load(folder.without_cert()).unwrap();
    assert!(!anonymous.can_listen());
    assert!(receive(&anonymous, "localhost", address).await.is_err());
    // A certificate of another authority.
    let other = Folder::new();
    let stranger = Tls::load(TlsFiles { ca: Some(folder.path("ca.pem")), ..other.files() }).unwrap();
    assert!(receive(&stranger, "localhost", address).await.is_err());
    assert!(receive(&Tls::load(other.files()).unwrap(), "localhost", address).await.is_err());
    // A client without TLS receives no response.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut received = Vec::new();
    let _ = plain.read_to_end(&mut received).await;
    // At most a TLS alert.
    assert!(received.len() <= 7 && !received.starts_with(b"H"), "{received:?}");
}

#[tokio::test]
async fn unverified_clients_are_accepted_if_the_user_allows_them() {
    let folder = Folder::new();
    let tls = Tls::load(TlsFiles { allows_unverified_clients: true, ..folder.files() }).unwrap();
    assert!(!tls.is_mutual());
    let address = serve(Arc::new(tls)).await;
    let anonymous = Tls::load(folder.without_cert()).unwrap();
    assert_eq!(receive(&anonymous, "localhost", address).await.unwrap(), "hello");
}

#[tokio::test]
async fn a_silent_client_does_not_delay_others() {
    let folder = Folder::new();
    let tls = Arc::new(Tls::load(folder.files()).unwrap());
    let address = serve(Arc::clone(&tls)).await;
    let silent = TcpStream::connect(address).await.unwrap();
    assert_eq!(receive(&tls, "localhost", address).await.unwrap(), "hello");
    drop(silent);
}

/// Connects a client at this loopback address that sends nothing.
async fn connect_silently(from: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    socket.connect(address).await.unwrap()
}

/// Waits until the server has closed the connection.
async fn closed(client: &mut TcpStream) {
    // A reset also closes the connection.
    let _ = tokio::time::timeout(PATIENCE, client.read_to_end(&mut Vec::new()))
        .await
        .expect("the server closes the connection");
}

#[tokio::test]
async fn with_too_many_silent_clients_the_oldest_of_the_largest_network_is_evicted() {
    let folder = Folder::new();
    let tls = Arc::new(Tls::load(folder.files()).unwrap());
    // The handshake timeout is longer than each wait in the test.
    let limits = HandshakeLimits { max_concurrent: 4, timeout: PATIENCE * 10 };
    let address = serve_with(Arc::clone(&tls), limits).await;
    let other = connect_silently("127.0.0.2", address).await;
    let mut first = connect_silently("127.0.0.3", address).await;
    let mut second = connect_silently("127.0.0.3", address).await;
    // The limit allows one more handshake, so none is evicted.
    assert_eq!(receive(&tls, "localhost", address).await.unwrap(), "hello");
    let open = first.try_read(&mut [0]).unwrap_err();
    assert_eq!(open.kind(), io::ErrorKind::WouldBlock);
    let third = connect_silently("127.0.0.3", address).await;
    // The limit is reached: handshakes of the network with the most handshakes are evicted, not older handshakes of other
    // networks.
    let mut more = Vec::new();
    for oldest in [&mut first, &mut second] {
        more.push(connect_silently("127.0.0.1", address).await);
        closed(oldest).await;
    }
    assert_eq!(other.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop((third, more));
}

#[tokio::test]
async fn reloaded_certificates_apply_to_new_connections() {
    let folder = Folder::new();
    let server = Arc::new(Tls::load(folder.files()).unwrap());
    let client = Tls::load(folder.files()).unwrap();
    let address = serve(Arc::clone(&server)).await;
    assert_eq!(server.reload(), Ok(false));
    // Replace the authority.
    let next = Folder::new();
    for name in ["ca.pem", "own.pem", "own-key.pem"] {
        fs::copy(next.path(name), folder.path(name)).unwrap();
    }
    assert_eq!(receive(&client, "localhost", address).await.unwrap(), "hello");
    assert_eq!(server.reload(), Ok(true));
    assert!(receive(&client, "localhost", address).await.is_err());
    assert_eq!(client.reload(), Ok(true));
    assert_eq!(receive(&client, "localhost", address).await.unwrap(), "hello");
    // A key that does not match the certificate has no effect.
    folder.issue("other");
    fs::copy(folder.path("other-key.pem"), folder.path("own-key.pem")).unwrap();
    assert!(server.reload().unwrap_err().contains("cannot use the certificate"));
    assert_eq!(receive(&client, "localhost", address).await.unwrap(), "hello");
}

#[test]
fn errors_name_the_invalid_file() {
    let folder = Folder::new();
    folder.write("empty.pem", "");
    let error = |files: TlsFiles| Tls::load(files).unwrap_err();
    let missing = error(TlsFiles { ca: Some(folder.path("no.pem")), ..TlsFiles::default() });
    assert!(missing.starts_with("cannot read ") && missing.contains("no.pem"), "{missing}");
    let empty = error(TlsFiles { ca: Some(folder.path("empty.pem")), ..TlsFiles::default() });
    assert!(empty.contains("empty.pem contains no certificate"), "{empty}");
    let no_key = error(TlsFiles { key: Some(folder.path("own.pem")), ..folder.files() });
    assert!(no_key.contains("contains no private key"), "{no_key}");
    assert!(error(TlsFiles { key: None, ..folder.files() }).contains("set both, or neither"));
}

#[tokio::test]
async fn the_key_of_the_authority_suffices_to_renew_a_certificate() {
    let folder = Folder::new();
    let again = CertificateAuthority::from_key(&folder.authority.certified_key().key, 1).unwrap();
    let renewed = again.issue("own", &["localhost".to_owned()], 1).unwrap();
    let address = serve(Arc::new(Tls::load(folder.files()).unwrap())).await;
    folder.write("own.pem", &renewed.cert);
    folder.write("own-key.pem", &renewed.key);
    assert_eq!(receive(&Tls::load(folder.files()).unwrap(), "localhost", address).await.unwrap(), "hello");
    assert!(CertificateAuthority::from_key("nonsense", 1).err().unwrap().contains("no private key"));
    assert!(again.issue("own", &["a b".to_owned()], 1).unwrap_err().contains("invalid host `a b`"));
}

#[tokio::test]
async fn certificates_behind_a_replaced_link_are_reloaded_with_the_authorities() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (first, second) = (Folder::new(), Folder::new());
    // Kubernetes mounts files as links into a directory, and replaces the link to that directory.
    let link = |to: &Folder| {
        std::os::unix::fs::symlink(to.folder.path(), path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
    };
    link(&first);
    for name in ["ca.pem", "own.pem", "own-key.pem"] {
        std::os::unix::fs::symlink(Path::new("..data").join(name), path(name)).unwrap();
    }
    let files = TlsFiles {
        cert: Some(path("own.pem")),
        key: Some(path("own-key.pem")),
        ca: Some(path("ca.pem")),
        allows_unverified_clients: false,
    };
    let server = Arc::new(Tls::load(files.clone()).unwrap());
    let client = Tls::load(files).unwrap();
    let address = serve(Arc::clone(&server)).await;
    assert_eq!(receive(&client, "localhost", address).await.unwrap(), "hello");
    link(&second);
    assert_eq!((server.reload(), client.reload()), (Ok(true), Ok(true)));
    assert_eq!(receive(&client, "localhost", address).await.unwrap(), "hello");
    // Clients with a certificate of the previous authority are rejected.
    let previous = Tls::load(TlsFiles { ca: Some(second.path("ca.pem")), ..first.files() }).unwrap();
    assert!(receive(&previous, "localhost", address).await.is_err());
}

#[test]
fn the_expiry_changes_with_the_certificate() {
    let folder = Folder::new();
    let tls = Tls::load(folder.files()).unwrap();
    let in_days = |tls: &Tls| (tls.certificate_expiry_s().unwrap() - crate::now_s() as i64 + 3_600) / 86_400;
    assert_eq!(in_days(&tls), 1);
    let renewed = folder.authority.issue("own", &["localhost".to_owned()], 90).unwrap();
    folder.write("own.pem", &renewed.cert);
    folder.write("own-key.pem", &renewed.key);
    assert_eq!(in_days(&tls), 1);
    assert_eq!(tls.reload(), Ok(true));
    assert_eq!(in_days(&tls), 90);
    assert_eq!(Tls::load(folder.without_cert()).unwrap().certificate_expiry_s(), None);
}

#[test]
fn certificates_that_cannot_be_parsed_are_left_out() {
    let mut certificates = system_authorities();
    let usable = certificates.len();
    certificates.insert(0, CertificateDer::from(b"not a certificate".to_vec()));
    assert_eq!(usable_authorities(certificates).len(), usable);
}
