//! Fetches splits without a job, so that `feedline bench` measures only the path from a worker to batches.

use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_proto::WorkerService;
use feedline_proto::services::FetchOpen;
use futures::StreamExt;
use tokio::sync::watch;

use crate::fetch::request_stream;
use crate::pieces::{FrameEvent, PieceReader};
use crate::receive_pool::ReceivePool;

/// Idle receive buffers may use at most 1 / `IDLE_BUFFERS_DIVISOR` of the budget, as in a consumer.
const IDLE_BUFFERS_DIVISOR: u64 = 4;

/// Fetches from one worker like a consumer. Releases each piece when the next piece has arrived. Clones share the receive buffers.
#[derive(Clone)]
pub struct Probe {
    worker: Arc<dyn WorkerService>,
    pool: Arc<ReceivePool>,
    window_bytes: u64,
}

impl Probe {
    /// Creates a probe that buffers at most `buffer_bytes` in `fetches` concurrent fetches.
    pub fn new(worker: Arc<dyn WorkerService>, buffer_bytes: u64, fetches: u32) -> Self {
        let pool = ReceivePool::new(buffer_bytes / IDLE_BUFFERS_DIVISOR);
        Self { worker, pool, window_bytes: buffer_bytes / u64::from(fetches.max(1)) }
    }

    /// Fetches the first split of a stream. Returns the number of received bytes.
    ///
    /// # Errors
    /// Returns an error if the worker rejects the fetch, disconnects or sends invalid frames.
    pub async fn fetch(&self, job: u64, stream: u32) -> Result<u64, String> {
        let split = SplitRef { epoch: 0, ordinal: 0, stream };
        let open = FetchOpen {
            job: JobId(job),
            split,
            start_offset: 0,
            credit_bytes: self.window_bytes,
            ticket: String::new(),
            cached_features: Vec::new(),
        };
        let (granted, credit) = watch::channel(self.window_bytes);
        let frames = self.worker.fetch(request_stream(open, credit)).await;
        let mut frames = frames.map_err(|error| error.message)?;
        let mut reader = PieceReader::new(Arc::clone(&self.pool), None);
        let mut total = 0;
        let mut last = None;
        while let Some(frame) = frames.next().await {
            match reader.read(frame.map_err(|error| error.message)?)? {
                FrameEvent::None
                | FrameEvent::Working
                | FrameEvent::PieceOpened(_)
                | FrameEvent::Bytes(_) => {}
                FrameEvent::Piece { piece, .. } => {
                    let bytes = piece.payload.bytes;
                    total += bytes;
                    drop(last.replace(piece));
                    granted.send_modify(|granted| *granted += bytes);
                }
                FrameEvent::RowFailed(message) => return Err(message),
                FrameEvent::End => return Ok(total),
            }
        }
        drop(last);
        Err("the stream ended before the end of the split".to_owned())
    }
}
