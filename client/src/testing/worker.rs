//! A worker that computes rows as they are fetched, keeps to the credit it is given, and misbehaves as told.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{Int64Array, RecordBatch};
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

/// What a worker does with one fetch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Act {
    Serve,
    /// Breaks off after this many pieces.
    BreakAfter(u32),
    /// Ends the stream without `End` after this many pieces.
    EndAfter(u32),
    NotHere,
    /// Has no room for so many milliseconds.
    Busy(u64),
    /// Opens the stream and sends nothing.
    Silent,
    /// Says every second that it goes on, for so many seconds or for ever, before it serves.
    WorkingFor(Option<u32>),
    /// The row at this offset fails.
    FailAt(u32),
    /// Sends what cannot be read.
    Garbage,
}

/// A worker of tests.
pub(crate) struct FakeWorker {
    layout: Layout,
    /// Input rows of a piece.
    pub(crate) cut: u32,
    pub(crate) chunk_bytes: usize,
    /// Time before each piece.
    pub(crate) pause: Duration,
    /// Which rows remain; `None` when all do.
    pub(crate) keep: Option<fn(u64) -> bool>,
    acts: Mutex<VecDeque<(Option<SplitRef>, Act)>>,
    opened: Mutex<Vec<FetchOpen>>,
    /// Bytes sent, and bytes that open fetches may still send.
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) credit_bytes: AtomicU64,
}

/// The service of a worker.
pub(super) struct Served(pub(super) Arc<FakeWorker>);

impl FakeWorker {
    pub(crate) fn new(layout: &Layout, cut: u32) -> Self {
        Self {
            layout: layout.clone(),
            cut,
            chunk_bytes: 100,
            pause: Duration::ZERO,
            keep: None,
            acts: Mutex::new(VecDeque::new()),
            opened: Mutex::new(Vec::new()),
            sent_bytes: AtomicU64::new(0),
            credit_bytes: AtomicU64::new(0),
        }
    }

    /// The next fetch of any split does this.
    pub(crate) fn next_fetch(self, act: Act) -> Self {
        locked(&self.acts).push_back((None, act));
        self
    }

    /// The next fetch of the `ordinal`-th split of stream 0 does this.
    pub(crate) fn next_fetch_of(self, ordinal: u64, act: Act) -> Self {
        let split = SplitRef { epoch: 0, ordinal, stream: 0 };
        locked(&self.acts).push_back((Some(split), act));
        self
    }

    /// What was fetched so far: (ordinal, from).
    pub(crate) fn fetched(&self) -> Vec<(u64, u32)> {
        locked(&self.opened).iter().map(|open| (open.split.ordinal, open.from)).collect()
    }

    fn act_for(&self, split: SplitRef) -> Act {
        let mut acts = locked(&self.acts);
        let place = acts.iter().position(|(of, _)| of.is_none_or(|of| of == split));
        place.and_then(|place| acts.remove(place)).map_or(Act::Serve, |(_, act)| act)
    }

    fn piece(&self, split: SplitRef, from: u32, to: u32) -> (PieceHeader, bytes::Bytes) {
        let offsets: Vec<u32> = (from..to)
            .filter(|&offset| self.keep.is_none_or(|keep| keep(number(&self.layout, split, offset))))
            .collect();
        let ids: Vec<i64> =
            offsets.iter().map(|&offset| number(&self.layout, split, offset) as i64).collect();
        let rows = ids.len() as u32;
        let batch =
            RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from(ids))]).expect("one column");
        let (batch, data) = encode_batch(&batch).expect("numbers can be encoded");
        let row_ids = (from..to).map(|offset| number(&self.layout, split, offset) % self.layout.dataset_rows);
        let kept = self.keep.map(|_| offsets);
        let header = PieceHeader {
            from,
            to,
            rows,
            kept,
            row_ids: Some(row_ids.collect()),
            skipped: Vec::new(),
            batch,
        };
        (header, data)
    }
}

pub(crate) fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]))
}

/// What one fetch may send.
struct Credit<'a> {
    left: u64,
    requests: BoxStream<'static, FetchRequest>,
    worker: &'a FakeWorker,
}

impl Credit<'_> {
    /// Waits until `bytes` may be sent; `false` when they never may.
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
    /// Sends a fetch's frames; `None` when nobody listens any more.
    async fn serve(
        &self,
        open: FetchOpen,
        requests: BoxStream<'static, FetchRequest>,
        frames: &Frames,
    ) -> Option<()> {
        let mut credit = Credit { left: open.credit_bytes, requests, worker: self };
        self.credit_bytes.fetch_add(open.credit_bytes, Ordering::SeqCst);
        let act = self.act_for(open.split);
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
        frames.send(Ok(Frame::Schema(schema()))).await.ok()?;
        let len = self.layout.split_len(open.split);
        let (mut from, mut sent) = (open.from, 0);
        while from < len {
            match act {
                Act::BreakAfter(pieces) if sent == pieces => {
                    let gone = ServiceError::new(ServiceErrorKind::Unavailable, "the worker is gone");
                    return frames.send(Err(gone)).await.ok();
                }
                Act::EndAfter(pieces) if sent == pieces => return None,
                Act::FailAt(row) if row < from + self.cut => {
                    let message = format!("row {row} cannot be read");
                    return frames.send(Ok(Frame::Failed(message))).await.ok();
                }
                _ => {}
            }
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
            let to = (from + self.cut).min(len);
            let (mut header, data) = self.piece(open.split, from, to);
            if act == Act::Garbage {
                header.batch.nodes.clear();
            }
            frames.send(Ok(Frame::Piece(header))).await.ok()?;
            for (place, chunk) in data.chunks(self.chunk_bytes).enumerate() {
                let offset = (place * self.chunk_bytes) as u64;
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
impl WorkerService for Served {
    async fn fetch(
        &self,
        mut requests: BoxStream<'static, FetchRequest>,
    ) -> Result<BoxStream<'static, Result<Frame, ServiceError>>, ServiceError> {
        let Some(FetchRequest::Open(open)) = requests.next().await else {
            return Err(ServiceError::new(ServiceErrorKind::Invalid, "a fetch begins with its opening"));
        };
        let worker = Arc::clone(&self.0);
        locked(&worker.opened).push(open.clone());
        let not_here = (Some(open.split), Act::NotHere);
        let any_not_here = (None, Act::NotHere);
        let mut acts = locked(&worker.acts);
        if let Some(place) = acts.iter().position(|act| *act == not_here || *act == any_not_here) {
            acts.remove(place);
            return Err(ServiceError::new(ServiceErrorKind::NotFound, "the split is not here"));
        }
        if let Some((_, Act::Busy(retry_after_ms))) = acts.front() {
            let refusal = ServiceError::busy("this worker serves as many fetches as it may", *retry_after_ms);
            acts.pop_front();
            return Err(refusal);
        }
        drop(acts);
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move { worker.serve(open, requests, &sender).await });
        Ok(ReceiverStream::new(receiver).boxed())
    }
}
