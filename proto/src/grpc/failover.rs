//! A client of a cluster of coordinators: finds the leader from any address, and fails over to another coordinator.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind};

use super::coordinator_client::connect_coordinator;
use crate::rpc::{CoordinatorReply, CoordinatorRequest, CoordinatorService, Retry};

/// Returns a client of the cluster that these coordinators are members of. The client sends its requests to the leader and
/// fails over when the leader does not answer. One address suffices: the client learns the others.
///
/// # Errors
/// Returns the errors of [`connect_coordinator`].
pub fn connect_coordinators(
    urls: &[String],
    credentials: &Credentials,
) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
    Ok(Arc::new(FailoverCoordinator::new(urls, credentials)?))
}

/// A client of a cluster of coordinators.
pub(super) struct FailoverCoordinator {
    directory: Arc<Mutex<CoordinatorDirectory>>,
    credentials: Credentials,
}

/// The addresses of the coordinators.
struct CoordinatorDirectory {
    urls: Vec<String>,
    /// Index of the coordinator that receives the requests.
    current: usize,
    clients: BTreeMap<String, Arc<dyn CoordinatorService>>,
    /// Whether the current coordinator has been asked for the addresses of all members.
    has_learned_members: bool,
}

/// The coordinator that receives a request.
struct Target {
    url: String,
    client: Arc<dyn CoordinatorService>,
    other_coordinators: usize,
}

impl FailoverCoordinator {
    pub(super) fn new(urls: &[String], credentials: &Credentials) -> Result<Self, ServiceError> {
        let mut clients = BTreeMap::new();
        for url in urls {
            clients.insert(url.clone(), connect_coordinator(url, credentials)?);
        }
        if urls.is_empty() {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                "the list of coordinators is empty; add at least one address, such as http://HOST:PORT",
            ));
        }
        let directory =
            CoordinatorDirectory { urls: urls.to_vec(), current: 0, clients, has_learned_members: false };
        Ok(Self { directory: Arc::new(Mutex::new(directory)), credentials: credentials.clone() })
    }

    fn target(&self) -> Result<Target, ServiceError> {
        let mut directory = lock(&self.directory);
        let url = directory.urls[directory.current].clone();
        let client = match directory.clients.get(&url) {
            Some(client) => Arc::clone(client),
            None => {
                let client = connect_coordinator(&url, &self.credentials)?;
                directory.clients.insert(url.clone(), Arc::clone(&client));
                client
            }
        };
        Ok(Target { url, client, other_coordinators: directory.urls.len() - 1 })
    }

    /// Selects the leader, or the next coordinator if the leader is unknown. Does nothing if another request has already
    /// switched away from `url`. Returns `false` if there is no other coordinator.
    fn switch_from(&self, url: &str, leader: Option<&str>) -> bool {
        let mut directory = lock(&self.directory);
        if directory.urls[directory.current] != url {
            return true;
        }
        directory.has_learned_members = false;
        match leader {
            Some(leader) => {
                directory.current = directory.index_of(leader);
                leader != url
            }
            None => {
                directory.current = (directory.current + 1) % directory.urls.len();
                directory.urls.len() > 1
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
                let mut directory = lock(&shared);
                members.iter().for_each(|member| _ = directory.index_of(&member.url));
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
        lock(&self.directory).urls.clone()
    }
}

impl CoordinatorDirectory {
    /// Returns the index of an address. Adds the address if it is new.
    fn index_of(&mut self, url: &str) -> usize {
        self.urls.iter().position(|known| known == url).unwrap_or_else(|| {
            self.urls.push(url.to_owned());
            self.urls.len() - 1
        })
    }
}

#[async_trait]
impl CoordinatorService for FailoverCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        let retry = request.rpc().retry;
        let mut attempts = 0;
        let mut mismatch = None;
        loop {
            let Target { url, client, other_coordinators } = self.target()?;
            let result = match retry {
                Retry::Never => return client.call(request).await,
                Retry::After(patience) if other_coordinators > 0 => {
                    let result = tokio::time::timeout(patience, client.call(request.clone())).await;
                    result.unwrap_or_else(|_| {
                        let message = format!("the coordinator at {url} is not responding");
                        Err(ServiceError::new(ServiceErrorKind::Unavailable, message))
                    })
                }
                Retry::After(_) | Retry::IfUnavailable => client.call(request.clone()).await,
            };
            let error = match result {
                Err(error) if error.kind == ServiceErrorKind::Unavailable => error,
                result => {
                    self.learn_members(client);
                    return result;
                }
            };
            attempts += 1;
            let has_switched = self.switch_from(&url, error.leader.as_deref());
            if error.is_version_mismatch {
                mismatch = Some(error.clone());
            }
            // One attempt per coordinator, and one more at the leader that the last coordinator names.
            if !has_switched || attempts > other_coordinators + 1 {
                // During an upgrade, callers retry for longer than after the loss of all coordinators.
                return Err(mismatch.unwrap_or(error));
            }
        }
    }
}
