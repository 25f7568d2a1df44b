//! Connections between ends that prove who they are, and between others.

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::*;
use crate::Authority;
use crate::incoming::{HandshakeLimits, incoming_with};

/// Far beyond what anything here takes: a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(20);

struct Folder {
    folder: TempDir,
    authority: Authority,
}

impl Folder {
    fn new() -> Self {
        let folder = Self { folder: tempfile::tempdir().unwrap(), authority: Authority::new(1).unwrap() };
        folder.write("ca.pem", &folder.authority.certified().cert);
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
            admits_anybody: false,
        }
    }

    fn without_cert(&self) -> TlsFiles {
        TlsFiles { cert: None, key: None, ..self.files() }
    }
}

/// A server that says "hello" to whoever gets in.
async fn serve(tls: Arc<Tls>) -> SocketAddr {
    serve_with(tls, HandshakeLimits::default()).await
}

async fn serve_with(tls: Arc<Tls>, limits: HandshakeLimits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut connections = incoming_with(listener, tls, Protocol::Http2, limits);
        while let Some(mut connection) = connections.next().await {
            // A client that goes at once is no business of the others.
            let _ = connection.write_all(b"hello").await;
            let _ = connection.shutdown().await;
        }
    });
    address
}

async fn hear(tls: &Tls, host: &str, address: SocketAddr) -> io::Result<String> {
    let mut stream = tls.connect(host, TcpStream::connect(address).await?).await?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await?;
    Ok(heard)
}

#[tokio::test]
async fn both_ends_prove_who_they_are() {
    let folder = Folder::new();
    let tls = Arc::new(Tls::load(folder.files()).unwrap());
    assert!(tls.can_listen() && tls.is_mutual());
    let address = serve(Arc::clone(&tls)).await;
    assert_eq!(hear(&tls, "localhost", address).await.unwrap(), "hello");
    assert_eq!(hear(&tls, "127.0.0.1", address).await.unwrap(), "hello");
    let wrong = hear(&tls, "elsewhere", address).await.unwrap_err();
    assert!(wrong.to_string().contains("not valid for name"), "{wrong}");
}

#[tokio::test]
async fn who_proves_nothing_hears_nothing() {
    let folder = Folder::new();
    let address = serve(Arc::new(Tls::load(folder.files()).unwrap())).await;
    let nameless = Tls::load(folder.without_cert()).unwrap();
    assert!(!nameless.can_listen());
    assert!(hear(&nameless, "localhost", address).await.is_err());
    // Of another authority.
    let other = Folder::new();
    let stranger = Tls::load(TlsFiles { ca: Some(folder.path("ca.pem")), ..other.files() }).unwrap();
    assert!(hear(&stranger, "localhost", address).await.is_err());
    assert!(hear(&Tls::load(other.files()).unwrap(), "localhost", address).await.is_err());
    // What speaks no TLS is not answered in its own terms.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard).await;
    // A TLS alert, at most.
    assert!(heard.len() <= 7 && !heard.starts_with(b"H"), "{heard:?}");
}

#[tokio::test]
async fn everybody_is_let_in_where_the_user_wants_it() {
    let folder = Folder::new();
    let tls = Tls::load(TlsFiles { admits_anybody: true, ..folder.files() }).unwrap();
    assert!(!tls.is_mutual());
    let address = serve(Arc::new(tls)).await;
    let nameless = Tls::load(folder.without_cert()).unwrap();
    assert_eq!(hear(&nameless, "localhost", address).await.unwrap(), "hello");
}

#[tokio::test]
async fn a_silent_client_holds_up_nobody() {
    let folder = Folder::new();
    let tls = Arc::new(Tls::load(folder.files()).unwrap());
    let address = serve(Arc::clone(&tls)).await;
    let silent = TcpStream::connect(address).await.unwrap();
    assert_eq!(hear(&tls, "localhost", address).await.unwrap(), "hello");
    drop(silent);
}

/// A client at this loopback address that says nothing.
async fn silent(from: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    socket.connect(address).await.unwrap()
}

/// Waits until the server has closed the connection.
async fn closed(client: &mut TcpStream) {
    // A reset is an end as well.
    let _ = tokio::time::timeout(PATIENCE, client.read_to_end(&mut Vec::new())).await.expect("it is closed");
}

#[tokio::test]
async fn of_too_many_silent_clients_the_oldest_of_those_who_have_the_most_give_way() {
    let folder = Folder::new();
    let tls = Arc::new(Tls::load(folder.files()).unwrap());
    // Nobody's time is over before a wait here fails.
    let limits = HandshakeLimits { most: 4, timeout: PATIENCE * 10 };
    let address = serve_with(Arc::clone(&tls), limits).await;
    let other = silent("127.0.0.2", address).await;
    let mut first = silent("127.0.0.3", address).await;
    let mut second = silent("127.0.0.3", address).await;
    // There is room for one more, and nobody gives way to it.
    assert_eq!(hear(&tls, "localhost", address).await.unwrap(), "hello");
    let open = first.try_read(&mut [0]).unwrap_err();
    assert_eq!(open.kind(), io::ErrorKind::WouldBlock);
    let third = silent("127.0.0.3", address).await;
    // Now there is none: those of one address give way, and not who came before them.
    let mut more = Vec::new();
    for oldest in [&mut first, &mut second] {
        more.push(silent("127.0.0.1", address).await);
        closed(oldest).await;
    }
    assert_eq!(other.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    drop((third, more));
}

#[tokio::test]
async fn new_certificates_are_used_without_a_restart() {
    let folder = Folder::new();
    let server = Arc::new(Tls::load(folder.files()).unwrap());
    let client = Tls::load(folder.files()).unwrap();
    let address = serve(Arc::clone(&server)).await;
    assert_eq!(server.reload(), Ok(false));
    // Another authority from now on.
    let next = Folder::new();
    for name in ["ca.pem", "own.pem", "own-key.pem"] {
        fs::copy(next.path(name), folder.path(name)).unwrap();
    }
    assert_eq!(hear(&client, "localhost", address).await.unwrap(), "hello");
    assert_eq!(server.reload(), Ok(true));
    assert!(hear(&client, "localhost", address).await.is_err());
    assert_eq!(client.reload(), Ok(true));
    assert_eq!(hear(&client, "localhost", address).await.unwrap(), "hello");
    // What cannot be used changes nothing.
    folder.issue("other");
    fs::copy(folder.path("other-key.pem"), folder.path("own-key.pem")).unwrap();
    assert!(server.reload().unwrap_err().contains("cannot be used with its key"));
    assert_eq!(hear(&client, "localhost", address).await.unwrap(), "hello");
}

#[test]
fn files_that_are_none_are_named() {
    let folder = Folder::new();
    folder.write("empty.pem", "");
    let said = |files: TlsFiles| Tls::load(files).unwrap_err();
    let missing = said(TlsFiles { ca: Some(folder.path("no.pem")), ..TlsFiles::default() });
    assert!(missing.starts_with("cannot read ") && missing.contains("no.pem"), "{missing}");
    let empty = said(TlsFiles { ca: Some(folder.path("empty.pem")), ..TlsFiles::default() });
    assert!(empty.contains("empty.pem has no certificate in PEM"), "{empty}");
    let no_key = said(TlsFiles { key: Some(folder.path("own.pem")), ..folder.files() });
    assert!(no_key.contains("has no private key in PEM"), "{no_key}");
    assert!(said(TlsFiles { key: None, ..folder.files() }).contains("belong together"));
}

#[tokio::test]
async fn a_certificate_is_renewed_with_the_authoritys_key_alone() {
    let folder = Folder::new();
    let again = Authority::of_key(&folder.authority.certified().key).unwrap();
    let renewed = again.issue("own", &["localhost".to_owned()], 1).unwrap();
    let address = serve(Arc::new(Tls::load(folder.files()).unwrap())).await;
    folder.write("own.pem", &renewed.cert);
    folder.write("own-key.pem", &renewed.key);
    assert_eq!(hear(&Tls::load(folder.files()).unwrap(), "localhost", address).await.unwrap(), "hello");
    assert!(Authority::of_key("nonsense").err().unwrap().contains("no private key"));
    assert!(again.issue("own", &["a b".to_owned()], 1).unwrap_err().contains("`a b` is no name"));
}
