//! An HTTP server with the Secrets of an API server: get, create, and merge patches with the version as precondition.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A change that another process makes.
type Interference = Box<dyn FnOnce(&mut StoredObjects) + Send>;

/// The server. It ends when it is dropped.
pub(super) struct SecretApi {
    state: Arc<Mutex<StoredObjects>>,
    pub(super) client: Client,
    task: JoinHandle<()>,
}

/// The Secrets by `NAMESPACE/NAME`.
#[derive(Default)]
pub(super) struct StoredObjects {
    secrets: BTreeMap<String, Value>,
    version: u64,
    /// Namespaces that do not exist.
    missing: Vec<String>,
    /// Accounts without permission receive 403 for this name.
    forbidden: Option<String>,
    /// Runs before the next request with this method.
    interference: Option<(Method, Interference)>,
    /// Method and name of each request that writes.
    writes: Vec<String>,
}

impl Drop for SecretApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SecretApi {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(StoredObjects::default()));
        let served = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&served);
                let service = service_fn(move |request| respond(Arc::clone(&state), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        let mut config = Config::new(url.parse().unwrap());
        // The client does not load the certificates of the system, which may have none.
        config.root_cert = Some(Vec::new());
        let client = Client::try_from(config).unwrap();
        Self { state, client, task }
    }

    /// Returns a file of a Secret.
    pub(super) fn file(&self, secret: &str, file: &str) -> String {
        self.with(|state| state.file(secret, file))
    }

    /// Returns the names of the files of a Secret.
    pub(super) fn files(&self, secret: &str) -> Vec<String> {
        self.with(|state| {
            let data = state.secrets[secret]["data"].as_object().cloned().unwrap_or_default();
            data.keys().cloned().collect()
        })
    }

    /// Returns the metadata of a Secret.
    pub(super) fn metadata(&self, secret: &str) -> Value {
        self.with(|state| state.secrets[secret]["metadata"].clone())
    }

    /// Returns the writes since the last call.
    pub(super) fn take_writes(&self) -> Vec<String> {
        self.with(|state| std::mem::take(&mut state.writes))
    }

    pub(super) fn with<T>(&self, f: impl FnOnce(&mut StoredObjects) -> T) -> T {
        f(&mut self.state.lock().unwrap())
    }
}

impl StoredObjects {
    pub(super) fn insert(&mut self, secret: &str, files: &[(&str, String)]) {
        let (namespace, name) = secret.split_once('/').unwrap();
        let metadata = json!({ "namespace": namespace, "name": name });
        let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {} });
        self.store(secret, object);
        for (file, text) in files {
            self.set_file(secret, file, text);
        }
    }

    pub(super) fn set_file(&mut self, secret: &str, file: &str, text: &str) {
        let encoded = json!(ByteString(text.as_bytes().to_vec()));
        let mut object = self.secrets[secret].clone();
        object["data"][file] = encoded;
        self.store(secret, object);
    }

    pub(super) fn remove_file(&mut self, secret: &str, file: &str) {
        let object = self.secrets.get_mut(secret).unwrap();
        object["data"].as_object_mut().unwrap().remove(file);
    }

    pub(super) fn remove(&mut self, secret: &str) {
        self.secrets.remove(secret);
    }

    pub(super) fn remove_namespace(&mut self, namespace: &str) {
        self.missing.push(namespace.to_owned());
    }

    pub(super) fn forbid(&mut self, secret: &str) {
        self.forbidden = Some(secret.to_owned());
    }

    /// Runs `change` before the next request with this method.
    pub(super) fn interfere(&mut self, method: Method, change: impl FnOnce(&mut Self) + Send + 'static) {
        self.interference = Some((method, Box::new(change)));
    }

    fn file(&self, secret: &str, file: &str) -> String {
        let bytes: ByteString = serde_json::from_value(self.secrets[secret]["data"][file].clone()).unwrap();
        String::from_utf8(bytes.0).unwrap()
    }

    fn store(&mut self, secret: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.secrets.insert(secret.to_owned(), object.clone());
        object
    }

    fn handle(&mut self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        if let Some((_, change)) = self.interference.take_if(|(wanted, _)| wanted == method) {
            change(self);
        }
        let parts: Vec<&str> = path.trim_start_matches("/api/v1/namespaces/").split('/').collect();
        let name = parts.get(2).map_or_else(|| body["metadata"]["name"].as_str().unwrap(), |name| *name);
        let secret = format!("{}/{name}", parts[0]);
        if self.forbidden.as_deref() == Some(secret.as_str()) {
            return failure(StatusCode::FORBIDDEN, "Forbidden", &format!("secrets \"{name}\" is forbidden"));
        }
        if method != Method::GET {
            self.writes.push(format!("{method} {secret}"));
        }
        match (method, self.secrets.get(&secret).cloned()) {
            (&Method::GET, Some(object)) => (StatusCode::OK, object),
            (&Method::POST, Some(_)) => failure(StatusCode::CONFLICT, "AlreadyExists", "already exists"),
            (&Method::POST, None) if self.missing.iter().any(|namespace| namespace == parts[0]) => {
                let message = format!("namespaces \"{}\" not found", parts[0]);
                failure(StatusCode::NOT_FOUND, "NotFound", &message)
            }
            (&Method::POST, None) => (StatusCode::CREATED, self.store(&secret, body.clone())),
            (&Method::PATCH, Some(object)) => self.patch(&secret, object, body),
            _ => failure(StatusCode::NOT_FOUND, "NotFound", &format!("secrets \"{name}\" not found")),
        }
    }

    fn patch(&mut self, secret: &str, mut object: Value, patch: &Value) -> (StatusCode, Value) {
        if patch["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
            return failure(StatusCode::CONFLICT, "Conflict", "the object has been modified");
        }
        merge(&mut object, patch);
        (StatusCode::OK, self.store(secret, object))
    }
}

/// Applies a merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], change);
        }
    }
}

fn failure(code: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "reason": reason, "message": message, "code": code.as_u16(),
    });
    (code, status)
}

async fn respond(
    state: Arc<Mutex<StoredObjects>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (code, answer) = state.lock().unwrap().handle(&parts.method, parts.uri.path(), &body);
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, "application/json".parse().unwrap());
    Ok(response)
}
