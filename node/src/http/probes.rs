//! The probes of a role for orchestrators: `/healthz`, `/readyz` and `/startupz`. A probe starts no work and reveals only
//! the state of the role.

use std::fmt;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

/// Returns `Ok` if the process is ready, otherwise the reason.
pub(crate) type Readiness = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Returns `Ok` while the tasks of the role run, otherwise which task has ended.
pub(crate) type Liveness = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// An answer to a probe.
type ProbeAnswer = (StatusCode, String);

/// The answers to the probes of a role. All HTTP servers of the role share them.
#[derive(Clone, Default)]
pub(super) struct RoleProbes {
    /// The readiness check; empty while the role starts.
    readiness: Arc<OnceLock<Readiness>>,
    /// The liveness check; empty before the tasks of the role start, and in a process without a role.
    liveness: Arc<OnceLock<Liveness>>,
}

impl fmt::Debug for RoleProbes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.readiness.get().is_some() { "started" } else { "starting" })
    }
}

impl RoleProbes {
    /// Marks the role as started, and sets its readiness check.
    pub(super) fn set_started(&self, readiness: Readiness) {
        // This fails only if the check is already set, but a role calls this method once.
        let _ = self.readiness.set(readiness);
    }

    /// Sets the liveness check of the role.
    pub(super) fn set_liveness(&self, liveness: Liveness) {
        // This fails only if the check is already set, but a role calls this method once.
        let _ = self.liveness.set(liveness);
    }

    /// Returns the routes of the probes.
    pub(super) fn routes(&self) -> Router {
        Router::new()
            .route("/healthz", get(answer_liveness))
            .route("/readyz", get(answer_readiness))
            .route("/startupz", get(answer_startup))
            .with_state(self.clone())
    }
}

/// Answers the liveness probe. It does not depend on other processes, because a restart would not help against their
/// failures.
async fn answer_liveness(State(probes): State<RoleProbes>) -> ProbeAnswer {
    match probes.liveness.get().map_or(Ok(()), |check| check()) {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("unhealthy: {reason}\n")),
    }
}

async fn answer_readiness(State(probes): State<RoleProbes>) -> ProbeAnswer {
    let readiness = probes.readiness.get().map_or_else(|| Err("starting".to_owned()), |check| check());
    match readiness {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

/// Answers the startup probe. It does not depend on other processes: a coordinator that waits for a leader, or to join a
/// cluster, has started.
async fn answer_startup(State(probes): State<RoleProbes>) -> ProbeAnswer {
    match probes.readiness.get() {
        Some(_) => (StatusCode::OK, "started\n".to_owned()),
        None => (StatusCode::SERVICE_UNAVAILABLE, "starting\n".to_owned()),
    }
}
