//! The outputs of a raft node.

use feedline_cluster::records::Record;
use feedline_cluster::{IndexToSave, Reply, RequestId};
use feedline_data::ids::JobId;
use feedline_data::messages::ServiceError;
use raft::eraftpb::Message;

use crate::members::{MemberId, Members};
use crate::persisted::LogWrite;

/// Messages to send, data to write and replies to send. Only the writes are ordered.
#[derive(Debug, Default)]
pub struct Effects {
    /// Messages to other members. Raft resends lost messages.
    pub messages: Vec<Message>,
    /// Writes, in order. The driver reports each finished write to `RaftNode::on_written`.
    pub writes: Vec<LogWrite>,
    /// Replies whose records are committed.
    pub replies: Vec<(RequestId, Reply)>,
    /// Indexes to save on a majority of members. An `Input::IndexSaved` reports the result.
    pub manifests: Vec<IndexToSave>,
    /// Records that this leader has proposed since the last call. The records may not be committed yet.
    pub proposed_records: Vec<Record>,
    /// A change in whether this member serves requests.
    pub serving_change: Option<ServingChange>,
    /// Results of membership changes.
    pub membership_results: Vec<(RequestId, Result<Members, ServiceError>)>,
}

/// A member starts or stops serving requests.
#[derive(Debug, Clone, PartialEq)]
pub enum ServingChange {
    /// The member leads with a complete state machine.
    Started {
        /// Preparing jobs, and the keys under which their indexes may be saved.
        preparing: Vec<(JobId, String)>,
        /// The records that rebuild the state.
        records: Vec<Record>,
    },
    /// The member stopped leading.
    Ended,
}

/// The role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A leader. The member replies to requests once `serving` is true.
    Leader {
        /// Whether the state machine is complete.
        serving: bool,
    },
    /// A follower.
    Follower {
        /// The leader, if known.
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
    /// Whether the member is the leader.
    pub is_leader: bool,
    /// Whether the member is a voter. A new member starts as a learner.
    pub is_voter: bool,
    /// Whether the member has sent a message recently.
    pub is_reachable: bool,
    /// Number of entries in the leader's log that the member has not acknowledged.
    pub missing_entries: u64,
}
