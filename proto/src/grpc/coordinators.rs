//! A cluster of coordinators as one service to its caller: finds the one that leads, from any address.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, ServiceError,
    ServiceErrorKind, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;
use feedline_data::position_history::StepId;
use feedline_data::view::ClusterView;

use crate::services::CoordinatorService;

/// A report that was not answered after this long is sent to another coordinator, if there is one: the leader answers
/// after half a second.
pub const REPORT_PATIENCE: Duration = Duration::from_millis(900);

/// The same for what a leader looks up, which may be asked for again.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(2);

/// Coordinators, and which of them is asked.
struct Known {
    urls: Vec<String>,
    /// Place of the one that is asked.
    asked: usize,
    clients: BTreeMap<String, Arc<dyn CoordinatorService>>,
    /// Whether the one that leads was asked for the others since another was asked.
    has_learnt: bool,
}

/// A cluster of coordinators.
pub(super) struct FailoverCoordinator {
    known: Arc<Mutex<Known>>,
    credentials: Credentials,
}

impl FailoverCoordinator {
    pub(super) fn new(urls: &[String], credentials: &Credentials) -> Result<Self, ServiceError> {
        let mut clients = BTreeMap::new();
        for url in urls {
            clients.insert(url.clone(), super::connect_coordinator(url, credentials)?);
        }
        if urls.is_empty() {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                "no coordinator is named; name one, such as http://HOST:PORT",
            ));
        }
        let known = Known { urls: urls.to_vec(), asked: 0, clients, has_learnt: false };
        Ok(Self { known: Arc::new(Mutex::new(known)), credentials: credentials.clone() })
    }

    /// Asks the one that leads; `patience` is how long it may take, where there are others.
    async fn ask<T, F>(
        &self,
        patience: Option<Duration>,
        ask: impl Fn(Arc<dyn CoordinatorService>) -> F + Send + Sync,
    ) -> Result<T, ServiceError>
    where
        T: Send,
        F: Future<Output = Result<T, ServiceError>> + Send,
    {
        let mut tries = 0;
        loop {
            let (url, client, others) = self.asked()?;
            let asked = ask(client);
            let answer = match patience.filter(|_| others > 0) {
                Some(patience) => tokio::time::timeout(patience, asked).await.unwrap_or_else(|_| {
                    Err(ServiceError::new(
                        ServiceErrorKind::Unavailable,
                        format!("the coordinator at {url} does not answer"),
                    ))
                }),
                None => asked.await,
            };
            let refusal = match answer {
                Err(refusal) if refusal.kind == ServiceErrorKind::Unavailable => refusal,
                answer => {
                    self.learn(&url);
                    return answer;
                }
            };
            tries += 1;
            let goes_on = self.turn_from(&url, refusal.leader.as_deref());
            // Once around, and once to where the last one points.
            if !goes_on || tries > others + 1 {
                return Err(refusal);
            }
        }
    }

    fn asked(&self) -> Result<(String, Arc<dyn CoordinatorService>, usize), ServiceError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let url = known.urls[known.asked].clone();
        let client = match known.clients.get(&url) {
            Some(client) => Arc::clone(client),
            None => {
                let client = super::connect_coordinator(&url, &self.credentials)?;
                known.clients.insert(url.clone(), Arc::clone(&client));
                client
            }
        };
        Ok((url, client, known.urls.len() - 1))
    }

    /// Asks another from now on, unless somebody else has turned from this one already: the one that leads, or the next.
    /// `false` where there is no other.
    fn turn_from(&self, url: &str, leader: Option<&str>) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.urls[known.asked] != url {
            return true;
        }
        known.has_learnt = false;
        match leader {
            Some(leader) => {
                known.asked = known.place_of(leader);
                leader != url
            }
            None => {
                known.asked = (known.asked + 1) % known.urls.len();
                known.urls.len() > 1
            }
        }
    }

    /// Asks the one that answered for the others, once.
    fn learn(&self, url: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut known.has_learnt, true) {
            return;
        }
        let Ok(members) = super::connect_members(url, &self.credentials) else { return };
        let shared = Arc::clone(&self.known);
        tokio::spawn(async move {
            // One alone may not know by which address it is found.
            let Ok(found) = members.members().await else { return };
            let mut known = shared.lock().unwrap_or_else(PoisonError::into_inner);
            for member in found.iter().filter(|_| found.len() > 1) {
                known.place_of(&member.url);
            }
        });
    }
}

#[cfg(test)]
impl FailoverCoordinator {
    /// All that it knows of.
    pub(super) fn urls(&self) -> Vec<String> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).urls.clone()
    }
}

impl Known {
    /// Where this one stands in the list, which it is added to if it is new.
    fn place_of(&mut self, url: &str) -> usize {
        self.urls.iter().position(|known| known == url).unwrap_or_else(|| {
            self.urls.push(url.to_owned());
            self.urls.len() - 1
        })
    }
}

#[async_trait]
impl CoordinatorService for FailoverCoordinator {
    async fn open_job(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        self.ask(None, |it| {
            let spec = spec.clone();
            async move { it.open_job(spec).await }
        })
        .await
    }

    async fn cancel_job(&self, job: JobId) -> Result<(), ServiceError> {
        self.ask(Some(LOOKUP_PATIENCE), |it| async move { it.cancel_job(job).await }).await
    }

    async fn set_weights(&self, job: JobId, weights: Vec<f64>) -> Result<MixChange, ServiceError> {
        self.ask(Some(LOOKUP_PATIENCE), |it| {
            let weights = weights.clone();
            async move { it.set_weights(job, weights).await }
        })
        .await
    }

    async fn job_details(&self, job: JobId) -> Result<JobDetails, ServiceError> {
        self.ask(Some(LOOKUP_PATIENCE), |it| async move { it.job_details(job).await }).await
    }

    async fn job_status(&self, job: JobId) -> Result<JobStatus, ServiceError> {
        self.ask(Some(REPORT_PATIENCE), |it| async move { it.job_status(job).await }).await
    }

    async fn list_jobs(&self) -> Result<Vec<JobStatus>, ServiceError> {
        self.ask(Some(REPORT_PATIENCE), |it| async move { it.list_jobs().await }).await
    }

    async fn cluster(&self) -> Result<ClusterView, ServiceError> {
        self.ask(Some(REPORT_PATIENCE), |it| async move { it.cluster().await }).await
    }

    async fn manifest(&self, job: JobId) -> Result<Arc<Manifest>, ServiceError> {
        self.ask(None, |it| async move { it.manifest(job).await }).await
    }

    async fn sync_worker(&self, report: WorkerReport) -> Result<WorkerPlan, ServiceError> {
        self.ask(Some(REPORT_PATIENCE), |it| {
            let report = report.clone();
            async move { it.sync_worker(report).await }
        })
        .await
    }

    async fn sync_consumer(&self, report: ConsumerReport) -> Result<ConsumerPlan, ServiceError> {
        self.ask(Some(REPORT_PATIENCE), |it| {
            let report = report.clone();
            async move { it.sync_consumer(report).await }
        })
        .await
    }

    async fn places(&self, job: JobId, step: StepId) -> Result<GroupPositions, ServiceError> {
        self.ask(Some(REPORT_PATIENCE), |it| async move { it.places(job, step).await }).await
    }
}
