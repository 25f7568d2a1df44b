//! An HTTP server with a Deployment and its pods: get, list, watch, patches of the scale with the version as precondition,
//! and patches of pods.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Maximum number of events that a watch has not sent yet.
const MAX_QUEUED_EVENTS: usize = 64;

/// A fault of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiFault {
    /// The response has this status.
    Status(u16),
    /// There is no response.
    Hang,
}

/// A received request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReceivedRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) content_type: String,
    pub(super) body: Value,
}

/// The server. It ends when it is dropped.
pub(super) struct WorkloadApi {
    pub(super) client: Client,
    state: Arc<Mutex<StoredWorkload>>,
    task: JoinHandle<()>,
}

/// The state of the server.
struct StoredWorkload {
    /// The Deployment; `None` if it does not exist.
    object: Option<Value>,
    version: u64,
    pods: Vec<Value>,
    watches: Vec<mpsc::Sender<Value>>,
    requests: Vec<ReceivedRequest>,
    /// The method and the end of the path of requests that fail.
    fault: Option<(Method, &'static str, ApiFault)>,
    /// The number of received requests.
    received: watch::Sender<usize>,
}

impl Drop for WorkloadApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WorkloadApi {
    /// Starts a server with a Deployment `workers`, which has `replicas` ready pods.
    pub(super) async fn start(replicas: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut stored = StoredWorkload {
            object: None,
            version: 100,
            pods: Vec::new(),
            watches: Vec::new(),
            requests: Vec::new(),
            fault: None,
            received: watch::Sender::new(0),
        };
        stored.set_replicas(replicas);
        let state = Arc::new(Mutex::new(stored));
        let served = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&served);
                let service = service_fn(move |request| respond(Arc::clone(&state), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
        Self { client, state, task }
    }

    /// Changes the number of replicas, as another client would.
    pub(super) fn set_replicas(&self, replicas: u32) {
        self.with(|state| state.set_replicas(replicas));
    }

    /// Deletes the Deployment.
    pub(super) fn delete(&self) {
        self.with(|state| {
            if let Some(object) = state.object.take() {
                state.send(json!({ "type": "DELETED", "object": object }));
            }
        });
    }

    /// Changes the version without notifying watches, as if their connection were slow.
    pub(super) fn change_silently(&self) {
        self.with(|state| {
            state.version += 1;
            let version = state.version.to_string();
            state.object.as_mut().unwrap()["metadata"]["resourceVersion"] = json!(version);
        });
    }

    /// Ends all watches with the event that the version is too old.
    pub(super) fn expire_watches(&self) {
        self.with(|state| {
            let gone = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired" });
            state.send(json!({ "type": "ERROR", "object": gone }));
            state.watches.clear();
        });
    }

    pub(super) fn set_fault(&self, method: Method, path_end: &'static str, fault: ApiFault) {
        self.with(|state| state.fault = Some((method, path_end, fault)));
    }

    pub(super) fn clear_fault(&self) {
        self.with(|state| state.fault = None);
    }

    pub(super) fn set_pods(&self, pods: &[(&str, &str)]) {
        let pod = |(name, ip): &(&str, &str)| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "ml" },
                "status": { "phase": "Running", "podIP": ip },
            })
        };
        self.with(|state| state.pods = pods.iter().map(pod).collect());
    }

    /// Returns the present number of replicas.
    pub(super) fn replicas(&self) -> u64 {
        self.with(|state| state.object.as_ref().unwrap()["spec"]["replicas"].as_u64().unwrap())
    }

    /// Returns the requests with this method.
    pub(super) fn requests(&self, method: &Method) -> Vec<ReceivedRequest> {
        self.with(|state| {
            state.requests.iter().filter(|request| request.method == *method).cloned().collect()
        })
    }

    /// Waits until a request satisfies the condition.
    pub(super) async fn wait_for_request(&self, condition: impl Fn(&ReceivedRequest) -> bool) {
        let mut received = self.with(|state| state.received.subscribe());
        while !self.with(|state| state.requests.iter().any(&condition)) {
            received.changed().await.unwrap();
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut StoredWorkload) -> T) -> T {
        f(&mut self.state.lock().unwrap())
    }
}

impl StoredWorkload {
    fn set_replicas(&mut self, replicas: u32) {
        self.version += 1;
        let event = if self.object.is_some() { "MODIFIED" } else { "ADDED" };
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "workers", "namespace": "ml", "resourceVersion": self.version.to_string() },
            "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "feedline", "pool": "default" } } },
            "status": { "readyReplicas": replicas },
        });
        self.object = Some(object.clone());
        self.send(json!({ "type": event, "object": object }));
    }

    fn send(&mut self, event: Value) {
        self.watches.retain(|watch| watch.try_send(event.clone()).is_ok());
    }

    /// Returns the version and the number of replicas of a patch, or an error.
    fn patch_scale(&mut self, patch: &Value) -> (StatusCode, Value) {
        let Some(object) = &self.object else { return failure(404, "NotFound") };
        if patch["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
            return failure(409, "Conflict");
        }
        let replicas = patch["spec"]["replicas"].as_u64().unwrap() as u32;
        self.set_replicas(replicas);
        let metadata = self.object.as_ref().unwrap()["metadata"].clone();
        let scale = json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata,
            "spec": { "replicas": replicas }, "status": { "replicas": replicas },
        });
        (StatusCode::OK, scale)
    }

    fn patch_pod(&mut self, name: &str, patch: &Value) -> (StatusCode, Value) {
        let found = self.pods.iter_mut().find(|pod| pod["metadata"]["name"] == name);
        let Some(pod) = found else { return failure(404, "NotFound") };
        pod["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
        let metadata = pod["metadata"].clone();
        let partial =
            json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata });
        (StatusCode::OK, partial)
    }

    fn handle(&mut self, request: &ReceivedRequest) -> (StatusCode, Value) {
        let path = request.path.as_str();
        if request.method == Method::PATCH {
            return match path.strip_prefix("/api/v1/namespaces/ml/pods/") {
                Some(pod) => self.patch_pod(pod, &request.body),
                None => self.patch_scale(&request.body),
            };
        }
        let list = |kind: &str, items: Vec<Value>, version: u64| {
            let metadata = json!({ "resourceVersion": version.to_string() });
            (
                StatusCode::OK,
                json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "items": items }),
            )
        };
        match path {
            "/api/v1/namespaces/ml/pods" => list("PodList", self.pods.clone(), self.version),
            "/apis/apps/v1/namespaces/ml/deployments" => {
                list("DeploymentList", self.object.iter().cloned().collect(), self.version)
            }
            _ => self
                .object
                .clone()
                .map_or_else(|| failure(404, "NotFound"), |object| (StatusCode::OK, object)),
        }
    }
}

fn failure(code: u16, reason: &str) -> (StatusCode, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "reason": reason, "message": format!("refused: {reason}"), "code": code,
    });
    (StatusCode::from_u16(code).unwrap(), status)
}

fn full(code: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, "application/json".parse().unwrap());
    response
}

/// Streams the events that the returned sender sends.
fn watch_response() -> (mpsc::Sender<Value>, Response<Body>) {
    let (sender, receiver) = mpsc::channel::<Value>(MAX_QUEUED_EVENTS);
    let events = stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((event, receiver))
    });
    let frames = events.map(|event| Ok::<_, Infallible>(Frame::data(Bytes::from(format!("{event}\n")))));
    (sender, Response::new(StreamBody::new(frames).boxed_unsync()))
}

async fn respond(
    state: Arc<Mutex<StoredWorkload>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let content_type = parts.headers.get(http::header::CONTENT_TYPE);
    let request = ReceivedRequest {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        content_type: content_type.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let answer = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        state.received.send_modify(|received| *received += 1);
        let fault = state
            .fault
            .as_ref()
            .filter(|(method, end, _)| *method == request.method && request.path.ends_with(end));
        match fault.map(|(_, _, fault)| *fault) {
            Some(ApiFault::Hang) => None,
            Some(ApiFault::Status(code)) => {
                let (code, body) = failure(code, if code == 403 { "Forbidden" } else { "InternalError" });
                Some(full(code, &body))
            }
            None if request.query.contains("watch=true") => {
                let (sender, response) = watch_response();
                state.watches.push(sender);
                Some(response)
            }
            None => {
                let (code, body) = state.handle(&request);
                Some(full(code, &body))
            }
        }
    };
    match answer {
        Some(answer) => Ok(answer),
        None => std::future::pending().await,
    }
}
