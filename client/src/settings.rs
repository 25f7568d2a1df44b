//! Settings of a client.

use serde::{Deserialize, Serialize};

/// Settings of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientSettings {
    /// Minimum number of splits per stream that are fetched concurrently. The default is 4. The number is higher if more workers
    /// compute splits of the job.
    pub splits_ahead: u32,
    /// Maximum number of bytes that are buffered or in flight, for all streams. The default is 256 MiB. A quarter is reserved for
    /// idle receive buffers. A single batch that is larger than the budget can still be received.
    pub buffer_bytes: u64,
    /// Maximum time in milliseconds without a coordinator. After that time, the client fails. The default is 60 000.
    pub patience_ms: u64,
    /// Maximum time in milliseconds that the client retries while the coordinator is busy, for example because a tenant
    /// runs too many jobs. The default is 60 000.
    pub admission_ms: u64,
    /// Maximum time in milliseconds that the client retries while coordinators or workers have another protocol version, as
    /// during a rolling upgrade. The default is 600 000.
    pub upgrade_ms: u64,
    /// Interval between delivery reports in milliseconds. The default is 200.
    pub report_ms: u64,
    /// Time in milliseconds without progress after which a split is also fetched from a second worker. The default is 200.
    pub hedge_ms: u64,
    /// Time in milliseconds without progress after which a fetch is aborted. The default is 10 000. The time doubles with each aborted
    /// fetch of a split, so that rows that take long to compute arrive eventually.
    pub fetch_idle_ms: u64,
    /// The CUDA device that the user copies batches to. If set, batches that consist of one piece are received into
    /// pinned memory. The default is `None`.
    pub gpu: Option<u32>,
    /// Maximum number of bytes of rows of node features that each consumer of a job with sampled graphs keeps in memory, in addition to
    /// `buffer_bytes`. Workers omit these rows from batches. The default is 0.
    pub feature_cache_bytes: u64,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            splits_ahead: 4,
            buffer_bytes: 256 << 20,
            patience_ms: 60_000,
            admission_ms: 60_000,
            upgrade_ms: 600_000,
            report_ms: 200,
            hedge_ms: 200,
            fetch_idle_ms: 10_000,
            gpu: None,
            feature_cache_bytes: 0,
        }
    }
}

/// Idle receive buffers may use at most 1 / `IDLE_DIVISOR` of the budget.
const IDLE_DIVISOR: u64 = 4;

impl ClientSettings {
    /// Maximum size of all idle receive buffers.
    pub(crate) fn idle_bytes(&self) -> u64 {
        self.buffer_bytes / IDLE_DIVISOR
    }

    /// Maximum number of bytes that are buffered or in flight, without idle receive buffers.
    pub(crate) fn credit_bytes(&self) -> u64 {
        self.buffer_bytes - self.idle_bytes()
    }

    /// The size of a buffer with at least this number of bytes that are buffered or in flight.
    pub(crate) fn buffer_for_credit(credit_bytes: u64) -> u64 {
        credit_bytes.div_ceil(IDLE_DIVISOR - 1).saturating_mul(IDLE_DIVISOR)
    }

    /// Validates the values.
    ///
    /// # Errors
    /// Returns an error if a value is invalid.
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
