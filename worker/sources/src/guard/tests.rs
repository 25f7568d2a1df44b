//! Tests of requests that lead to metadata services by address, name or redirect, and of redirects to forbidden URLs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::{ClientOptions, ObjectStoreExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::http_client::GuardedConnector;
use crate::throttling::StoreKind;
use crate::{ObjectAccess, SourceError, Stores};

/// Resolves names to addresses of the test.
#[derive(Debug, Default)]
struct Names(HashMap<&'static str, Vec<SocketAddr>>);

#[async_trait]
impl HostResolver for Names {
    async fn addresses(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        self.0.get(host).cloned().ok_or_else(|| io::Error::other("no such name"))
    }
}

/// A web server that sends the same response to all requests, and counts them.
async fn serve(answer: String) -> (SocketAddr, Arc<AtomicU32>) {
    serve_by(move |_| answer.clone()).await
}

/// A web server whose response depends on the head of the request.
async fn serve_by(answer: impl Fn(&str) -> String + Send + 'static) -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            if let Ok(length) = stream.read(&mut head).await {
                counted.fetch_add(1, Ordering::SeqCst);
                let text = answer(&String::from_utf8_lossy(&head[..length]));
                let _ = stream.write_all(text.as_bytes()).await;
            }
        }
    });
    (address, requests)
}

fn redirect_to(url: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {url}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

fn page() -> String {
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nlast-modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nconnection: close\r\n\r\nhi"
        .to_owned()
}

fn client(guard: RequestGuard) -> HttpClient {
    let options = ClientOptions::new().with_allow_http(true).with_connect_timeout(Duration::from_secs(2));
    GuardedConnector { guard, store: StoreKind::Web }.connect(&options).unwrap()
}

/// The status of the response, or the error of a rejected request.
async fn get(guard: RequestGuard, url: &str) -> Result<u16, String> {
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.uri_mut() = url.parse().unwrap();
    let answer = client(guard).execute(request).await;
    answer.map(|answer| answer.status().as_u16()).map_err(|error| match find_guard_error(&error) {
        Some(refused) => refused.to_string(),
        None => format!("not refused: {error}"),
    })
}

fn guard() -> RequestGuard {
    RequestGuard::for_stores(&ReadPolicy::default())
}

#[tokio::test]
async fn addresses_of_every_notation_are_rejected() {
    for url in [
        "http://169.254.169.254/latest/meta-data/",
        "http://2852039166/",
        "http://0xa9.0xfe.0xa9.0xfe:8080/x",
        "http://0251.0376.0251.0376/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1]/",
        "http://100.100.100.200/",
        "http://metadata.google.internal/computeMetadata/v1/",
    ] {
        let message = get(guard(), url).await.unwrap_err();
        assert!(message.contains("--allow-metadata-addresses"), "{url}: {message}");
    }
    assert!(guard().check("http://１６９.254.169.254/").is_err(), "digits of another alphabet");
}

#[tokio::test]
async fn names_are_rejected_by_their_addresses_without_retries() {
    let (address, requests) = serve(page()).await;
    let link_local: SocketAddr = "169.254.169.254:0".parse().unwrap();
    let names = Names(HashMap::from([
        ("good.example.org", vec![SocketAddr::new(address.ip(), 0)]),
        ("evil.example.org", vec![link_local]),
        ("both.example.org", vec![SocketAddr::new(address.ip(), 0), link_local]),
    ]));
    let guard = guard().with_resolver(Arc::new(names));
    let url = |host: &str| format!("http://{host}:{}/x", address.port());
    assert_eq!(get(guard.clone(), &url("good.example.org")).await, Ok(200));
    for host in ["evil.example.org", "both.example.org"] {
        let message = get(guard.clone(), &url(host)).await.unwrap_err();
        assert!(message.contains("which resolves to 169.254.169.254"), "{message}");
    }
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    assert!(get(guard, &url("unknown.example.org")).await.unwrap_err().starts_with("not refused"));
}

#[tokio::test]
async fn redirects_to_metadata_services_are_rejected() {
    for target in ["http://169.254.169.254/latest/", "http://[::ffff:a9fe:a9fe]/", "http://2852039166/"] {
        let (address, requests) = serve(redirect_to(target)).await;
        let message = get(guard(), &format!("http://{address}/x")).await.unwrap_err();
        assert!(message.contains("cloud metadata service"), "{message}");
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    }
    let (address, _) = serve(page()).await;
    let (first, _) = serve(redirect_to(&format!("http://{address}/y"))).await;
    assert_eq!(get(guard(), &format!("http://{first}/x")).await, Ok(200));
    let (address, _) = serve(redirect_to("/again")).await;
    let message = get(guard(), &format!("http://{address}/x")).await.unwrap_err();
    assert!(message.contains("more than 10 times"), "{message}");
}

#[tokio::test]
async fn redirects_lead_only_to_allowed_urls() {
    let (inside, _) = serve(page()).await;
    let (outside, untouched) = serve(page()).await;
    let (first, _) = serve(redirect_to(&format!("http://{outside}/y?token=HUSH"))).await;
    let (second, _) = serve(redirect_to(&format!("http://{inside}/y"))).await;
    let prefixes = [inside, first, second].map(|address| format!("http://{address}/"));
    let urls = UrlPolicy::new(prefixes).unwrap();
    let guard = RequestGuard::for_web(
        &ReadPolicy { urls: urls.clone(), ..ReadPolicy::default() },
        &TenantReads::default(),
    );
    let message = get(guard.clone(), &format!("http://{first}/x")).await.unwrap_err();
    assert!(
        message.contains("redirects to a URL that is not allowed") && message.contains("is outside"),
        "{message}"
    );
    assert!(!message.contains("HUSH"), "{message}");
    assert_eq!(untouched.load(Ordering::SeqCst), 0);
    assert_eq!(get(guard, &format!("http://{second}/x")).await, Ok(200));
    // The tenant's permissions restrict redirects too.
    let tenant = TenantReads { urls, ..TenantReads::default() };
    let guard = RequestGuard::for_web(&ReadPolicy::default(), &tenant);
    let message = get(guard, &format!("http://{first}/x")).await.unwrap_err();
    assert!(message.contains("that the job's tenant may read"), "{message}");
    assert_eq!(untouched.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn metadata_services_are_allowed_with_the_option() {
    let allowed = RequestGuard::for_stores(&ReadPolicy { metadata_addresses: true, ..ReadPolicy::default() });
    assert_eq!(allowed.check("http://169.254.169.254/"), Ok(()));
    let names = Names(HashMap::from([("evil.example.org", vec!["169.254.0.1:0".parse().unwrap()])]));
    assert!(allowed.with_resolver(Arc::new(names)).resolve("evil.example.org").await.is_ok());
}

#[tokio::test]
async fn redirects_of_a_store_are_rejected_without_retries() {
    let (address, requests) = serve(redirect_to("http://169.254.169.254/latest/")).await;
    let error = Stores::with_access(ObjectAccess::default())
        .get(&format!("http://{address}/t.json"))
        .await
        .unwrap_err();
    assert!(matches!(error, SourceError::Rejected { .. }) && !error.is_retryable(), "{error}");
    assert!(
        error.to_string().starts_with(&format!("reads of `http://{address}/t.json` are not allowed: ")),
        "{error}"
    );
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    let error =
        Stores::with_access(ObjectAccess::default()).get("http://0xa9fea9fe/t.json").await.unwrap_err();
    assert!(matches!(error, SourceError::Rejected { .. }), "{error}");
}

#[tokio::test]
async fn a_metadata_service_is_read_for_credentials_but_not_for_data() {
    // The metadata service of the test returns the keys of a role. Its address is in the operator's options.
    let keys = r#"{"AccessKeyId":"a","SecretAccessKey":"b","Token":"c","Expiration":"2999-01-01T00:00:00Z","Code":"Success"}"#;
    let (service, asked) = serve_by(move |head| {
        let body = match head.split(' ').nth(1) {
            _ if head.starts_with("PUT") => "token",
            Some(path) if path.ends_with("/security-credentials/") => "role",
            _ => keys,
        };
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    })
    .await;
    let (store, read) = serve(redirect_to("http://169.254.169.254/latest/")).await;
    let option = |key: &str, value: String| (key.to_owned(), value);
    let access = ObjectAccess::new(vec![
        option("AWS_METADATA_ENDPOINT", format!("http://{service}")),
        option("AWS_ENDPOINT", format!("http://{store}")),
        option("AWS_ALLOW_HTTP", "true".to_owned()),
        option("AWS_REGION", "us-east-1".to_owned()),
    ]);
    let error = Stores::with_access(access).get("s3://bucket/t.json").await.unwrap_err();
    assert!(asked.load(Ordering::SeqCst) > 0, "the role was asked: {error}");
    assert!(read.load(Ordering::SeqCst) > 0 && matches!(error, SourceError::Rejected { .. }), "{error}");
}

#[tokio::test]
async fn servers_without_redirects_are_read() {
    let (address, _) = serve(page()).await;
    let store = crate::clients::build(
        &format!("http://{address}"),
        (None, &crate::access::StoreOptions::default()),
        &ReadPolicy::default(),
        &TenantReads::default(),
        crate::DEFAULT_RETRY_BUDGET,
        None,
    );
    let meta = store.unwrap().head(&"x".into()).await.unwrap();
    assert_eq!(meta.size, 2);
}
