//! A client of a schema registry with the REST API of Confluent. Schemas never change, so each is requested once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use feedline_common::backoff::Backoff;
use object_store::ClientOptions;
use prost_reflect::DescriptorPool;
use serde_json::Value;
use tokio::time::sleep;
use url::Url;

use crate::client_builder::client_with_authority;
use crate::error::SourceError;
use crate::guard::RequestGuard;
use crate::response_body::read_body;
use crate::retry::{FIRST_BACKOFF, MAX_BACKOFF};

/// Maximum size of a response in bytes.
const MAX_RESPONSE_BYTES: usize = 16 << 20;
/// Maximum number of schemas that one schema refers to, directly and indirectly.
const MAX_REFERENCES: usize = 1_000;
/// How long an unknown id is not requested again.
const UNKNOWN_MAX_AGE: Duration = Duration::from_secs(60);
/// Maximum number of unknown ids in memory.
const MAX_UNKNOWN: usize = 100_000;
/// Time limit for one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The language of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaLanguage {
    Avro,
    Protobuf,
    Json,
}

/// A schema of the registry.
#[derive(Debug, Clone)]
pub(super) struct RegisteredSchema {
    pub(super) id: u32,
    pub(super) language: SchemaLanguage,
    pub(super) text: String,
    /// The names and texts of all schemas that the schema refers to, each after those that it refers to itself.
    pub(super) references: Vec<(String, String)>,
    /// The compiled Protobuf schema, or why it is invalid.
    pub(super) protobuf: OnceLock<Result<DescriptorPool, String>>,
}

/// A client of one registry.
pub(super) struct Registry {
    url: Url,
    client: reqwest::Client,
    guard: RequestGuard,
    authorization: Authorization,
    retry_budget: Duration,
    schemas: Mutex<HashMap<u32, Arc<RegisteredSchema>>>,
    /// Ids that the registry did not know, and when it was asked.
    unknown: Mutex<HashMap<u32, Instant>>,
}

/// The credentials of requests.
#[derive(Default)]
pub(super) struct Authorization {
    pub(super) basic: Option<(String, String)>,
    pub(super) bearer: Option<String>,
}

/// Why a request failed.
enum Failure {
    /// The registry does not know the schema or subject.
    Unknown,
    Other(SourceError),
}

impl Registry {
    pub(super) fn new(
        url: &str,
        guard: RequestGuard,
        authorization: Authorization,
        authority: Option<reqwest::Certificate>,
        retry_budget: Duration,
    ) -> Result<Self, String> {
        let mut url = Url::parse(url).map_err(|error| format!("invalid registry `{url}`: {error}"))?;
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        let options = ClientOptions::new().with_timeout(TIMEOUT).with_allow_http(url.scheme() == "http");
        let client = client_with_authority(&options, &guard, authority)?;
        Ok(Self {
            url,
            client,
            guard,
            authorization,
            retry_budget,
            schemas: Mutex::default(),
            unknown: Mutex::default(),
        })
    }

    /// Returns the id of the newest schema of a subject.
    pub(super) async fn newest(&self, subject: &str) -> Result<u32, SourceError> {
        match self.get(&["subjects", subject, "versions", "latest"]).await {
            Ok(version) => {
                id_of(&version).ok_or_else(|| self.error("the newest version of a subject has no id"))
            }
            Err(Failure::Unknown) => {
                Err(self
                    .error(format!("the subject `{subject}` does not exist: set `subject` of the payload")))
            }
            Err(Failure::Other(error)) => Err(error),
        }
    }

    /// Returns a schema; `None` if the registry does not know the id.
    pub(super) async fn schema(&self, id: u32) -> Result<Option<Arc<RegisteredSchema>>, SourceError> {
        let known = self.schemas.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let unknown = || self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if unknown().get(&id).is_some_and(|at| at.elapsed() < UNKNOWN_MAX_AGE) {
            return Ok(None);
        }
        let found = match self.get(&["schemas", "ids", &id.to_string()]).await {
            Ok(found) => found,
            Err(Failure::Unknown) => {
                let mut unknown = unknown();
                if unknown.len() >= MAX_UNKNOWN {
                    unknown.clear();
                }
                unknown.insert(id, Instant::now());
                return Ok(None);
            }
            Err(Failure::Other(error)) => return Err(error),
        };
        let bad = || {
            self.error(format!(
                "schema {id} has no text, or a language other than Avro, Protobuf and JSON Schema"
            ))
        };
        let (language, text) = language_of(&found).zip(text_of(&found)).ok_or_else(bad)?;
        let references = self.references(&found).await?;
        let schema = Arc::new(RegisteredSchema { id, language, text, references, protobuf: OnceLock::new() });
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&schema));
        Ok(Some(schema))
    }

    /// Requests everything that a schema refers to.
    async fn references(&self, schema: &Value) -> Result<Vec<(String, String)>, SourceError> {
        let mut found: Vec<(String, String)> = Vec::new();
        let mut seen = HashSet::new();
        // Each entry is requested before the entries that it refers to, so the result is reversed.
        let mut pending = references_of(schema);
        while let Some((name, subject, version)) = pending.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            if seen.len() > MAX_REFERENCES {
                return Err(self.error(format!("a schema refers to more than {MAX_REFERENCES} schemas")));
            }
            let referenced = match self.get(&["subjects", &subject, "versions", &version.to_string()]).await {
                Ok(referenced) => referenced,
                Err(Failure::Unknown) => {
                    return Err(self.error(format!(
                        "version {version} of `{subject}`, which a schema refers to, does not exist"
                    )));
                }
                Err(Failure::Other(error)) => return Err(error),
            };
            let text = text_of(&referenced)
                .ok_or_else(|| self.error(format!("version {version} of `{subject}` has no text")))?;
            found.push((name, text));
            pending.extend(references_of(&referenced));
        }
        found.reverse();
        Ok(found)
    }

    /// Requests a path. Repeats a request that fails for a reason that may pass.
    async fn get(&self, path: &[&str]) -> Result<Value, Failure> {
        let started = Instant::now();
        let mut backoff = Backoff::new(FIRST_BACKOFF, MAX_BACKOFF);
        loop {
            match self.get_once(path).await {
                Err(Failure::Other(error))
                    if error.is_retryable() && started.elapsed() < self.retry_budget => {}
                result => return result,
            }
            sleep(backoff.next_pause()).await;
        }
    }

    async fn get_once(&self, path: &[&str]) -> Result<Value, Failure> {
        let mut url = self.url.clone();
        url.path_segments_mut()
            .map_err(|()| Failure::Other(self.error("the URL cannot have a path")))?
            .pop_if_empty()
            .extend(path);
        self.guard
            .check(url.as_str())
            .map_err(|error| Failure::Other(SourceError::Rejected { message: error.to_string() }))?;
        let mut request =
            self.client.get(url).header("accept", "application/vnd.schemaregistry.v1+json, application/json");
        if let Some((user, password)) = &self.authorization.basic {
            request = request.basic_auth(user, Some(password));
        } else if let Some(token) = &self.authorization.bearer {
            request = request.bearer_auth(token);
        }
        let unreachable = |error: reqwest::Error| {
            let reason = format!(
                "the schema registry does not answer ({}): check the registry and the network",
                error.without_url()
            );
            Failure::Other(self.failed(reason, true))
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let body = read_body(response.bytes_stream(), MAX_RESPONSE_BYTES).await.map_err(unreachable)?;
        match status.as_u16() {
            200 => match body {
                Some(body) => serde_json::from_slice(&body).map_err(|_| {
                    Failure::Other(self.error("the answer is not JSON: check `registry` of the payload"))
                }),
                None => Err(Failure::Other(
                    self.error(format!("an answer has more than {MAX_RESPONSE_BYTES} bytes")),
                )),
            },
            404 => Err(Failure::Unknown),
            401 | 403 => Err(Failure::Other(
                self.error(format!("access denied with status {status}: check `credentials` of the source")),
            )),
            code => Err(Failure::Other(self.failed(
                format!("the schema registry answers with status {status}"),
                code == 429 || code >= 500,
            ))),
        }
    }

    fn error(&self, reason: impl Into<String>) -> SourceError {
        self.failed(reason.into(), false)
    }

    fn failed(&self, reason: String, retryable: bool) -> SourceError {
        SourceError::Store { url: self.url.to_string(), reason, retryable }
    }
}

/// Reads everything that an answer may contain, for the fuzz target `kafka_payload`.
pub(super) fn read_answer(bytes: &[u8]) {
    if let Ok(answer) = serde_json::from_slice::<Value>(bytes) {
        let _ = (id_of(&answer), text_of(&answer), language_of(&answer), references_of(&answer));
    }
}

fn id_of(version: &Value) -> Option<u32> {
    version.get("id")?.as_u64()?.try_into().ok()
}

fn text_of(schema: &Value) -> Option<String> {
    Some(schema.get("schema")?.as_str()?.to_owned())
}

/// The language of a schema. The registry omits the language of Avro.
fn language_of(schema: &Value) -> Option<SchemaLanguage> {
    match schema.get("schemaType").and_then(Value::as_str) {
        None | Some("AVRO") => Some(SchemaLanguage::Avro),
        Some("PROTOBUF") => Some(SchemaLanguage::Protobuf),
        Some("JSON") => Some(SchemaLanguage::Json),
        Some(_) => None,
    }
}

/// The names, subjects and versions that a schema refers to.
fn references_of(schema: &Value) -> Vec<(String, String, u64)> {
    let text = |entry: &Value, key: &str| Some(entry.get(key)?.as_str()?.to_owned());
    let entries = schema.get("references").and_then(Value::as_array);
    let reference = |entry: &Value| {
        Some((text(entry, "name")?, text(entry, "subject")?, entry.get("version")?.as_u64()?))
    };
    entries.into_iter().flatten().filter_map(reference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let schema: Value = serde_json::from_str(
            r#"{"id": 7, "schema": "s", "schemaType": "JSON", "references": [{"name": "a", "subject": "b", "version": 2}, {"name": "c"}]}"#,
        )
        .unwrap();
        assert_eq!((id_of(&schema), text_of(&schema).as_deref()), (Some(7), Some("s")));
        assert_eq!(language_of(&schema), Some(SchemaLanguage::Json));
        assert_eq!(references_of(&schema), [("a".to_owned(), "b".to_owned(), 2)]);
        let avro = serde_json::json!({"id": -1});
        assert_eq!(
            (id_of(&avro), text_of(&avro), language_of(&avro)),
            (None, None, Some(SchemaLanguage::Avro))
        );
        assert_eq!(language_of(&serde_json::json!({"schemaType": "XML"})), None);
    }
}
