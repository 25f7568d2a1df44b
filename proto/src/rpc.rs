//! What every RPC is subject to: who may call it, how large its messages are, how long it may take, and whether it is
//! retried. One row for each method; those of the coordinator are in [`table`].

mod request;
mod table;

use std::time::Duration;

use feedline_access::Scope;
use feedline_data::ids::JobId;

pub use self::request::{CoordinatorReply, CoordinatorRequest, CoordinatorService};
pub(crate) use self::table::{FromWire, IntoWire, coordinator_rpcs};

/// Longest wait for the answer to a unary request, or for the next part of a manifest.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// Longest wait for another coordinator to receive messages.
const PEER_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for another coordinator to receive an index, which may have hundreds of megabytes.
pub(crate) const INDEX_DEADLINE: Duration = Duration::from_secs(600);
/// Longest wait for a worker to send the address of its local sockets.
pub(crate) const LOCATE_DEADLINE: Duration = Duration::from_secs(2);
/// Largest message to and from a coordinator: the listing of a dataset of millions of files is one message.
pub(crate) const MAX_CONTROL_BYTES: usize = 512 << 20;

/// A report that was not answered after this long is sent to another coordinator, if there is one: the leader answers
/// after half a second.
pub const REPORT_PATIENCE: Duration = Duration::from_millis(900);
/// The same for reads and changes of one job.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(2);

/// The rules of one RPC.
#[derive(Debug, Clone, Copy)]
pub struct Rpc {
    /// Path of the method, such as `/feedline.v1.Coordinator/OpenJob`.
    pub path: &'static str,
    /// Who may call it.
    pub access: Access,
    /// How its messages flow.
    pub kind: RpcKind,
    /// Largest message of a request.
    pub max_request: MessageSize,
    /// Largest message of a response.
    pub max_response: MessageSize,
    /// Longest wait for the response, or for the first message of a stream; `None` for a stream that the client ends.
    pub deadline: Option<Duration>,
    /// Whether a client with several servers sends it again.
    pub retry: Retry,
}

/// Who may call an RPC in a cluster that has a secret.
#[derive(Debug, Clone, Copy)]
pub enum Access {
    /// Whoever has one of these scopes; the text says what they allow.
    Scopes(&'static [Scope], &'static str),
    /// Whoever has a valid token.
    AnyToken,
    /// Whoever has the ticket that the coordinator issued for the job.
    Ticket,
    /// Everybody who reaches the server.
    Open,
}

/// How the messages of an RPC flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcKind {
    /// One request, one response.
    Unary,
    /// One request; the response comes when something changes, or after about half a second.
    LongPoll,
    /// The request or the response is a stream.
    Stream,
}

/// How large a message may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageSize {
    /// An id, a name or an address: 64 KiB.
    Small,
    /// A pipeline, a position, or a part of an index: 4 MiB.
    Medium,
    /// A piece of a batch: 64 MiB.
    Piece,
    /// What workers and coordinators send, such as the listing of a dataset of millions of files: 512 MiB.
    Large,
}

impl MessageSize {
    /// The limit.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Small => 64 << 10,
            Self::Medium => 4 << 20,
            Self::Piece => 64 << 20,
            Self::Large => MAX_CONTROL_BYTES,
        }
    }
}

/// Whether a client with several servers sends a request again, to another one. Every request that is sent again is
/// idempotent: a lost answer does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// When the server answers `Unavailable` or cannot be reached, or has not answered after this long.
    After(Duration),
    /// When the server answers `Unavailable` or cannot be reached.
    IfUnavailable,
    /// Never by the transport; the caller decides.
    Never,
}

/// What an RPC means to a caller that belongs to one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenancy {
    /// It is about this job, which must be the tenant's own.
    OfJob(JobId),
    /// Its request or its reply is restricted to the tenant; the tenant layer says how.
    Restricted,
    /// It is the same for all tenants.
    Shared,
    /// It is of the whole cluster and refused.
    Cluster,
}

/// Who may call the RPCs between coordinators.
pub const PEER_ACCESS: Access = Access::Scopes(&[Scope::Coordinate], "be a coordinator");

/// The rules of an RPC between coordinators.
const fn peer(path: &'static str, kind: RpcKind, max_request: MessageSize, deadline: Duration) -> Rpc {
    Rpc {
        path,
        access: PEER_ACCESS,
        kind,
        max_request,
        max_response: MessageSize::Large,
        deadline: Some(deadline),
        retry: Retry::Never,
    }
}

/// Learns who a coordinator is.
pub(crate) const INTRODUCE: Rpc =
    peer("/feedline.v1.Peer/Introduce", RpcKind::Unary, MessageSize::Small, PEER_DEADLINE);
/// Sends raft messages. The raft library sends lost ones again.
pub(crate) const DELIVER: Rpc =
    peer("/feedline.v1.Peer/Deliver", RpcKind::Unary, MessageSize::Large, PEER_DEADLINE);
/// Asks whether a coordinator stores an index.
pub(crate) const HAS_INDEX: Rpc =
    peer("/feedline.v1.Peer/HasIndex", RpcKind::Unary, MessageSize::Small, INDEX_DEADLINE);
/// Sends an index in parts.
pub(crate) const KEEP_INDEX: Rpc =
    peer("/feedline.v1.Peer/KeepIndex", RpcKind::Stream, MessageSize::Medium, INDEX_DEADLINE);
/// Reads an index in parts.
pub(crate) const GET_INDEX: Rpc =
    peer("/feedline.v1.Peer/GetIndex", RpcKind::Stream, MessageSize::Small, INDEX_DEADLINE);

/// Streams the pieces of a split. The client fetches the rest from another worker.
pub(crate) const FETCH: Rpc = Rpc {
    path: "/feedline.v1.Worker/Fetch",
    access: Access::Ticket,
    kind: RpcKind::Stream,
    max_request: MessageSize::Small,
    max_response: MessageSize::Piece,
    deadline: None,
    retry: Retry::Never,
};

/// Asks for the local sockets of a worker. A client that gets no answer uses TCP.
pub(crate) const LOCATE: Rpc = Rpc {
    path: "/feedline.v1.Entrance/Locate",
    access: Access::Open,
    kind: RpcKind::Unary,
    max_request: MessageSize::Small,
    max_response: MessageSize::Medium,
    deadline: Some(LOCATE_DEADLINE),
    retry: Retry::Never,
};

/// The rules of an RPC of Arrow Flight, whose handler calls the coordinator with the caller's own rights.
const fn flight(path: &'static str, kind: RpcKind, max_request: MessageSize) -> Rpc {
    Rpc {
        path,
        access: Access::AnyToken,
        kind,
        max_request,
        max_response: MessageSize::Piece,
        deadline: None,
        retry: Retry::Never,
    }
}

/// RPCs that are not the coordinator's own.
const OTHERS: [Rpc; 10] = [
    INTRODUCE,
    DELIVER,
    HAS_INDEX,
    KEEP_INDEX,
    GET_INDEX,
    FETCH,
    LOCATE,
    flight("/arrow.flight.protocol.FlightService/GetFlightInfo", RpcKind::Unary, MessageSize::Medium),
    flight("/arrow.flight.protocol.FlightService/GetSchema", RpcKind::Unary, MessageSize::Medium),
    flight("/arrow.flight.protocol.FlightService/DoGet", RpcKind::Stream, MessageSize::Small),
];

/// The rules of the RPC with this path; `None` for a method that this release does not have.
pub fn find(path: &str) -> Option<&'static Rpc> {
    CoordinatorRequest::RPCS.iter().chain(&OTHERS).find(|rpc| rpc.path == path)
}

#[cfg(test)]
mod tests;
