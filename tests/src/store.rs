//! An S3 server on a loopback port that injects faults into its responses.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use feedline_data::random::mix64;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, LAST_MODIFIED, RANGE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// The access key that the server accepts.
pub const KEY: &str = "KEYOFTHETESTS";
/// The secret of [`KEY`].
pub const SECRET: &str = "secret/that+nobody/shows";
/// Delay of a late response.
const LATE: Duration = Duration::from_millis(500);
/// The largest body that is truncated.
const LONGEST_BODY: usize = 64 << 20;

/// A fault in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreFault {
    /// The status is "service unavailable".
    Refused,
    /// The response is half a second late.
    Late,
    /// The connection closes in the middle of the body.
    Truncated,
    /// The response reports a wrong size for the object.
    WrongSize,
}

impl StoreFault {
    /// All faults.
    pub const ALL: [Self; 4] = [Self::Refused, Self::Late, Self::Truncated, Self::WrongSize];
}

/// The server, which stops when this value is dropped.
pub struct Store {
    /// The endpoint URL.
    pub url: String,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &self.url).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Shared {
    root: PathBuf,
    requests: AtomicU64,
    /// Number of responses with each fault.
    wrong: [AtomicU64; 4],
    /// The limit of requests.
    limit: Mutex<Option<RequestLimit>>,
    /// The number of requests that the limit rejected.
    limited: AtomicU64,
    /// The active faults, and the number `n` such that one in `n` responses is faulty.
    now: Mutex<(Vec<StoreFault>, u64)>,
}

/// A token bucket: requests per second, its size, and its content at a time.
#[derive(Debug)]
struct RequestLimit {
    per_s: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl RequestLimit {
    fn accept(&mut self) -> bool {
        self.tokens = (self.tokens + self.per_s * self.at.elapsed().as_secs_f64()).min(self.burst);
        self.at = Instant::now();
        let is_accepted = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(is_accepted));
        is_accepted
    }
}

impl Store {
    /// Serves the directories in `root` as buckets.
    pub fn serve(root: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let files = s3s_fs::FileSystem::new(root).expect("the root exists");
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a loopback port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let shared = Arc::new(Shared { root: root.to_owned(), ..Shared::default() });
        runtime.spawn(accept(listener, builder.build(), Arc::clone(&shared)));
        Self { url, shared, _runtime: runtime }
    }

    /// Injects one of these faults into one in `one_in` responses.
    pub fn set(&self, wrong: &[StoreFault], one_in: u64) {
        *self.shared.now.lock().unwrap_or_else(PoisonError::into_inner) = (wrong.to_vec(), one_in);
    }

    /// Rejects requests beyond a rate with status 503, except for a burst.
    pub fn limit(&self, per_s: f64, burst: f64) {
        let limit = RequestLimit { per_s, burst, tokens: burst, at: Instant::now() };
        *self.shared.limit.lock().unwrap_or_else(PoisonError::into_inner) = Some(limit);
    }

    /// Returns the number of requests that the limit rejected.
    pub fn limited(&self) -> u64 {
        self.shared.limited.load(Ordering::Relaxed)
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Returns the number of responses with this fault.
    pub fn wrong(&self, wrong: StoreFault) -> u64 {
        self.shared.wrong[wrong as usize].load(Ordering::Relaxed)
    }

    /// Returns the environment in which `s3://` URLs refer to this server.
    pub fn environment(&self) -> [(&'static str, &str); 5] {
        [
            ("AWS_ENDPOINT", &self.url),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
        ]
    }
}

impl Shared {
    /// Whether the limit rejects a request.
    fn rejects(&self) -> bool {
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let is_rejected = limit.as_mut().is_some_and(|limit| !limit.accept());
        self.limited.fetch_add(u64::from(is_rejected), Ordering::Relaxed);
        is_rejected
    }

    /// Draws the fault for the response to this request. Only reads are truncated or report a wrong size, because a client
    /// cannot detect a wrong listing.
    fn draw(&self, request: &Request<Incoming>) -> Option<StoreFault> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let dice = mix64(number);
        if now.0.is_empty() || !dice.is_multiple_of(now.1) {
            return None;
        }
        let wrong = now.0[(dice >> 32) as usize % now.0.len()];
        let is_read = request.method() == Method::GET && request.headers().contains_key(RANGE);
        let wrong = if is_read || wrong == StoreFault::Late { wrong } else { StoreFault::Refused };
        self.wrong[wrong as usize].fetch_add(1, Ordering::Relaxed);
        Some(wrong)
    }
}

async fn accept(listener: TcpListener, service: S3Service, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (service, shared) = (service.clone(), Arc::clone(&shared));
        let answer = service_fn(move |request: Request<Incoming>| {
            let (service, shared) = (service.clone(), Arc::clone(&shared));
            async move { answer(&service, &shared, request).await }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

async fn answer(
    service: &S3Service,
    shared: &Shared,
    request: Request<Incoming>,
) -> Result<Response<Body>, HttpError> {
    let wrong = shared.draw(&request);
    let wrong = if shared.rejects() { Some(StoreFault::Refused) } else { wrong };
    match wrong {
        Some(StoreFault::Refused) => {
            let mut refused = Response::new(Body::empty());
            *refused.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(refused);
        }
        Some(StoreFault::Late) => tokio::time::sleep(LATE).await,
        _ => {}
    }
    let answer = match part_of_file(&shared.root, &request) {
        Some(part) => part,
        None => service.call(request.map(Body::from)).await?,
    };
    match wrong {
        Some(StoreFault::Truncated) => truncated(answer).await,
        Some(StoreFault::WrongSize) => Ok(with_wrong_size(answer)),
        _ => Ok(answer),
    }
}

/// Responds to a range request with a single read, because the file service would read pieces of 4 KiB. Returns `None` for
/// other requests.
fn part_of_file(root: &Path, request: &Request<Incoming>) -> Option<Response<Body>> {
    let range = request.headers().get(RANGE).filter(|_| request.method() == Method::GET)?;
    let (start, last) = range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let file = File::open(root.join(request.uri().path().trim_start_matches('/'))).ok()?;
    let metadata = file.metadata().ok()?;
    let (start, size): (u64, u64) = (start.parse().ok()?, metadata.len());
    let end = size.min(last.parse::<u64>().ok()? + 1);
    let mut bytes = vec![0; end.checked_sub(start)? as usize];
    file.read_exact_at(&mut bytes, start).ok()?;
    let part = Response::builder()
        .status(StatusCode::PARTIAL_CONTENT)
        .header(CONTENT_RANGE, format!("bytes {start}-{}/{size}", end - 1))
        .header(LAST_MODIFIED, httpdate::fmt_http_date(metadata.modified().ok()?));
    part.body(Body::from(bytes)).ok()
}

/// Returns the first half of the response, after which the connection closes.
async fn truncated(mut answer: Response<Body>) -> Result<Response<Body>, HttpError> {
    let bytes = answer.body_mut().store_all_limited(LONGEST_BODY).await.map_err(HttpError::new)?;
    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    let half = bytes.slice(..bytes.len() / 2);
    let parts: [Result<Frame<Bytes>, &str>; 2] = [Ok(Frame::data(half)), Err("it breaks off here")];
    *answer.body_mut() = Body::http_body_unsync(StreamBody::new(futures::stream::iter(parts)));
    Ok(answer)
}

/// Returns the response with a larger object size.
fn with_wrong_size(mut answer: Response<Body>) -> Response<Body> {
    let range = answer.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let said = range.and_then(|range| {
        let (range, size) = range.split_once('/')?;
        HeaderValue::from_str(&format!("{range}/{}", size.parse::<u64>().ok()? + 7)).ok()
    });
    if let Some(said) = said {
        answer.headers_mut().insert(CONTENT_RANGE, said);
    }
    answer
}
