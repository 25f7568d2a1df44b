//! The table of all RPCs.
//!
//! A row of a coordinator's RPC defines the request and the reply, the typed method for callers, the gRPC client and server,
//! and the rules that layers apply. A new RPC needs a row here with the conversion of its messages below, its messages in
//! `proto/feedline/v1`, and an arm in the coordinator.

use std::time::Duration;

use feedline_access::Scope;
use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::messages::JobStatus;

use super::{
    Access, GATHER_DEADLINE, INDEX_DEADLINE, LOCATE_DEADLINE, MessageSize, PEER_DEADLINE, Retry, Rpc,
};
use crate::convert::{empty, message, tuple, wrapper};
use crate::services::MemberStatus;

/// Passes all rows to the macro `$generate`. gRPC serves the sections `unary SERVICE` and `stream SERVICE`. The section `local`
/// is for layers in the same process only.
macro_rules! coordinator_rpcs {
    ($generate:ident) => {
        $generate! {
            unary Coordinator {
                /// Opens a job, or joins the job with the same name and spec.
                OpenJob {
                    call: open_job(spec: Box<JobSpec>) -> JobId,
                    wire: open_job(JobSpec) -> JobRef,
                    access: Access::Scopes(&[Scope::Submit, Scope::Consume], "open or join jobs"),
                    tenancy: Tenancy::Restricted(TenantRequest::OpenJob(spec)),
                    sizes: (MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Cancels a job. Workers compute no further rows.
                CancelJob {
                    call: cancel_job(job: JobId) -> (),
                    wire: cancel_job(JobRef) -> CancelJobResponse,
                    access: Access::Scopes(&[Scope::Submit], "cancel jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    sizes: (MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_RETRY_AFTER),
                }
                /// Sets the weights of the datasets of a mix, relative to each other. The weights apply after all rows that are
                /// already leased. The reply contains that position.
                SetWeights {
                    call: set_weights(job: JobId, weights: Vec<f64>) -> MixChange,
                    wire: set_weights(SetWeightsRequest) -> MixChange,
                    access: Access::Scopes(&[Scope::Submit], "change jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    sizes: (MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_RETRY_AFTER),
                }
                /// Returns the definition of a job for workers; `Unavailable` until the dataset is indexed.
                GetJobDetails {
                    call: job_details(job: JobId) -> JobDetails,
                    wire: get_job_details(JobRef) -> JobDetails,
                    access: Access::Scopes(READ_JOBS_SCOPES, "see jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    sizes: (MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_RETRY_AFTER),
                }
                /// Returns the status of a job.
                GetJobStatus {
                    call: job_status(job: JobId) -> JobStatus,
                    wire: get_job_status(JobRef) -> JobStatus,
                    access: Access::Scopes(READ_JOBS_SCOPES, "see jobs"),
                    tenancy: Tenancy::Restricted(TenantRequest::GetJobStatus(*job)),
                    sizes: (MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Returns the status of every job.
                ListJobs {
                    call: list_jobs() -> Vec<JobStatus>,
                    wire: list_jobs(ListJobsRequest) -> JobList,
                    access: Access::Scopes(READ_JOBS_SCOPES, "see jobs"),
                    tenancy: Tenancy::Restricted(TenantRequest::ListJobs),
                    sizes: (MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Returns the state of the cluster: jobs, workers, and the decisions of the planner.
                GetCluster {
                    call: cluster() -> ClusterView,
                    wire: get_cluster(GetClusterRequest) -> ClusterView,
                    access: Access::Scopes(&[Scope::Observe, Scope::Submit], "see the cluster"),
                    tenancy: Tenancy::Restricted(TenantRequest::GetCluster),
                    sizes: (MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Sends the report of a worker. Returns when the plan of the worker changes, or after about half a second.
                SyncWorker {
                    call: sync_worker(report: Box<WorkerReport>) -> WorkerPlan,
                    wire: sync_worker(WorkerReport) -> WorkerPlan,
                    access: Access::Scopes(&[Scope::Work], "act as a worker"),
                    tenancy: Tenancy::Cluster,
                    sizes: (MessageSize::Large, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Sends the report of a consumer. Returns when the plan of the consumer changes, or after about half a
                /// second.
                SyncConsumer {
                    call: sync_consumer(report: Box<ConsumerReport>) -> ConsumerPlan,
                    wire: sync_consumer(ConsumerReport) -> ConsumerPlan,
                    access: Access::Scopes(&[Scope::Consume], "receive rows"),
                    tenancy: Tenancy::OfJob(report.job),
                    sizes: (MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Returns the positions of all consumers of a job at a step. Responds when all consumers have reported
                /// their positions, or after about half a second with the positions reported so far.
                GetPositions {
                    call: positions(job: JobId, step: StepId) -> GroupPositions,
                    wire: get_positions(GetPositionsRequest) -> GroupPositions,
                    access: Access::Scopes(&[Scope::Consume], "read consumer positions"),
                    tenancy: Tenancy::OfJob(*job),
                    sizes: (MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
            }
            unary Members {
                /// Returns all coordinators. Every client may call it to find the leader.
                ListMembers {
                    call: members() -> Vec<MemberStatus>,
                    wire: list_members(ListMembersRequest) -> MemberList,
                    access: Access::AnyToken,
                    tenancy: Tenancy::Shared,
                    sizes: (MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Adds the coordinator that listens at `url`. Returns when it is a voter.
                AddMember {
                    call: add_member(url: String) -> Vec<MemberStatus>,
                    wire: add_member(MemberRef) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "add and remove coordinators"),
                    tenancy: Tenancy::Cluster,
                    sizes: (MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Removes the coordinator at `url`, which does not have to run.
                RemoveMember {
                    call: remove_member(url: String) -> Vec<MemberStatus>,
                    wire: remove_member(MemberRef) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "add and remove coordinators"),
                    tenancy: Tenancy::Cluster,
                    sizes: (MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Removes the coordinators that are at none of these URLs, one at a time. Returns when they are removed.
                /// Removes none if a coordinator does not answer or is not a member yet.
                SyncMembers {
                    call: sync_members(urls: Vec<String>) -> Vec<MemberStatus>,
                    wire: sync_members(SyncMembersRequest) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "add and remove coordinators"),
                    tenancy: Tenancy::Cluster,
                    sizes: (MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Makes the coordinator with this id the leader. Returns when it is the leader.
                TransferLeader {
                    call: transfer_leader(id: String) -> Vec<MemberStatus>,
                    wire: transfer_leader(TransferLeaderRequest) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "choose the leader"),
                    tenancy: Tenancy::Cluster,
                    sizes: (MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
            }
            stream Coordinator {
                /// Returns the manifest of the dataset of a job; `Unavailable` until the dataset is indexed.
                GetManifest {
                    call: manifest(job: JobId) -> Arc<Manifest>,
                    wire: get_manifest(JobRef) -> ManifestChunk,
                    access: Access::Scopes(READ_JOBS_SCOPES, "see jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    sizes: (MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
            }
            local Process {
                /// Joins the open job with the same name and spec, and never opens a job; `Denied` if there is no such job.
                JoinJob {
                    call: join_job(spec: Box<JobSpec>) -> JobId,
                    access: Access::Scopes(&[Scope::Submit, Scope::Consume], "join jobs"),
                    tenancy: Tenancy::Restricted(TenantRequest::JoinJob(spec)),
                    sizes: (MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::Never,
                }
            }
        }
    };
}
pub(crate) use coordinator_rpcs;

// Conversions of the arguments and replies above.
message!(MemberStatus, "member", { id, url, is_leader, is_voter, is_reachable, unconfirmed_entries });
wrapper!(Vec<JobStatus> => JobList { jobs });
wrapper!(Vec<MemberStatus> => MemberList { members });
empty!(CancelJobResponse, ListJobsRequest, GetClusterRequest, ListMembersRequest);
wrapper!(JobId => JobRef { job });
wrapper!(String => MemberRef { url });
wrapper!(Vec<String> => SyncMembersRequest { urls });
wrapper!(String => TransferLeaderRequest { id });
tuple!((JobId, Vec<f64>) => SetWeightsRequest { job, weights });
tuple!((JobId, StepId) => GetPositionsRequest { job, step });

/// Who may call the RPCs between coordinators.
pub const PEER_ACCESS: Access = Access::Scopes(&[Scope::Coordinate], "act as a coordinator");

/// The rules of an RPC between coordinators.
const fn peer(path: &'static str, max_request: MessageSize, deadline: Duration) -> Rpc {
    Rpc {
        path,
        access: PEER_ACCESS,
        max_request,
        max_response: MessageSize::Large,
        deadline: Some(deadline),
        retry: Retry::Never,
    }
}

/// Exchanges the identities of two coordinators.
pub(crate) const INTRODUCE: Rpc = peer("/feedline.v1.Peer/Introduce", MessageSize::Small, PEER_DEADLINE);
/// Asks the leader to add a coordinator with an empty disk.
pub(crate) const JOIN: Rpc = peer("/feedline.v1.Peer/Join", MessageSize::Small, PEER_DEADLINE);
/// Sends raft messages. The raft library resends lost messages.
pub(crate) const DELIVER: Rpc = peer("/feedline.v1.Peer/Deliver", MessageSize::Large, PEER_DEADLINE);
/// Asks whether a coordinator stores an index.
pub(crate) const HAS_INDEX: Rpc = peer("/feedline.v1.Peer/HasIndex", MessageSize::Small, INDEX_DEADLINE);
/// Sends an index in chunks.
pub(crate) const STORE_INDEX: Rpc = peer("/feedline.v1.Peer/StoreIndex", MessageSize::Medium, INDEX_DEADLINE);
/// Returns an index in chunks.
pub(crate) const GET_INDEX: Rpc = peer("/feedline.v1.Peer/GetIndex", MessageSize::Small, INDEX_DEADLINE);

/// Streams the pieces of a split. After an error, the client fetches the rest from another worker.
pub(crate) const FETCH: Rpc = Rpc {
    path: "/feedline.v1.Worker/Fetch",
    access: Access::Ticket,
    max_request: MessageSize::Small,
    max_response: MessageSize::Piece,
    deadline: None,
    retry: Retry::Never,
};

/// Returns rows of a feature to another worker. After an error, the other worker reads the rows from the graph itself.
pub(crate) const GATHER: Rpc = Rpc {
    path: "/feedline.v1.Worker/Gather",
    access: Access::Ticket,
    max_request: MessageSize::Medium,
    max_response: MessageSize::Piece,
    deadline: Some(GATHER_DEADLINE),
    retry: Retry::Never,
};

/// Returns the paths of a worker's local sockets. A client that receives no response uses TCP.
pub(crate) const LOCATE: Rpc = Rpc {
    path: "/feedline.v1.LocalTransport/Locate",
    access: Access::Open,
    max_request: MessageSize::Small,
    max_response: MessageSize::Medium,
    deadline: Some(LOCATE_DEADLINE),
    retry: Retry::Never,
};

/// The rules of an Arrow Flight RPC. Its handler calls the coordinator with the rights of the caller. It has no deadline,
/// because it waits until the dataset of the job is indexed; the client may set its own.
const fn flight(path: &'static str, max_request: MessageSize) -> Rpc {
    Rpc {
        path,
        access: Access::AnyToken,
        max_request,
        max_response: MessageSize::Piece,
        deadline: None,
        retry: Retry::Never,
    }
}

/// RPCs that are not in the table of the coordinator.
pub(super) const OTHER_RPCS: [Rpc; 12] = [
    INTRODUCE,
    JOIN,
    DELIVER,
    HAS_INDEX,
    STORE_INDEX,
    GET_INDEX,
    FETCH,
    GATHER,
    LOCATE,
    flight("/arrow.flight.protocol.FlightService/GetFlightInfo", MessageSize::Medium),
    flight("/arrow.flight.protocol.FlightService/GetSchema", MessageSize::Medium),
    flight("/arrow.flight.protocol.FlightService/DoGet", MessageSize::Small),
];
