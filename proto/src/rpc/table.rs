//! The table of the coordinator's RPCs, and how their requests and replies map to protobuf messages.
//!
//! A row defines the request and the reply, the typed method for callers, the gRPC client and server, and the rules that
//! layers apply. A new RPC is a row here, its messages in `proto/feedline/v1`, and an arm in the coordinator.

use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;
use feedline_data::view::ClusterView;

use crate::convert::{WireError, required};
use crate::services::MemberStatus;
use crate::wire;

/// Passes all rows to the macro `$generate`. Sections: `unary SERVICE` and `stream SERVICE` are served by gRPC, `local`
/// is for layers of this process only.
macro_rules! coordinator_rpcs {
    ($generate:ident) => {
        $generate! {
            unary Coordinator {
                /// Opens a job, or joins the one that has the same name and spec.
                OpenJob {
                    call: open_job(spec: Box<JobSpec>) -> JobId,
                    wire: open_job(JobSpec) -> JobRef,
                    access: Access::Scopes(&[Scope::Submit, Scope::Consume], "open or join jobs"),
                    tenancy: Tenancy::Restricted,
                    rules: (RpcKind::Unary, MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Ends a job; no further rows are computed.
                CancelJob {
                    call: cancel_job(job: JobId) -> (),
                    wire: cancel_job(JobRef) -> CancelJobResponse,
                    access: Access::Scopes(&[Scope::Submit], "cancel jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_PATIENCE),
                }
                /// Sets the weights of the datasets in a job's mix, one for each, relative to each other. They apply behind
                /// every row that was granted before; the reply names that position.
                SetWeights {
                    call: set_weights(job: JobId, weights: Vec<f64>) -> MixChange,
                    wire: set_weights(SetWeightsRequest) -> MixChange,
                    access: Access::Scopes(&[Scope::Submit], "change jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_PATIENCE),
                }
                /// Returns what a worker needs to run the job; `Unavailable` until the dataset is indexed.
                GetJobDetails {
                    call: job_details(job: JobId) -> JobDetails,
                    wire: get_job_details(JobRef) -> JobDetails,
                    access: Access::Scopes(SEE_JOBS, "see jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_PATIENCE),
                }
                /// Returns the status of a job.
                GetJobStatus {
                    call: job_status(job: JobId) -> JobStatus,
                    wire: get_job_status(JobRef) -> JobStatus,
                    access: Access::Scopes(SEE_JOBS, "see jobs"),
                    tenancy: Tenancy::Restricted,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_PATIENCE),
                }
                /// Returns the status of every job.
                ListJobs {
                    call: list_jobs() -> Vec<JobStatus>,
                    wire: list_jobs(ListJobsRequest) -> JobList,
                    access: Access::Scopes(SEE_JOBS, "see jobs"),
                    tenancy: Tenancy::Restricted,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_PATIENCE),
                }
                /// Returns the cluster at this moment: jobs, workers, and the planner's decisions.
                GetCluster {
                    call: cluster() -> ClusterView,
                    wire: get_cluster(GetClusterRequest) -> ClusterView,
                    access: Access::Scopes(&[Scope::Observe, Scope::Submit], "see the cluster"),
                    tenancy: Tenancy::Restricted,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_PATIENCE),
                }
                /// Sends a worker's report. Returns when the worker's plan differs from the one that it holds, or after
                /// about half a second.
                SyncWorker {
                    call: sync_worker(report: Box<WorkerReport>) -> WorkerPlan,
                    wire: sync_worker(WorkerReport) -> WorkerPlan,
                    access: Access::Scopes(&[Scope::Work], "be a worker"),
                    tenancy: Tenancy::Cluster,
                    rules: (RpcKind::LongPoll, MessageSize::Large, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_PATIENCE),
                }
                /// Sends a consumer's report. Returns when the consumer's plan differs from the one that it holds, or
                /// after about half a second.
                SyncConsumer {
                    call: sync_consumer(report: Box<ConsumerReport>) -> ConsumerPlan,
                    wire: sync_consumer(ConsumerReport) -> ConsumerPlan,
                    access: Access::Scopes(&[Scope::Consume], "take rows"),
                    tenancy: Tenancy::OfJob(report.job),
                    rules: (RpcKind::LongPoll, MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_PATIENCE),
                }
                /// Returns the positions of all consumers of a job at a step, once they have reported them, or after about
                /// half a second those that are reported.
                GetPlaces {
                    call: places(job: JobId, step: StepId) -> GroupPositions,
                    wire: get_places(PlacesRequest) -> GroupPlaces,
                    access: Access::Scopes(&[Scope::Consume], "read the positions of consumers"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::LongPoll, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_PATIENCE),
                }
            }
            unary Members {
                /// Returns all coordinators. Every client may ask: it looks for the leader.
                ListMembers {
                    call: members() -> Vec<MemberStatus>,
                    wire: list_members(ListMembersRequest) -> MemberList,
                    access: Access::AnyToken,
                    tenancy: Tenancy::Shared,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_PATIENCE),
                }
                /// Adds the coordinator that listens at `url`. Returns once it votes.
                AddMember {
                    call: add_member(url: String) -> Vec<MemberStatus>,
                    wire: add_member(MemberRef) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "add and remove coordinators"),
                    tenancy: Tenancy::Cluster,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Removes the coordinator at `url`, which need not run any more.
                RemoveMember {
                    call: remove_member(url: String) -> Vec<MemberStatus>,
                    wire: remove_member(MemberRef) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "add and remove coordinators"),
                    tenancy: Tenancy::Cluster,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Makes the coordinator with this id the leader. Returns once it leads.
                TransferLeader {
                    call: transfer_leader(id: String) -> Vec<MemberStatus>,
                    wire: transfer_leader(TransferLeaderRequest) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "choose the leader"),
                    tenancy: Tenancy::Cluster,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
            }
            stream Coordinator {
                /// Returns the index of the job's dataset; `Unavailable` until it is complete.
                GetManifest {
                    call: manifest(job: JobId) -> Arc<Manifest>,
                    wire: get_manifest(JobRef) -> ManifestChunk,
                    access: Access::Scopes(SEE_JOBS, "see jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::Stream, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
            }
            local Process {
                /// Joins the open job that has the same name and spec, and opens none; `Denied` where there is none. Only
                /// the coordinator itself can decide that.
                JoinJob {
                    call: join_job(spec: Box<JobSpec>) -> JobId,
                    access: Access::Scopes(&[Scope::Submit, Scope::Consume], "join jobs"),
                    tenancy: Tenancy::Restricted,
                    rules: (RpcKind::Unary, MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::Never,
                }
            }
        }
    };
}
pub(crate) use coordinator_rpcs;

/// Reads the arguments or the reply of an RPC from its message.
pub(crate) trait FromWire<W>: Sized {
    /// # Errors
    /// One sentence when the message is malformed.
    fn from_wire(message: W) -> Result<Self, WireError>;
}

/// Writes the arguments or the reply of an RPC as its message.
pub(crate) trait IntoWire<W> {
    fn into_wire(self) -> W;
}

/// Both directions: from values of this type to this message, and back.
macro_rules! message {
    ($core:ty, $wire:ident, $write:expr, $read:expr) => {
        impl IntoWire<wire::$wire> for $core {
            fn into_wire(self) -> wire::$wire {
                let write: fn($core) -> wire::$wire = $write;
                write(self)
            }
        }

        impl FromWire<wire::$wire> for $core {
            fn from_wire(message: wire::$wire) -> Result<Self, WireError> {
                let read: fn(wire::$wire) -> Result<$core, WireError> = $read;
                read(message)
            }
        }
    };
}

/// The same where `convert` has both.
macro_rules! converted {
    ($($core:ident => $wire:ident),* $(,)?) => {
        $(message!($core, $wire, wire::$wire::from, TryFrom::try_from);)*
    };
}

converted! {
    JobDetails => JobDetails,
    JobStatus => JobStatus,
    ClusterView => ClusterView,
    WorkerPlan => WorkerPlan,
    ConsumerPlan => ConsumerPlan,
    GroupPositions => GroupPlaces,
}

message!((Box<JobSpec>,), JobSpec, |(spec,)| (*spec).into(), |it| Ok((Box::new(it.try_into()?),)));
message!((Box<WorkerReport>,), WorkerReport, |(it,)| (*it).into(), |it| Ok((Box::new(it.try_into()?),)));
message!((Box<ConsumerReport>,), ConsumerReport, |(it,)| (*it).into(), |it| Ok((Box::new(it.try_into()?),)));
message!((JobId,), JobRef, |(job,)| wire::JobRef { job: job.0 }, |it| Ok((JobId(it.job),)));
message!((String,), MemberRef, |(url,)| wire::MemberRef { url }, |it| Ok((it.url,)));
message!((String,), TransferLeaderRequest, |(id,)| wire::TransferLeaderRequest { id }, |it| Ok((it.id,)));
message!((), ListJobsRequest, |()| wire::ListJobsRequest {}, |_| Ok(()));
message!((), GetClusterRequest, |()| wire::GetClusterRequest {}, |_| Ok(()));
message!((), ListMembersRequest, |()| wire::ListMembersRequest {}, |_| Ok(()));
message!(
    (JobId, Vec<f64>),
    SetWeightsRequest,
    |(job, weights)| wire::SetWeightsRequest { job: job.0, weights },
    |it| Ok((JobId(it.job), it.weights))
);
message!(
    (JobId, StepId),
    PlacesRequest,
    |(job, step)| wire::PlacesRequest { job: job.0, step: Some(step.into()) },
    |it| Ok((JobId(it.job), required(it.step, "places.step")?.into()))
);

message!(JobId, JobRef, |job| wire::JobRef { job: job.0 }, |it| Ok(JobId(it.job)));
message!((), CancelJobResponse, |()| wire::CancelJobResponse {}, |_| Ok(()));
message!(MixChange, MixChange, wire::MixChange::from, |it| Ok(it.into()));
message!(
    Vec<JobStatus>,
    JobList,
    |jobs| wire::JobList { jobs: jobs.into_iter().map(Into::into).collect() },
    |it| it.jobs.into_iter().map(TryInto::try_into).collect()
);
message!(
    Vec<MemberStatus>,
    MemberList,
    |members| wire::MemberList { members: members.into_iter().map(Into::into).collect() },
    |it| Ok(it.members.into_iter().map(Into::into).collect())
);

impl From<MemberStatus> for wire::Member {
    fn from(status: MemberStatus) -> Self {
        let MemberStatus { id, url, leads, votes, is_heard, lacks } = status;
        Self { id, url, leads, votes, is_heard, lacks }
    }
}

impl From<wire::Member> for MemberStatus {
    fn from(member: wire::Member) -> Self {
        let wire::Member { id, url, leads, votes, is_heard, lacks } = member;
        Self { id, url, leads, votes, is_heard, lacks }
    }
}
