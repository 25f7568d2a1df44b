//! A consumer as a Python object.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedline_client::{Batch as ClientBatch, ClientError, Consumer as ClientConsumer, ConsumerView};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::{Batch, SlotPositionTuple, skipped_rows};
use crate::errors::{FeedlineError, WrongUse, from_client};
use crate::origins::SharedOrigins;
use crate::runtime;

/// Interval at which to check whether the start position of a consumer is known.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A consumer, which returns batches with the positions after them.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Consumer {
    consumer: Mutex<Option<ClientConsumer>>,
    /// Used by calls that may run while another thread waits for a batch.
    view: ConsumerView,
    is_mixed: bool,
    origins: SharedOrigins,
    /// List columns that are padded to one length per batch.
    dense_columns: Arc<[String]>,
    process: u32,
}

impl Consumer {
    pub(crate) fn new(
        consumer: ClientConsumer,
        is_mixed: bool,
        origins: SharedOrigins,
        dense_columns: Arc<[String]>,
    ) -> Self {
        Self {
            view: consumer.view(),
            consumer: Mutex::new(Some(consumer)),
            is_mixed,
            origins,
            dense_columns,
            process: std::process::id(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ClientConsumer>> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the consumer for a blocking call, so that the call holds no lock. Concurrent calls raise `WrongUse`.
    fn take(&self) -> PyResult<ClientConsumer> {
        runtime::check_process(self.process)?;
        self.lock().take().ok_or_else(|| {
            WrongUse::new_err(
                "the job is closed, or another thread is waiting for its next batch; use a job in one thread",
            )
        })
    }

    fn restore(&self, consumer: ClientConsumer) {
        *self.lock() = Some(consumer);
    }

    fn view(&self) -> PyResult<&ConsumerView> {
        runtime::check_process(self.process)?;
        Ok(&self.view)
    }

    fn with<T>(&self, call: impl FnOnce(&ClientConsumer) -> T) -> PyResult<T> {
        runtime::check_process(self.process)?;
        let guard = self.lock();
        let consumer = guard.as_ref().ok_or_else(|| WrongUse::new_err("the job is closed; open it again"))?;
        Ok(call(consumer))
    }

    /// Restores the consumer after a call that may have returned a batch, and converts the batch.
    fn finish(
        &self,
        consumer: ClientConsumer,
        batch: PyResult<Result<Option<ClientBatch>, ClientError>>,
    ) -> PyResult<Option<Batch>> {
        let positions = slot_positions(&consumer);
        if self.is_mixed
            && let Some(origins) = self.origins.lock().as_mut()
        {
            consumer.update_mix(origins);
        }
        self.restore(consumer);
        let batch = batch?.map_err(|error| from_client(&error))?;
        let (origins, dense_columns) = (self.origins.clone(), Arc::clone(&self.dense_columns));
        Ok(batch.map(|batch| Batch::new(batch, positions, origins, dense_columns)))
    }
}

/// In a forked child, leaks the consumer, because a thread of the parent may have held one of its locks during the fork.
impl Drop for Consumer {
    fn drop(&mut self) {
        if runtime::check_process(self.process).is_err() {
            let consumer = self.consumer.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(consumer.take());
        }
    }
}

/// Returns the next undelivered row of each slot of the consumer.
fn slot_positions(consumer: &ClientConsumer) -> Vec<SlotPositionTuple> {
    let positions = consumer.positions();
    positions.into_iter().map(|(slot, position)| (slot, position.epoch, position.row)).collect()
}

#[pymethods]
impl Consumer {
    /// Waits for the start position of the consumer, and returns it as `(slot, epoch, row)`. Empty for an ended job.
    fn start_position(&self, py: Python<'_>) -> PyResult<Vec<SlotPositionTuple>> {
        let consumer = self.take()?;
        let waited = runtime::wait(py, async {
            while slot_positions(&consumer).is_empty() && !consumer.is_ended() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        let positions = slot_positions(&consumer);
        self.restore(consumer);
        waited.map(|()| positions)
    }

    /// Waits for the next batch. Returns `None` after the last batch.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let mut consumer = self.take()?;
        // A batch that has arrived needs no thread of the runtime.
        let batch = match py.detach(|| consumer.try_next()) {
            Ok(None) => runtime::wait(py, consumer.next()),
            result => Ok(result),
        };
        self.finish(consumer, batch)
    }

    /// Returns the next batch if it has arrived, otherwise `None`.
    fn try_next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let mut consumer = self.take()?;
        let batch = py.detach(|| consumer.try_next());
        self.finish(consumer, Ok(batch))
    }

    /// Returns the mix changes that affect rows from `epoch` on, as JSON.
    fn mix_from(&self, epoch: u32) -> PyResult<String> {
        let changes = self.view()?.mix_changes_from(epoch);
        serde_json::to_string(&changes).map_err(|error| FeedlineError::new_err(error.to_string()))
    }

    /// Rows that failed since the last batch: `(shard, offset, reason)`.
    fn skipped(&self) -> PyResult<Vec<(String, u64, String)>> {
        Ok(skipped_rows(&self.view()?.trailing()))
    }

    /// Leaves an elastic job: reports all deliveries and releases the slots to other ranks.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let mut consumer = self.take()?;
        let left = runtime::wait(py, consumer.leave());
        self.restore(consumer);
        left?.map_err(|error| from_client(&error))
    }

    /// Returns the slots whose batches the consumer currently delivers.
    fn slots(&self) -> PyResult<Vec<u32>> {
        Ok(self.view()?.slots())
    }

    /// Declares that the training loop prefetches one batch.
    fn set_prefetching(&self) -> PyResult<()> {
        self.with(ClientConsumer::set_prefetching)
    }

    /// Sets the time in seconds that this rank needs for a batch of one slot. This time replaces measurements.
    fn set_batch_time(&self, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        self.with(|consumer| consumer.set_batch_time(time))
    }

    /// Returns the statistics of the consumer: counts of deliveries, and times in seconds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.view()?.stats();
        let seconds = |ns: u64| ns as f64 / 1e9;
        let values = PyDict::new(py);
        values.set_item("rows", stats.rows)?;
        values.set_item("batches", stats.batches)?;
        values.set_item("bytes", stats.bytes)?;
        values.set_item("skipped_rows", stats.skipped_rows)?;
        values.set_item("stall_seconds", seconds(stats.stall_ns))?;
        values.set_item("step_seconds", seconds(stats.step_ns))?;
        values.set_item("copy_seconds", seconds(stats.copy_ns))?;
        Ok(values)
    }

    /// Adds seconds that the user spent copying batches.
    fn add_copy(&self, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        self.with(|consumer| consumer.add_copy(time))
    }

    /// Waits until the coordinator has acknowledged all deliveries.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let mut consumer = self.take()?;
        let flushed = runtime::wait(py, consumer.flush());
        self.restore(consumer);
        flushed?.map_err(|error| from_client(&error))
    }

    /// Flushes and closes the consumer within `seconds`. Returns whether the coordinator has acknowledged all deliveries. Returns `True`
    /// if the consumer is already closed.
    fn close(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        if runtime::check_process(self.process).is_err() {
            return Ok(true);
        }
        let timeout = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        let consumer = self.lock().take();
        let Some(consumer) = consumer else { return Ok(true) };
        let closed = runtime::wait(py, async { tokio::time::timeout(timeout, consumer.close()).await })?;
        Ok(matches!(closed, Ok(Ok(()))))
    }
}
