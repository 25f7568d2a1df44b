//! Services that answer with samples, and tell the test what reached them.

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
    CoordinatorReply, CoordinatorRequest, CoordinatorService, FetchRequest, Frame, PieceHeader, WorkerService,
};

/// Jobs from here on are refused: with `Invalid`, `NotFound`, `Superseded` and `Unavailable`.
pub(super) const FIRST_REFUSED: u64 = 100;
/// This job is refused with a long sentence.
pub(super) const LONG: u64 = 104;
/// For this one there is no room.
pub(super) const BUSY: u64 = 105;
/// This job has a large manifest.
pub(super) const LARGE: u64 = 2;

pub(super) fn refusal(kind: ServiceErrorKind) -> ServiceError {
    ServiceError::new(kind, format!("refused as {kind:?}: 100 % ünïcode"))
}

fn check(job: JobId) -> Result<(), ServiceError> {
    match job.0 {
        100 => Err(refusal(ServiceErrorKind::Invalid)),
        101 => Err(refusal(ServiceErrorKind::NotFound)),
        102 => Err(refusal(ServiceErrorKind::Superseded)),
        103 => Err(refusal(ServiceErrorKind::Unavailable)),
        BUSY => Err(ServiceError::busy("it runs as many jobs as it may", 1_500)),
        LONG => Err(ServiceError::new(ServiceErrorKind::Invalid, "é".repeat(5000))),
        _ => Ok(()),
    }
}

pub(super) fn large_manifest() -> Manifest {
    let samples = samples::manifest();
    let shards = samples.shards.iter().cycle().take(60_000).cloned().collect();
    Manifest { shards, ..samples }
}

/// Answers with samples, after checking that the request was one.
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
            Request::GetPlaces { job, step } => {
                check(job)?;
                assert_eq!(step, samples::step());
                Reply::GetPlaces(samples::group_places())
            }
            other => panic!("no test sends {other:?}"),
        })
    }
}

/// What reached a worker.
#[derive(Debug, PartialEq)]
pub(super) enum Seen {
    Request(FetchRequest),
    Dropped,
}

/// Sends three pieces that are all the same batch: the first at once, each other one for a request of credit.
pub(super) struct FakeWorker {
    pub(super) batch: Bytes,
    pub(super) seen: mpsc::Sender<Seen>,
}

pub(super) fn schema() -> SchemaRef {
    output_schema(&samples::schema())
}

pub(super) fn piece(number: u32, total_bytes: u64) -> PieceHeader {
    let batch = BatchLayout { rows: 1, total_bytes, nodes: vec![(1, 0)], buffers: vec![(0, total_bytes)] };
    PieceHeader { from: number, to: number + 1, rows: 1, batch, ..PieceHeader::default() }
}

/// Tells the test when the stream that owns it is gone.
struct TellDropped(mpsc::Sender<Seen>);

impl Drop for TellDropped {
    fn drop(&mut self) {
        // The test may have ended already.
        let _ = self.0.try_send(Seen::Dropped);
    }
}

#[async_trait]
impl WorkerService for FakeWorker {
    async fn fetch(
        &self,
        mut requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Some(FetchRequest::Open(open)) = requests.next().await else {
            panic!("the adapter lets this through")
        };
        if open.job.0 == FIRST_REFUSED {
            return Err(refusal(ServiceErrorKind::NotFound));
        }
        let seen = self.seen.clone();
        let _ = seen.send(Seen::Request(FetchRequest::Open(open))).await;
        let batch = self.batch.clone();
        let first = futures::stream::iter([Frame::Schema(schema())]);
        let dropped = TellDropped(seen.clone());
        let pieces = futures::stream::iter(0..3_u32).flat_map(move |number| {
            let header = Frame::Piece(piece(number, batch.len() as u64));
            futures::stream::iter([header, Frame::Chunk { offset: 0, data: batch.clone() }])
        });
        let frames = first.chain(pieces).chain(futures::stream::iter([Frame::End]));
        let state = (frames.boxed(), requests, seen, dropped, 0);
        let paced =
            futures::stream::unfold(state, |(mut frames, mut requests, seen, dropped, sent)| async move {
                // Frames are: schema, (piece, chunk) x 3, end. Before every piece but the first, and before the end, wait
                // for credit.
                if sent >= 3 && sent % 2 == 1 {
                    let request = requests.next().await?;
                    let _ = seen.send(Seen::Request(request)).await;
                }
                let frame = frames.next().await?;
                Some((Ok(frame), (frames, requests, seen, dropped, sent + 1)))
            });
        Ok(paced.boxed())
    }
}
