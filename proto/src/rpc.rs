//! The rules of every RPC: who may call it, the sizes of its messages, its deadline, and its retry policy. Each method has
//! one row in [`table`].

mod request;
mod table;

use std::time::Duration;

use feedline_access::Scope;
use feedline_data::ids::JobId;
use feedline_data::messages::JobSpec;

pub use self::request::{CoordinatorReply, CoordinatorRequest, CoordinatorService, find};
pub use self::table::PEER_ACCESS;
pub(crate) use self::table::{
    DELIVER, FETCH, GATHER, GET_INDEX, HAS_INDEX, INTRODUCE, JOIN, LOCATE, STORE_INDEX, coordinator_rpcs,
};

/// Deadline for a unary request, and for the next chunk of a manifest.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// Deadline for a request to another coordinator.
const PEER_DEADLINE: Duration = Duration::from_secs(5);
/// Deadline for the transfer of an index between coordinators. The size of an index may be hundreds of megabytes.
pub(crate) const INDEX_DEADLINE: Duration = Duration::from_secs(600);
/// Deadline for the request for a worker's local sockets.
pub(crate) const LOCATE_DEADLINE: Duration = Duration::from_secs(2);
/// Deadline for rows of a feature. A worker can read the rows from the graph in this time.
pub(crate) const GATHER_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum size of a message from or to a coordinator. The listing of a dataset with millions of files is one message.
pub(crate) const MAX_CONTROL_BYTES: usize = 512 << 20;

/// Time without a response after which a client sends a report to another coordinator. The leader responds to a report after
/// half a second at the latest.
pub const REPORT_RETRY_AFTER: Duration = Duration::from_millis(900);
/// Time without a response after which a client sends a request that reads or changes a job to another coordinator.
const LOOKUP_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The rules of one RPC.
#[derive(Debug, Clone, Copy)]
pub struct Rpc {
    /// Path of the method, such as `/feedline.v1.Coordinator/OpenJob`.
    pub path: &'static str,
    /// Who may call it.
    pub access: Access,
    /// Maximum size of a request.
    pub max_request: MessageSize,
    /// Maximum size of a response.
    pub max_response: MessageSize,
    /// Deadline for the response, or for the first message of a stream; `None` for a stream that the client ends.
    pub deadline: Option<Duration>,
    /// Whether a client with several servers retries it.
    pub retry: Retry,
}

/// Who may call an RPC in a cluster with a secret.
#[derive(Debug, Clone, Copy)]
pub enum Access {
    /// Callers with one of these scopes. The text completes the message "a token that allows to ...".
    Scopes(&'static [Scope], &'static str),
    /// Callers with a valid token.
    AnyToken,
    /// Callers with a ticket that the coordinator issued for the job.
    Ticket,
    /// All callers.
    Open,
}

/// Size class of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageSize {
    /// An id, a name or an address: 64 KiB.
    Small,
    /// A pipeline, a position, or a part of an index: 4 MiB.
    Medium,
    /// A piece of a batch: 64 MiB.
    Piece,
    /// A message from a worker or coordinator, such as the listing of a dataset with millions of files: 512 MiB.
    Large,
}

impl MessageSize {
    /// Returns the maximum size of a message of this class.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Small => 64 << 10,
            Self::Medium => 4 << 20,
            Self::Piece => 64 << 20,
            Self::Large => MAX_CONTROL_BYTES,
        }
    }
}

/// Retry policy of a client with several servers. A retry goes to another server. All requests are idempotent, so a lost
/// response is harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Retry if the server is unreachable, responds with `Unavailable`, or does not respond for this duration.
    After(Duration),
    /// Retry if the server is unreachable or responds with `Unavailable`.
    IfUnavailable,
    /// The client never retries. The caller decides.
    Never,
}

/// What a caller that belongs to a tenant may do with a request.
#[derive(Debug, Clone, Copy)]
pub enum Tenancy<'a> {
    /// The request concerns this job, which must belong to the tenant.
    OfJob(JobId),
    /// The tenant layer restricts the request or the reply to the tenant.
    Restricted(TenantRequest<'a>),
    /// The request and the reply are the same for all tenants.
    Shared,
    /// The request concerns the whole cluster, and the tenant layer rejects it.
    Cluster,
}

/// A request that the tenant layer restricts. The layer matches all variants, so a new variant without a restriction does not
/// compile.
#[derive(Debug, Clone, Copy)]
pub enum TenantRequest<'a> {
    /// Opens a job of the tenant.
    OpenJob(&'a JobSpec),
    /// Joins a job of the tenant.
    JoinJob(&'a JobSpec),
    /// Returns the status of a job of the tenant.
    GetJobStatus(JobId),
    /// Lists the jobs of the tenant.
    ListJobs,
    /// Returns the part of the cluster that the tenant may see.
    GetCluster,
}

#[cfg(test)]
mod tests;
