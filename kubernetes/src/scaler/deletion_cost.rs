//! The order in which a Deployment deletes pods: annotates the pods of the workers that should stop first.
//!
//! The annotations are written just before the number of pods decreases, and only where they change.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::call_failure::{CallFailure, call};

/// The annotation with the deletion cost. A ReplicaSet deletes pods with a lower cost first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The planner's costs are at most this number, so that they are lower than the costs that users set.
const MAX_PLANNED_COST: i32 = -1_000_000;
/// Maximum number of concurrent requests.
const CONCURRENT_REQUESTS: usize = 16;

/// A changed annotation of a pod. `None` removes the annotation.
type CostChange = (String, Option<i32>);

/// Annotates the pods that `selector` selects, so that the workers on the hosts `victims` stop first, in this order.
/// Removes earlier annotations of this function from other pods. Cancel safe: a repeated call continues.
pub(super) async fn annotate(pods: &Api<Pod>, selector: &str, victims: &[String]) -> Result<(), CallFailure> {
    let listed = call(pods.list(&ListParams::default().labels(selector))).await?;
    let changes = cost_changes(&listed.items, victims);
    let requests: Vec<_> = changes.into_iter().map(|(pod, cost)| set_cost(pods, pod, cost)).collect();
    stream::iter(requests).buffer_unordered(CONCURRENT_REQUESTS).try_collect::<Vec<()>>().await?;
    Ok(())
}

async fn set_cost(pods: &Api<Pod>, pod: String, cost: Option<i32>) -> Result<(), CallFailure> {
    let cost = cost.map(|cost| cost.to_string());
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { DELETION_COST: cost } } }));
    match call(pods.patch_metadata(&pod, &PatchParams::default(), &patch)).await {
        // The pod has been deleted.
        Ok(_) | Err(CallFailure::NotFound) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Returns the annotations to change.
fn cost_changes(pods: &[Pod], victims: &[String]) -> Vec<CostChange> {
    let order: BTreeMap<String, i32> =
        victims.iter().enumerate().map(|(index, host)| (canonical(host), index as i32)).collect();
    let cost_of = |pod: &Pod| {
        let status = pod.status.as_ref()?;
        let is_running = pod.metadata.deletion_timestamp.is_none()
            && !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let index = order.get(&canonical(status.pod_ip.as_deref()?)).filter(|_| is_running)?;
        Some(MAX_PLANNED_COST - (victims.len() as i32 - index))
    };
    let changes = pods.iter().filter_map(|pod| {
        let present: Option<i32> = pod.annotations().get(DELETION_COST).and_then(|cost| cost.parse().ok());
        let wanted = cost_of(pod);
        let is_ours = present.is_some_and(|cost| cost <= MAX_PLANNED_COST);
        let is_changed = wanted != present && (wanted.is_some() || is_ours);
        is_changed.then(|| (pod.name_any(), wanted))
    });
    changes.collect()
}

/// Returns the canonical text of an address, because an IPv6 address has several.
fn canonical(host: &str) -> String {
    host.parse::<IpAddr>().map_or_else(|_| host.to_owned(), |address| address.to_canonical().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ip: &str, cost: Option<&str>) -> Pod {
        let annotations = cost.map(|cost| json!({ DELETION_COST: cost })).unwrap_or_else(|| json!({}));
        let pod = json!({
            "metadata": { "name": name, "annotations": annotations },
            "status": { "phase": "Running", "podIP": ip },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn changes(pods: &[Pod], victims: &[&str]) -> Vec<(String, Option<i32>)> {
        cost_changes(pods, &victims.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_first_victim_has_the_lowest_cost() {
        let pods = [pod("a", "10.0.0.1", None), pod("b", "10.0.0.2", None), pod("c", "fd00::3", None)];
        let found = changes(&pods, &["FD00:0::3", "10.0.0.1"]);
        assert_eq!(found, [("a".to_owned(), Some(-1_000_001)), ("c".to_owned(), Some(-1_000_002))]);
    }

    #[test]
    fn only_changes_are_written_and_costs_of_users_remain() {
        let pods = [
            pod("same", "10.0.0.1", Some("-1000001")),
            pod("earlier-victim", "10.0.0.2", Some("-1000007")),
            pod("of-a-user", "10.0.0.3", Some("100")),
            pod("malformed", "10.0.0.4", Some("many")),
        ];
        assert_eq!(changes(&pods, &["10.0.0.1"]), [("earlier-victim".to_owned(), None)]);
    }

    #[test]
    fn pods_that_have_ended_are_no_victims() {
        let mut ended = pod("ended", "10.0.0.1", None);
        ended.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        let running = pod("running", "10.0.0.1", None);
        assert_eq!(changes(&[ended, running], &["10.0.0.1"]), [("running".to_owned(), Some(-1_000_001))]);
    }
}
