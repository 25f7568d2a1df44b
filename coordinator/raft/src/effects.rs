//! The outputs of a member.

use std::sync::Arc;

use feedline_cluster::records::Record;
use feedline_cluster::{Reply, RequestId};
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::ServiceError;
use raft::eraftpb::Message;

use crate::members::{MemberId, Members};
use crate::persisted::LogWrite;

/// Messages to send, data to write and replies to send. Only the writes are ordered.
#[derive(Debug, Default)]
pub struct Effects {
    /// Messages to other members. Raft sends lost ones again.
    pub messages: Vec<Message>,
    /// Writes, in order. The driver reports each finished one to `RaftNode::on_written`.
    pub writes: Vec<LogWrite>,
    /// Replies with committed decisions.
    pub replies: Vec<(RequestId, Reply)>,
    /// Indexes to save at a majority of members. An `Input::IndexSaved` reports the result.
    pub manifests: Vec<(JobId, String, Arc<Manifest>)>,
    /// Records that this leader has proposed and that are not committed yet.
    pub decided: Vec<Record>,
    /// Whether this member has begun or ended to serve requests.
    pub serving: Option<ServingChange>,
    /// Results of membership changes.
    pub changes: Vec<(RequestId, Result<Members, ServiceError>)>,
}

/// A member begins or ends to serve requests.
#[derive(Debug, Clone, PartialEq)]
pub enum ServingChange {
    /// The member leads with a complete state machine.
    Begun {
        /// Preparing jobs, and the keys under which their indexes may be saved.
        preparing: Vec<(JobId, String)>,
        /// The records that rebuild the state.
        state: Vec<Record>,
    },
    /// The member stopped leading.
    Ended,
}

/// The role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A leader; it replies to requests once `serving`.
    Leader {
        /// Whether the state machine is complete.
        serving: bool,
    },
    /// A follower.
    Follower {
        /// The leader, if it is known.
        leader: Option<MemberId>,
    },
}

/// A membership change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipChange {
    /// Adds a member.
    Add {
        /// The id of the member.
        id: MemberId,
        /// The address of the member.
        url: String,
    },
    /// Removes a member.
    Remove {
        /// The id of the member.
        id: MemberId,
    },
}

/// The replication progress of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// The id of the member.
    pub id: MemberId,
    /// The address of the member.
    pub url: String,
    /// Whether the member leads.
    pub leads: bool,
    /// Whether the member is a voter. A new member is a learner first.
    pub votes: bool,
    /// Whether the member has sent a message lately.
    pub is_heard: bool,
    /// Entries of the leader's log that the member has not acknowledged.
    pub lacks: u64,
}
