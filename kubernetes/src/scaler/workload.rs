//! The objects whose pods are the workers of a pool: Deployments and StatefulSets.

use feedline_coordinator::PoolLimits;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, Selector};
use serde_json::Value;

/// Kind of an object whose pods are workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    /// A Deployment, which deletes the pods with the lowest deletion cost first.
    Deployment,
    /// A StatefulSet, which deletes the pods with the highest numbers first.
    StatefulSet,
}

/// A pool of workers, and the object whose pods they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolTarget {
    /// Name and limits of the pool.
    pub limits: PoolLimits,
    /// Kind of the object.
    pub kind: WorkloadKind,
    /// Name of the object.
    pub object: String,
}

impl PoolTarget {
    /// Returns the resource of the object's kind.
    pub(super) fn resource(&self) -> ApiResource {
        let (kind, plural) = match self.kind {
            WorkloadKind::Deployment => ("Deployment", "deployments"),
            WorkloadKind::StatefulSet => ("StatefulSet", "statefulsets"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("apps", "v1", kind), plural)
    }

    /// Returns the object for messages, such as `the Deployment feedline-worker`.
    pub(super) fn display(&self) -> String {
        let kind = match self.kind {
            WorkloadKind::Deployment => "Deployment",
            WorkloadKind::StatefulSet => "StatefulSet",
        };
        format!("the {kind} {}", self.object)
    }
}

/// The observed state of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WorkloadState {
    /// The wanted number of pods.
    pub(super) replicas: u32,
    /// The number of ready pods.
    pub(super) ready: u32,
    /// The version of the object, which changes with each change.
    pub(super) resource_version: String,
    /// The label selector of the pods.
    pub(super) selector: String,
    /// Why pods are missing, as the object's conditions tell; empty if they do not.
    pub(super) problem: String,
}

impl WorkloadState {
    /// Reads the state of an object.
    pub(super) fn of(object: &DynamicObject) -> Self {
        let number = |path: &str| object.data.pointer(path).and_then(Value::as_u64);
        let count = |path: &str| number(path).and_then(|number| u32::try_from(number).ok());
        Self {
            // Without this field, the API server stores 1.
            replicas: count("/spec/replicas").unwrap_or(1),
            ready: count("/status/readyReplicas").unwrap_or(0),
            resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
            selector: object.data.pointer("/spec/selector").map(label_selector).unwrap_or_default(),
            problem: object.data.pointer("/status/conditions").map(problem).unwrap_or_default(),
        }
    }
}

/// Converts a label selector to the text of a query; empty if it is malformed.
fn label_selector(selector: &Value) -> String {
    let selector: LabelSelector = serde_json::from_value(selector.clone()).unwrap_or_default();
    Selector::try_from(selector).map(|selector| selector.to_string()).unwrap_or_default()
}

/// Returns the message of the most specific condition that reports a problem.
fn problem(conditions: &Value) -> String {
    let conditions = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
    let reported = [("ReplicaFailure", "True"), ("Progressing", "False"), ("Available", "False")];
    let message = reported.iter().find_map(|(kind, status)| {
        let found = conditions
            .iter()
            .find(|condition| condition["type"] == *kind && condition["status"] == *status)?;
        found["message"].as_str()
    });
    message.unwrap_or_default().trim_end_matches('.').to_owned()
}
