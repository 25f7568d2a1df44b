//! Handles SIGINT and SIGTERM: the first signal starts a graceful shutdown, the second exits immediately.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Returns a token that the first signal cancels. Must be called inside a tokio runtime.
pub(crate) fn watch() -> anyhow::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot install the SIGINT handler")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot install the SIGTERM handler")?;
    let stop = CancellationToken::new();
    let first = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if first.is_cancelled() {
                exit_now();
            }
            first.cancel();
        }
    });
    Ok(stop)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a second signal means that the graceful shutdown takes too long"
)]
fn exit_now() {
    std::process::exit(130);
}
