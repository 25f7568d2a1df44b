//! The coordinator service: queues requests for the driver and loads manifests from the index store.

mod own;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use feedline_access::ProtectedFiles;
use feedline_cluster::{Reply as ClusterReply, SavedIndexes};
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    JobDetails, JobSpec, JobStatus, ServiceError, ServiceErrorKind, WorkerReport, saved_index_key,
};
use feedline_data::read_policy::ReadPolicy;
use feedline_data::tenants::Tenants;
use feedline_data::view::ClusterView;
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService, MemberStatus};
use feedline_raft::{MemberId, MemberView, MembershipChange};
use metrics::counter;
use tokio::sync::{mpsc, oneshot, watch};

use self::own::check_own;
use crate::driver::DriverCommand;
use crate::index_store::{IndexStore, load_saved};
use crate::metrics::{REFUSALS_TOTAL, REQUESTS_TOTAL, refusal_label};
use crate::peers::Peers;
use crate::request::{Request as QueuedInput, shutting_down};
use crate::request_queue::RequestQueue;
use crate::settings::CoordinatorSettings;
use crate::throttle_signal::ThrottleSignal;

/// The coordinator service in this process.
pub(crate) struct LocalCoordinator {
    requests: Arc<RequestQueue>,
    commands: mpsc::Sender<DriverCommand>,
    store: Arc<IndexStore>,
    peers: Arc<Peers>,
    /// The last view of the planner.
    views: watch::Receiver<Arc<ClusterView>>,
    /// The sources that pipelines may read.
    reads: ReadPolicy,
    /// The sources that each tenant may read.
    tenants: Tenants,
    /// Files that no pipeline may read.
    protected_files: ProtectedFiles,
    /// Wakes up the planner when a store rejects requests.
    throttle_signal: Arc<ThrottleSignal>,
}

impl LocalCoordinator {
    pub(crate) fn new(
        requests: Arc<RequestQueue>,
        commands: mpsc::Sender<DriverCommand>,
        store: Arc<IndexStore>,
        peers: Arc<Peers>,
        views: watch::Receiver<Arc<ClusterView>>,
    ) -> Self {
        let (reads, tenants, protected_files, throttle_signal) = Default::default();
        Self { requests, commands, store, peers, views, reads, tenants, protected_files, throttle_signal }
    }

    /// Sets the read policies from the settings.
    pub(crate) fn with_read_policy(self, settings: &CoordinatorSettings) -> Self {
        let (reads, tenants) = (settings.reads.clone(), settings.cluster.tenants.clone());
        Self { reads, tenants, protected_files: settings.own_files.clone(), ..self }
    }

    /// The signal for the planner.
    pub(crate) fn throttle_signal(&self) -> Arc<ThrottleSignal> {
        Arc::clone(&self.throttle_signal)
    }

    /// Checks that the tenant of a job may read the sources of its pipeline. The permissions of the tenant are checked
    /// first, so that the message does not reveal other policies.
    async fn check_reads(&self, spec: &JobSpec) -> Result<(), String> {
        let tenant = self.tenants.reads_of(&spec.tenant);
        tenant.check(&spec.tenant, &spec.pipeline)?;
        self.reads.for_tenant(tenant).check(&spec.pipeline)?;
        if self.protected_files.is_empty() {
            return Ok(());
        }
        let (files, pipeline) = (self.protected_files.clone(), spec.pipeline.clone());
        let checked = tokio::task::spawn_blocking(move || check_own(&files, &pipeline)).await;
        checked.unwrap_or_else(|_| Err("failed to check the pipeline's sources; retry".to_owned()))
    }

    async fn send(&self, request: QueuedInput) -> Result<ClusterReply, ServiceError> {
        let answer = self.requests.push(request)?;
        match answer.await.map_err(|_| shutting_down())? {
            ClusterReply::Rejected(refusal) => Err(refusal),
            reply => Ok(reply),
        }
    }

    async fn sync_worker_report(&self, report: WorkerReport) -> Result<ClusterReply, ServiceError> {
        self.throttle_signal.observe(&report);
        self.send(QueuedInput::Worker(report)).await
    }

    async fn details(&self, job: JobId) -> Result<JobDetails, ServiceError> {
        match self.send(QueuedInput::JobDetails(job)).await? {
            ClusterReply::Details(details) => Ok(*details),
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn open(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        let invalid = |message: String| ServiceError::new(ServiceErrorKind::Invalid, message);
        // The check must precede any lookup with data from the pipeline.
        spec.pipeline.check().map_err(|error| invalid(error.to_string()))?;
        self.check_reads(&spec).await.map_err(invalid)?;
        let saved = if spec.reindex {
            SavedIndexes::default()
        } else {
            // A saved index is large, so it is loaded only for a new job.
            if let Some(job) = self.join(spec.clone(), true).await? {
                return Ok(job);
            }
            let start = spec.start.as_ref().map(|start| start.content.clone()).unwrap_or_default();
            match saved_index_key(&spec) {
                Some(key) if spec.pipeline.source.is_growing() => self.load_recorded(key, &spec).await?,
                Some(key) => self.with_store(move |store| load_saved(store, &key, &start)).await?,
                None => SavedIndexes::default(),
            }
        };
        match self.send(QueuedInput::OpenJob { spec: Box::new(spec), saved }).await? {
            ClusterReply::Opened(job) => Ok(job),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Loads the index that the position of a growing source refers to. It may exist only on other coordinators.
    async fn load_recorded(&self, key: String, spec: &JobSpec) -> Result<SavedIndexes, ServiceError> {
        let own_key = key.clone();
        let own = self.with_store(move |store| store.load(&own_key)).await?;
        let latest = match &spec.start {
            Some(start) if own.is_none() => self.peers.load_index(&key, &start.dataset).await,
            _ => own,
        };
        Ok(SavedIndexes { latest, of_start: None })
    }

    /// Joins an open job; `None` if the job is not open and the client may open it.
    async fn join(&self, spec: JobSpec, may_open: bool) -> Result<Option<JobId>, ServiceError> {
        match self.send(QueuedInput::JoinJob { spec: Box::new(spec), may_open }).await? {
            ClusterReply::Opened(job) => Ok(Some(job)),
            ClusterReply::MayOpen if may_open => Ok(None),
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn find_manifest(&self, job: JobId) -> Result<Arc<Manifest>, ServiceError> {
        let details = self.details(job).await?;
        let (key, reference) = (details.source_key, details.dataset.index_reference().to_owned());
        let (own_key, wanted) = (key.clone(), reference.clone());
        let own = self.with_store(move |store| store.manifest(&own_key, &wanted)).await;
        if own.is_ok() {
            return own;
        }
        // This coordinator was down when the index was saved.
        let Some(manifest) = self.peers.load_index(&key, &reference).await else { return own };
        let found = Arc::clone(&manifest);
        self.with_store(move |store| store.save_earlier(&key, &manifest)).await?;
        Ok(found)
    }

    async fn statuses(&self, job: Option<JobId>) -> Result<Vec<JobStatus>, ServiceError> {
        match self.send(QueuedInput::JobStatus(job)).await? {
            ClusterReply::Status(mut statuses) => {
                let peak = feedline_common::process::peak_rss_bytes();
                statuses.iter_mut().for_each(|status| status.coordinator_peak_rss_bytes = peak);
                Ok(statuses)
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Reads from the index store on a blocking thread.
    async fn with_store<T: Send + 'static>(
        &self,
        read: impl FnOnce(&IndexStore) -> Result<T, String> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let store = Arc::clone(&self.store);
        let result = tokio::task::spawn_blocking(move || read(&store)).await.map_err(|_| shutting_down())?;
        result.map_err(|message| ServiceError::new(ServiceErrorKind::Invalid, message))
    }
}

#[async_trait]
impl CoordinatorService for LocalCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        let name = request.name();
        count_result(name, self.answer(request).await)
    }
}

impl LocalCoordinator {
    async fn answer(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        use {CoordinatorReply as Reply, CoordinatorRequest as Request};
        Ok(match request {
            Request::OpenJob { spec } => Reply::OpenJob(self.open(*spec).await?),
            Request::JoinJob { spec } => {
                let joined = self.join(*spec, false).await?;
                Reply::JoinJob(joined.ok_or_else(|| unexpected_reply(&ClusterReply::MayOpen))?)
            }
            Request::CancelJob { job } => {
                self.send(QueuedInput::CancelJob(job)).await?;
                Reply::CancelJob(())
            }
            Request::SetWeights { job, weights } => {
                match self.send(QueuedInput::SetWeights(job, weights)).await? {
                    ClusterReply::WeightsChanged(change) => Reply::SetWeights(change),
                    other => return Err(unexpected_reply(&other)),
                }
            }
            Request::GetJobDetails { job } => Reply::GetJobDetails(self.details(job).await?),
            Request::GetJobStatus { job } => {
                let found = self.statuses(Some(job)).await?.into_iter().next();
                Reply::GetJobStatus(found.ok_or_else(|| ServiceError::unknown_job(job))?)
            }
            Request::ListJobs {} => Reply::ListJobs(self.statuses(None).await?),
            Request::GetCluster {} => {
                let published = Arc::clone(&self.views.borrow());
                let states = self.statuses(None).await?;
                Reply::GetCluster((*published).clone().with_states(&states))
            }
            Request::GetManifest { job } => Reply::GetManifest(self.find_manifest(job).await?),
            Request::SyncWorker { report } => match self.sync_worker_report(*report).await? {
                ClusterReply::Worker(plan) => Reply::SyncWorker(plan),
                other => return Err(unexpected_reply(&other)),
            },
            Request::SyncConsumer { report } => match self.send(QueuedInput::Consumer(*report)).await? {
                ClusterReply::Consumer(plan) => Reply::SyncConsumer(plan),
                other => return Err(unexpected_reply(&other)),
            },
            Request::GetPositions { job, step } => {
                match self.send(QueuedInput::Positions(job, step)).await? {
                    ClusterReply::Positions(positions) => Reply::GetPositions(positions),
                    other => return Err(unexpected_reply(&other)),
                }
            }
            Request::ListMembers {} => Reply::ListMembers(self.members().await?),
            Request::AddMember { url } => Reply::AddMember(self.add_member(&url).await?),
            Request::RemoveMember { url } => Reply::RemoveMember(self.remove_member(&url).await?),
            Request::SyncMembers { urls } => Reply::SyncMembers(self.sync_members(&urls).await?),
            Request::TransferLeader { id } => Reply::TransferLeader(self.transfer_leader(&id).await?),
        })
    }
}

/// Maximum wait for a membership change. The change may continue afterwards.
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum wait for a leader transfer, which succeeds or fails within an election timeout.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);

impl LocalCoordinator {
    async fn views(&self) -> Result<Vec<MemberView>, ServiceError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(DriverCommand::Members { reply }).await.map_err(|_| shutting_down())?;
        answer.await.map_err(|_| shutting_down())?
    }

    async fn change(&self, change: MembershipChange) -> Result<Vec<MemberStatus>, ServiceError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(DriverCommand::Change { change, reply }).await.map_err(|_| shutting_down())?;
        let late =
            "the membership change is still in progress; check its result with `feedline members list`";
        let changed = tokio::time::timeout(MEMBERSHIP_TIMEOUT, answer).await;
        changed
            .map_err(|_| ServiceError::new(ServiceErrorKind::Unavailable, late))?
            .map_err(|_| shutting_down())??;
        self.members().await
    }

    async fn member_at(&self, url: &str) -> Result<Option<MemberId>, ServiceError> {
        Ok(self.views().await?.iter().find(|member| member.url == url).map(|member| member.id))
    }

    async fn members(&self) -> Result<Vec<MemberStatus>, ServiceError> {
        let status = |view: MemberView| MemberStatus {
            id: view.id.to_string(),
            url: view.url,
            is_leader: view.is_leader,
            is_voter: view.is_voter,
            is_reachable: view.is_reachable,
            unconfirmed_entries: view.missing_entries,
        };
        Ok(self.views().await?.into_iter().map(status).collect())
    }

    async fn add_member(&self, url: &str) -> Result<Vec<MemberStatus>, ServiceError> {
        // Only the leader adds members.
        self.views().await?;
        let introduced = self.peers.introduce(url).await?;
        // A coordinator that has joined without a command was a member before it stated that it has a state.
        let members = self.views().await?;
        let unreadable = || {
            ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "the server at {url} is not a coordinator, or runs a different release; check the address, and run the same release on all coordinators"
                ),
            )
        };
        let id = MemberId::new(introduced.id).ok_or_else(unreadable)?;
        if introduced.has_state && members.iter().all(|member| member.id != id) {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "the coordinator at {url} belongs to another cluster; start that coordinator with an empty data directory, and with the addresses of this cluster in --peers"
                ),
            ));
        }
        if members.iter().any(|member| member.url == url && member.id != id) {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "the coordinator at {url} has lost its data directory and no longer matches the member with this address; it replaces that member without a command after 10 s, or after `feedline members remove {url}`"
                ),
            ));
        }
        // The membership contains the addresses that coordinators state, and not other names of theirs.
        let url = if introduced.url.is_empty() { url.to_owned() } else { introduced.url };
        self.change(MembershipChange::Add { id, url }).await
    }

    async fn remove_member(&self, url: &str) -> Result<Vec<MemberStatus>, ServiceError> {
        let Some(id) = self.member_at(url).await? else {
            return Err(ServiceError::new(
                ServiceErrorKind::NotFound,
                format!("no member has address {url}; list the members with `feedline members list`"),
            ));
        };
        self.change(MembershipChange::Remove { id }).await
    }

    async fn transfer_leader(&self, id: &str) -> Result<Vec<MemberStatus>, ServiceError> {
        let invalid = || {
            ServiceError::new(
                ServiceErrorKind::Invalid,
                format!(
                    "invalid id `{id}`: expected 16 hexadecimal digits; list the ids with `feedline members list`"
                ),
            )
        };
        let target = u64::from_str_radix(id, 16).ok().and_then(MemberId::new).ok_or_else(invalid)?;
        let members = self.members().await?;
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(DriverCommand::TransferLeader { target, reply })
            .await
            .map_err(|_| shutting_down())?;
        let late = "the leader has not changed yet; check the leader with `feedline members list`";
        let transferred = tokio::time::timeout(TRANSFER_TIMEOUT, answer).await;
        transferred
            .map_err(|_| ServiceError::new(ServiceErrorKind::Unavailable, late))?
            .map_err(|_| shutting_down())??;
        // Only a leader knows the progress of the members, so this is the list from before the transfer.
        let led =
            |member: MemberStatus| MemberStatus { is_leader: member.id == target.to_string(), ..member };
        Ok(members.into_iter().map(led).collect())
    }
}

fn count_result<T>(kind: &'static str, answer: Result<T, ServiceError>) -> Result<T, ServiceError> {
    counter!(REQUESTS_TOTAL, "kind" => kind).increment(1);
    if let Err(refusal) = &answer {
        counter!(REFUSALS_TOTAL, "kind" => refusal_label(refusal.kind)).increment(1);
    }
    answer
}

/// Returns the error for a reply of the wrong kind, which is a bug.
fn unexpected_reply(reply: &ClusterReply) -> ServiceError {
    ServiceError::new(
        ServiceErrorKind::Unavailable,
        format!("the coordinator returned an unexpected reply: {reply:?}; please report this bug"),
    )
}

#[cfg(test)]
mod tests;
