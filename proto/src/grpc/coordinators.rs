//! A cluster of coordinators as one service to its caller: finds the one that leads, from any address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_data::messages::{ServiceError, ServiceErrorKind};

use crate::rpc::{CoordinatorReply, CoordinatorRequest, CoordinatorService, Retry};

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
    fn learn(&self, client: Arc<dyn CoordinatorService>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut known.has_learnt, true) {
            return;
        }
        drop(known);
        let shared = Arc::clone(&self.known);
        tokio::spawn(async move {
            // One alone may not know by which address it is found.
            let Ok(found) = client.members().await else { return };
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
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        let retry = request.rpc().retry;
        let mut tries = 0;
        loop {
            let (url, client, others) = self.asked()?;
            let answer = match retry {
                Retry::Never => return client.call(request).await,
                Retry::After(patience) if others > 0 => {
                    let answer = tokio::time::timeout(patience, client.call(request.clone())).await;
                    answer.unwrap_or_else(|_| {
                        Err(ServiceError::new(
                            ServiceErrorKind::Unavailable,
                            format!("the coordinator at {url} does not answer"),
                        ))
                    })
                }
                Retry::After(_) | Retry::IfUnavailable => client.call(request.clone()).await,
            };
            let refusal = match answer {
                Err(refusal) if refusal.kind == ServiceErrorKind::Unavailable => refusal,
                answer => {
                    self.learn(client);
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
}
