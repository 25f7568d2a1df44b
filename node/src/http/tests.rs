//! Tests of access to metrics, of probes, and of connection limits.

use feedline_access::Secret;
use feedline_access::token::{Claims, Scope, Tokens};
use futures::StreamExt;
use futures::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use super::*;

/// More bytes than any test sends on a connection.
const CONNECTION_BYTES: usize = 64 << 10;

/// Returns the routes of `--http`, for a role that starts.
fn http_routes(secret: Option<&Secret>) -> Router {
    routes_with(secret, JobSeriesSource::default())
}

fn routes_with(secret: Option<&Secret>, jobs: JobSeriesSource) -> Router {
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let secret = secret.map(|secret| Arc::new(ClusterSecret::fixed(secret.clone())));
    let access = secret.map(|secret| Arc::new(MetricsAccess::new(secret)));
    let state = MetricsState { metrics, jobs, access, tls: None };
    metrics_routes(state).merge(RoleProbes::default().routes())
}

#[tokio::test]
async fn a_role_whose_task_has_ended_is_not_alive() {
    let probes = RoleProbes::default();
    let task = tokio::spawn(async {});
    let handle = task.abort_handle();
    task.await.expect("the task does nothing");
    let answer = |probes: &RoleProbes| response(probes.routes(), "/healthz", None);
    assert!(answer(&probes).await.starts_with("HTTP/1.1 200 OK"), "no task has started");
    probes.set_liveness(Box::new(move || match handle.is_finished() {
        true => Err("the control loop has ended".to_owned()),
        false => Ok(()),
    }));
    let answer = answer(&probes).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.ends_with("unhealthy: the control loop has ended\n"), "{answer}");
}

/// Returns the client's end of a served connection.
fn connect(routes: Router) -> DuplexStream {
    let (client, server) = duplex(CONNECTION_BYTES);
    let incoming = stream::iter([server]).chain(stream::pending()).boxed();
    tokio::spawn(connections::serve(incoming, routes, CancellationToken::new()));
    client
}

/// Returns the first line of the response.
async fn get(secret: Option<&Secret>, path: &str, token: Option<&str>) -> String {
    let response = response(http_routes(secret), path, token).await;
    response.lines().next().unwrap_or_default().to_owned()
}

/// Returns the response, including its headers.
async fn response(routes: Router, path: &str, token: Option<&str>) -> String {
    let mut client = connect(routes);
    let header = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\n{header}Connection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    response
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

#[tokio::test]
async fn the_page_shows_the_jobs_of_the_coordinator_while_they_run() {
    let source = JobSeriesSource::default();
    let page = async || response(routes_with(None, Arc::clone(&source)), "/metrics", None).await;
    assert!(!page().await.contains("_job_"), "the coordinator starts");
    let (sender, receiver) = watch::channel(Arc::default());
    source.set(receiver).unwrap();
    let labels = vec![("tenant", String::new()), ("job_name", "resnet".to_owned())];
    let series = JobSeries { name: "feedline_coordinator_job_consumers", labels, value: 2.0 };
    sender.send_replace([series].into());
    let shown = page().await;
    let expected = "\nfeedline_coordinator_job_consumers{tenant=\"\",job_name=\"resnet\"} 2\n";
    assert!(shown.contains(expected), "{shown}");
    sender.send_replace(Arc::default());
    assert!(!page().await.contains("_job_"), "the job has ended");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_complete_request_is_disconnected() {
    let started = Instant::now();
    let mut client = connect(http_routes(None));
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
    tokio::spawn(connections::serve(incoming, http_routes(None), CancellationToken::new()));
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

/// Returns the status codes of the three probes.
async fn probe(probes: &RoleProbes) -> [u16; 3] {
    let mut codes = [0; 3];
    for (code, path) in codes.iter_mut().zip(["/healthz", "/readyz", "/startupz"]) {
        let response = response(probes.routes(), path, None).await;
        *code = response.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    }
    codes
}

#[tokio::test]
async fn a_role_that_waits_for_others_is_alive_and_started_but_not_ready() {
    let probes = RoleProbes::default();
    assert_eq!(probe(&probes).await, [200, 503, 503], "the role starts");
    let (leader, known_leader) = tokio::sync::watch::channel(false);
    probes.set_started(Box::new(
        move || {
            if *known_leader.borrow() { Ok(()) } else { Err("no leader".to_owned()) }
        },
    ));
    assert_eq!(probe(&probes).await, [200, 503, 200], "the role waits for a leader");
    let answer = response(probes.routes(), "/readyz", None).await;
    assert!(answer.ends_with("not ready: no leader\n"), "{answer}");
    leader.send_replace(true);
    assert_eq!(probe(&probes).await, [200; 3]);
    leader.send_replace(false);
    assert_eq!(probe(&probes).await, [200, 503, 200], "a lost leader must not restart the role");
}

#[tokio::test]
async fn the_health_server_serves_only_probes() {
    for path in ["/metrics", "/", "/healthz/", "/debug"] {
        let answer = response(RoleProbes::default().routes(), path, None).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn the_health_server_answers_on_every_address_without_tls() {
    let server = start_health("[::]:0", &RoleProbes::default()).await.unwrap();
    let mut client = tokio::net::TcpStream::connect(("::1", server.address.port())).await.unwrap();
    client.write_all(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    server.stop.cancel();
    server.task.await.unwrap();
}
