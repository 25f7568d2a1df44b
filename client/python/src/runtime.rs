//! The threads that everything runs on, one set for each process, and how a Python thread waits for them.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use feedline_node::JobService;
use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};

use crate::errors::{FeedlineError, WrongUse};

/// How often a thread that waits looks whether a signal came, such as Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);

/// The runtime of the process with this id. It lives as long as the process: threads that Python does not know cannot be ended from
/// within an interpreter that shuts down.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The process's runtime, started where there is none yet.
pub(crate) fn handle() -> PyResult<Handle> {
    let mut found = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, runtime)) = &*found {
        check_process(*process)?;
        return Ok(runtime.handle().clone());
    }
    JobService::start_log();
    let runtime = JobService::start_runtime()
        .map_err(|error| FeedlineError::new_err(format!("cannot start threads: {error}; free some")))?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *found = Some((std::process::id(), runtime));
    Ok(runtime.handle().clone())
}

/// Refuses in a child that was forked after Feedline had started: its threads stayed with the parent, so it would wait for ever.
pub(crate) fn check_process(process: u32) -> PyResult<()> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(WrongUse::new_err(
        "feedline was started before this process was forked, and its threads are not here; start child processes with \
         multiprocessing.set_start_method(\"spawn\"), or open jobs in the child alone",
    ))
}

/// Waits for `future` without the GIL. A signal whose handler raises, such as Ctrl-C, ends the wait, and drops the future.
pub(crate) fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let handle = handle()?;
    let mut future = Box::pin(future);
    loop {
        let done =
            py.detach(|| handle.block_on(async { tokio::time::timeout(SIGNALS, &mut future).await.ok() }));
        if let Some(output) = done {
            return Ok(output);
        }
        py.check_signals()?;
    }
}
