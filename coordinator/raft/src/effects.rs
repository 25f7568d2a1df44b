//! What follows from what a member was told.

use std::sync::Arc;

use feedline_cluster::records::Record;
use feedline_cluster::{Reply, RequestId};
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::ServiceError;
use raft::eraftpb::Message;

use crate::members::{MemberId, Members};
use crate::persisted::LogWrite;

/// What to do, in any order but where it says so.
#[derive(Debug, Default)]
pub struct Effects {
    /// To send to their members. What is lost is sent again.
    pub messages: Vec<Message>,
    /// To write, in order; then `RaftNode::written` is told their numbers.
    pub writes: Vec<LogWrite>,
    /// Answers that may be sent: everything that they rest on is kept by a majority.
    pub replies: Vec<(RequestId, Reply)>,
    /// Indexes to save at a majority of members; then the state machine is told that they are.
    pub manifests: Vec<(JobId, String, Arc<Manifest>)>,
    /// Records that this leader has decided; not kept by anyone yet.
    pub decided: Vec<Record>,
    /// Whether requests were taken from here on, with the jobs whose saved indexes are wanted; or were not any more.
    pub serving: Option<ServingChange>,
    /// Changes of the members that are done, or refused.
    pub changes: Vec<(RequestId, Result<Members, ServiceError>)>,
}

/// How serving has changed.
#[derive(Debug, Clone, PartialEq)]
pub enum ServingChange {
    /// It leads. These jobs prepare their dataset, whose index may have been saved under the key.
    Begun {
        /// Jobs and keys.
        preparing: Vec<(JobId, String)>,
        /// Records of the state that it begins with.
        state: Vec<Record>,
    },
    /// It leads no more.
    Ended,
}

/// Who a member is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It leads; requests are answered once `serving`.
    Leader {
        /// Whether it has everything that was decided before.
        serving: bool,
    },
    /// It follows this one, where one is known.
    Follower {
        /// Who leads.
        leader: Option<MemberId>,
    },
}

/// What shall be changed about the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipChange {
    /// One more.
    Add {
        /// Who.
        id: MemberId,
        /// Where.
        url: String,
    },
    /// One less.
    Remove {
        /// Who.
        id: MemberId,
    },
}

/// A member as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// Who.
    pub id: MemberId,
    /// Where.
    pub url: String,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it votes; one that was just added learns first.
    pub votes: bool,
    /// Whether it has answered lately.
    pub is_heard: bool,
    /// Entries of the leader's log that it has not confirmed.
    pub lacks: u64,
}
