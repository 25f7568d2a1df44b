//! How several coordinators become a cluster, once: each asks all others who they are.
//!
//! Where all are new they found one, with the same members and the same first state whoever does it first. Where one of
//! them has a state already, a new one starts with none, and learns it from the leader if it is, or becomes, a member.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use feedline_data::messages::ServiceError;
use feedline_proto::{MemberInfo, PeerService};
use feedline_raft::{MemberId, Members, PersistedState};
use futures::future::join_all;
use tokio::time::Instant;

use crate::error::CoordinatorError;
use crate::peers::PeerDirectory;

/// Pause between two rounds of asking.
const RETRY: Duration = Duration::from_millis(200);
/// How often it says for whom it waits.
const SAY: Duration = Duration::from_secs(10);

/// What a new coordinator starts with, and who all are: one without a state must be able to answer whoever has one.
///
/// # Errors
/// For an address that cannot be one.
pub(crate) async fn found(
    own: MemberId,
    url: &str,
    urls: &[String],
    directory: &dyn PeerDirectory,
) -> Result<(PersistedState, Members), CoordinatorError> {
    let refused = |refusal: ServiceError| CoordinatorError::Setting(refusal.message);
    let others = urls.iter().filter(|other| *other != url);
    let peers: Vec<(&str, Arc<dyn PeerService>)> = others
        .map(|other| directory.peer(other).map(|peer| (other.as_str(), peer)).map_err(refused))
        .collect::<Result<_, _>>()?;
    let mut said: Option<Instant> = None;
    loop {
        let introduction = MemberInfo { id: own.get(), has_state: false };
        let asked = peers.iter().map(|(_, peer)| peer.introduce(introduction.clone()));
        let answers = join_all(asked).await;
        let is_founded = answers.iter().flatten().any(|answer| answer.has_state);
        let mut members = BTreeMap::from([(own, url.to_owned())]);
        let mut silent = Vec::new();
        for ((url, _), answer) in peers.iter().zip(answers) {
            match answer.ok().and_then(|answer| MemberId::new(answer.id)) {
                Some(id) => drop(members.insert(id, (*url).to_owned())),
                None => silent.push(*url),
            }
        }
        let is_complete = silent.is_empty() && members.len() == peers.len() + 1;
        let members = Members(members);
        if is_founded {
            return Ok((PersistedState::default(), members));
        }
        if is_complete {
            tracing::info!(members = peers.len() + 1, "the coordinators found a cluster");
            return Ok((PersistedState::founded_by(&members), members));
        }
        if said.is_none_or(|at| at.elapsed() >= SAY) {
            said = Some(Instant::now());
            tracing::info!("waiting for the other coordinators: {}", silent.join(", "));
        }
        tokio::time::sleep(RETRY).await;
    }
}
