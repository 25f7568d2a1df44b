//! One rank of a job as Python holds it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use feedline_client::{Consumer as ClientConsumer, ConsumerView};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::Batch;
use crate::errors::{FeedlineError, WrongUse, of_client};
use crate::job::SharedOrigins;
use crate::runtime;

/// How often a consumer whose place is not known yet is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// A consumer: takes batches and knows where it stands.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Consumer {
    consumer: Mutex<Option<ClientConsumer>>,
    /// For those who look while another thread waits.
    view: ConsumerView,
    is_mixed: bool,
    origins: SharedOrigins,
    /// Columns of lists that have one length in each batch.
    dense: Arc<[String]>,
    process: u32,
}

impl Consumer {
    pub(crate) fn new(
        consumer: ClientConsumer,
        is_mixed: bool,
        origins: SharedOrigins,
        dense: Arc<[String]>,
    ) -> Self {
        Self {
            view: consumer.view(),
            consumer: Mutex::new(Some(consumer)),
            is_mixed,
            origins,
            dense,
            process: std::process::id(),
        }
    }

    /// Takes the consumer out, so that no lock is held while something is waited for; another thread that comes meanwhile is told.
    fn take(&self) -> PyResult<ClientConsumer> {
        runtime::check_process(self.process)?;
        let consumer = self.consumer.lock().unwrap_or_else(PoisonError::into_inner).take();
        consumer.ok_or_else(|| {
            WrongUse::new_err(
                "the job is closed, or another thread is waiting for a batch of it; use a job in one thread",
            )
        })
    }

    fn put_back(&self, consumer: ClientConsumer) {
        *self.consumer.lock().unwrap_or_else(PoisonError::into_inner) = Some(consumer);
    }

    /// Origins of rows go by the mix as this consumer has it.
    fn follow_mix(&self, consumer: &ClientConsumer) {
        if !self.is_mixed {
            return;
        }
        if let Some(origins) = self.origins.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            consumer.follow_mix(origins);
        }
    }

    fn look(&self) -> PyResult<&ConsumerView> {
        runtime::check_process(self.process)?;
        Ok(&self.view)
    }

    fn with<T>(&self, look: impl FnOnce(&ClientConsumer) -> T) -> PyResult<T> {
        runtime::check_process(self.process)?;
        let guard = self.consumer.lock().unwrap_or_else(PoisonError::into_inner);
        let consumer = guard.as_ref().ok_or_else(|| WrongUse::new_err("the job is closed; open it again"))?;
        Ok(look(consumer))
    }
}

/// In a forked child nothing may be touched: a thread of the parent may have held a lock.
impl Drop for Consumer {
    fn drop(&mut self) {
        if runtime::check_process(self.process).is_err() {
            let consumer = self.consumer.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(consumer.take());
        }
    }
}

/// The next undelivered row of each slot that it owns.
fn places(consumer: &ClientConsumer) -> Vec<(u32, u32, u64)> {
    let positions = consumer.positions();
    positions.into_iter().map(|(slot, position)| (slot, position.epoch, position.row)).collect()
}

#[pymethods]
impl Consumer {
    /// Waits until it is known where this consumer stands, and gives that as [`Self::positions`] does; nothing for a job that has ended.
    fn begin(&self, py: Python<'_>) -> PyResult<Vec<(u32, u32, u64)>> {
        let consumer = self.take()?;
        let begun = runtime::wait(py, async {
            while places(&consumer).is_empty() && !consumer.is_over() {
                tokio::time::sleep(LOOK).await;
            }
        });
        let places = places(&consumer);
        self.put_back(consumer);
        begun.map(|()| places)
    }

    /// The next batch; `None` once nothing more comes.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let mut consumer = self.take()?;
        // Where the batch is here already, no other thread needs to be woken.
        let found = match py.detach(|| consumer.try_next()) {
            Ok(Some(batch)) => Ok(Ok(Some(batch))),
            Ok(None) => runtime::wait(py, consumer.next()),
            Err(error) => Ok(Err(error)),
        };
        let places = places(&consumer);
        self.follow_mix(&consumer);
        self.put_back(consumer);
        let batch = found?.map_err(|error| of_client(&error))?;
        Ok(batch.map(|batch| Batch::new(batch, places, self.origins.clone(), Arc::clone(&self.dense))))
    }

    /// The next batch if it is here already, without waiting; else `None`.
    fn next_if_here(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let mut consumer = self.take()?;
        let found = py.detach(|| consumer.try_next());
        let places = places(&consumer);
        self.follow_mix(&consumer);
        self.put_back(consumer);
        let batch = found.map_err(|error| of_client(&error))?;
        Ok(batch.map(|batch| Batch::new(batch, places, self.origins.clone(), Arc::clone(&self.dense))))
    }

    /// How the weights of the mix have changed, as far as it tells what comes from `epoch` on, as JSON.
    fn mix_from(&self, epoch: u32) -> PyResult<String> {
        let changes = self.look()?.mix_from(epoch);
        serde_json::to_string(&changes).map_err(|error| FeedlineError::new_err(error.to_string()))
    }

    /// Leaves an elastic job: reports what was taken and gives the slots back, so that other ranks go on with them at once.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let mut consumer = self.take()?;
        let left = runtime::wait(py, consumer.leave());
        self.put_back(consumer);
        left?.map_err(|error| of_client(&error))
    }

    /// The slots that it delivers at present.
    fn slots(&self) -> PyResult<Vec<u32>> {
        Ok(self.look()?.slots())
    }

    /// Says that a batch is taken ahead of the loop.
    fn set_ahead(&self) -> PyResult<()> {
        self.with(ClientConsumer::set_ahead)
    }

    /// Says how many seconds this rank takes for the batch of one slot, in place of what is measured.
    fn set_slot_time(&self, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        self.with(|consumer| consumer.set_slot_time(time))
    }

    /// What was delivered so far; times in seconds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.look()?.stats();
        let seconds = |ns: u64| ns as f64 / 1e9;
        let told = PyDict::new(py);
        told.set_item("rows", stats.rows)?;
        told.set_item("batches", stats.batches)?;
        told.set_item("bytes", stats.bytes)?;
        told.set_item("stall_seconds", seconds(stats.stall_ns))?;
        told.set_item("step_seconds", seconds(stats.step_ns))?;
        told.set_item("copy_seconds", seconds(stats.copy_ns))?;
        Ok(told)
    }

    /// Notes seconds that went into copying batches to where they are used.
    fn add_copy(&self, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
        self.with(|consumer| consumer.add_copy(time))
    }

    /// Returns once the coordinator holds what has been taken so far.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let mut consumer = self.take()?;
        let flushed = runtime::wait(py, consumer.flush());
        self.put_back(consumer);
        flushed?.map_err(|error| of_client(&error))
    }

    /// Reports what was taken and ends the consumer, within so many seconds; whether the coordinator holds it. A second call does nothing.
    fn close(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        if runtime::check_process(self.process).is_err() {
            return Ok(true);
        }
        let bound = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        let consumer = self.consumer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match consumer {
            // The job may have ended, or its coordinator gone: there is nobody left to tell.
            Some(consumer) => {
                let closed =
                    runtime::wait(py, async { tokio::time::timeout(bound, consumer.close()).await })?;
                Ok(matches!(closed, Ok(Ok(()))))
            }
            None => Ok(true),
        }
    }
}
