//! Reads, creates and changes Secrets. A change fails if another process changed the Secret since it was read.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::{Value, json};

use crate::api_client::describe;

/// The field manager of all changes.
const FIELD_MANAGER: &str = "feedline-keys";
/// The label of the Secrets that Feedline creates, and its value.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", FIELD_MANAGER);
/// Annotations that keep a Secret when the release is deleted. Without them, Argo CD deletes objects with the label
/// `app.kubernetes.io/instance` of its application that the chart does not contain.
const KEEP_ANNOTATIONS: [(&str, &str); 3] = [
    ("helm.sh/resource-policy", "keep"),
    ("argocd.argoproj.io/compare-options", "IgnoreExtraneous"),
    ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false"),
];

/// The files of a Secret.
pub(crate) type SecretFiles = BTreeMap<String, String>;

/// The namespace and the name of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl SecretName {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Secret of the API server.
#[derive(Clone)]
pub(crate) struct StoredSecret {
    pub(crate) files: SecretFiles,
    pub(crate) annotations: BTreeMap<String, String>,
    /// Whether Feedline created the Secret.
    pub(crate) is_managed: bool,
    /// The version that a change replaces.
    version: String,
}

impl StoredSecret {
    /// Returns a Secret that was just created.
    pub(crate) fn created(files: SecretFiles) -> Self {
        Self { files, annotations: BTreeMap::new(), is_managed: true, version: String::new() }
    }

    /// Returns the Secret after a change.
    pub(crate) fn changed(mut self, change: SecretChange) -> Self {
        self.files.extend(change.files);
        for (key, value) in change.annotations {
            match value {
                Some(value) => self.annotations.insert(key.to_owned(), value),
                None => self.annotations.remove(key),
            };
        }
        self
    }

    /// Returns a file, or an empty text.
    pub(crate) fn file(&self, name: &str) -> &str {
        self.files.get(name).map_or("", String::as_str)
    }
}

/// A change of a Secret.
#[derive(Default)]
pub(crate) struct SecretChange {
    pub(crate) files: SecretFiles,
    /// New values of annotations; `None` removes an annotation.
    pub(crate) annotations: BTreeMap<&'static str, Option<String>>,
}

impl SecretChange {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.annotations.is_empty()
    }

    /// Returns the names of the changed files.
    pub(crate) fn file_names(&self) -> String {
        self.files.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// The Secrets of all namespaces.
pub(crate) struct Secrets<'a> {
    client: &'a Client,
    /// Labels of created Secrets.
    labels: &'a BTreeMap<String, String>,
}

impl<'a> Secrets<'a> {
    pub(crate) fn new(client: &'a Client, labels: &'a BTreeMap<String, String>) -> Self {
        Self { client, labels }
    }

    /// Returns a Secret, or `None` if it does not exist.
    pub(crate) async fn read(&self, name: &SecretName) -> Result<Option<StoredSecret>, String> {
        let found = self.api(name).get_opt(&name.name).await;
        Ok(found.map_err(|error| failed("read", name, &error))?.map(stored))
    }

    /// Creates a Secret. Returns whether it did not exist.
    pub(crate) async fn create(&self, name: &SecretName, files: &SecretFiles) -> Result<bool, String> {
        let mut labels = self.labels.clone();
        labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
        let annotations = KEEP_ANNOTATIONS.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.name.clone()),
                namespace: Some(name.namespace.clone()),
                labels: Some(labels),
                annotations: Some(annotations.into()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(encoded(files)),
            ..Secret::default()
        };
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match self.api(name).create(&parameters, &secret).await {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(failed("create", name, &error)),
        }
    }

    /// Changes a Secret. Returns whether it was still the Secret that was read.
    pub(crate) async fn update(
        &self,
        name: &SecretName,
        read: &StoredSecret,
        change: &SecretChange,
    ) -> Result<bool, String> {
        let mut metadata = json!({ "resourceVersion": read.version });
        if !change.annotations.is_empty() {
            metadata["annotations"] = json!(change.annotations);
        }
        let mut patch = json!({ "metadata": metadata });
        if !change.files.is_empty() {
            patch["data"] = json!(encoded(&change.files));
        }
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch: Patch<Value> = Patch::Merge(patch);
        match self.api(name).patch(&name.name, &parameters, &patch).await {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(false),
            Err(error) => Err(failed("change", name, &error)),
        }
    }

    fn api(&self, name: &SecretName) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &name.namespace)
    }
}

fn encoded(files: &SecretFiles) -> BTreeMap<String, ByteString> {
    files.iter().map(|(name, text)| (name.clone(), ByteString(text.clone().into_bytes()))).collect()
}

fn stored(secret: Secret) -> StoredSecret {
    let metadata = secret.metadata;
    let data = secret.data.unwrap_or_default();
    let text = |bytes: ByteString| String::from_utf8_lossy(&bytes.0).into_owned();
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY.0));
    StoredSecret {
        is_managed: label.is_some_and(|value| value == MANAGED_BY.1),
        files: data.into_iter().map(|(name, bytes)| (name, text(bytes))).collect(),
        annotations: metadata.annotations.unwrap_or_default(),
        version: metadata.resource_version.unwrap_or_default(),
    }
}

/// Describes an error of the API server.
fn failed(action: &str, name: &SecretName, error: &Error) -> String {
    let problem = format!("cannot {action} the Secret {name}");
    match error {
        Error::Api(status) if status.code == 403 => {
            format!(
                "{problem}: {}; give this account a Role with the verbs create, get and patch",
                status.message
            )
        }
        Error::Api(status) if status.code == 404 => {
            format!("{problem}: {}; create the namespace {}", status.message, name.namespace)
        }
        Error::Api(status) => format!("{problem}: {}", status.message),
        other => format!("{problem}: {}", describe(other)),
    }
}
