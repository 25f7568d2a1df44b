//! Detects pods that do not become ready, and finds out why.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::call_failure::{CallFailure, call};
use super::workload::WorkloadState;

/// Time after which a pod that is not ready is reported.
pub(super) const MAX_PENDING_TIME: Duration = Duration::from_secs(120);
/// Time between two searches for pending pods.
const SEARCH_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of pods in a search.
const MAX_PODS: u32 = 50;

/// A time in which a pool has fewer ready pods than wanted.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// The begin; `None` while all pods are ready.
    since: Option<Instant>,
    searched_at: Option<Instant>,
    is_reported: bool,
}

impl Shortage {
    /// Updates the shortage for the state of the pool.
    pub(super) fn on_state(&mut self, state: Option<&WorkloadState>) {
        match state {
            Some(state) if state.ready < state.replicas => {
                self.since.get_or_insert_with(Instant::now);
            }
            _ => *self = Self::default(),
        }
    }

    /// Returns whether the pods should be searched now. At most one search in [`SEARCH_INTERVAL`] is due.
    pub(super) fn is_search_due(&mut self) -> bool {
        let is_long = self.since.is_some_and(|since| since.elapsed() >= MAX_PENDING_TIME);
        let is_early = self.searched_at.is_some_and(|searched| searched.elapsed() < SEARCH_INTERVAL);
        if !is_long || is_early || self.is_reported {
            return false;
        }
        self.searched_at = Some(Instant::now());
        true
    }

    /// Prevents further searches until all pods have been ready.
    pub(super) fn set_reported(&mut self) {
        self.is_reported = true;
    }
}

/// Returns why pods are not ready; `None` if no pod has been pending for long, or if the API server does not answer.
/// Without permission to list pods, the reason is that of the object.
pub(super) async fn reason(pods: &Api<Pod>, state: &WorkloadState) -> Option<String> {
    let pending =
        ListParams::default().labels(&state.selector).fields("status.phase=Pending").limit(MAX_PODS);
    match call(pods.list(&pending)).await {
        Ok(found) => {
            let oldest = found.items.iter().max_by_key(|pod| age_seconds(pod))?;
            let minutes = MAX_PENDING_TIME.as_secs() / 60;
            let is_old = age_seconds(oldest) >= MAX_PENDING_TIME.as_secs() as i64;
            is_old.then(|| {
                format!(
                    "the pod {} has been pending for more than {minutes} minutes: {}",
                    oldest.name_any(),
                    pending_reason(oldest)
                )
            })
        }
        Err(CallFailure::Forbidden(_)) => {
            let (minutes, missing) =
                (MAX_PENDING_TIME.as_secs() / 60, state.replicas.saturating_sub(state.ready));
            let problem =
                if state.problem.is_empty() { String::new() } else { format!(": {}", state.problem) };
            Some(format!(
                "{missing} of {} pods have not been ready for more than {minutes} minutes{problem}; `kubectl describe pods --selector {}` shows the reason",
                state.replicas, state.selector
            ))
        }
        Err(_) => None,
    }
}

/// Returns the time since the creation of a pod.
fn age_seconds(pod: &Pod) -> i64 {
    let created = pod.metadata.creation_timestamp.as_ref();
    created.map_or(0, |created| Timestamp::now().as_second() - created.0.as_second())
}

/// Returns the message of the scheduler, or why a container waits.
fn pending_reason(pod: &Pod) -> String {
    let Some(status) = &pod.status else { return "it has no status".to_owned() };
    let mut conditions = status.conditions.iter().flatten();
    let unscheduled =
        conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(message) = unscheduled.and_then(|condition| condition.message.as_deref()) {
        return format!("the scheduler says: {}", message.trim_end_matches('.'));
    }
    let mut containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let waiting = containers.find_map(|container| container.state.as_ref()?.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.message.as_deref().or(waiting.reason.as_deref()));
    reason.unwrap_or("its containers have not started").to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reason_of(status: Value) -> String {
        pending_reason(&serde_json::from_value(json!({ "status": status })).unwrap())
    }

    #[test]
    fn the_reason_is_the_message_of_the_scheduler_or_of_a_container() {
        let message = "0/3 nodes are available: 3 Insufficient cpu.";
        let condition = json!({ "type": "PodScheduled", "status": "False", "message": message });
        assert_eq!(
            reason_of(json!({ "conditions": [condition] })),
            "the scheduler says: 0/3 nodes are available: 3 Insufficient cpu"
        );
        let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } });
        let container = json!({
            "name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": waiting,
        });
        assert_eq!(reason_of(json!({ "containerStatuses": [container] })), "no such image");
        assert_eq!(reason_of(json!({})), "its containers have not started");
    }

    #[tokio::test(start_paused = true)]
    async fn a_shortage_is_searched_after_two_minutes_and_reported_once() {
        let state = |ready| WorkloadState { replicas: 3, ready, ..WorkloadState::default() };
        let mut shortage = Shortage::default();
        shortage.on_state(Some(&state(2)));
        tokio::time::advance(MAX_PENDING_TIME - Duration::from_secs(1)).await;
        shortage.on_state(Some(&state(1)));
        assert!(!shortage.is_search_due());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(shortage.is_search_due());
        assert!(!shortage.is_search_due(), "the last search was just now");
        tokio::time::advance(SEARCH_INTERVAL).await;
        assert!(shortage.is_search_due());
        shortage.set_reported();
        tokio::time::advance(SEARCH_INTERVAL).await;
        assert!(!shortage.is_search_due(), "it has been reported");
        shortage.on_state(Some(&state(3)));
        shortage.on_state(Some(&state(2)));
        tokio::time::advance(MAX_PENDING_TIME).await;
        assert!(shortage.is_search_due(), "this is another shortage");
    }
}
