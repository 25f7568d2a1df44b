//! Introductions to the other coordinators. This coordinator states its address to them, and asks each address in `--peers`
//! for the id of its coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{MemberInfo, PeerService};
use futures::future::join_all;
use tokio::sync::mpsc;

use crate::peer_event::PeerEvent;
use crate::peers::Peers;

/// Pause before the next round if a coordinator has not answered.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before the next round if all coordinators have answered.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The introductions of this coordinator.
pub(crate) struct Introductions {
    peers: Arc<Peers>,
    /// The addresses in `--peers`.
    urls: Vec<String>,
    events: mpsc::Sender<PeerEvent>,
    /// Clients of the coordinators that have answered. A new client resolves the host name again.
    clients: BTreeMap<String, Arc<dyn PeerService>>,
}

impl Introductions {
    pub(crate) fn new(peers: Arc<Peers>, urls: Vec<String>, events: mpsc::Sender<PeerEvent>) -> Self {
        Self { peers, urls, events, clients: BTreeMap::new() }
    }

    /// Introduces this coordinator again and again, because the other coordinators may restart under other addresses.
    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            let have_all_answered = self.introduce_to_all().await;
            tokio::time::sleep(if have_all_answered { REFRESH_INTERVAL } else { RETRY_INTERVAL }).await;
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
        for (url, answer) in targets.into_iter().zip(answers) {
            match answer {
                Ok((client, answer)) => {
                    self.clients.insert(url, client);
                    // The driver runs as long as this task, and then reads its events.
                    let _ = self.events.send(PeerEvent::Answered(answer)).await;
                }
                Err(refusal) => {
                    tracing::debug!(%url, %refusal, "another coordinator does not answer");
                    self.clients.remove(&url);
                    have_all_answered = false;
                }
            }
        }
        have_all_answered
    }

    async fn introduce_to(&self, url: &str) -> Result<(Arc<dyn PeerService>, MemberInfo), ServiceError> {
        let client = match self.clients.get(url) {
            Some(client) => Arc::clone(client),
            None => self.peers.connect(url)?,
        };
        let late = |_| ServiceError::new(ServiceErrorKind::Unavailable, "no answer in time");
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, client.introduce(self.peers.own().info()));
        let answer = answer.await.map_err(late)??;
        Ok((client, answer))
    }
}
