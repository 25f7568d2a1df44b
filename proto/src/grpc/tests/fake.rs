//! Fake services that return samples and report the received requests to the test.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::ids::JobId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::*;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;

use crate::batch::{BatchLayout, output_schema};
use crate::convert::samples;
use crate::services::{
    CoordinatorReply, CoordinatorRequest, CoordinatorService, FetchRequest, Frame, GatherRequest,
    PieceHeader, WorkerService,
};

/// Requests for the four jobs starting with this job fail with `Invalid`, `NotFound`, `Superseded` and `Unavailable`.
pub(super) const FIRST_FAILING: u64 = 100;
/// Requests for this job fail with a long message.
pub(super) const LONG: u64 = 104;
/// Requests for this job fail with `Busy`.
pub(super) const BUSY: u64 = 105;
/// This job has a large manifest.
pub(super) const LARGE: u64 = 2;

pub(super) fn error(kind: ServiceErrorKind) -> ServiceError {
    ServiceError::new(kind, format!("fails with {kind:?}: 100 % ünïcode"))
}

fn check(job: JobId) -> Result<(), ServiceError> {
    match job.0 {
        100 => Err(error(ServiceErrorKind::Invalid)),
        101 => Err(error(ServiceErrorKind::NotFound)),
        102 => Err(error(ServiceErrorKind::Superseded)),
        103 => Err(error(ServiceErrorKind::Unavailable)),
        BUSY => Err(ServiceError::busy("the limit of running jobs is reached", 1_500)),
        LONG => Err(ServiceError::new(ServiceErrorKind::Invalid, "é".repeat(5000))),
        _ => Ok(()),
    }
}

pub(super) fn large_manifest() -> Manifest {
    let samples = samples::manifest();
    let shards = samples.shards.iter().cycle().take(60_000).cloned().collect();
    Manifest { shards, ..samples }
}

/// Checks that each request is a sample, and returns samples.
pub(super) struct FakeCoordinator;

#[async_trait]
impl CoordinatorService for FakeCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        use {CoordinatorReply as Reply, CoordinatorRequest as Request};
        Ok(match request {
            Request::OpenJob { spec } => {
                assert_eq!(*spec, samples::spec());
                Reply::OpenJob(JobId(u64::from(spec.virtual_consumers)))
            }
            Request::CancelJob { job } => Reply::CancelJob(check(job)?),
            Request::SetWeights { job, weights } => {
                check(job)?;
                assert_eq!(weights, samples::mix_change().weights);
                Reply::SetWeights(samples::mix_change())
            }
            Request::GetJobDetails { .. } => Reply::GetJobDetails(samples::job_details()),
            Request::GetJobStatus { .. } => Reply::GetJobStatus(samples::job_status()),
            Request::ListJobs {} => Reply::ListJobs(vec![samples::job_status(); 2]),
            Request::GetCluster {} => Reply::GetCluster(samples::cluster_view()),
            Request::GetManifest { job } => {
                check(job)?;
                let manifest = if job.0 == LARGE { large_manifest() } else { samples::manifest() };
                Reply::GetManifest(Arc::new(manifest))
            }
            Request::SyncWorker { report } => {
                assert_eq!(*report, samples::worker_report());
                Reply::SyncWorker(samples::worker_plan())
            }
            Request::SyncConsumer { report } => {
                assert_eq!(*report, samples::consumer_report());
                Reply::SyncConsumer(samples::consumer_plan())
            }
            Request::GetPositions { job, step } => {
                check(job)?;
                assert_eq!(step, samples::step());
                Reply::GetPositions(samples::group_positions())
            }
            other => panic!("no test sends {other:?}"),
        })
    }
}

/// An event at the fake worker.
#[derive(Debug, PartialEq)]
pub(super) enum WorkerEvent {
    Request(FetchRequest),
    Dropped,
}

/// Sends the same batch as three pieces: the first piece immediately, and each further piece after a credit.
pub(super) struct FakeWorker {
    pub(super) batch: Bytes,
    pub(super) seen: mpsc::Sender<WorkerEvent>,
}

pub(super) fn schema() -> SchemaRef {
    output_schema(&samples::schema())
}

pub(super) fn piece(number: u32, total_bytes: u64) -> PieceHeader {
    let batch = BatchLayout { rows: 1, total_bytes, nodes: vec![(1, 0)], buffers: vec![(0, total_bytes)] };
    PieceHeader { start: number, end: number + 1, rows: 1, batch, ..PieceHeader::default() }
}

/// Reports to the test when the stream is dropped.
struct DropReporter(mpsc::Sender<WorkerEvent>);

impl Drop for DropReporter {
    fn drop(&mut self) {
        // The test may have ended already.
        let _ = self.0.try_send(WorkerEvent::Dropped);
    }
}

#[async_trait]
impl WorkerService for FakeWorker {
    async fn fetch(
        &self,
        mut requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Some(FetchRequest::Open(open)) = requests.next().await else {
            panic!("the server rejects fetches without an opening request")
        };
        if open.job.0 == FIRST_FAILING {
            return Err(error(ServiceErrorKind::NotFound));
        }
        let seen = self.seen.clone();
        let _ = seen.send(WorkerEvent::Request(FetchRequest::Open(open))).await;
        let batch = self.batch.clone();
        let first = futures::stream::iter([Frame::Schema(schema())]);
        let dropped = DropReporter(seen.clone());
        let pieces = futures::stream::iter(0..3_u32).flat_map(move |number| {
            let header = Frame::Piece(piece(number, batch.len() as u64));
            futures::stream::iter([header, Frame::Chunk { offset: 0, data: batch.clone() }])
        });
        let frames = first.chain(pieces).chain(futures::stream::iter([Frame::End]));
        let state = (frames.boxed(), requests, seen, dropped, 0);
        let paced =
            futures::stream::unfold(state, |(mut frames, mut requests, seen, dropped, sent)| async move {
                // The frames are: schema, (piece, chunk) x 3, end. Wait for credit before the second and third piece and
                // before the end.
                if sent >= 3 && sent % 2 == 1 {
                    let request = requests.next().await?;
                    let _ = seen.send(WorkerEvent::Request(request)).await;
                }
                let frame = frames.next().await?;
                Some((Ok(frame), (frames, requests, seen, dropped, sent + 1)))
            });
        Ok(paced.boxed())
    }

    /// The rows are the batch, whatever is requested.
    async fn gather(&self, request: GatherRequest) -> Result<Bytes, ServiceError> {
        check(request.job)?;
        Ok(self.batch.clone())
    }
}
