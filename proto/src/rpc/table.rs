//! The table of the RPCs of a coordinator.
//!
//! A row defines the request and the reply, the typed method for callers, the gRPC client and server, and the rules that
//! layers apply. A new RPC needs a row here, its messages in `proto/feedline/v1`, their conversion in `convert`, and an arm in
//! the coordinator.

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
                    rules: (RpcKind::Unary, MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Cancels a job. Workers compute no further rows.
                CancelJob {
                    call: cancel_job(job: JobId) -> (),
                    wire: cancel_job(JobRef) -> CancelJobResponse,
                    access: Access::Scopes(&[Scope::Submit], "cancel jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_RETRY_AFTER),
                }
                /// Sets the weights of the datasets of a mix, relative to each other. The weights apply after all rows that are
                /// already leased. The reply contains that position.
                SetWeights {
                    call: set_weights(job: JobId, weights: Vec<f64>) -> MixChange,
                    wire: set_weights(SetWeightsRequest) -> MixChange,
                    access: Access::Scopes(&[Scope::Submit], "change jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_RETRY_AFTER),
                }
                /// Returns the definition of a job for workers; `Unavailable` until the dataset is indexed.
                GetJobDetails {
                    call: job_details(job: JobId) -> JobDetails,
                    wire: get_job_details(JobRef) -> JobDetails,
                    access: Access::Scopes(READ_JOBS_SCOPES, "see jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(LOOKUP_RETRY_AFTER),
                }
                /// Returns the status of a job.
                GetJobStatus {
                    call: job_status(job: JobId) -> JobStatus,
                    wire: get_job_status(JobRef) -> JobStatus,
                    access: Access::Scopes(READ_JOBS_SCOPES, "see jobs"),
                    tenancy: Tenancy::Restricted(TenantRequest::GetJobStatus(*job)),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Returns the status of every job.
                ListJobs {
                    call: list_jobs() -> Vec<JobStatus>,
                    wire: list_jobs(ListJobsRequest) -> JobList,
                    access: Access::Scopes(READ_JOBS_SCOPES, "see jobs"),
                    tenancy: Tenancy::Restricted(TenantRequest::ListJobs),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Returns the state of the cluster: jobs, workers, and the decisions of the planner.
                GetCluster {
                    call: cluster() -> ClusterView,
                    wire: get_cluster(GetClusterRequest) -> ClusterView,
                    access: Access::Scopes(&[Scope::Observe, Scope::Submit], "see the cluster"),
                    tenancy: Tenancy::Restricted(TenantRequest::GetCluster),
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Sends the report of a worker. Returns when the plan of the worker changes, or after about half a second.
                SyncWorker {
                    call: sync_worker(report: Box<WorkerReport>) -> WorkerPlan,
                    wire: sync_worker(WorkerReport) -> WorkerPlan,
                    access: Access::Scopes(&[Scope::Work], "act as a worker"),
                    tenancy: Tenancy::Cluster,
                    rules: (RpcKind::LongPoll, MessageSize::Large, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Sends the report of a consumer. Returns when the plan of the consumer changes, or after about half a
                /// second.
                SyncConsumer {
                    call: sync_consumer(report: Box<ConsumerReport>) -> ConsumerPlan,
                    wire: sync_consumer(ConsumerReport) -> ConsumerPlan,
                    access: Access::Scopes(&[Scope::Consume], "receive rows"),
                    tenancy: Tenancy::OfJob(report.job),
                    rules: (RpcKind::LongPoll, MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Returns the positions of all consumers of a job at a step. Responds when all consumers have reported
                /// their positions, or after about half a second with the positions reported so far.
                GetPositions {
                    call: positions(job: JobId, step: StepId) -> GroupPositions,
                    wire: get_positions(GetPositionsRequest) -> GroupPositions,
                    access: Access::Scopes(&[Scope::Consume], "read consumer positions"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::LongPoll, MessageSize::Small, MessageSize::Large),
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
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::After(REPORT_RETRY_AFTER),
                }
                /// Adds the coordinator that listens at `url`. Returns when it is a voter.
                AddMember {
                    call: add_member(url: String) -> Vec<MemberStatus>,
                    wire: add_member(MemberRef) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "add and remove coordinators"),
                    tenancy: Tenancy::Cluster,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Removes the coordinator at `url`, which does not have to run.
                RemoveMember {
                    call: remove_member(url: String) -> Vec<MemberStatus>,
                    wire: remove_member(MemberRef) -> MemberList,
                    access: Access::Scopes(&[Scope::Admin], "add and remove coordinators"),
                    tenancy: Tenancy::Cluster,
                    rules: (RpcKind::Unary, MessageSize::Small, MessageSize::Medium),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
                /// Makes the coordinator with this id the leader. Returns when it is the leader.
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
                /// Returns the manifest of the dataset of a job; `Unavailable` until the dataset is indexed.
                GetManifest {
                    call: manifest(job: JobId) -> Arc<Manifest>,
                    wire: get_manifest(JobRef) -> ManifestChunk,
                    access: Access::Scopes(READ_JOBS_SCOPES, "see jobs"),
                    tenancy: Tenancy::OfJob(*job),
                    rules: (RpcKind::Stream, MessageSize::Small, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::IfUnavailable,
                }
            }
            local Process {
                /// Joins the open job with the same name and spec, and never opens a job; `Denied` if there is no such job.
                JoinJob {
                    call: join_job(spec: Box<JobSpec>) -> JobId,
                    access: Access::Scopes(&[Scope::Submit, Scope::Consume], "join jobs"),
                    tenancy: Tenancy::Restricted(TenantRequest::JoinJob(spec)),
                    rules: (RpcKind::Unary, MessageSize::Medium, MessageSize::Large),
                    deadline: REQUEST_DEADLINE, retry: Retry::Never,
                }
            }
        }
    };
}
pub(crate) use coordinator_rpcs;
