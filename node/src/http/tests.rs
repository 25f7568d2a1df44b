//! Who is shown metrics, and how long a client may take.

use feedline_access::token::{Claims, Scope, Tokens};
use futures::StreamExt;
use futures::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use super::*;

/// More than what is said on a connection.
const CONNECTION_BYTES: usize = 64 << 10;

fn shared(secret: Option<&Secret>) -> Shared {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    Shared { metrics, ready: Arc::default(), readers: secret.map(|secret| Arc::new(Readers::of(secret))) }
}

/// The client's end of a connection that is served.
fn connect(shared: Shared) -> DuplexStream {
    let (client, server) = duplex(CONNECTION_BYTES);
    let incoming = stream::iter([server]).chain(stream::pending()).boxed();
    tokio::spawn(connections::serve(incoming, routes(shared), CancellationToken::new()));
    client
}

/// The first line of the answer.
async fn get(secret: Option<&Secret>, path: &str, token: Option<&str>) -> String {
    let mut client = connect(shared(secret));
    let shown = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\n{shown}Connection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

fn token(secret: &Secret, scope: Scope, tenant: Option<&str>, expires_s: Option<u64>) -> String {
    let (holder, tenant) = ("ci".to_owned(), tenant.map(str::to_owned));
    Tokens::new(secret).make(&Claims { holder, scopes: [scope].into(), tenant, expires_s })
}

#[tokio::test]
async fn metrics_are_for_those_who_may_observe_all_tenants() {
    const OK: &str = "HTTP/1.1 200 OK";
    const REFUSED: &str = "HTTP/1.1 401 Unauthorized";
    let secret = Secret::new().unwrap();
    let observe = token(&secret, Scope::Observe, None, None);
    assert_eq!(get(Some(&secret), "/metrics", Some(&observe)).await, OK);
    let wrong = [
        token(&secret, Scope::Consume, None, None),
        token(&secret, Scope::Observe, Some("vision"), None),
        token(&secret, Scope::Observe, None, Some(1)),
        token(&Secret::new().unwrap(), Scope::Observe, None, None),
        "hunter2".to_owned(),
    ];
    for wrong in &wrong {
        assert_eq!(get(Some(&secret), "/metrics", Some(wrong)).await, REFUSED, "{wrong}");
    }
    assert_eq!(get(Some(&secret), "/metrics", None).await, REFUSED);
    assert_eq!(get(Some(&secret), "/healthz", None).await, OK, "whoever runs the process has no token");
    assert_eq!(get(None, "/metrics", None).await, OK, "certificates said who it is, or nobody asks");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_say_what_it_wants_is_cut_off() {
    let begun = Instant::now();
    let mut client = connect(shared(None));
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost:").await.unwrap();
    // It may be told that it was too slow.
    let _ = client.read_to_end(&mut Vec::new()).await;
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn connections_are_no_more_than_there_may_be_and_those_that_wait_come_in_turn() {
    let (mut clients, servers): (Vec<DuplexStream>, Vec<DuplexStream>) =
        (0..=connections::MOST_CONNECTIONS).map(|_| duplex(CONNECTION_BYTES)).unzip();
    let (taken, mut accepted) = tokio::sync::watch::channel(0);
    let incoming = stream::iter(servers).inspect(move |_| taken.send_modify(|count| *count += 1));
    let incoming = incoming.chain(stream::pending()).boxed();
    tokio::spawn(connections::serve(incoming, routes(shared(None)), CancellationToken::new()));
    let last = clients.last_mut().unwrap();
    last.write_all(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").await.unwrap();
    accepted.wait_for(|count| *count >= connections::MOST_CONNECTIONS).await.unwrap();
    // Whatever the server does now, it can do before this goes on: there is one thread.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*accepted.borrow(), connections::MOST_CONNECTIONS, "one waits");
    drop(clients.remove(0));
    let mut answer = String::new();
    clients.last_mut().unwrap().read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}
