//! A fake worker that computes rows on each fetch, obeys credit, and fails as a test requests.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{Array, Int64Array, ListArray, RecordBatch};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use async_trait::async_trait;
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::services::{FetchOpen, FetchRequest, Frame, PieceHeader};
use feedline_proto::{WorkerService, encode_batch};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio::time::Duration;
use tokio_stream::wrappers::ReceiverStream;

use super::{locked, number};

/// Behaviour of a worker in one fetch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Act {
    Serve,
    /// Fails after this many pieces.
    FailAfter(u32),
    /// Ends the stream without `End` after this many pieces.
    EndAfter(u32),
    /// Returns that it does not hold the split.
    NotFound,
    /// Returns that it is busy, with a retry delay in milliseconds.
    Busy(u64),
    /// Opens the stream and sends nothing.
    Silent,
    /// Sends a working frame every second before it serves: for this many seconds, or without end.
    WorkingFor(Option<u32>),
    /// Reports a failure of the row at this offset.
    FailRow(u32),
    /// Sends invalid frames.
    SendInvalid,
}

/// A scripted worker.
pub(crate) struct FakeWorker {
    layout: Layout,
    /// Input rows of a piece.
    pub(crate) piece_rows: u32,
    pub(crate) chunk_bytes: usize,
    /// Delay before each piece.
    pub(crate) pause: Duration,
    /// Selects the rows that remain; `None`: all rows.
    pub(crate) keep: Option<fn(u64) -> bool>,
    /// Whether the worker rejects fetches because of their protocol version.
    pub(crate) has_other_version: AtomicBool,
    acts: Mutex<VecDeque<(Option<SplitRef>, Act)>>,
    opened: Mutex<Vec<FetchOpen>>,
    /// Bytes sent, and bytes that open fetches may still send.
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) credit_bytes: AtomicU64,
}

/// The service trait of a scripted worker.
pub(super) struct FakeWorkerService(pub(super) Arc<FakeWorker>);

impl FakeWorker {
    pub(crate) fn new(layout: &Layout, piece_rows: u32) -> Self {
        Self {
            layout: layout.clone(),
            piece_rows,
            chunk_bytes: 100,
            pause: Duration::ZERO,
            keep: None,
            has_other_version: AtomicBool::new(false),
            acts: Mutex::new(VecDeque::new()),
            opened: Mutex::new(Vec::new()),
            sent_bytes: AtomicU64::new(0),
            credit_bytes: AtomicU64::new(0),
        }
    }

    /// Sets the behaviour in the next fetch of any split.
    pub(crate) fn with_act(self, act: Act) -> Self {
        locked(&self.acts).push_back((None, act));
        self
    }

    /// Sets the behaviour in the next fetch of split `ordinal` of stream 0.
    pub(crate) fn with_act_for(self, ordinal: u64, act: Act) -> Self {
        let split = SplitRef { epoch: 0, ordinal, stream: 0 };
        locked(&self.acts).push_back((Some(split), act));
        self
    }

    /// Returns the ordinal and the first offset of each fetch so far.
    pub(crate) fn fetched(&self) -> Vec<(u64, u32)> {
        locked(&self.opened).iter().map(|open| (open.split.ordinal, open.start_offset)).collect()
    }

    fn take_act(&self, split: SplitRef) -> Act {
        let mut acts = locked(&self.acts);
        let index = acts.iter().position(|(of, _)| of.is_none_or(|of| of == split));
        index.and_then(|index| acts.remove(index)).map_or(Act::Serve, |(_, act)| act)
    }

    fn piece(&self, split: SplitRef, from: u32, to: u32) -> (PieceHeader, bytes::Bytes) {
        let offsets: Vec<u32> = (from..to)
            .filter(|&offset| self.keep.is_none_or(|keep| keep(number(&self.layout, split, offset))))
            .collect();
        let ids: Vec<i64> =
            offsets.iter().map(|&offset| number(&self.layout, split, offset) as i64).collect();
        let rows = ids.len() as u32;
        let schema = schema(&self.layout);
        let batch = match self.layout.indivisible {
            true if rows == 0 => RecordBatch::new_empty(schema),
            true => RecordBatch::try_new(schema, vec![list_of(ids)]).expect("one column"),
            false => RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(ids))]).expect("one column"),
        };
        let (batch, data) = encode_batch(&batch).expect("numbers can be encoded");
        let row_ids = (from..to).map(|offset| number(&self.layout, split, offset) % self.layout.dataset_rows);
        let kept = self.keep.map(|_| offsets);
        let header = PieceHeader {
            start: from,
            end: to,
            rows,
            kept_offsets: kept,
            row_ids: Some(row_ids.collect()),
            skipped: Vec::new(),
            newest_ms: Some(u64::from(to)),
            indivisible: self.layout.indivisible,
            omitted_rows: None,
            batch,
        };
        (header, data)
    }
}

/// The columns of pieces: the number of each row, or a list of the numbers if batches are indivisible.
fn schema(layout: &Layout) -> Arc<Schema> {
    let id = Field::new("id", DataType::Int64, true);
    let field = match layout.indivisible {
        true => Field::new("ids", DataType::List(Arc::new(id)), true),
        false => id,
    };
    Arc::new(Schema::new(vec![field]))
}

/// A column with one list.
fn list_of(ids: Vec<i64>) -> Arc<dyn Array> {
    let item = Arc::new(Field::new("id", DataType::Int64, true));
    let offsets = OffsetBuffer::from_lengths([ids.len()]);
    Arc::new(ListArray::new(item, offsets, Arc::new(Int64Array::from(ids)), None))
}

/// The credit of one fetch.
struct Credit<'a> {
    left: u64,
    requests: BoxStream<'static, FetchRequest>,
    worker: &'a FakeWorker,
}

impl Credit<'_> {
    /// Waits for credit for `bytes` bytes. Returns `false` when the fetch ends first.
    async fn spend(&mut self, bytes: u64) -> bool {
        while self.left < bytes {
            match self.requests.next().await {
                Some(FetchRequest::Credit { bytes }) => {
                    self.left += bytes;
                    self.worker.credit_bytes.fetch_add(bytes, Ordering::SeqCst);
                }
                _ => return false,
            }
        }
        self.left -= bytes;
        self.worker.credit_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.worker.sent_bytes.fetch_add(bytes, Ordering::SeqCst);
        true
    }
}

impl Drop for Credit<'_> {
    fn drop(&mut self) {
        self.worker.credit_bytes.fetch_sub(self.left, Ordering::SeqCst);
    }
}

type Frames = mpsc::Sender<Result<Frame, ServiceError>>;

impl FakeWorker {
    /// Sends the frames of a fetch. Returns `None` when the client disconnects.
    async fn serve(
        &self,
        open: FetchOpen,
        requests: BoxStream<'static, FetchRequest>,
        frames: &Frames,
    ) -> Option<()> {
        let mut credit = Credit { left: open.credit_bytes, requests, worker: self };
        self.credit_bytes.fetch_add(open.credit_bytes, Ordering::SeqCst);
        let act = self.take_act(open.split);
        if act == Act::Silent {
            frames.closed().await;
            return None;
        }
        if let Act::WorkingFor(seconds) = act {
            let mut left = seconds;
            while left != Some(0) {
                tokio::time::sleep(Duration::from_secs(1)).await;
                frames.send(Ok(Frame::Working)).await.ok()?;
                left = left.map(|left| left - 1);
            }
        }
        frames.send(Ok(Frame::Schema(schema(&self.layout)))).await.ok()?;
        let len = self.layout.split_len(open.split);
        let (mut from, mut sent) = (open.start_offset, 0);
        while from < len {
            match act {
                Act::FailAfter(pieces) if sent == pieces => {
                    let gone =
                        ServiceError::new(ServiceErrorKind::Unavailable, "the worker has disconnected");
                    return frames.send(Err(gone)).await.ok();
                }
                Act::EndAfter(pieces) if sent == pieces => return None,
                Act::FailRow(row) if row < from + self.piece_rows => {
                    let message = format!("row {row} cannot be read");
                    return frames.send(Ok(Frame::Failed(message))).await.ok();
                }
                _ => {}
            }
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
            let to = (from + self.piece_rows).min(len);
            let (mut header, data) = self.piece(open.split, from, to);
            if act == Act::SendInvalid {
                header.batch.nodes.clear();
            }
            frames.send(Ok(Frame::Piece(header))).await.ok()?;
            for (index, chunk) in data.chunks(self.chunk_bytes).enumerate() {
                let offset = (index * self.chunk_bytes) as u64;
                if !credit.spend(chunk.len() as u64).await {
                    frames.closed().await;
                    return None;
                }
                frames.send(Ok(Frame::Chunk { offset, data: data.slice_ref(chunk) })).await.ok()?;
            }
            (from, sent) = (to, sent + 1);
        }
        frames.send(Ok(Frame::End)).await.ok()
    }
}

#[async_trait]
impl WorkerService for FakeWorkerService {
    async fn fetch(
        &self,
        mut requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Some(FetchRequest::Open(open)) = requests.next().await else {
            return Err(ServiceError::new(
                ServiceErrorKind::Invalid,
                "the first request of a fetch must be an open request",
            ));
        };
        let worker = Arc::clone(&self.0);
        if worker.has_other_version.load(Ordering::Relaxed) {
            return Err(ServiceError::version_mismatch("the worker has another protocol version"));
        }
        locked(&worker.opened).push(open.clone());
        let not_found = (Some(open.split), Act::NotFound);
        let any_not_found = (None, Act::NotFound);
        let mut acts = locked(&worker.acts);
        if let Some(index) = acts.iter().position(|act| *act == not_found || *act == any_not_found) {
            acts.remove(index);
            return Err(ServiceError::new(ServiceErrorKind::NotFound, "the worker does not hold the split"));
        }
        if let Some((_, Act::Busy(retry_after_ms))) = acts.front() {
            let error = ServiceError::busy("the worker has reached its limit of fetches", *retry_after_ms);
            acts.pop_front();
            return Err(error);
        }
        drop(acts);
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move { worker.serve(open, requests, &sender).await });
        Ok(ReceiverStream::new(receiver).boxed())
    }
}
