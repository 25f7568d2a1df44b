//! Feedline as a subject of `feedline bench transport`: a worker's gRPC server that sends constant pieces, and a client
//! that fetches them.

use std::sync::Arc;

use arrow::array::{FixedSizeListArray, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use feedline_access::Credentials;
use feedline_client::probe::Probe;
use feedline_command::Failure;
use feedline_data::messages::{ServiceError, ServiceErrorKind, WorkerAddress};
use feedline_proto::local::{LocalListener, Transport};
use feedline_proto::services::{FetchOpen, FetchRequest, Frame, PieceHeader};
use feedline_proto::{WorkerService, encode_batch, grpc};
use futures::StreamExt;
use futures::stream::BoxStream;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::peer::{SenderKind, SenderProcess};

/// Shape of a batch of uint8 images.
const BATCH_SHAPE: [i32; 4] = [128, 224, 224, 3];
/// Capacity of the queue of frames between a fetch and its transport, as in a worker.
const FRAMES_AHEAD: usize = 2;
/// Number of distinct pieces, which are sent in rotation, because a real worker does not send the same buffer repeatedly.
const PIECES: usize = 4;
/// Size of the client's receive buffer, which equals the client's default.
const BUFFER_BYTES: u64 = 256 << 20;

/// Returns the size of one batch in bytes.
pub(super) fn batch_bytes() -> u64 {
    BATCH_SHAPE.iter().map(|&side| u64::from(side.unsigned_abs())).product()
}

/// Fetches batches as a client does.
pub(super) struct WorkerReceiver {
    name: &'static str,
    probe: Probe,
    splits: u32,
    pub(super) peer: SenderProcess,
}

/// Starts a sending process for every transport and connects to it.
pub(super) fn connect_all(splits: u32) -> Result<Vec<WorkerReceiver>, Failure> {
    let receiver = |name, transport| -> Result<WorkerReceiver, Failure> {
        let peer = SenderProcess::start(SenderKind::Worker)?;
        let address = WorkerAddress::new(&*peer.address);
        let worker = grpc::connect_worker_over(&address, &Credentials::default(), transport, |_, _| {})?;
        Ok(WorkerReceiver { name, probe: Probe::new(worker, BUFFER_BYTES, splits), splits, peer })
    };
    Ok(vec![
        receiver("Feedline, TCP", Transport::Tcp)?,
        receiver("Feedline, Unix socket", Transport::Unix)?,
        receiver("Feedline, shared memory", Transport::Memory)?,
    ])
}

impl WorkerReceiver {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Fetches about `bytes`, several splits at a time, and returns the number of bytes received.
    pub(super) async fn receive(&self, bytes: u64) -> Result<u64, Failure> {
        let pieces = bytes.div_ceil(batch_bytes() * u64::from(self.splits)).max(1);
        // Each fetch is a task, as in a client, so that it runs on the thread that has just read its bytes.
        let mut fetches = JoinSet::new();
        for stream in 0..self.splits {
            let probe = self.probe.clone();
            fetches.spawn(async move { probe.fetch(pieces, stream).await });
        }
        let mut bytes = 0;
        while let Some(fetched) = fetches.join_next().await {
            let fetched = fetched.map_err(Failure::failed)?;
            bytes += fetched.map_err(|why| Failure::failed(format!("{}: {why}", self.name)))?;
        }
        Ok(bytes)
    }
}

/// Serves constant batches as a worker does. Returns the URL and the directory of the Unix sockets.
pub(super) async fn serve() -> Result<(String, TempDir), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Failure::failed)?;
    let service = Arc::new(ConstantWorker::new().map_err(Failure::failed)?);
    let url = format!("http://{}", listener.local_addr().map_err(Failure::failed)?);
    let folder = tempfile::tempdir().map_err(Failure::failed)?;
    let local = LocalListener::open(folder.path(), Some(BUFFER_BYTES)).map_err(Failure::failed)?;
    let routes = grpc::worker_routes_with_local(service, &local);
    tokio::spawn(grpc::serve(listener, routes.clone(), std::future::pending()));
    tokio::spawn(grpc::serve_local(local, routes, std::future::pending()));
    Ok((url, folder))
}

/// A worker that sends the same few pieces repeatedly. The job id of a fetch is the number of pieces to send.
struct ConstantWorker {
    schema: SchemaRef,
    pieces: Vec<(PieceHeader, bytes::Bytes)>,
}

impl ConstantWorker {
    fn new() -> Result<Self, String> {
        let [rows, height, width, channels] = BATCH_SHAPE;
        let item = Arc::new(Field::new("item", DataType::UInt8, false));
        let row = height * width * channels;
        let column = DataType::FixedSizeList(Arc::clone(&item), row);
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("image", column, false)]));
        let piece = |number: usize| {
            let values =
                UInt8Array::from_iter_values((0..rows * row).map(|index| (index as usize + number) as u8));
            let images = FixedSizeListArray::try_new(Arc::clone(&item), row, Arc::new(values), None);
            let images = images.map_err(|error| error.to_string())?;
            let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(images)])
                .map_err(|error| error.to_string())?;
            let (batch, data) = encode_batch(&batch)?;
            Ok::<_, String>((PieceHeader { rows: batch.rows, batch, ..PieceHeader::default() }, data))
        };
        let pieces = (0..PIECES).map(piece).collect::<Result<_, _>>()?;
        Ok(Self { schema, pieces })
    }
}

#[async_trait]
impl WorkerService for ConstantWorker {
    async fn fetch(
        &self,
        mut requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Some(FetchRequest::Open(open)) = requests.next().await else {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                "invalid fetch: the first message must name the split",
            ));
        };
        let (frames, receiver) = mpsc::channel(FRAMES_AHEAD);
        tokio::spawn(send(self.schema.clone(), self.pieces.clone(), open, requests, frames));
        Ok(ReceiverStream::new(receiver).boxed())
    }
}

/// Sends pieces as credit allows. Returns `None` when the client disconnects.
async fn send(
    schema: SchemaRef,
    pieces: Vec<(PieceHeader, bytes::Bytes)>,
    open: FetchOpen,
    mut requests: BoxStream<'static, FetchRequest>,
    frames: mpsc::Sender<Result<Frame, ServiceError>>,
) -> Option<()> {
    let mut credit = open.credit_bytes;
    frames.send(Ok(Frame::Schema(schema))).await.ok()?;
    let count = u32::try_from(open.job.0).unwrap_or(u32::MAX);
    for (number, (header, data)) in (0..count).zip(pieces.iter().cycle()) {
        let rows = header.rows;
        let header = PieceHeader { start: number * rows, end: (number + 1) * rows, ..header.clone() };
        frames.send(Ok(Frame::Piece(header))).await.ok()?;
        while credit < data.len() as u64 {
            match requests.next().await? {
                FetchRequest::Credit { bytes } => credit += bytes,
                FetchRequest::Open(_) | FetchRequest::Features(_) => return None,
            }
        }
        credit -= data.len() as u64;
        frames.send(Ok(Frame::Chunk { offset: 0, data: data.clone() })).await.ok()?;
    }
    frames.send(Ok(Frame::End)).await.ok()
}
