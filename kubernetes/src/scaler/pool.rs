//! One pool: observes the object whose pods are the workers, and changes its number of replicas.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use feedline_coordinator::PoolChange;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::api_health::ApiHealth;
use super::call_failure::{CallFailure, call};
use super::deletion_cost;
use super::pending_pods::{self, Shortage};
use super::workload::{PoolTarget, WorkloadState};
use crate::metrics::ScaleCallResult;

/// Name of this process in the managed fields of objects.
const FIELD_MANAGER: &str = "feedline";
/// Duration of a watch request in seconds. A lost connection is detected five seconds later.
const WATCH_SECONDS: u32 = 30;
/// Maximum time to annotate the pods of victims. A repeated call annotates the remaining pods.
const MAX_ANNOTATION_TIME: Duration = Duration::from_secs(4);
/// Time between two attempts to read the object while the watch fails, and between two checks of the pods.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Time since the last request for the number of workers after which another coordinator leads. The leader requests it with
/// each plan.
const LEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A pool.
pub(super) struct ScaledPool {
    pub(super) target: PoolTarget,
    objects: Api<DynamicObject>,
    pods: Api<Pod>,
    health: Arc<ApiHealth>,
    /// The last observed state; `None` before the first observation, and if the object does not exist.
    state: watch::Sender<Option<WorkloadState>>,
    /// Time of the last request for the number of workers.
    requested_at: Mutex<Option<Instant>>,
}

impl ScaledPool {
    pub(super) fn new(target: PoolTarget, client: &Client, namespace: &str, health: Arc<ApiHealth>) -> Self {
        Self {
            objects: Api::namespaced_with(client.clone(), namespace, &target.resource()),
            pods: Api::namespaced(client.clone(), namespace),
            health,
            state: watch::Sender::new(None),
            requested_at: Mutex::default(),
            target,
        }
    }

    /// Returns the wanted number of pods; `None` while it is unknown. Only the leader calls this method.
    pub(super) fn replicas(&self) -> Option<u32> {
        *self.requested_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.state.borrow().as_ref().map(|state| state.replicas)
    }

    /// Changes the wanted number of pods, unless the object has changed since it was observed. With `has_victims`, the pods
    /// of the victims are annotated first.
    pub(super) async fn scale(&self, change: &PoolChange, has_victims: bool) -> Result<(), String> {
        let Some(state) = self.state.borrow().clone() else {
            return Err(format!("{} has not been read yet", self.target.display()));
        };
        if state.replicas == change.wanted {
            return Ok(());
        }
        if has_victims && change.wanted < state.replicas {
            self.annotate(&state, &change.victims).await;
        }
        // The API server rejects the patch if the object has another version, for example because another coordinator that
        // still considers itself the leader has scaled it.
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": state.resource_version },
            "spec": { "replicas": change.wanted },
        }));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match call(self.objects.patch_scale(&self.target.object, &params, &patch)).await {
            Ok(_) => {
                ScaleCallResult::Changed.count();
                Ok(())
            }
            Err(failure) => self.on_failed_scaling(&failure),
        }
    }

    fn on_failed_scaling(&self, failure: &CallFailure) -> Result<(), String> {
        failure.result().count();
        if *failure == CallFailure::Conflict {
            // The next plan decides with the current state.
            tracing::debug!(pool = self.target.limits.pool, "the object has changed before it was scaled");
            return Ok(());
        }
        Err(failure.sentence(&self.target.display(), "change the scale of"))
    }

    /// Annotates the pods of the victims. Without annotations, Kubernetes chooses the pods, and no row is lost either.
    async fn annotate(&self, state: &WorkloadState, victims: &[String]) {
        if state.selector.is_empty() {
            return;
        }
        // The message of each failure is logged once.
        let requests = format!("pods of {}", self.target.limits.pool);
        let annotating = deletion_cost::annotate(&self.pods, &state.selector, victims);
        let problem = match timeout(MAX_ANNOTATION_TIME, annotating).await {
            Ok(Ok(())) => return self.health.on_accepted(&requests),
            Ok(Err(failure)) => {
                failure.sentence(&format!("the pods of {}", self.target.display()), "list and patch")
            }
            Err(_) => {
                let seconds = MAX_ANNOTATION_TIME.as_secs();
                format!("the pods of {} could not be annotated within {seconds} s", self.target.display())
            }
        };
        self.health.on_rejected(&requests, format!("{problem}; Kubernetes chooses the workers that stop"));
    }

    /// Observes the object until the future is dropped.
    pub(super) async fn observe(self: Arc<Self>) {
        let fields = format!("metadata.name={}", self.target.object);
        let config = watcher::Config::default().fields(&fields).timeout(WATCH_SECONDS);
        let mut events = pin!(watch_objects(self.objects.clone(), config).default_backoff());
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut observation = Observation::default();
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => self.on_event(event, &mut observation),
                    Some(Err(error)) => self.on_watch_error(&error, &mut observation),
                    // The stream of a watcher does not end.
                    None => return,
                },
                _ = ticks.tick() => {
                    if observation.is_watch_failing {
                        self.read(&mut observation).await;
                    }
                    self.check_pods(&mut observation.shortage).await;
                }
            }
        }
    }

    fn on_event(&self, event: Event<DynamicObject>, observation: &mut Observation) {
        if matches!(event, Event::Init) {
            // The watcher is about to list the objects, and the API server has not answered yet.
            observation.is_listed = false;
            return;
        }
        observation.is_watch_failing = false;
        self.health.on_answer(&self.target.limits.pool);
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                observation.is_listed = true;
                self.set_state(Some(WorkloadState::of(&object)), observation);
            }
            Event::Delete(_) => self.set_state(None, observation),
            Event::InitDone if !observation.is_listed => self.set_state(None, observation),
            Event::Init | Event::InitDone => {}
        }
    }

    /// Reads the object at the next tick, because the watch reports no success before the object changes.
    fn on_watch_error(&self, error: &watcher::Error, observation: &mut Observation) {
        let Some(failure) = CallFailure::of_watch(error) else { return };
        observation.is_watch_failing = true;
        let sentence = failure.sentence(&self.target.display(), "list and watch");
        if failure.is_temporary() {
            tracing::debug!("{sentence}");
        } else {
            self.health.on_rejected(&self.target.limits.pool, sentence);
        }
    }

    /// Reads the object without the watch.
    async fn read(&self, observation: &mut Observation) {
        let pool = &self.target.limits.pool;
        match call(self.objects.get(&self.target.object)).await {
            Ok(object) => {
                self.health.on_answer(pool);
                self.set_state(Some(WorkloadState::of(&object)), observation);
            }
            Err(CallFailure::NotFound) => {
                self.health.on_answer(pool);
                self.set_state(None, observation);
            }
            Err(failure) => {
                let sentence = failure.sentence(&self.target.display(), "get");
                if failure.is_temporary() {
                    self.health.on_unanswered(pool, &sentence);
                } else {
                    self.health.on_answer(pool);
                    self.health.on_rejected(pool, sentence);
                }
            }
        }
    }

    fn set_state(&self, state: Option<WorkloadState>, observation: &mut Observation) {
        let pool = &self.target.limits.pool;
        if state.is_none() {
            let sentence = CallFailure::NotFound.sentence(&self.target.display(), "get");
            self.health.on_rejected(pool, sentence);
        } else if !observation.is_watch_failing {
            self.health.on_accepted(pool);
        }
        observation.shortage.on_state(state.as_ref());
        self.state.send_replace(state);
    }

    /// Logs one warning if pods do not become ready. Only the coordinator that scales the pool does so.
    async fn check_pods(&self, shortage: &mut Shortage) {
        let requested_at = *self.requested_at.lock().unwrap_or_else(PoisonError::into_inner);
        if requested_at.is_none_or(|requested| requested.elapsed() > LEADER_TIMEOUT)
            || !shortage.is_search_due()
        {
            return;
        }
        let Some(state) = self.state.borrow().clone() else { return };
        if let Some(reason) = pending_pods::reason(&self.pods, &state).await {
            shortage.set_reported();
            let pool = &self.target.limits.pool;
            tracing::warn!("workers of pool {pool} do not start: {reason}");
        }
    }
}

/// The state of the task that observes a pool.
#[derive(Debug, Default)]
struct Observation {
    /// Whether the watch has failed since its last event.
    is_watch_failing: bool,
    /// Whether the current list contains the object.
    is_listed: bool,
    shortage: Shortage,
}

#[cfg(test)]
impl ScaledPool {
    /// Returns the observed states.
    pub(super) fn states(&self) -> watch::Receiver<Option<WorkloadState>> {
        self.state.subscribe()
    }

    /// Returns the pools without an answer, and the pools with a rejected request.
    pub(super) fn failing(&self) -> (Vec<String>, Vec<String>) {
        self.health.failing()
    }
}
