//! Bootstrap of a cluster from new coordinators. Each coordinator asks all others for their ids.
//!
//! If all coordinators are new, each coordinator starts with the same members and the same initial state. If any coordinator
//! has a state, a new coordinator starts empty, asks the leader to join, and receives the state from the leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use feedline_data::messages::ServiceError;
use feedline_proto::PeerService;
use feedline_raft::{MemberId, Members, PersistedState};
use futures::future::join_all;
use tokio::time::Instant;

use crate::error::CoordinatorError;
use crate::peers::Peers;

/// Pause between two rounds of requests.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Interval between log messages about missing coordinators.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the initial state of a new coordinator.
///
/// # Errors
/// Returns an error if an address is invalid.
pub(crate) async fn bootstrap(
    directory: &Peers,
    urls: &[String],
) -> Result<PersistedState, CoordinatorError> {
    let refused = |refusal: ServiceError| CoordinatorError::Setting(refusal.message);
    let own = directory.own();
    let others = urls.iter().filter(|other| **other != own.url);
    let peers: Vec<(&str, Arc<dyn PeerService>)> = others
        .map(|other| directory.connect(other).map(|peer| (other.as_str(), peer)).map_err(refused))
        .collect::<Result<_, _>>()?;
    let mut logged_at: Option<Instant> = None;
    loop {
        let requests = peers.iter().map(|(_, peer)| peer.introduce(own.info()));
        let answers = join_all(requests).await;
        let has_cluster = answers.iter().flatten().any(|answer| answer.has_state);
        let mut members = BTreeMap::from([(own.id, own.url.clone())]);
        let mut silent = Vec::new();
        for ((url, _), answer) in peers.iter().zip(answers) {
            match answer.ok().and_then(|answer| MemberId::new(answer.id)) {
                Some(id) => drop(members.insert(id, (*url).to_owned())),
                None => silent.push(*url),
            }
        }
        let is_complete = silent.is_empty() && members.len() == peers.len() + 1;
        if has_cluster {
            return Ok(PersistedState::default());
        }
        if is_complete {
            tracing::info!(members = peers.len() + 1, "bootstrapping the cluster");
            return Ok(PersistedState::bootstrap(&Members(members)));
        }
        if logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            logged_at = Some(Instant::now());
            tracing::info!("waiting for the other coordinators: {}", silent.join(", "));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
