//! Settings of a client.

use serde::{Deserialize, Serialize};

/// Settings of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientSettings {
    /// Splits of each stream that are fetched concurrently, at least; 4 by default. More are fetched where more workers compute
    /// them.
    pub splits_ahead: u32,
    /// Bytes of batches that are buffered or in flight, for all streams; 256 MiB by default. A quarter is for idle receive buffers.
    /// The next batch may exceed this budget, so that a single large batch arrives.
    pub buffer_bytes: u64,
    /// Milliseconds without a coordinator after which the client fails; 60 000 by default.
    pub patience_ms: u64,
    /// Milliseconds for which the client retries at a busy coordinator, such as one whose tenant runs too many jobs; 60 000 by
    /// default.
    pub admission_ms: u64,
    /// Milliseconds between reports of deliveries; 200 by default.
    pub report_ms: u64,
    /// Milliseconds without progress after which a split is fetched from a second worker that holds it; 200 by default.
    pub hedge_ms: u64,
    /// Milliseconds without progress after which a fetch is aborted; 10 000 by default. Doubles with each aborted fetch of a split,
    /// so that rows arrive that take longer to compute.
    pub fetch_idle_ms: u64,
    /// The CUDA device to which the user copies batches: a batch of one piece is then received into pinned memory. `None` by
    /// default.
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

/// Idle receive buffers may use this fraction of the budget.
const IDLE_DIVISOR: u64 = 4;

impl ClientSettings {
    /// Bytes of idle receive buffers.
    pub(crate) fn idle_bytes(&self) -> u64 {
        self.buffer_bytes / IDLE_DIVISOR
    }

    /// Bytes of batches that are buffered or in flight.
    pub(crate) fn credit_bytes(&self) -> u64 {
        self.buffer_bytes - self.idle_bytes()
    }

    /// Validates the values.
    ///
    /// # Errors
    /// Returns a message.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.splits_ahead == 0 {
            return Err(
                "invalid splits_ahead 0: the consumer would fetch nothing; set it to 1 or more".to_owned()
            );
        }
        if self.buffer_bytes == 0 {
            return Err("invalid buffer_bytes 0: the consumer would fetch nothing; set it to 1 or more, such as 268435456".to_owned());
        }
        Ok(())
    }
}
