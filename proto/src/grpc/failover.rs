//! A client of a cluster of coordinators: finds the leader from any address, and fails over to another coordinator.

mod directory;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_common::backoff::spread;
use feedline_data::messages::{ServiceError, ServiceErrorKind};

use self::directory::{CoordinatorDirectory, NextTarget, RequestTarget};
use crate::rpc::{CoordinatorReply, CoordinatorRequest, CoordinatorService, Retry};

/// Maximum number of new connections for one request. A load balancer may select the same coordinator several times.
const MAX_NEW_CONNECTIONS: u32 = 5;
/// Minimum pause before the first new connection. It doubles with each further one.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Returns a client of the cluster that these coordinators are members of. The client sends its requests to the leader and
/// fails over when the leader does not answer. One address suffices: the client learns the others. An address may belong to
/// a load balancer: if the addresses of the coordinators are unreachable, the client connects to the balancer again until it
/// reaches the leader.
///
/// # Errors
/// Returns the errors of [`connect_coordinator`](super::connect_coordinator).
pub fn connect_coordinators(
    urls: &[String],
    credentials: &Credentials,
) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
    Ok(Arc::new(FailoverCoordinator::new(urls, credentials)?))
}

/// A client of a cluster of coordinators.
pub(super) struct FailoverCoordinator {
    directory: Arc<Mutex<CoordinatorDirectory>>,
}

impl FailoverCoordinator {
    pub(super) fn new(urls: &[String], credentials: &Credentials) -> Result<Self, ServiceError> {
        let directory = CoordinatorDirectory::new(urls, credentials)?;
        Ok(Self { directory: Arc::new(Mutex::new(directory)) })
    }

    /// Sends a request to a coordinator once, and records whether the coordinator answered.
    async fn attempt(
        &self,
        target: &RequestTarget,
        request: CoordinatorRequest,
    ) -> Result<CoordinatorReply, ServiceError> {
        let result = match request.rpc().retry {
            Retry::After(patience) if target.other_coordinators > 0 => {
                let result = tokio::time::timeout(patience, target.client.call(request)).await;
                result.unwrap_or_else(|_| Err(target.not_responding()))
            }
            _ => target.client.call(request).await,
        };
        let unavailable = result.as_ref().err().filter(|error| error.kind == ServiceErrorKind::Unavailable);
        let is_unreachable = unavailable.is_some_and(|error| error.is_unreachable);
        lock(&self.directory).record(&target.url, is_unreachable, Instant::now());
        if unavailable.is_none() {
            self.learn_members(Arc::clone(&target.client));
        }
        result
    }

    /// Sends a request to a leader whose address was unreachable a moment ago. `error` is the answer of a follower.
    async fn attempt_at_leader(
        &self,
        request: CoordinatorRequest,
        error: ServiceError,
    ) -> Result<CoordinatorReply, ServiceError> {
        let named = error.leader.as_deref().and_then(|leader| lock(&self.directory).target_of(leader));
        let Some(target) = named else { return Err(error) };
        match self.attempt(&target, request).await {
            Err(reason) if reason.is_unreachable => {
                let message = format!(
                    "the configured coordinators are followers, and the address of their leader is unreachable: {reason}"
                );
                Err(ServiceError { message, ..error })
            }
            result => {
                lock(&self.directory).select(&target.url);
                result
            }
        }
    }

    /// After a coordinator has answered a request, asks it once for the addresses of all members.
    fn learn_members(&self, client: Arc<dyn CoordinatorService>) {
        if std::mem::replace(&mut lock(&self.directory).has_learned_members, true) {
            return;
        }
        let shared = Arc::clone(&self.directory);
        tokio::spawn(async move {
            let Ok(members) = client.members().await else { return };
            // A single coordinator may not know the address that clients use.
            if members.len() > 1 {
                let urls: Vec<&str> = members.iter().map(|member| member.url.as_str()).collect();
                lock(&shared).set_members(&urls);
            }
        });
    }
}

fn lock(directory: &Mutex<CoordinatorDirectory>) -> MutexGuard<'_, CoordinatorDirectory> {
    directory.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl FailoverCoordinator {
    /// All addresses in the directory.
    pub(super) fn urls(&self) -> Vec<String> {
        lock(&self.directory).urls()
    }
}

#[async_trait]
impl CoordinatorService for FailoverCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        let (mut switches, mut new_connections) = (0, 0);
        let mut mismatch = None;
        loop {
            let target = lock(&self.directory).current_target()?;
            if request.rpc().retry == Retry::Never {
                return target.client.call(request).await;
            }
            let error = match self.attempt(&target, request.clone()).await {
                Err(error) if error.kind == ServiceErrorKind::Unavailable => error,
                result => return result,
            };
            let (next, coordinators) = {
                let mut directory = lock(&self.directory);
                let next = directory.switch_from(&target, error.leader.as_deref(), Instant::now());
                (next, directory.len())
            };
            if error.is_version_mismatch {
                mismatch = Some(error.clone());
            }
            match next {
                // One attempt per coordinator, and one more at the leader that the last coordinator names.
                NextTarget::OtherAddress if switches < coordinators => switches += 1,
                NextTarget::NewConnection if new_connections < MAX_NEW_CONNECTIONS => {
                    tokio::time::sleep(spread(RECONNECT_PAUSE * (1 << new_connections))).await;
                    new_connections += 1;
                }
                NextTarget::NewConnection if mismatch.is_none() => {
                    return self.attempt_at_leader(request, error).await;
                }
                // During an upgrade, callers retry for longer than after the loss of all coordinators.
                _ => return Err(mismatch.unwrap_or(error)),
            }
        }
    }
}
