//! A coordinator behind gRPC, as a service to its caller.

use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, GroupPositions, JobDetails, JobSpec, JobStatus, ServiceError,
    ServiceErrorKind, WorkerPlan, WorkerReport,
};
use feedline_data::mix::MixChange;
use feedline_data::position_history::StepId;
use feedline_data::view::ClusterView;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use super::channel::RemoteName;
use super::version::VersionInterceptor;
use super::{MAX_CONTROL_BYTES, REQUEST_TIMEOUT};
use crate::convert::WireError;
use crate::convert::dataset::decode_manifest;
use crate::services::CoordinatorService;
use crate::wire;
use crate::wire::coordinator_client::CoordinatorClient;

type Client = CoordinatorClient<InterceptedService<Channel, VersionInterceptor>>;

/// A coordinator behind gRPC.
pub(super) struct RemoteCoordinator {
    peer: RemoteName,
    client: Client,
}

impl RemoteCoordinator {
    pub(super) fn new(peer: RemoteName, channel: Channel, speak: VersionInterceptor) -> Self {
        let client = CoordinatorClient::with_interceptor(channel, speak)
            .max_decoding_message_size(MAX_CONTROL_BYTES)
            .max_encoding_message_size(MAX_CONTROL_BYTES);
        Self { peer, client }
    }

    /// A handle for one request; handles share the connection.
    fn client(&self) -> Client {
        self.client.clone()
    }

    fn answer<W>(&self, response: Result<Response<W>, Status>) -> Result<W, ServiceError> {
        response.map(Response::into_inner).map_err(|status| self.peer.refusal(&status))
    }

    fn read<W, C: TryFrom<W, Error = WireError>>(
        &self,
        response: Result<Response<W>, Status>,
    ) -> Result<C, ServiceError> {
        self.answer(response)?.try_into().map_err(|error| self.peer.unreadable(&error))
    }
}

/// Puts a manifest's chunks together.
pub(super) async fn read_manifest(
    peer: &RemoteName,
    mut chunks: Streaming<wire::ManifestChunk>,
) -> Result<Arc<Manifest>, ServiceError> {
    let mut bytes = Vec::new();
    loop {
        let chunk = tokio::time::timeout(REQUEST_TIMEOUT, chunks.message())
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("")))
            .map_err(|status| peer.refusal(&status))?;
        match chunk {
            Some(chunk) => bytes.extend_from_slice(&chunk.data),
            None => break,
        }
    }
    tokio::task::spawn_blocking(move || decode_manifest(&bytes))
        .await
        .map_err(|error| {
            ServiceError::new(ServiceErrorKind::Unavailable, format!("reading the manifest: {error}"))
        })?
        .map(Arc::new)
        .map_err(|message| peer.unreadable(&WireError(message)))
}

#[async_trait]
impl CoordinatorService for RemoteCoordinator {
    async fn open_job(&self, spec: JobSpec) -> Result<JobId, ServiceError> {
        let response = self.client().open_job(wire::JobSpec::from(spec)).await;
        Ok(JobId(self.answer(response)?.job))
    }

    async fn cancel_job(&self, job: JobId) -> Result<(), ServiceError> {
        let response = self.client().cancel_job(wire::JobRef { job: job.0 }).await;
        self.answer(response).map(|_| ())
    }

    async fn set_weights(&self, job: JobId, weights: Vec<f64>) -> Result<MixChange, ServiceError> {
        let response = self.client().set_weights(wire::SetWeightsRequest { job: job.0, weights }).await;
        self.answer(response).map(Into::into)
    }

    async fn job_details(&self, job: JobId) -> Result<JobDetails, ServiceError> {
        self.read(self.client().get_job_details(wire::JobRef { job: job.0 }).await)
    }

    async fn job_status(&self, job: JobId) -> Result<JobStatus, ServiceError> {
        self.read(self.client().get_job_status(wire::JobRef { job: job.0 }).await)
    }

    async fn list_jobs(&self) -> Result<Vec<JobStatus>, ServiceError> {
        let response = self.client().list_jobs(wire::ListJobsRequest {}).await;
        let jobs: Result<_, WireError> =
            self.answer(response)?.jobs.into_iter().map(TryInto::try_into).collect();
        jobs.map_err(|error| self.peer.unreadable(&error))
    }

    async fn cluster(&self) -> Result<ClusterView, ServiceError> {
        self.read(self.client().get_cluster(wire::GetClusterRequest {}).await)
    }

    async fn manifest(&self, job: JobId) -> Result<Arc<Manifest>, ServiceError> {
        let response = self.client().get_manifest(wire::JobRef { job: job.0 }).await;
        read_manifest(&self.peer, self.answer(response)?).await
    }

    async fn sync_worker(&self, report: WorkerReport) -> Result<WorkerPlan, ServiceError> {
        self.read(self.client().sync_worker(wire::WorkerReport::from(report)).await)
    }

    async fn sync_consumer(&self, report: ConsumerReport) -> Result<ConsumerPlan, ServiceError> {
        self.read(self.client().sync_consumer(wire::ConsumerReport::from(report)).await)
    }

    async fn places(&self, job: JobId, step: StepId) -> Result<GroupPositions, ServiceError> {
        let request = wire::PlacesRequest { job: job.0, step: Some(step.into()) };
        self.read(self.client().get_places(request).await)
    }
}
