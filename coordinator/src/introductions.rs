//! Introductions to the other coordinators. This coordinator states its address to them, and asks each address in `--peers`
//! for the id of its coordinator. A coordinator with an empty disk also asks to join the cluster.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{MemberInfo, PeerService};
use futures::future::join_all;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::peer_event::PeerEvent;
use crate::peers::Peers;

/// Pause before the next round if a coordinator has not answered.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before the next round if all coordinators have answered.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between log messages about rejections.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The introductions of this coordinator.
pub(crate) struct Introductions {
    peers: Arc<Peers>,
    /// The addresses in `--peers`.
    urls: Vec<String>,
    events: mpsc::Sender<PeerEvent>,
    /// Clients of the coordinators that have answered. A new client resolves the host name again. The client of a coordinator
    /// with another protocol version stays, because each client logs the first rejection of the version.
    clients: BTreeMap<String, Arc<dyn PeerService>>,
    logged_at: Option<Instant>,
}

impl Introductions {
    pub(crate) fn new(peers: Arc<Peers>, urls: Vec<String>, events: mpsc::Sender<PeerEvent>) -> Self {
        Self { peers, urls, events, clients: BTreeMap::new(), logged_at: None }
    }

    /// Introduces this coordinator again and again, because the other coordinators may restart under other addresses.
    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            let have_all_answered = self.introduce_to_all().await;
            let has_state = self.peers.own().has_state();
            if !has_state && let Err(refusal) = self.join().await {
                self.log("waiting to join the cluster", &refusal);
            }
            let is_complete = have_all_answered && has_state;
            tokio::time::sleep(if is_complete { REFRESH_INTERVAL } else { RETRY_INTERVAL }).await;
        }
    }

    /// Introduces this coordinator to all other coordinators. Returns whether all have answered.
    async fn introduce_to_all(&mut self) -> bool {
        let own = &self.peers.own().url;
        let known = self.peers.urls();
        let targets: BTreeSet<String> =
            self.urls.iter().chain(&known).filter(|url| *url != own).cloned().collect();
        self.clients.retain(|url, _| targets.contains(url));
        let questions: Vec<_> = targets.iter().map(|url| self.introduce_to(url)).collect();
        let answers = join_all(questions).await;
        let mut have_all_answered = true;
        for (url, (client, answer)) in targets.into_iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    // The driver runs as long as this task, and then reads its events.
                    let _ = self.events.send(PeerEvent::Answered(answer)).await;
                }
                Err(refusal) => {
                    if refusal.kind == ServiceErrorKind::Denied {
                        self.log("another coordinator rejects this coordinator", &refusal);
                    }
                    tracing::debug!(%url, %refusal, "another coordinator does not answer");
                    have_all_answered = false;
                }
            }
            match client {
                Some(client) => drop(self.clients.insert(url, client)),
                None => drop(self.clients.remove(&url)),
            }
        }
        have_all_answered
    }

    /// Introduces this coordinator to the coordinator at `url`. Returns the answer, and the client for further requests.
    async fn introduce_to(
        &self,
        url: &str,
    ) -> (Option<Arc<dyn PeerService>>, Result<MemberInfo, ServiceError>) {
        let client = match self.client(url) {
            Ok(client) => client,
            Err(refusal) => return (None, Err(refusal)),
        };
        let answer = in_time(client.introduce(self.peers.own().info())).await;
        let is_lost = matches!(&answer, Err(refusal) if !refusal.is_version_mismatch);
        ((!is_lost).then_some(client), answer)
    }

    /// Asks to join: first the coordinators that have answered, then the leader that they name.
    async fn join(&self) -> Result<(), ServiceError> {
        let mut queue: VecDeque<String> = self.clients.keys().cloned().collect();
        let mut asked = BTreeSet::new();
        let mut last = None;
        while let Some(url) = queue.pop_front() {
            if !asked.insert(url.clone()) {
                continue;
            }
            let client = match self.client(&url) {
                Ok(client) => client,
                // A follower has named a malformed address of the leader.
                Err(refusal) => {
                    last = last.or(Some(refusal));
                    continue;
                }
            };
            let Err(refusal) = in_time(client.join(self.peers.own().info())).await else { return Ok(()) };
            match &refusal.leader {
                Some(leader) => queue.push_front(leader.clone()),
                // The reason of a coordinator of the same version is more useful.
                None if refusal.is_version_mismatch => last = last.or(Some(refusal)),
                None => last = Some(refusal),
            }
        }
        let silent = || ServiceError::new(ServiceErrorKind::Unavailable, "no coordinator in --peers answers");
        Err(last.unwrap_or_else(silent))
    }

    fn client(&self, url: &str) -> Result<Arc<dyn PeerService>, ServiceError> {
        self.clients.get(url).map_or_else(|| self.peers.connect(url), |client| Ok(Arc::clone(client)))
    }

    /// Logs a rejection, unless another was logged shortly before.
    fn log(&mut self, problem: &str, refusal: &ServiceError) {
        if self.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            self.logged_at = Some(Instant::now());
            tracing::warn!("{problem}: {refusal}");
        }
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, ServiceError>>) -> Result<T, ServiceError> {
    let late =
        |_| ServiceError::new(ServiceErrorKind::Unavailable, "another coordinator did not answer in time");
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.map_err(late)?
}

#[cfg(test)]
mod tests;
