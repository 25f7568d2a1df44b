//! The tokio runtime of this process. Python threads wait for futures without the GIL.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use feedline_node::JobService;
use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};

use crate::errors::{FeedlineError, WrongUse};

/// Interval at which a waiting thread checks for signals, such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// The runtime, and the id of the process that started it. The runtime is never shut down, because the interpreter cannot join its
/// threads at exit.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// Returns the runtime of this process. Starts it at the first call.
pub(crate) fn handle() -> PyResult<Handle> {
    let mut started = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, runtime)) = &*started {
        check_process(*process)?;
        return Ok(runtime.handle().clone());
    }
    JobService::start_log();
    let runtime = JobService::start_runtime().map_err(|error| {
        FeedlineError::new_err(format!(
            "cannot start threads: {error}; raise the thread limit of this process"
        ))
    })?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *started = Some((std::process::id(), runtime));
    Ok(runtime.handle().clone())
}

/// Rejects calls in a forked child of `process`, where the threads of the runtime do not exist.
pub(crate) fn check_process(process: u32) -> PyResult<()> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(WrongUse::new_err(
        "this process was forked after feedline had started its threads, which a fork does not copy; start child processes \
         with multiprocessing.set_start_method(\"spawn\"), or open jobs only in the child",
    ))
}

/// Waits for a future without the GIL. If a signal handler raises an exception, such as for Ctrl-C, cancels the future.
pub(crate) fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let handle = handle()?;
    let mut future = Box::pin(future);
    loop {
        let output = py.detach(|| {
            handle.block_on(async { tokio::time::timeout(SIGNAL_INTERVAL, &mut future).await.ok() })
        });
        if let Some(output) = output {
            return Ok(output);
        }
        py.check_signals()?;
    }
}
