//! A coordinator's service behind gRPC: decode, call, encode.

use std::sync::Arc;

use bytes::Bytes;
use feedline_data::ids::JobId;
use feedline_data::messages::ServiceError;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status, async_trait};

use super::MANIFEST_CHUNK_BYTES;
use super::auth_service::entered;
use super::refusal::{to_status, unreadable};
use crate::convert::dataset::encode_manifest;
use crate::convert::{WireError, required};
use crate::services::CoordinatorService;
use crate::wire;
use crate::wire::coordinator_server::Coordinator;

/// Serves what requests have found behind the door.
pub(super) struct CoordinatorAdapter;

/// The service as whoever sends this request may use it.
fn of<T>(request: &Request<T>) -> Result<Arc<dyn CoordinatorService>, Status> {
    entered(request)
}

#[async_trait]
impl Coordinator for CoordinatorAdapter {
    type GetManifestStream = BoxStream<'static, Result<wire::ManifestChunk, Status>>;

    async fn open_job(&self, request: Request<wire::JobSpec>) -> Result<Response<wire::JobRef>, Status> {
        let service = of(&request)?;
        let job = service.open_job(read(request)?).await.map_err(to_status)?;
        Ok(Response::new(wire::JobRef { job: job.0 }))
    }

    async fn cancel_job(
        &self,
        request: Request<wire::JobRef>,
    ) -> Result<Response<wire::CancelJobResponse>, Status> {
        of(&request)?.cancel_job(job(&request)).await.map_err(to_status)?;
        Ok(Response::new(wire::CancelJobResponse {}))
    }

    async fn set_weights(
        &self,
        request: Request<wire::SetWeightsRequest>,
    ) -> Result<Response<wire::MixChange>, Status> {
        let service = of(&request)?;
        let wire::SetWeightsRequest { job, weights } = request.into_inner();
        answer(service.set_weights(JobId(job), weights).await)
    }

    async fn get_job_details(
        &self,
        request: Request<wire::JobRef>,
    ) -> Result<Response<wire::JobDetails>, Status> {
        answer(of(&request)?.job_details(job(&request)).await)
    }

    async fn get_job_status(
        &self,
        request: Request<wire::JobRef>,
    ) -> Result<Response<wire::JobStatus>, Status> {
        answer(of(&request)?.job_status(job(&request)).await)
    }

    async fn list_jobs(
        &self,
        request: Request<wire::ListJobsRequest>,
    ) -> Result<Response<wire::JobList>, Status> {
        let jobs = of(&request)?.list_jobs().await.map_err(to_status)?;
        Ok(Response::new(wire::JobList { jobs: jobs.into_iter().map(Into::into).collect() }))
    }

    async fn get_cluster(
        &self,
        request: Request<wire::GetClusterRequest>,
    ) -> Result<Response<wire::ClusterView>, Status> {
        answer(of(&request)?.cluster().await)
    }

    async fn get_manifest(
        &self,
        request: Request<wire::JobRef>,
    ) -> Result<Response<Self::GetManifestStream>, Status> {
        let manifest = of(&request)?.manifest(job(&request)).await.map_err(to_status)?;
        let bytes = tokio::task::spawn_blocking(move || encode_manifest(&manifest))
            .await
            .map_err(|error| Status::unavailable(format!("writing the manifest: {error}")))?;
        Ok(Response::new(stream::iter(chunks(bytes.into())).boxed()))
    }

    async fn sync_worker(
        &self,
        request: Request<wire::WorkerReport>,
    ) -> Result<Response<wire::WorkerPlan>, Status> {
        let service = of(&request)?;
        answer(service.sync_worker(read(request)?).await)
    }

    async fn sync_consumer(
        &self,
        request: Request<wire::ConsumerReport>,
    ) -> Result<Response<wire::ConsumerPlan>, Status> {
        let service = of(&request)?;
        answer(service.sync_consumer(read(request)?).await)
    }

    async fn get_places(
        &self,
        request: Request<wire::PlacesRequest>,
    ) -> Result<Response<wire::GroupPlaces>, Status> {
        let service = of(&request)?;
        let wire::PlacesRequest { job, step } = request.into_inner();
        let step = required(step, "places.step").map_err(unreadable)?;
        answer(service.places(JobId(job), step.into()).await)
    }
}

fn read<W, C: TryFrom<W, Error = WireError>>(request: Request<W>) -> Result<C, Status> {
    request.into_inner().try_into().map_err(unreadable)
}

fn job(request: &Request<wire::JobRef>) -> JobId {
    JobId(request.get_ref().job)
}

fn answer<C, W: From<C>>(answer: Result<C, ServiceError>) -> Result<Response<W>, Status> {
    answer.map(|value| Response::new(value.into())).map_err(to_status)
}

pub(super) fn chunks(bytes: Bytes) -> impl Iterator<Item = Result<wire::ManifestChunk, Status>> {
    (0..bytes.len()).step_by(MANIFEST_CHUNK_BYTES).map(move |start| {
        let end = bytes.len().min(start + MANIFEST_CHUNK_BYTES);
        Ok(wire::ManifestChunk { data: bytes.slice(start..end) })
    })
}
