//! Tests of access to metrics, and of connection limits.

use feedline_access::Secret;
use feedline_access::token::{Claims, Scope, Tokens};
use futures::StreamExt;
use futures::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use super::*;

/// More bytes than any test sends on a connection.
const CONNECTION_BYTES: usize = 64 << 10;

fn state(secret: Option<&Secret>) -> HttpState {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let secret = secret.map(|secret| Arc::new(ClusterSecret::fixed(secret.clone())));
    let metrics_access = secret.map(|secret| Arc::new(MetricsAccess::new(secret)));
    HttpState { metrics, readiness: Arc::default(), metrics_access, tls: None }
}

/// Returns the client's end of a served connection.
fn connect(state: HttpState) -> DuplexStream {
    let (client, server) = duplex(CONNECTION_BYTES);
    let incoming = stream::iter([server]).chain(stream::pending()).boxed();
    tokio::spawn(connections::serve(incoming, routes(state), CancellationToken::new()));
    client
}

/// Returns the first line of the response.
async fn get(secret: Option<&Secret>, path: &str, token: Option<&str>) -> String {
    let mut client = connect(state(secret));
    let header = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\n{header}Connection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    response.lines().next().unwrap_or_default().to_owned()
}

fn token(secret: &Secret, scope: Scope, tenant: Option<&str>, expires_s: Option<u64>) -> String {
    let (holder, tenant) = ("ci".to_owned(), tenant.map(str::to_owned));
    Tokens::new(secret).issue(&Claims { holder, scopes: [scope].into(), tenant, expires_s })
}

#[tokio::test]
async fn metrics_require_a_token_that_observes_all_tenants() {
    const OK: &str = "HTTP/1.1 200 OK";
    const UNAUTHORIZED: &str = "HTTP/1.1 401 Unauthorized";
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
        assert_eq!(get(Some(&secret), "/metrics", Some(wrong)).await, UNAUTHORIZED, "{wrong}");
    }
    assert_eq!(get(Some(&secret), "/metrics", None).await, UNAUTHORIZED);
    assert_eq!(get(Some(&secret), "/healthz", None).await, OK, "health checks need no token");
    assert_eq!(get(None, "/metrics", None).await, OK, "without a secret no token is required");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_complete_request_is_disconnected() {
    let started = Instant::now();
    let mut client = connect(state(None));
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost:").await.unwrap();
    // The server may send a timeout response first.
    let _ = client.read_to_end(&mut Vec::new()).await;
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
}

#[tokio::test]
async fn further_connections_wait_until_one_of_the_allowed_connections_closes() {
    let (mut clients, servers): (Vec<DuplexStream>, Vec<DuplexStream>) =
        (0..=connections::MAX_CONNECTIONS).map(|_| duplex(CONNECTION_BYTES)).unzip();
    let (taken, mut accepted) = tokio::sync::watch::channel(0);
    let incoming = stream::iter(servers).inspect(move |_| taken.send_modify(|count| *count += 1));
    let incoming = incoming.chain(stream::pending()).boxed();
    tokio::spawn(connections::serve(incoming, routes(state(None)), CancellationToken::new()));
    let last = clients.last_mut().unwrap();
    last.write_all(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").await.unwrap();
    accepted.wait_for(|count| *count >= connections::MAX_CONNECTIONS).await.unwrap();
    // The runtime has one thread, so the server runs during these yields.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*accepted.borrow(), connections::MAX_CONNECTIONS, "the last connection waits");
    drop(clients.remove(0));
    let mut response = String::new();
    clients.last_mut().unwrap().read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
}
