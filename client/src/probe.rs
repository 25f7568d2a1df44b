//! Fetches without a job: what `feedline bench` measures is the path from a worker to batches, and nothing else.

use std::sync::Arc;

use feedline_data::ids::JobId;
use feedline_data::layout::SplitRef;
use feedline_proto::WorkerService;
use feedline_proto::services::FetchOpen;
use futures::StreamExt;
use tokio::sync::watch;

use crate::fetch::requests;
use crate::pieces::{FrameEvent, PieceReader};
use crate::receive_pool::ReceivePool;

/// Idle buffers are kept up to this part of the budget, as a consumer does.
const IDLE_SLABS_DIVISOR: u64 = 4;

/// Fetches from one worker as a consumer does, and lets go of each batch when the next one is there. Clones share it.
#[derive(Clone)]
pub struct Probe {
    worker: Arc<dyn WorkerService>,
    pool: Arc<ReceivePool>,
    window_bytes: u64,
}

impl Probe {
    /// A probe that may hold `buffer_bytes` over `fetches` fetches at a time.
    pub fn new(worker: Arc<dyn WorkerService>, buffer_bytes: u64, fetches: u32) -> Self {
        let pool = ReceivePool::new(buffer_bytes / IDLE_SLABS_DIVISOR);
        Self { worker, pool, window_bytes: buffer_bytes / u64::from(fetches.max(1)) }
    }

    /// Fetches the first split of stream `stream` of job `job`; says how many bytes came.
    ///
    /// # Errors
    /// One sentence, when the worker refuses, breaks off or sends what cannot be read.
    pub async fn fetch(&self, job: u64, stream: u32) -> Result<u64, String> {
        let split = SplitRef { epoch: 0, ordinal: 0, stream };
        let open = FetchOpen {
            job: JobId(job),
            split,
            from: 0,
            credit_bytes: self.window_bytes,
            ticket: String::new(),
        };
        let (granted, credit) = watch::channel(self.window_bytes);
        let frames = self.worker.fetch(requests(open, credit)).await;
        let mut frames = frames.map_err(|refusal| refusal.message)?;
        let mut reader = PieceReader::new(Arc::clone(&self.pool));
        let mut total = 0;
        let mut held = None;
        while let Some(frame) = frames.next().await {
            match reader.take(frame.map_err(|refusal| refusal.message)?)? {
                FrameEvent::Nothing | FrameEvent::Working | FrameEvent::Opened(_) | FrameEvent::Bytes(_) => {}
                FrameEvent::Piece { piece, .. } => {
                    let bytes = piece.payload.bytes;
                    total += bytes;
                    drop(held.replace(piece));
                    granted.send_modify(|granted| *granted += bytes);
                }
                FrameEvent::Failed(message) => return Err(message),
                FrameEvent::End => return Ok(total),
            }
        }
        drop(held);
        Err("the stream ended before the split".to_owned())
    }
}
