//! A scaler for workers in pods of Kubernetes: changes the number of replicas of Deployments and StatefulSets.
//!
//! The present number of workers is the wanted number of pods, so that pods that have not started yet count as present.
//! A change carries the version of the object as a precondition. If two coordinators decide at the same time, the API server
//! rejects the second change, and the next plan decides again.

mod api_health;
mod call_failure;
mod deletion_cost;
mod pending_pods;
mod pool;
#[cfg(test)]
mod tests;
mod workload;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_coordinator::{PoolChange, PoolLimits, Scaler};
use kube::Client;
use tokio::task::JoinSet;

use self::api_health::ApiHealth;
use self::pool::ScaledPool;
pub use self::workload::{PoolTarget, WorkloadKind};
use crate::metrics;

/// Who chooses the workers that stop first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VictimChoice {
    /// Kubernetes: a ReplicaSet deletes the newest pods first, a StatefulSet those with the highest numbers.
    #[default]
    Kubernetes,
    /// The planner: the workers with the smallest caches. Annotates pods, and has no effect on a StatefulSet.
    Planner,
}

/// Settings of a [`KubernetesScaler`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesScalerSettings {
    /// Namespace of the objects; `None` means the default namespace of the client.
    pub namespace: Option<String>,
    /// The pools. Their names differ.
    pub pools: Vec<PoolTarget>,
    /// Who chooses the workers that stop.
    pub victims: VictimChoice,
}

/// Changes the number of pods of worker pools.
pub struct KubernetesScaler {
    pools: Vec<Arc<ScaledPool>>,
    victims: VictimChoice,
    /// The tasks that observe the pools. They end when this value is dropped.
    _observers: JoinSet<()>,
}

impl fmt::Debug for KubernetesScaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pools: Vec<_> = self.pools.iter().map(|pool| &pool.target).collect();
        f.debug_struct("KubernetesScaler").field("pools", &pools).finish_non_exhaustive()
    }
}

impl KubernetesScaler {
    /// Observes the objects of the pools until the scaler is dropped. Must be called inside a tokio runtime.
    pub fn start(client: &Client, settings: KubernetesScalerSettings) -> Self {
        metrics::register();
        let health = Arc::new(ApiHealth::default());
        let namespace = settings.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
        let pool = |target| Arc::new(ScaledPool::new(target, client, namespace, Arc::clone(&health)));
        let pools: Vec<Arc<ScaledPool>> = settings.pools.into_iter().map(pool).collect();
        let mut observers = JoinSet::new();
        for pool in &pools {
            observers.spawn(Arc::clone(pool).observe());
        }
        Self { pools, victims: settings.victims, _observers: observers }
    }

    fn pool(&self, name: &str) -> Option<&ScaledPool> {
        self.pools.iter().find(|pool| pool.target.limits.pool == name).map(Arc::as_ref)
    }
}

#[async_trait]
impl Scaler for KubernetesScaler {
    fn pools(&self) -> Vec<PoolLimits> {
        self.pools.iter().map(|pool| pool.target.limits.clone()).collect()
    }

    fn present(&self, pool: &str, _live: u32) -> Option<u32> {
        self.pool(pool)?.replicas()
    }

    async fn scale(&self, change: &PoolChange) -> Result<(), String> {
        let Some(pool) = self.pool(&change.pool) else {
            return Err(format!("no --scale-pool has the name {}", change.pool));
        };
        let has_victims =
            self.victims == VictimChoice::Planner && pool.target.kind == WorkloadKind::Deployment;
        pool.scale(change, has_victims).await
    }
}
