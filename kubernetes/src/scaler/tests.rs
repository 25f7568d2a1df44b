//! Tests of the scaler against an HTTP server that behaves like the API server of Kubernetes.

mod workload_api;

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::time::timeout;

use self::workload_api::{ApiFault, ReceivedRequest, WorkloadApi};
use super::call_failure::CALL_TIMEOUT;
use super::*;

/// Timeout that is longer than every test, so that a hang fails the test.
const PATIENCE: Duration = Duration::from_secs(20);
const OBJECT_PATH: &str = "/apis/apps/v1/namespaces/ml/deployments/workers";

fn start(api: &WorkloadApi, victims: VictimChoice) -> KubernetesScaler {
    let limits = PoolLimits { pool: "default".to_owned(), min_workers: 1, max_workers: 10 };
    let target = PoolTarget { limits, kind: WorkloadKind::Deployment, object: "workers".to_owned() };
    let settings =
        KubernetesScalerSettings { namespace: Some("ml".to_owned()), pools: vec![target], victims };
    KubernetesScaler::start(&api.client, settings)
}

/// Starts a scaler, and waits until it watches the Deployment.
async fn start_observed(api: &WorkloadApi, victims: VictimChoice) -> KubernetesScaler {
    let scaler = start(api, victims);
    wait_for_present(&scaler, Some(api.replicas() as u32)).await;
    wait_for_watch(api).await;
    scaler
}

async fn wait_for_watch(api: &WorkloadApi) {
    let is_watch = |request: &ReceivedRequest| request.query.contains("watch=true");
    timeout(PATIENCE, api.wait_for_request(is_watch)).await.expect("the scaler watches the object");
}

/// Waits until the scaler reports this number of workers.
async fn wait_for_present(scaler: &KubernetesScaler, present: Option<u32>) {
    let mut states = scaler.pools[0].states();
    let is_wanted = states.wait_for(|state| state.as_ref().map(|state| state.replicas) == present);
    timeout(PATIENCE, is_wanted).await.expect("the scaler observes the change").unwrap();
    assert_eq!(scaler.present("default", 99), present, "the number does not depend on the live workers");
}

async fn scale(scaler: &KubernetesScaler, wanted: u32) -> Result<(), String> {
    scale_with(scaler, wanted, &[]).await
}

async fn scale_with(scaler: &KubernetesScaler, wanted: u32, victims: &[&str]) -> Result<(), String> {
    let victims = victims.iter().map(|host| (*host).to_owned()).collect();
    let change = PoolChange { pool: "default".to_owned(), wanted, victims };
    timeout(PATIENCE, scaler.scale(&change)).await.expect("a call has a deadline")
}

#[tokio::test]
async fn a_change_patches_the_scale_with_the_version_as_precondition() {
    let api = WorkloadApi::start(2).await;
    let scaler = start_observed(&api, VictimChoice::Kubernetes).await;
    scale(&scaler, 5).await.unwrap();
    wait_for_present(&scaler, Some(5)).await;
    let requests = api.requests(&Method::PATCH);
    assert_eq!(requests.len(), 1);
    let ReceivedRequest { path, query, content_type, body, .. } = &requests[0];
    assert_eq!(*path, format!("{OBJECT_PATH}/scale"));
    assert_eq!(content_type, "application/merge-patch+json");
    assert!(query.contains("fieldManager=feedline"), "{query}");
    assert_eq!(*body, json!({ "metadata": { "resourceVersion": "101" }, "spec": { "replicas": 5 } }));
    scale(&scaler, 5).await.unwrap();
    assert_eq!(api.requests(&Method::PATCH).len(), 1, "the number is already right");
}

#[tokio::test]
async fn the_scaler_watches_only_its_object() {
    let api = WorkloadApi::start(2).await;
    let _scaler = start_observed(&api, VictimChoice::Kubernetes).await;
    let requests = api.requests(&Method::GET);
    let is_narrow = |request: &ReceivedRequest| {
        request.path == "/apis/apps/v1/namespaces/ml/deployments"
            && (request.query.contains("fieldSelector=metadata.name%3Dworkers")
                || request.query.contains("fieldSelector=metadata.name=workers"))
    };
    assert!(requests.iter().all(is_narrow), "{requests:?}");
}

#[tokio::test]
async fn a_change_by_hand_is_observed() {
    let api = WorkloadApi::start(2).await;
    let scaler = start_observed(&api, VictimChoice::Kubernetes).await;
    api.set_replicas(7);
    wait_for_present(&scaler, Some(7)).await;
    api.delete();
    wait_for_present(&scaler, None).await;
    assert!(scale(&scaler, 3).await.unwrap_err().contains("the Deployment workers has not been read yet"));
}

#[tokio::test]
async fn a_conflict_changes_nothing_and_is_no_error() {
    let api = WorkloadApi::start(2).await;
    let scaler = start_observed(&api, VictimChoice::Kubernetes).await;
    api.change_silently();
    scale(&scaler, 5).await.unwrap();
    assert_eq!(api.replicas(), 2);
    assert_eq!(scaler.present("default", 2), Some(2));
    // The watch reports the change of the other coordinator, and the next call succeeds.
    api.set_replicas(3);
    wait_for_present(&scaler, Some(3)).await;
    scale(&scaler, 5).await.unwrap();
    assert_eq!(api.replicas(), 5);
}

#[tokio::test]
async fn of_two_scalers_with_the_same_observation_one_wins() {
    let api = WorkloadApi::start(2).await;
    let [first, second] = [
        start_observed(&api, VictimChoice::Kubernetes).await,
        start_observed(&api, VictimChoice::Kubernetes).await,
    ];
    let (one, other) = tokio::join!(scale(&first, 4), scale(&second, 6));
    one.unwrap();
    other.unwrap();
    let patches = api.requests(&Method::PATCH);
    let versions: Vec<_> = patches.iter().map(|patch| &patch.body["metadata"]["resourceVersion"]).collect();
    let are_equal = versions.iter().all(|version| *version == versions[0]);
    // The second scaler may already have observed the first change.
    assert!(!are_equal || api.replicas() == patches[0].body["spec"]["replicas"].as_u64().unwrap());
}

#[tokio::test]
async fn failures_are_one_sentence_with_the_reason() {
    let api = WorkloadApi::start(2).await;
    let scaler = start_observed(&api, VictimChoice::Kubernetes).await;
    api.set_fault(Method::PATCH, "/scale", ApiFault::Status(500));
    assert_eq!(
        scale(&scaler, 5).await.unwrap_err(),
        "cannot reach the API server of Kubernetes: refused: InternalError"
    );
    api.set_fault(Method::PATCH, "/scale", ApiFault::Status(403));
    assert_eq!(
        scale(&scaler, 5).await.unwrap_err(),
        "the coordinator may not change the scale of the Deployment workers: refused: Forbidden; grant this permission in its Role"
    );
    assert_eq!(api.replicas(), 2, "the workers stay");
    api.clear_fault();
    scale(&scaler, 5).await.unwrap();
    assert_eq!(api.replicas(), 5);
}

#[tokio::test]
async fn a_call_without_an_answer_ends() {
    let api = WorkloadApi::start(2).await;
    let scaler = start_observed(&api, VictimChoice::Kubernetes).await;
    api.set_fault(Method::PATCH, "/scale", ApiFault::Hang);
    let error = scale(&scaler, 5).await.unwrap_err();
    let seconds = CALL_TIMEOUT.as_secs();
    assert_eq!(error, format!("the API server of Kubernetes did not answer within {seconds} s"));
}

#[tokio::test]
async fn an_expired_watch_starts_again() {
    let api = WorkloadApi::start(2).await;
    let scaler = start_observed(&api, VictimChoice::Kubernetes).await;
    api.expire_watches();
    api.set_replicas(4);
    wait_for_present(&scaler, Some(4)).await;
    assert_eq!(scaler.pools[0].failing(), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn without_permission_to_watch_the_object_is_read_periodically() {
    let api = WorkloadApi::start(2).await;
    api.set_fault(Method::GET, "/deployments", ApiFault::Status(403));
    let scaler = start(&api, VictimChoice::Kubernetes);
    wait_for_present(&scaler, Some(2)).await;
    assert_eq!(scaler.pools[0].failing(), (Vec::new(), vec!["default".to_owned()]));
    api.set_replicas(3);
    wait_for_present(&scaler, Some(3)).await;
    scale(&scaler, 4).await.unwrap();
    wait_for_present(&scaler, Some(4)).await;
}

#[tokio::test]
async fn a_missing_object_has_no_known_number_of_workers() {
    let api = WorkloadApi::start(2).await;
    api.delete();
    let scaler = start(&api, VictimChoice::Kubernetes);
    wait_for_watch(&api).await;
    assert_eq!(scaler.present("default", 2), None);
    api.set_replicas(2);
    wait_for_present(&scaler, Some(2)).await;
    assert_eq!(scaler.pools[0].failing(), (Vec::new(), Vec::new()));
    assert_eq!(scaler.present("another", 2), None, "there is no such pool");
}

#[tokio::test]
async fn the_planner_marks_the_workers_that_stop_before_the_scale_changes() {
    let api = WorkloadApi::start(3).await;
    api.set_pods(&[("w-a", "10.0.0.1"), ("w-b", "10.0.0.2"), ("w-c", "10.0.0.3")]);
    let scaler = start_observed(&api, VictimChoice::Planner).await;
    scale_with(&scaler, 2, &["10.0.0.2"]).await.unwrap();
    let requests = api.requests(&Method::PATCH);
    let paths: Vec<_> = requests.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/api/v1/namespaces/ml/pods/w-b", &format!("{OBJECT_PATH}/scale")]);
    let annotations = json!({ "controller.kubernetes.io/pod-deletion-cost": "-1000001" });
    assert_eq!(requests[0].body, json!({ "metadata": { "annotations": annotations } }));
    let lists = api.requests(&Method::GET);
    let list = lists.iter().find(|request| request.path.ends_with("/pods")).unwrap();
    assert!(list.query.contains("labelSelector=app%3Dfeedline%2Cpool%3Ddefault"), "{}", list.query);
    // A larger number of workers needs no victims.
    wait_for_present(&scaler, Some(2)).await;
    scale(&scaler, 4).await.unwrap();
    assert_eq!(api.requests(&Method::PATCH).len(), 3);
}

#[tokio::test]
async fn without_permission_to_mark_pods_the_scale_still_changes() {
    let api = WorkloadApi::start(3).await;
    let scaler = start_observed(&api, VictimChoice::Planner).await;
    api.set_fault(Method::GET, "/pods", ApiFault::Status(403));
    scale_with(&scaler, 2, &["10.0.0.2"]).await.unwrap();
    assert_eq!(api.replicas(), 2);
}
