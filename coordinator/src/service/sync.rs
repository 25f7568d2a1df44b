//! `feedline members sync`: removes the coordinators that are at none of the given addresses.

use std::collections::BTreeSet;

use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::MemberStatus;
use feedline_raft::{MemberId, MemberView, MembershipChange};
use futures::future::join_all;

use super::LocalCoordinator;

impl LocalCoordinator {
    /// Removes the members whose ids are at none of these addresses, one at a time. Ids are compared, because the membership
    /// may contain other names of the same coordinators. If this leader is to be removed, transfers leadership first, and
    /// returns the error that names the next leader.
    pub(super) async fn sync_members(&self, urls: &[String]) -> Result<Vec<MemberStatus>, ServiceError> {
        // Only the leader removes members.
        self.views().await?;
        let ids = self.ids_at(urls).await?;
        let members = self.views().await?;
        let is_present = |id: &MemberId| members.iter().any(|member| member.id == *id);
        if let Some((url, id)) = urls.iter().zip(&ids).find(|(_, id)| !is_present(id)) {
            return Err(ServiceError::new(
                ServiceErrorKind::Unavailable,
                format!(
                    "the coordinator {id} at {url} has not joined the cluster; retry when `feedline members list` shows it; no coordinator was removed"
                ),
            ));
        }
        let ids = BTreeSet::from_iter(ids);
        let (kept, mut surplus): (Vec<MemberView>, Vec<MemberView>) =
            members.into_iter().partition(|member| ids.contains(&member.id));
        if surplus.iter().any(|member| member.is_leader) {
            let next = successor(&kept)?;
            self.transfer_leader(&next.id.to_string()).await?;
            return Err(ServiceError::not_leader(&next.url));
        }
        // The number of members that answer is largest compared with the majority if the silent members go first.
        surplus.sort_by_key(|member| (member.is_voter, member.is_reachable));
        for member in surplus {
            tracing::info!(id = %member.id, url = member.url, "removing a coordinator");
            self.change(MembershipChange::Remove { id: member.id }).await?;
        }
        self.members().await
    }

    /// Asks the coordinators at these addresses for their ids.
    async fn ids_at(&self, urls: &[String]) -> Result<Vec<MemberId>, ServiceError> {
        if urls.is_empty() {
            let message = "the list of URLs is empty: give the URLs of the coordinators that remain members";
            return Err(ServiceError::new(ServiceErrorKind::Invalid, message));
        }
        let questions: Vec<_> = urls.iter().map(|url| self.id_at(url)).collect();
        join_all(questions).await.into_iter().collect()
    }

    async fn id_at(&self, url: &str) -> Result<MemberId, ServiceError> {
        let own = self.peers.own();
        if url == own.url {
            return Ok(own.id);
        }
        let silent = |reason: String| {
            ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "the coordinator at {url} does not answer: {reason}; start it, or correct the URL; no coordinator was removed"
                ),
            )
        };
        let answer = self.peers.introduce(url).await.map_err(|refusal| silent(refusal.message))?;
        MemberId::new(answer.id).ok_or_else(|| silent("the server states no id".to_owned()))
    }
}

/// Returns the most up-to-date voter that can lead after this leader.
fn successor(kept: &[MemberView]) -> Result<&MemberView, ServiceError> {
    let voters = kept.iter().filter(|member| member.is_voter && member.is_reachable);
    voters.min_by_key(|member| member.missing_entries).ok_or_else(|| {
        ServiceError::new(
            ServiceErrorKind::Unavailable,
            "none of the coordinators that remain can lead yet; retry when `feedline members list` shows a follower among them; no coordinator was removed",
        )
    })
}
