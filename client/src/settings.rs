//! What a client is told.

use serde::{Deserialize, Serialize};

/// Settings of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientSettings {
    /// Splits of each stream that are fetched at the same time; 4 by default.
    pub splits_ahead: u32,
    /// Bytes of batches held or on their way, whatever the number of streams; 256 MiB by default. The next batch is
    /// fetched in any case, so that a single large one always fits. A quarter is for buffers that wait to be used again.
    pub buffer_bytes: u64,
    /// Milliseconds without a coordinator after which the client gives up; 60 000 by default.
    pub patience_ms: u64,
    /// Milliseconds for which the client asks again where the coordinator has no room, such as for one more job of its tenant;
    /// 60 000 by default.
    pub admission_ms: u64,
    /// Milliseconds between reports of what was consumed; 200 by default.
    pub report_ms: u64,
    /// Milliseconds after which a silent worker's split is fetched from a second worker that holds it; 200 by default.
    pub hedge_ms: u64,
    /// Milliseconds after which a fetch that delivers nothing is given up; 10 000 by default. Doubles each time for
    /// the same split, so that rows which take longer than this to compute arrive in the end.
    pub fetch_idle_ms: u64,
    /// The GPU to which batches are copied, as CUDA counts those that the process may see: batches are then received into pinned
    /// memory, as long as a batch is one piece. `None`, the default, where there is no such GPU.
    pub gpu: Option<u32>,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            splits_ahead: 4,
            buffer_bytes: 256 << 20,
            patience_ms: 60_000,
            admission_ms: 60_000,
            report_ms: 200,
            hedge_ms: 200,
            fetch_idle_ms: 10_000,
            gpu: None,
        }
    }
}

/// Part of the buffer that idle buffers may take.
const IDLE_PART: u64 = 4;

impl ClientSettings {
    /// Bytes of buffers that wait to be used again.
    pub(crate) fn idle_bytes(&self) -> u64 {
        self.buffer_bytes / IDLE_PART
    }

    /// Bytes of batches held or on their way.
    pub(crate) fn credit_bytes(&self) -> u64 {
        self.buffer_bytes - self.idle_bytes()
    }

    /// Checks the values.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.splits_ahead == 0 {
            return Err("splits_ahead is 0, so nothing would be fetched; set it to 1 or more".to_owned());
        }
        if self.buffer_bytes == 0 {
            return Err("buffer_bytes is 0, so nothing would be fetched; 268435456 is usual".to_owned());
        }
        Ok(())
    }
}
